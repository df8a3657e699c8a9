import { useState } from "preact/hooks";
import { useApp } from "../app";
import { save, saveCanvas, saveSvg } from "../pictures";
import type { Params } from "../source";

type Picture = SVGSVGElement | HTMLCanvasElement | null | undefined;

interface Props {
  /** The query whose table is saved, with its parameters. */
  name: string;
  params: Params;
  /** Finds the picture; `true` for that of the <section> around. */
  picture?: boolean | (() => Picture);
}

/** Saves a view's table and its picture. */
export function ExportMenu({ name, params, picture = false }: Props) {
  const { source } = useApp();
  return (
    <span class="export" role="group" aria-label={`Export ${name}`}>
      {source.exportUrl && <TableLink name={name} params={params} format="csv" title="CSV" />}
      {source.exportUrl && <TableLink name={name} params={params} format="parquet" title="Parquet" />}
      {picture && <PictureButtons name={name} find={picture === true ? undefined : picture} />}
    </span>
  );
}

interface TableProps { name: string; params: Params; format: "csv" | "parquet"; title: string }

/** A link to a table, or where its address would be too long, as of many rows, a button that fetches it. */
function TableLink({ name, params, format, title }: TableProps) {
  const { source } = useApp();
  const [state, setState] = useState<string>();
  const address = source.exportUrl!(name, params, format);
  const file = `${name}.${format}`;
  if (address) return <a href={address} download={file}>{title}</a>;
  const fetched = () => {
    setState("");
    source.exported!(name, params, format).then(
      (blob) => {
        save(blob, file);
        setState(undefined);
      },
      (error: Error) => setState(error.message),
    );
  };
  return (
    <>
      <button type="button" class="link" disabled={state === ""} onClick={fetched}>{title}</button>
      {state && <span class="warn" role="alert">{state}</span>}
    </>
  );
}

/** Saves a picture: by default that of the <section> around; one that is found is a canvas, which has no SVG. */
export function PictureButtons({ name, find }: { name: string; find?: () => Picture }) {
  const save = (button: HTMLElement, format: "svg" | "png") => {
    const found = find ? find() : button.closest("section")?.querySelector<SVGSVGElement>(".chart svg");
    if (found instanceof SVGSVGElement) void saveSvg(found, `${name}.${format}`);
    else if (found) saveCanvas(found, `${name}.png`);
  };
  return (
    <span class="export">
      {!find && <button type="button" class="link" onClick={(event) => save(event.currentTarget, "svg")}>SVG</button>}
      <button type="button" class="link" onClick={(event) => save(event.currentTarget, "png")}>PNG</button>
    </span>
  );
}
