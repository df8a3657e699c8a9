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

/** A matrix as coloured cells (cividis: lightness alone orders it), with the numbers in the cells where they fit. */
export function HeatMap({ title, rows, columns, values, rowLabel, columnLabel, domain }: Props) {
  const cells = values.flatMap((line, row) => line.map((value, column) => ({ row: rows[row]!, column: columns[column]!, value })));
  const known = cells.filter((cell) => cell.value !== null);
  const options = (width: number): Plot.PlotOptions => {
    const size = Math.min(48, (width - 60) / columns.length, 620 / rows.length);
    const [low, high] = domain ?? [Math.min(...known.map((cell) => cell.value!)), Math.max(...known.map((cell) => cell.value!))];
    return {
      width: size * columns.length + 60,
      height: size * rows.length + 56,
      marginLeft: 44, marginTop: 12, marginBottom: 40, marginRight: 12,
      padding: 0.03,
      x: { type: "band", domain: columns, label: columnLabel, labelAnchor: "center", tickSize: 0 },
      y: { type: "band", domain: rows, label: rowLabel, labelAnchor: "center", reverse: true, tickSize: 0 },
      color: { type: "linear", scheme: "cividis", domain: [low, high] },
      marks: [
        Plot.cell(known, { x: "column", y: "row", fill: "value" }),
        ...(size >= 32 ? [Plot.text(known, {
          x: "column", y: "row", text: (cell) => cell.value.toFixed(2).replace(/^0/, ""),
          fill: (cell) => ((cell.value - low) / (high - low || 1) > 0.55 ? "#111" : "#fff"), fontSize: 11,
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
