import type { Occurrence } from "../answers";
import { Link } from "./link";
import { Table, type Column } from "./table";

interface Props<T extends Occurrence> {
  rows: T[];
  /** The labels and fields that are shown, in order. */
  columns?: { name: string; kind: string }[];
  /** Columns before the lines, as a similarity. */
  extra?: Column<T>[];
  sortable?: boolean;
  label?: string;
}

/** Occurrences as keywords in context. Each leads to its sentence, its neighbours and its place on the map. */
export function Concordance<T extends Occurrence>({ rows, columns = [], extra = [], sortable = false, label = "Occurrences" }: Props<T>) {
  const sort = (name: string) => (sortable ? name : undefined);
  const all: Column<T>[] = [
    ...extra,
    { name: "left", title: "Left", sort: sort("left"), class: "left", cell: (row) => <bdi class="context">{inLine(row.left)}</bdi> },
    {
      name: "word", title: "Word", sort: sort("word"), class: "word",
      cell: (row) => (
        <Link to={{ view: "sentence", row: row.row, sentence: row.sentence }} title="Open the sentence"><bdi>{inLine(row.word)}</bdi></Link>
      ),
    },
    { name: "right", title: "Right", sort: sort("right"), class: "right", cell: (row) => <bdi class="context">{inLine(row.right)}</bdi> },
    ...columns.map((column): Column<T> => ({
      name: column.name, title: column.name, sort: sort(column.name), class: "value",
      cell: (row) => <bdi title={String(row.labels[column.name] ?? "")}>{row.labels[column.name] ?? ""}</bdi>,
    })),
    {
      name: "links", title: <span class="sr">Links</span>, class: "links",
      cell: (row) => (
        <>
          <Link to={{ view: "neighbors", row: row.row, word: row.form, text: null, offset: null }} label={`Neighbours of row ${row.row}`}>similar</Link>
          <Link to={{ view: "map", row: row.row, word: row.form, offset: null }} label={`Row ${row.row} on the map`}>map</Link>
        </>
      ),
    },
  ];
  return <Table class={columns.length > 2 ? "concordance many" : "concordance"} label={label} columns={all} rows={rows} id={(row) => row.row} />;
}

/** An occurrence in its text, with at most so many characters on each side: where it is too long for its line, both ends
 * are cut and the word stays. */
export function Quote({ of, left, right }: { of: Pick<Occurrence, "left" | "word" | "right">; left: number; right: number }) {
  return (
    <span class="cut">
      <span><bdi>{inLine(endOf(of.left, left))}</bdi></span>
      <mark><bdi>{inLine(of.word)}</bdi></mark>
      <span><bdi>{inLine(startOf(of.right, right))}</bdi></span>
    </span>
  );
}

/** The last, and the first, so many characters of a text, to whole words where it has spaces. */
export const endOf = (text: string, size: number) => (text.length > size ? `…${text.slice(-size).replace(/^\S*(?=\s)/, "")}` : text);
export const startOf = (text: string, size: number) => (text.length > size ? `${text.slice(0, size).replace(/(?<=\s)\S*$/, "")}…` : text);

/** A text in one line, with a sign for each line break. */
export const inLine = (text: string) => text.split(/\r\n?|\n/).flatMap((line, at) => (at ? [<i class="break" key={at}>↵</i>, line] : [line]));
