import { useApp } from "../app";
import { saveCanvas, saveSvg } from "../pictures";
import type { Params } from "../source";

interface Props {
  /** The query whose table is saved, with its parameters. */
  name: string;
  params: Params;
  /** Finds the picture: an <svg> or a <canvas>, or nothing. */
  picture?: () => SVGSVGElement | HTMLCanvasElement | null | undefined;
}

/** Saves a view's table and its picture. */
export function ExportMenu({ name, params, picture }: Props) {
  const { source } = useApp();
  const save = (format: "svg" | "png") => {
    const found = picture?.();
    if (found instanceof SVGSVGElement) void saveSvg(found, `${name}.${format}`);
    else if (found) saveCanvas(found, `${name}.png`);
  };
  return (
    <span class="export" role="group" aria-label="Export">
      <span class="label">Export</span>
      {source.exportUrl && (
        <>
          <a href={source.exportUrl(name, params, "csv")} download={`${name}.csv`}>CSV</a>
          <a href={source.exportUrl(name, params, "parquet")} download={`${name}.parquet`}>Parquet</a>
        </>
      )}
      {picture && (
        <>
          <button type="button" class="link" onClick={() => save("svg")}>SVG</button>
          <button type="button" class="link" onClick={() => save("png")}>PNG</button>
        </>
      )}
    </span>
  );
}
