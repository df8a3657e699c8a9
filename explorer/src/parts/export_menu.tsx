import { useApp } from "../app";
import { saveCanvas, saveSvg } from "../pictures";
import type { Params } from "../source";

interface Props {
  /** The query whose table is saved, with its parameters. */
  name: string;
  params: Params;
  /** Whether the <section> around has a picture: a figure's <svg>, or a <canvas>. */
  picture?: boolean;
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
      {picture && <PictureButtons name={name} />}
    </span>
  );
}

/** Saves the picture of the <section> around. */
export function PictureButtons({ name }: { name: string }) {
  const save = (button: HTMLElement, format: "svg" | "png") => {
    const section = button.closest("section");
    const svg = section?.querySelector<SVGSVGElement>(".chart svg");
    const canvas = section?.querySelector("canvas");
    if (svg) void saveSvg(svg, `${name}.${format}`);
    else if (canvas) saveCanvas(canvas, `${name}.png`);
  };
  return (
    <span class="export">
      <button type="button" class="link" onClick={(event) => save(event.currentTarget, "svg")}>SVG</button>
      <button type="button" class="link" onClick={(event) => save(event.currentTarget, "png")}>PNG</button>
    </span>
  );
}
