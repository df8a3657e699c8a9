import type { ComponentChildren } from "preact";
import { useApp } from "../app";

export interface Column<T> {
  name: string;
  title: ComponentChildren;
  /** The name to sort by, where the table can be sorted by it. */
  sort?: string;
  class?: string;
  cell: (row: T) => ComponentChildren;
}

interface Props<T> {
  label: string;
  columns: Column<T>[];
  rows: T[];
  id: (row: T) => string | number;
  class?: string;
}

/** A table; the headers of columns that can be sorted write `sort` and `desc` into the state. */
export function Table<T>({ label, columns, rows, id, class: name }: Props<T>) {
  const { values, go } = useApp();
  const descending = values.desc === "1";
  return (
    <div class={name ? `scroll ${name}` : "scroll"} tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => {
              const sorted = column.sort !== undefined && values.sort === column.sort;
              const order = sorted ? (descending ? "descending" : "ascending") : undefined;
              return (
                <th key={column.name} scope="col" class={column.class} aria-sort={order}>
                  {column.sort === undefined ? column.title : (
                    <button
                      type="button"
                      class="sort"
                      onClick={() => go({ sort: sorted && descending ? null : column.sort, desc: sorted && !descending ? "1" : null, offset: null })}
                    >
                      {column.title}
                      <span aria-hidden="true">{sorted ? (descending ? " ↓" : " ↑") : ""}</span>
                    </button>
                  )}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={id(row)}>
              {columns.map((column) => <td key={column.name} class={column.class}>{column.cell(row)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Moves through the pages of a long table by `offset` in the state. */
export function Pager({ total, size }: { total: number; size: number }) {
  const { values, go } = useApp();
  const offset = Math.min(Number(values.offset) || 0, Math.max(0, total - 1));
  const last = Math.floor(Math.max(0, total - 1) / size) * size;
  const to = (value: number) => go({ offset: value || null });
  const number = (value: number) => value.toLocaleString("en");
  return (
    <span class="pager" role="group" aria-label="Pages">
      <button type="button" class="quiet" disabled={offset === 0} onClick={() => to(0)} aria-label="First page">«</button>
      <button type="button" class="quiet" disabled={offset === 0} onClick={() => to(Math.max(0, offset - size))} aria-label="Previous page">‹</button>
      <span class="numbers">{total ? `${number(offset + 1)}–${number(Math.min(total, offset + size))} of ${number(total)}` : "none"}</span>
      <button type="button" class="quiet" disabled={offset >= last} onClick={() => to(offset + size)} aria-label="Next page">›</button>
      <button type="button" class="quiet" disabled={offset >= last} onClick={() => to(last)} aria-label="Last page">»</button>
    </span>
  );
}
