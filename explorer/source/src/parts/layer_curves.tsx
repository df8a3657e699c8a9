import * as Plot from "@observablehq/plot";
import { color } from "../palette";
import { Chart } from "./chart";

export interface CurvePoint {
  layer: number;
  series: string;
  value: number | null;
  low?: number | null;
  high?: number | null;
}

interface Props {
  points: CurvePoint[];
  label: string;
  title: string;
  height?: number;
  /** The layer that is marked. */
  layer?: number;
  /** The order of the series, hence their colours and dashes. */
  series?: string[];
}

const DASHES = ["none", "5 3", "2 3", "8 3 2 3", "1 2"];

/** Values by layer as one curve a series, named at its end, with intervals where there are any. */
export function LayerCurves({ points, label, title, height = 260, layer, series = [...new Set(points.map((point) => point.series))] }: Props) {
  const layers = [...new Set(points.map((point) => point.layer))].sort((a, b) => a - b);
  const known = points.filter((point): point is CurvePoint & { value: number } => point.value !== null);
  const values = known.map((point) => point.value);
  const nearZero = Math.min(...values) < 0.3 * Math.max(...values) || new Set(values).size === 1 || layers.length === 1;
  const stroke = (point: CurvePoint) => color(series.indexOf(point.series));
  const options = (width: number): Plot.PlotOptions => ({
    height,
    marginRight: Math.min(150, 20 + 6.6 * Math.max(...series.map((name) => name.length), 0)),
    marginLeft: 44,
    x: { label: "layer", ticks: layers.filter((_, at) => at % Math.ceil((layers.length * 26) / Math.max(52, width - 150)) === 0), tickFormat: "d", labelAnchor: "center", labelArrow: "none" },
    y: { label, labelArrow: "none", grid: true, nice: true, zero: nearZero, ticks: Math.max(3, height / 48) },
    marks: [
      ...(layer === undefined ? [] : [Plot.ruleX([layer], { stroke: "var(--control)", strokeDasharray: "2 2" })]),
      Plot.areaY(known.filter((point) => point.low != null && point.high != null), {
        x: "layer", y1: "low", y2: "high", z: "series", fill: stroke, fillOpacity: 0.16,
      }),
      ...series.map((name, position) =>
        Plot.lineY(known.filter((point) => point.series === name), {
          x: "layer", y: "value", stroke: color(position), strokeWidth: 2, strokeDasharray: DASHES[Math.floor(position / 8)] ?? "none",
        })),
      Plot.dot(known, { x: "layer", y: "value", fill: stroke, r: 2.5 }),
      Plot.text(ends(known, series), {
        x: "layer", y: "shown", text: "series", textAnchor: "start", dx: 8, fill: stroke, fontWeight: 600,
      }),
      Plot.tip(known, Plot.pointer({
        x: "layer", y: "value", fill: "var(--raised)", stroke: "var(--line)",
        title: (point: CurvePoint & { value: number }) =>
          `${point.series}\nlayer ${point.layer}: ${point.value.toFixed(4)}` +
          (point.low != null && point.high != null ? `\n95 % interval ${point.low.toFixed(4)} to ${point.high.toFixed(4)}` : ""),
      })),
    ],
  });
  /** The last point of each curve, moved apart so that the names do not overlap. */
  function ends(all: (CurvePoint & { value: number })[], names: string[]) {
    const values = all.flatMap((point) => [point.value, point.low ?? point.value, point.high ?? point.value]);
    const step = ((Math.max(...values) - Math.min(...values)) * 15) / (height - 60);
    const last = names.flatMap((name) => all.filter((point) => point.series === name).sort((a, b) => b.layer - a.layer).slice(0, 1));
    let above = -Infinity;
    return last.sort((a, b) => a.value - b.value).map((point) => ({ ...point, shown: (above = Math.max(point.value, above + step)) }));
  }
  return <Chart label={title} options={options} inputs={[points, height, layer, label]} />;
}
