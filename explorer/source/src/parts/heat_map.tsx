import * as Plot from "@observablehq/plot";
import { Chart } from "./chart";

interface Props {
  title: string;
  rows: (string | number)[];
  columns: (string | number)[];
  values: (number | null)[][];
  rowLabel: string;
  columnLabel: string;
  domain?: [number, number];
}

/** Every so many, for labels that do not touch. */
const every = <T,>(all: T[], step: number) => all.filter((_, at) => at % Math.ceil(step) === 0);

/** A matrix as cells that are the stronger the greater their number, which they show where it fits. */
export function HeatMap({ title, rows, columns, values, rowLabel, columnLabel, domain }: Props) {
  const cells = values.flatMap((line, row) => line.map((value, column) => ({ row: rows[row]!, column: columns[column]!, value })));
  const known = cells.filter((cell) => cell.value !== null);
  const options = (width: number): Plot.PlotOptions => {
    const size = Math.min(48, (width - 60) / columns.length, 620 / rows.length);
    const [low, high] = domain ?? [Math.min(...known.map((cell) => cell.value!)), Math.max(...known.map((cell) => cell.value!))];
    const share = (value: number) => Math.max(0, Math.min(1, (value - low) / (high - low || 1)));
    return {
      width: size * columns.length + 60,
      height: size * rows.length + 56,
      marginLeft: 44, marginTop: 12, marginBottom: 40, marginRight: 12,
      padding: 0.03,
      x: { type: "band", domain: columns, label: columnLabel, labelAnchor: "center", tickSize: 0, ticks: every(columns, 20 / size) },
      y: { type: "band", domain: rows, label: rowLabel, labelAnchor: "center", reverse: true, tickSize: 0, ticks: every(rows, 13 / size) },
      color: { type: "identity" },
      marks: [
        Plot.cell(known, {
          x: "column", y: "row", fill: (cell) => `color-mix(in srgb, var(--heat-high) ${(100 * share(cell.value)).toFixed(1)}%, var(--heat-low))`,
        }),
        ...(size >= 32 ? [Plot.text(known, {
          x: "column", y: "row", text: (cell) => cell.value.toFixed(2).replace(/^0/, ""),
          fill: (cell) => (share(cell.value) > 0.62 ? "var(--ground)" : "var(--text)"), fontSize: 11,
        })] : []),
        Plot.tip(known, Plot.pointer({
          x: "column", y: "row", fill: "var(--raised)", stroke: "var(--line)",
          title: (cell) => `${rowLabel} ${cell.row}, ${columnLabel} ${cell.column}\n${cell.value.toFixed(4)}`,
        })),
      ],
    };
  };
  return <Chart label={title} options={options} inputs={[values]} fixed />;
}
