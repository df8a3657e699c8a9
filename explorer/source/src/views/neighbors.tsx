import { signal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import type { Neighbor, Neighbors, Occurrences } from "../answers";
import { useApp, type View } from "../app";
import { inLine, Quote } from "../parts/concordance";
import { useContentWords } from "../parts/examples";
import { ExportMenu } from "../parts/export_menu";
import { Filters } from "../parts/filters";
import { Link } from "../parts/link";
import { ModelForm } from "../parts/model_form";
import { PythonCall } from "../parts/python_call";
import { Answer } from "../parts/states";
import { WordBox } from "../parts/word_box";
import { useQuery } from "../use_query";

function NeighborsView() {
  const { index, store, values, go } = useApp();
  const { row, word, text, where } = values;
  const chosen = layersOf(values.layers, store.layers);
  const given = text ? { text } : row ? { row } : word ? { word } : null;
  const examples = useExamples(!given);
  const query = given ?? (examples[0] && { word: examples[0].word });
  const others = values.others === undefined ? Boolean(query && "word" in query) : values.others === "1";
  const params = query ? { store: index, ...query, layers: [...new Set(chosen)].join(), k: Number(values.k) || 10, where, others } : null;
  const answer = useQuery<Neighbors>("neighbors", params, { progress: true });
  const hovered = useMemo(() => signal<number | null>(null), []);
  const ask = (typed: string) => go(/\[.+\]/s.test(typed) ? { text: typed, word: null, row: null } : { text: null, word: typed, row: null });
  return (
    <>
      <div class="toolbar">
        <WordBox label="Of" value={text ?? word ?? ""} placeholder="A word, or: a river [bank]" choose={ask} />
        <Filters />
        <label class="field">
          <span>Show</span>
          <select value={values.k ?? "10"} onChange={(event) => go({ k: event.currentTarget.value })}>
            {[5, 10, 20, 50, 100].map((k) => <option key={k} value={String(k)}>{k}</option>)}
          </select>
        </label>
        <label class="check" title="Leave out the word itself, and show each word once, with its nearest occurrence">
          <input type="checkbox" checked={others} onChange={(event) => go({ others: event.currentTarget.checked ? "1" : "0" })} />
          <span>Other words</span>
        </label>
      </div>
      {!given && <Start examples={examples} />}
      <Answer of={answer} what="neighbours">
        {(found) => (
          <>
            <div class="toolbar tight">
              <h2 class="quote">
                {found.query.left || found.query.right ? (
                  <Quote of={found.query} left={120} right={120} />
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

interface Example { word: string; text?: string }

/** The commonest content words, and a sentence with one of them marked. */
function useExamples(wanted: boolean): Example[] {
  const { index, store } = useApp();
  const words = useContentWords(index, 3).value?.words ?? [];
  const last = words.at(-1)?.word;
  const found = useQuery<Occurrences>("occurrences", wanted && last && store.can_encode ? { store: index, word: last, limit: 1 } : null);
  const line = found.value?.rows[0];
  const ends = [" ".repeat(1) + (line?.left ?? ""), `${line?.right ?? ""} `] as const;
  const text = line && `${ends[0].slice(-50).replace(/^\S*\s/, "")}[${line.word}]${ends[1].slice(0, 50).replace(/\s\S*$/, "")}`.replace(/\s+/g, " ").trim();
  return words.map(({ word }) => (word === last && text ? { word, text } : { word }));
}

/** What can be asked, where nothing is asked: the neighbours of the first example are shown. */
function Start({ examples }: { examples: Example[] }) {
  const { store } = useApp();
  return (
    <div class="start">
      <p class="examples">
        <span class="muted">For example</span>
        {examples.map(({ word, text }) => (
          <Link key={word} to={text ? { text, word: null, row: null } : { word, text: null, row: null }}><bdi>{text ?? word}</bdi></Link>
        ))}
      </p>
      {store.missing_model && store.takes_model && (
        <details>
          <summary>Sentences can be typed once the model is named</summary>
          <p class="note">{store.missing_model}</p>
          <ModelForm />
        </details>
      )}
    </div>
  );
}

/** One neighbour; the same row in the other columns is marked while the pointer or the focus is on it. */
function Line({ neighbor, hovered }: { neighbor: Neighbor; hovered: { value: number | null } }) {
  const { row, similarity, word, form, sentence } = neighbor;
  const mark = () => (hovered.value = row);
  const unmark = () => (hovered.value = null);
  return (
    <li class={hovered.value === row ? "same" : undefined} onMouseEnter={mark} onMouseLeave={unmark} onFocusCapture={mark} onBlurCapture={unmark}>
      <span class="number">{similarity.toFixed(3)}</span>
      <meter min={0} max={1} value={Math.max(0, similarity)} aria-hidden="true" />
      <Link to={{ view: "neighbors", row, word: form, text: null }} class="strong" title="Its neighbours"><bdi>{inLine(word)}</bdi></Link>
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
