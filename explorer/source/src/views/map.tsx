import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Occurrences } from "../answers";
import { useApp, type View } from "../app";
import { MapCanvas, swatch, type Points, type Region } from "../map/canvas";
import { Concordance, Quote } from "../parts/concordance";
import { Examples } from "../parts/examples";
import { ExportMenu } from "../parts/export_menu";
import { Filters } from "../parts/filters";
import { LayerSlider } from "../parts/layer_slider";
import { PythonCall } from "../parts/python_call";
import { Empty, ErrorState, Loading } from "../parts/states";
import { Summary } from "../parts/summary";
import { Pager } from "../parts/table";
import { WordBox } from "../parts/word_box";
import type { Arrays } from "../safetensors";
import type { Params } from "../source";
import { readableNames } from "../subwords";
import { useQuery, type Query } from "../use_query";

interface MapAnswer {
  layer: number;
  method: "pca" | "umap";
  total: number;
  shown: number;
  seed: number;
  explained: [number, number] | null;
  /** What is shown at first: the middle, and half the side of a square that has the points but for those far out. */
  middle: [number, number] | null;
  extent: number;
  colors: string[];
  scale: "categories" | "ordered";
  regions: Region[];
  note: string | null;
  python: string;
}

const SIZE = 25;
const FIRST = 100_000; // points that are shown first
const MOST = 1_000_000; // rows of a table that is saved
const COUNTED = 50_000; // rows of a selection whose words and labels are counted
const HINT = matchMedia("(hover: none)").matches
  ? "Tap a dot for its sentence; with Lasso, draw around some to select them."
  : "Point at a dot for its line; click for its sentence; hold Shift and draw to select.";
const SAMPLES = [10_000, 100_000, 1_000_000, 10_000_000];
const number = (value: number) => value.toLocaleString("en");
const percent = (value: number) => `${(100 * value).toFixed(1)} %`;

function MapView() {
  const { store, index, layer, values, go, source } = useApp();
  const method = values.method === "umap" ? "umap" : "pca";
  const sample = Number(values.sample) || 100_000;
  const color = values.color ?? "cluster";
  const params = { store: index, layer, word: values.word, where: values.where, method, sample, color: color === "none" ? undefined : color };
  const answer = useMap(params);
  const points = useMemo(() => answer.value && normalized(answer.value, store.subwords && !values.word), [answer.value]);
  const meta = answer.value?.meta;
  const [selected, setSelected] = useState<{ some: Uint32Array; of: Points } | null>(null);
  const chosen = selected && selected.of === points ? selected.some : null; // those of other points are not among these
  const choose = (some: Uint32Array | null) => {
    setSelected(some && { some, of: points! });
    source.selected?.(some && Array.from(some, (point) => points!.row[point]!));
  };
  const [hovered, setHovered] = useState<number | null>(null);
  const picture = useRef<(() => HTMLCanvasElement | null) | null>(null);
  const lasso = useMemo(() => outline(values.lasso), [values.lasso]);
  const hidden = useMemo(() => new Set((values.hidden ?? "").split(",").filter(Boolean).map(Number)), [values.hidden]);
  const counts = useMemo(() => points && tally(points.color, meta!.colors.length), [points]);
  const shades = useShades(points, meta, color === "cluster" && Boolean(values.word));
  const row = values.row === undefined ? undefined : Number(values.row);
  const set = (name: string, value: string) => go({ [name]: value, hidden: null, offset: null });
  const toggle = (code: number) => {
    const next = new Set(hidden);
    if (!next.delete(code)) next.add(code);
    go({ hidden: [...next].sort().join(",") || null, offset: null }, { replace: true });
  };
  return (
    <>
      <div class="toolbar">
        <WordBox label="Word" value={values.word ?? ""} placeholder="all words" choose={(word) => go({ word, row: null, color: null, hidden: null, offset: null })} />
        <Filters />
        <LayerSlider />
        <label class="field" title={store.umap ? undefined : 'UMAP needs umap-learn: pip install "embstore[umap]"'}><span>Method</span>
          <select value={method} onChange={(event) => set("method", event.currentTarget.value)}>
            <option value="pca">PCA</option>
            <option value="umap" disabled={!store.umap}>UMAP</option>
          </select>
        </label>
        <label class="field"><span>Colour</span>
          <select value={color} onChange={(event) => set("color", event.currentTarget.value)}>
            <option value="none">none</option>
            <option value="word">word</option>
            <option value="cluster">cluster</option>
            {store.labels.map((one) => <option key={one.name} value={one.name}>{one.name}</option>)}
            {store.fields.map((one) => <option key={one.name} value={one.name}>{one.name}</option>)}
          </select>
        </label>
        {(values.sample || !meta || meta.total > SAMPLES[0]!) && (
          <label class="field"><span>Sample</span>
            <select value={String(sample)} onChange={(event) => set("sample", event.currentTarget.value)}>
              {[...new Set([...SAMPLES, sample])].sort((one, other) => one - other).map((size) => <option key={size} value={String(size)}>{number(size)}</option>)}
            </select>
          </label>
        )}
        {!values.word && <Examples title="One word" to={(word) => ({ word, row: null, color: null, hidden: null, offset: null })} />}
      </div>
      {answer.status === "error" ? <ErrorState error={answer.error!} needs={answer.needs} retry={answer.retry} />
        : !points || !meta ? (
          <Loading what={method === "umap" ? "the map: UMAP takes seconds to minutes, once" : "the map"} progress={answer.progress} />
        ) : meta.shown === 0 ? <Empty title="No point">Change the word or the filter.</Empty> : (
          <div class="split map-split">
            <section>
              <div class={answer.status === "loading" ? "answer busy" : "answer"} aria-busy={answer.status === "loading"}>
                <MapCanvas
                  points={points} hidden={hidden} shades={shades} ordered={meta.scale === "ordered"} row={row} lasso={lasso}
                  setLasso={(next) => go({ lasso: next?.map((pair) => pair.join(",")).join(";") ?? null, offset: null })}
                  chosen={choose} hover={setHovered} pick={(picked) => go({ view: "sentence", row: picked, sentence: null })} picture={picture}
                />
              </div>
              <Line row={hovered ?? row ?? null} />
              <p class="note">
                {`${number(meta.shown)} of ${number(meta.total)} occurrences`}
                {meta.shown < meta.total && `, drawn evenly with seed ${meta.seed}`}
                {meta.explained && ` · the axes hold ${percent(meta.explained[0])} (across) and ${percent(meta.explained[1])} (up) of the variance`}
                {meta.note && ` · ${meta.note}`}
              </p>
              {answer.status === "loading" && method === "umap" && <Loading what="UMAP of this layer" progress={answer.progress} />}
            </section>
            <aside>
              {meta.colors.length > 0 && <Legend meta={meta} counts={counts!} hidden={hidden} toggle={toggle} title={color} shades={shades} />}
              <Chosen points={points} chosen={chosen} hidden={hidden} />
            </aside>
          </div>
        )}
      {meta && (
        <>
          <div class="toolbar tight"><ExportMenu name="map" params={params} picture={() => picture.current?.()} /></div>
          <PythonCall code={meta.python} />
        </>
      )}
    </>
  );
}

/** The map of some parameters; of very many points first that of some of them. Rows that are known are not asked again. */
function useMap(params: Params & { method: string; sample: number }): Query<Arrays<MapAnswer>> {
  const many = params.method === "pca" && params.sample > FIRST;
  const { layer, color, ...same } = params;
  const key = JSON.stringify(same);
  const known = useRef<{ key: string; row: Arrays["arrays"][string] } | null>(null);
  const parts = useMemo(() => (known.current?.key === key ? "points" : "all"), [key, layer, color]);
  const first = useQuery<Arrays<MapAnswer>>("map", many ? { ...params, sample: FIRST } : null);
  const more = !many || (first.status === "done" && first.value!.meta.total > FIRST);
  const every = useQuery<Arrays<MapAnswer>>("map", more ? { ...params, parts } : null, { progress: params.method === "umap" });
  const shown = useRef<Arrays<MapAnswer> | undefined>(undefined); // until there is another
  if (every.status === "done") {
    shown.current = every.value!;
    if (shown.current.arrays.row) known.current = { key, row: shown.current.arrays.row };
    else shown.current.arrays.row = known.current!.row;
  } else if (first.status === "done") shown.current = first.value;
  return { ...(more ? every : first), value: shown.current };
}

/** The number of the colour of each code. `followed`: codes of the same rows at another layer take the colour of those
 * before with which they share most rows, so that a row seldom changes its colour where the layer does. */
function useShades(points: Points | undefined, meta: MapAnswer | undefined, followed: boolean): number[] {
  const before = useRef<{ points: Points; shades: number[] } | null>(null);
  return useMemo(() => {
    const old = before.current;
    const shades = meta ? [...meta.colors.keys()] : [];
    if (followed && points && old && old.points.row === points.row) {
      const shared = new Map<number, number>(); // rows by code and colour before
      points.color.forEach((code, point) => {
        const key = code * 256 + old.shades[old.points.color[point]!]!;
        shared.set(key, (shared.get(key) ?? 0) + 1);
      });
      const [left, free] = [new Set(shades), new Set(Array(8).keys())];
      for (const [key] of [...shared].sort((one, other) => other[1] - one[1])) {
        const [code, shade] = [key >> 8, key & 255];
        if (left.has(code) && free.delete(shade)) left.delete(code), (shades[code] = shade);
      }
      for (const code of left) free.delete((shades[code] = Math.min(...free)));
    }
    before.current = followed && points ? { points, shades } : null;
    return shades;
  }, [points, meta, followed]);
}

/** Coordinates from -1 to 1 at every layer, so that layers of any size can follow each other; in place, as they are many.
 * `subwords`: whether regions are named by those. */
function normalized({ meta, arrays }: Arrays<MapAnswer>, subwords: boolean): Points {
  const [x, y] = [arrays.x!.values as Float32Array, arrays.y!.values as Float32Array];
  if (meta.middle) {
    const [middleX, middleY, extent] = [...meta.middle, meta.extent || 1];
    for (let i = 0; i < x.length; i++) [x[i], y[i]] = [(x[i]! - middleX) / extent, (y[i]! - middleY) / extent];
    meta.regions = meta.regions.map((region) => ({ ...region, x: (region.x - middleX) / extent, y: (region.y - middleY) / extent }));
    if (subwords) {
      const names = readableNames(meta.regions.map((region) => region.name));
      const text = new Map(meta.regions.map((region, at) => [region.name, names[at]!]));
      meta.regions = meta.regions.map((region, at) => ({ ...region, name: names[at]! }));
      meta.colors = meta.colors.map((color) => text.get(color) ?? color); // of clusters, which are the regions
    }
    meta.middle = null; // they are in their places
  }
  return { x, y, row: arrays.row!.values as Int32Array, color: arrays.color!.values as Int8Array, regions: meta.regions };
}

function outline(text: string | undefined): [number, number][] | null {
  const pairs = (text ?? "").split(";").map((pair) => pair.split(",").map(Number));
  const ok = pairs.length > 2 && pairs.every((pair) => pair.length === 2 && pair.every(Number.isFinite));
  return ok ? (pairs as [number, number][]) : null;
}

/** How many points have each colour; the last is those without. */
function tally(codes: Int8Array | Int32Array, count: number): number[] {
  const counts = new Array<number>(count + 1).fill(0);
  for (const code of codes) counts[code < 0 ? count : code]!++;
  return counts;
}

interface LegendProps { meta: MapAnswer; counts: number[]; hidden: ReadonlySet<number>; toggle: (code: number) => void; title: string; shades: number[] }

/** The colours; each hides and shows its points. */
function Legend({ meta, counts, hidden, toggle, title, shades }: LegendProps) {
  const codes = [...meta.colors.keys(), ...(counts[meta.colors.length] ? [-1] : [])];
  return (
    <section aria-label="Colours">
      <h2>{title}</h2>
      <ul class="legend">
        {codes.map((code) => (
          <li key={code}>
            <button type="button" aria-pressed={!hidden.has(code)} title={hidden.has(code) ? "Show these points" : "Hide these points"} onClick={() => toggle(code)}>
              <svg width="10" height="10" aria-hidden="true"><circle cx="5" cy="5" r="5" style={{ fill: swatch(shades[code] ?? code, meta.colors.length, meta.scale === "ordered") }} /></svg>
              <bdi>{code < 0 ? "none" : meta.colors[code]}</bdi>
              <span class="number">{number(counts[code < 0 ? meta.colors.length : code]!)}</span>
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The occurrence under the pointer, or the one that was found. */
function Line({ row }: { row: number | null }) {
  const { index } = useApp();
  const [settled, setSettled] = useState(row);
  useEffect(() => {
    const wait = setTimeout(() => setSettled(row), 60);
    return () => clearTimeout(wait);
  }, [row]);
  const found = useQuery<Occurrences>("occurrences", settled === null ? null : { store: index, rows: String(settled), limit: 1 });
  const one = found.value?.rows[0];
  return (
    <p class="map-line" aria-live="polite" aria-busy={settled !== row || found.status === "loading"}>
      {one && settled !== null
        ? <Quote of={one} left={120} right={120} />
        : <span class="muted">{HINT}</span>}
    </p>
  );
}

/** The occurrences inside the lasso, else all that are not hidden, as a table: a way to every point without a pointer. */
function Chosen({ points, chosen, hidden }: { points: Points; chosen: Uint32Array | null; hidden: ReadonlySet<number> }) {
  const { index, values, go } = useApp();
  const shown = useMemo(() => {
    if (chosen || !hidden.size) return chosen;
    const some = new Uint32Array(points.row.length);
    let count = 0;
    points.color.forEach((code, point) => hidden.has(code) || (some[count++] = point));
    return some.subarray(0, count);
  }, [chosen, hidden, points]);
  const total = shown ? shown.length : points.row.length;
  const offset = Math.min(Number(values.offset) || 0, Math.max(0, total - 1));
  const rows = Array.from({ length: Math.max(0, Math.min(SIZE, total - offset)) }, (_, place) => points.row[shown ? shown[offset + place]! : offset + place]!);
  const found = useQuery<Occurrences>("occurrences", rows.length ? { store: index, rows: rows.join(","), limit: SIZE } : null);
  const counted = useMemo(() => {
    const step = Math.max(1, Math.ceil((chosen?.length ?? 0) / COUNTED));
    return chosen?.length ? Array.from({ length: Math.ceil(chosen.length / step) }, (_, place) => points.row[chosen[place * step]!]!).join(",") : "";
  }, [chosen, points.row]);
  const all = useMemo(() => (chosen && chosen.length <= MOST ? Array.from(chosen, (point) => points.row[point]!).join(",") : ""), [chosen, points.row]);
  return (
    <section aria-label="Points" aria-busy={found.status === "loading"}>
      <div class="toolbar tight">
        <h2>{chosen ? `${number(total)} selected` : shown ? `${number(total)} shown` : "All points"}</h2>
        <Pager total={total} size={SIZE} />
      </div>
      {chosen && !total && <p class="note">No point lies inside the outline at this layer.</p>}
      {found.error && <p class="note warn">{found.error}</p>}
      {counted && <Summary params={{ store: index, rows: counted }} total={total} />}
      {rows.length > 0 && found.value && (
        <Concordance
          rows={found.value.rows}
          extra={[{
            name: "find", class: "find", title: <span class="sr">On the map</span>,
            cell: (row) => <button type="button" class="link" aria-label={`Show row ${row.row} on the map`} onClick={() => go({ row: row.row }, { replace: true })}>find</button>,
          }]}
        />
      )}
      {total > MOST && chosen && <p class="note">{`A table holds ${number(MOST)} rows at most: select fewer to save them.`}</p>}
      {all && <ExportMenu name="occurrences" params={{ store: index, rows: all }} />}
    </section>
  );
}

export const map: View = { name: "map", title: "Map", component: MapView };
