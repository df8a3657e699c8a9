import { useApp } from "../app";
import { saveCanvas, saveSvg } from "../pictures";
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
      {source.exportUrl && (
        <>
          <a href={source.exportUrl(name, params, "csv")} download={`${name}.csv`}>CSV</a>
          <a href={source.exportUrl(name, params, "parquet")} download={`${name}.parquet`}>Parquet</a>
        </>
      )}
      {picture && <PictureButtons name={name} find={picture === true ? undefined : picture} />}
    </span>
  );
}

/** Saves a picture: by default that of the <section> around. */
export function PictureButtons({ name, find }: { name: string; find?: () => Picture }) {
  const save = (button: HTMLElement, format: "svg" | "png") => {
    const found = find ? find() : button.closest("section")?.querySelector<SVGSVGElement>(".chart svg");
    if (found instanceof SVGSVGElement) void saveSvg(found, `${name}.${format}`);
    else if (found) saveCanvas(found, `${name}.png`);
  };
  return (
    <span class="export">
      <button type="button" class="link" onClick={(event) => save(event.currentTarget, "svg")}>SVG</button>
      <button type="button" class="link" onClick={(event) => save(event.currentTarget, "png")}>PNG</button>
    </span>
  );
}
