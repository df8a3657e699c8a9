import { signal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import type { Neighbor, Neighbors } from "../answers";
import { useApp, type View } from "../app";
import { inLine, Quote } from "../parts/concordance";
import { ExportMenu } from "../parts/export_menu";
import { Filters } from "../parts/filters";
import { Link } from "../parts/link";
import { PythonCall } from "../parts/python_call";
import { Answer, Empty } from "../parts/states";
import { WordBox } from "../parts/word_box";
import { useQuery } from "../use_query";

function NeighborsView() {
  const { index, store, values, go } = useApp();
  const { row, word, text, where } = values;
  const chosen = layersOf(values.layers, store.layers);
  const query = text ? { text } : row ? { row } : word ? { word } : null;
  const params = query && { store: index, ...query, layers: [...new Set(chosen)].join(), k: Number(values.k) || 10, where };
  const answer = useQuery<Neighbors>("neighbors", params, { progress: true });
  const hovered = useMemo(() => signal<number | null>(null), []);
  const ask = (typed: string) => go(/\[.+\]/s.test(typed) ? { text: typed, word: null, row: null } : { text: null, word: typed, row: null });
  return (
    <>
      <div class="toolbar">
        <WordBox label="Of" value={text ?? (row ? "" : word ?? "")} placeholder="A word, or: They sat on the [bank] of the river" choose={ask} />
        <Filters />
        <label class="field">
          <span>k</span>
          <select value={values.k ?? "10"} onChange={(event) => go({ k: event.currentTarget.value })}>
            {[5, 10, 20, 50, 100].map((k) => <option key={k} value={String(k)}>{k}</option>)}
          </select>
        </label>
      </div>
      {!query && (
        <Empty title="Nearest neighbours, exactly">
          Give a word, a sentence with one word in [brackets], or choose an occurrence in another view.
        </Empty>
      )}
      <Answer of={answer} what="neighbours">
        {(found) => (
          <>
            <div class="toolbar tight">
              <h2 class="quote">
                {found.query.left || found.query.right ? (
                  <bdi>{found.query.left.slice(-120)}<mark>{found.query.word}</mark>{found.query.right.slice(0, 120)}</bdi>
                ) : (
                  <bdi><mark>{found.query.word}</mark></bdi>
                )}
                {found.query.count > 1 && <span class="tag">mean of {found.query.count.toLocaleString("en")}</span>}
              </h2>
              {params && <ExportMenu name="neighbors" params={params} />}
            </div>
            {found.note && <p class="note warn">{found.note}</p>}
            <div class="columns">
              {chosen.map((layer, position) => (
                <section key={position} aria-label={`Layer ${layer}`}>
                  <label class="field">
                    <span>Layer</span>
                    <select
                      value={String(layer)}
                      onChange={(event) => go({ layers: chosen.map((old, at) => (at === position ? Number(event.currentTarget.value) : old)).join() })}
                    >
                      {store.layers.map((each) => <option key={each} value={String(each)}>{each}</option>)}
                    </select>
                  </label>
                  <ol class="neighbors">
                    {found.layers.find((one) => one.layer === layer)?.neighbors.map((each) => (
                      <Line key={each.row} neighbor={each} hovered={hovered} />
                    ))}
                  </ol>
                </section>
              ))}
            </div>
            <PythonCall code={found.python} />
          </>
        )}
      </Answer>
    </>
  );
}

/** One neighbour; the same row in the other columns is marked while the pointer or the focus is on it. */
function Line({ neighbor, hovered }: { neighbor: Neighbor; hovered: { value: number | null } }) {
  const { row, similarity, word, sentence } = neighbor;
  const mark = () => (hovered.value = row);
  const unmark = () => (hovered.value = null);
  return (
    <li class={hovered.value === row ? "same" : undefined} onMouseEnter={mark} onMouseLeave={unmark} onFocusCapture={mark} onBlurCapture={unmark}>
      <span class="number">{similarity.toFixed(3)}</span>
      <meter min={0} max={1} value={Math.max(0, similarity)} aria-hidden="true" />
      <Link to={{ view: "neighbors", row, word: null, text: null }} class="strong" title="Its neighbours"><bdi>{inLine(word)}</bdi></Link>
      <Link to={{ view: "sentence", row, sentence }} class="context" title="Open the sentence">
        <Quote of={neighbor} left={24} right={80} />
      </Link>
    </li>
  );
}

/** The layers of the address that the store has; without any, its first, its middle and its last. */
function layersOf(given: string | undefined, layers: number[]): number[] {
  const asked = (given ?? "").split(",").filter(Boolean).map(Number).filter((layer) => layers.includes(layer));
  return asked.length ? asked : [...new Set([layers[0]!, layers[layers.length >> 1]!, layers.at(-1)!])];
}

export const neighbors: View = { name: "neighbors", title: "Neighbours", component: NeighborsView };
