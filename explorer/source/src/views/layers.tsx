import type { Cka, Geometry, ProbeResults } from "../answers";
import { useApp, type View } from "../app";
import { ExportMenu, PictureButtons } from "../parts/export_menu";
import { HeatMap } from "../parts/heat_map";
import { LayerCurves } from "../parts/layer_curves";
import { PythonCall } from "../parts/python_call";
import { Answer, Empty } from "../parts/states";
import { Table } from "../parts/table";
import { useQuery } from "../use_query";

function LayersView() {
  const { index, store, stores, values } = useApp();
  return (
    <div class="layers">
      <GeometryPart />
      {(store.layers.length > 1 || stores.length > 1) && <CkaPart key={`${index} ${values.other}`} />}
      <ProbesPart />
    </div>
  );
}

const NAMES: Record<string, string> = {
  selfsim: "self-similarity", intrasim: "intra-sentence", anisotropy: "anisotropy", mev: "of a word (MEV)", top_component: "of the layer",
  participation_ratio: "participation ratio", effective_rank: "effective rank", mean_norm: "mean norm",
};

/** Measures of one unit share a chart. */
const PANELS = [
  { title: "Similarity", label: "mean cosine", metrics: ["selfsim", "intrasim", "anisotropy"] },
  { title: "Variance of the first component", label: "share of variance", metrics: ["mev", "top_component"] },
  { title: "Dimensions in use", label: "dimensions", metrics: ["participation_ratio", "effective_rank"] },
  { title: "Length of vectors", label: "norm", metrics: ["mean_norm"] },
];

function GeometryPart() {
  const { index, values } = useApp();
  const answer = useQuery<Geometry>("geometry", { store: index }, { progress: true });
  return (
    <section class="tile">
      <div class="toolbar tight">
        <h2>Geometry</h2>
        <ExportMenu name="geometry" params={{ store: index }} />
      </div>
      <Answer of={answer} what="the geometry">
        {(found) => (
          <>
            {found.note && <p class="note">{found.note}</p>}
            <div class="panels">
              {PANELS.map(({ title, label, metrics }) => {
                const rows = found.rows.filter((row) => metrics.includes(row.metric));
                return rows.length > 0 && (
                  <section key={title}>
                    <div class="toolbar tight">
                      <h3>{title}</h3>
                      <PictureButtons name={title} />
                    </div>
                    <LayerCurves
                      title={`${title} by layer`} label={label} height={210} layer={values.layer ? Number(values.layer) : undefined}
                      points={rows.map((row) => ({ ...row, series: NAMES[row.metric]! }))} series={metrics.map((metric) => NAMES[metric]!)}
                    />
                  </section>
                );
              })}
            </div>
            <PythonCall code={found.python} />
          </>
        )}
      </Answer>
    </section>
  );
}

function CkaPart() {
  const { index, stores, store, values, go } = useApp();
  const other = values.other === undefined ? undefined : Math.min(Number(values.other) || 0, stores.length - 1);
  const params = { store: index, other };
  const answer = useQuery<Cka>("cka", params, { progress: true });
  return (
    <section class="tile">
      <div class="toolbar tight">
        <h2>Similarity of layers (CKA)</h2>
        {stores.length > 1 && (
          <label class="field">
            <span>with</span>
            <select value={String(other ?? index)} onChange={(event) => go({ other: event.currentTarget.value === String(index) ? null : event.currentTarget.value })}>
              {stores.map((one, at) => <option key={at} value={String(at)}>{at === index ? "itself" : one.name}</option>)}
            </select>
          </label>
        )}
        <ExportMenu name="cka" params={params} picture />
      </div>
      <Answer of={answer} what="the similarity of layers">
        {(found) => (
          <>
            <p class="note"><span class="scale" aria-hidden="true" />0 to 1</p>
            <HeatMap
              title="Linear CKA between layers" rows={found.a} columns={found.b} values={found.values} domain={[0, 1]}
              rowLabel={other === undefined ? "layer" : `layer of ${store.name}`}
              columnLabel={other === undefined ? "layer" : `layer of ${stores[other]!.name}`}
            />
            <PythonCall code={found.python} />
          </>
        )}
      </Answer>
    </section>
  );
}

function ProbesPart() {
  const { index, store } = useApp();
  const answer = useQuery<ProbeResults>("probes", { store: index });
  return (
    <section class="tile wide">
      <div class="toolbar tight">
        <h2>Probes</h2>
        {answer.value?.results.length !== 0 && <ExportMenu name="probes" params={{ store: index }} />}
      </div>
      <Answer of={answer} what="probe results">
        {(found) => (
          <>
            {found.results.length === 0 && (
              <Empty title="No probe results">
                Tables in the folder <code>probes</code> next to the store appear here by layer, such as that
                of <code>{`embstore probe rows ${store.name}.zarr --label ${store.labels[0]?.name ?? "LABEL"} --out probes/scores.csv`}</code>
              </Empty>
            )}
            <div class="tiles">
              {found.results.map((result) => <ProbeResult key={result.name} {...result} />)}
            </div>
            {found.results.length > 0 && <PythonCall code={found.python} />}
          </>
        )}
      </Answer>
    </section>
  );
}

type Row = Record<string, string | number | null>;

const PROGRESS = ["best_epoch", "converged"]; // metrics of a training

const number = (value: unknown): value is number => typeof value === "number";

function ProbeResult({ name, kind, rows }: ProbeResults["results"][number]) {
  const { store } = useApp();
  const split = ["test", "dev"].find((one) => rows.some((row) => row.split === one));
  const scores = rows.filter((row) => number(row.layer) && number(row.value) && (!split || row.split === split) && !PROGRESS.includes(String(row.metric)));
  const overall = scores.filter((row) => !row.item); // where there are many items, as classes
  const points = (overall.length && new Set(scores.map((row) => row.item)).size > 8 ? overall : scores)
    .map((row) => ({
      layer: row.layer as number, value: row.value as number, low: number(row.low) ? row.low : null, high: number(row.high) ? row.high : null,
      series: [row.task, row.metric, row.item].filter(Boolean).join(" ") || kind,
    }));
  const others = [...new Set(rows.map((row) => String(row.store ?? "").replace(/^.*[/]|[.]\w+$/g, "")))].filter((one) => one && one !== store.name);
  const columns = Object.keys(rows[0] ?? {}).filter((column) => rows.some((row) => row[column] != null && row[column] !== ""));
  return (
    <section class="tile">
      <div class="toolbar tight">
        <h3>{name} <span class="tag">{kind}</span>{others.length > 0 && <span class="tag warn">of {others.join(", ")}</span>}</h3>
        <PictureButtons name={name} />
      </div>
      {points.length > 0 && new Set(points.map((point) => point.series)).size <= 8 && (
        <LayerCurves title={`${name} by layer`} label={split ? `value (${split})` : "value"} height={220} points={points} />
      )}
      <details>
        <summary>{rows.length.toLocaleString("en")} numbers</summary>
        <Table
          label={name}
          rows={rows.slice(0, 500)}
          id={(row: Row) => JSON.stringify(row)}
          columns={columns.map((column) => ({
            name: column, title: column, class: rows.some((row) => number(row[column])) ? "number" : "value",
            cell: (row: Row) => (number(row[column]) && !Number.isInteger(row[column]) ? (row[column] as number).toFixed(4) : row[column]),
          }))}
        />
      </details>
    </section>
  );
}

export const layers: View = { name: "layers", title: "Layers", component: LayersView };
