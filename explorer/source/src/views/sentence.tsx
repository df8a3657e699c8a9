import { Fragment } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useApp, type View } from "../app";
import { endOf, startOf } from "../parts/concordance";
import { Examples } from "../parts/examples";
import { ExportMenu } from "../parts/export_menu";
import { LayerSlider } from "../parts/layer_slider";
import { LayerCurves } from "../parts/layer_curves";
import { Link } from "../parts/link";
import { ModelForm } from "../parts/model_form";
import { PythonCall } from "../parts/python_call";
import { Answer, Empty } from "../parts/states";
import { Matrix } from "../sentence/matrix";
import { Arcs } from "../sentence/arcs";
import type { Arrays } from "../safetensors";
import { readable } from "../subwords";
import { useQuery } from "../use_query";

const NONE = "-"; // no label has this name
const MOST = 60; // characters of what has its label below, which is in one line

interface SentenceAnswer {
  sentence: number;
  sentences: number;
  words: string[];
  /** The text, as pieces of it that are an occurrence each, and what is before each and after the last. */
  forms: string[];
  types: string[]; // by which the occurrences are found
  gaps: string[];
  rows: number[];
  labels: Record<string, (string | number | null)[]>;
  /** Of the document. */
  fields: Record<string, string>;
  layers: number[];
  probes: { name: string; kind: string }[];
  attention: boolean;
  missing_model: string | null;
  python: string;
}
interface FoundSentences { total: number; rows: { sentence: number; left: string; match: string; right: string }[]; python: string }
interface Similarity { layer: number; words: string[]; positions: number[]; python: string }
interface Parse { layer: number; layers: number[]; words: string[]; edges: [number, number, number][]; depths: number[] | null; python: string }
interface Traces { labels: string[]; layers: number[]; words: string[]; positions: number[]; second: number | null; gold: (string | null)[] | null; python: string }
interface Attention { layer: number; heads: number[]; subwords: string[]; python: string }

function SentenceView() {
  const { index, values, go } = useApp();
  const [row, word] = values.sentence !== undefined ? [] : values.row !== undefined ? [values.row] : [undefined, values.word];
  const answer = useQuery<SentenceAnswer>("sentence", { store: index, sentence: values.sentence, row, word });
  const [number, setNumber] = useState("");
  return (
    <>
      {answer.status === "error" && <Search />}
      <Answer of={answer} what="the sentence">
        {(one) => (
          <>
            <form
              class="toolbar"
              onSubmit={(event) => {
                event.preventDefault();
                const wanted = Number(number);
                if (number && Number.isInteger(wanted)) go({ sentence: Math.max(0, Math.min(one.sentences - 1, wanted)), row: null });
              }}
            >
              <button type="button" disabled={one.sentence === 0} onClick={() => go({ sentence: one.sentence - 1, row: null })}>Previous</button>
              <label class="field"><span>Sentence</span>
                <input type="text" inputMode="numeric" class="narrow" placeholder={String(one.sentence)} value={number} onInput={(event) => setNumber(event.currentTarget.value)} />
                <span>{`of ${one.sentences.toLocaleString("en")}`}</span>
              </label>
              <button type="button" disabled={one.sentence + 1 >= one.sentences} onClick={() => go({ sentence: one.sentence + 1, row: null })}>Next</button>
              <LayerSlider />
            </form>
            <Search />
            <Text of={one} />
            <Similarities of={one} />
            {one.probes.filter((probe) => probe.kind === "structural").map((probe) => <Tree key={probe.name} of={one} probe={probe.name} />)}
            {one.probes.filter((probe) => probe.kind === "edge").map((probe) => <Trace key={probe.name} of={one} probe={probe.name} />)}
            {one.probes.length === 0 && <p class="note">Start embstore explore with --probes to see the trees and labels that saved probes find here.</p>}
            {one.attention && <Heads of={one} />}
            {one.missing_model && (
              <section aria-label="Attention">
                <h2>Attention</h2>
                <p class="note">{one.missing_model}</p>
                <ModelForm />
              </section>
            )}
            <PythonCall code={one.python} />
          </>
        )}
      </Answer>
    </>
  );
}

const FOUND = 10;
const AROUND = 60; // characters on each side of what was found, to whole words

/** Finds sentences by a part of their text. */
function Search() {
  const { index, store, values, go } = useApp();
  const spelled = (word: string) => (store.subwords ? readable([word])[0]! : word);
  const [draft, setDraft] = useState(values.find ?? "");
  const [from, setFrom] = useState(0);
  useEffect(() => setDraft(values.find ?? ""), [values.find]);
  useEffect(() => setFrom(0), [values.find, index]);
  const params = values.find ? { store: index, text: values.find, offset: from, limit: FOUND } : null;
  const found = useQuery<FoundSentences>("search", params, { progress: true });
  return (
    <section aria-label="Search">
      <form
        class="toolbar"
        onSubmit={(event) => {
          event.preventDefault();
          go({ find: draft.trim() });
        }}
      >
        <label class="field grow-field"><span>Find</span>
          <input type="search" spellcheck={false} autocomplete="off" placeholder="A part of a sentence" value={draft} onInput={(event) => setDraft(event.currentTarget.value)} />
        </label>
        <button disabled={!draft.trim()}>Search</button>
        {values.find ? <button type="button" class="quiet" aria-label="Close the search" onClick={() => go({ find: null })}>×</button> : <Examples title="For example" text={spelled} to={(word) => ({ find: spelled(word) })} />}
      </form>
      <Answer of={found} what="the sentences">
        {({ total, rows }) => (
          <>
            <p class="note" role="status">{total === 0 ? "No sentence has this text." : `${total.toLocaleString("en")} ${total === 1 ? "sentence" : "sentences"}`}</p>
            <ol class="found-sentences">
              {rows.map((row) => (
                <li key={row.sentence}>
                  <Link to={{ sentence: row.sentence, row: null }} current={String(row.sentence) === values.sentence}>
                    <span class="number">{row.sentence}</span>
                    <bdi>{endOf(row.left, AROUND)}<mark>{row.match}</mark>{startOf(row.right, AROUND)}</bdi>
                  </Link>
                </li>
              ))}
            </ol>
            {total > FOUND && (
              <p class="toolbar tight">
                <button type="button" class="quiet" disabled={from === 0} onClick={() => setFrom(Math.max(0, from - FOUND))}>‹ Previous</button>
                <span class="number muted">{`${from + 1}–${Math.min(total, from + FOUND)}`}</span>
                <button type="button" class="quiet" disabled={from + FOUND >= total} onClick={() => setFrom(from + FOUND)}>More ›</button>
              </p>
            )}
          </>
        )}
      </Answer>
    </section>
  );
}

/** The text as it was written; each occurrence leads to its neighbours, with its label below. */
function Text({ of: one }: { of: SentenceAnswer }) {
  const { values, go } = useApp();
  const names = Object.keys(one.labels);
  const chosen = values.label && [NONE, ...names].includes(values.label) ? values.label : names.includes("upos") ? "upos" : names[0];
  const label = chosen === NONE ? undefined : chosen;
  return (
    <section aria-label="Text">
      {Object.keys(one.fields).length > 0 && (
        <p class="facts-line note">{Object.entries(one.fields).map(([name, value]) => <span key={name}>{name} <bdi>{value}</bdi></span>)}</p>
      )}
      {names.length > 0 && (
        <label class="field"><span>Label</span>
          <select value={chosen} onChange={(event) => go({ label: event.currentTarget.value }, { replace: true })}>
            <option value={NONE}>none</option>
            {names.map((name) => <option key={name} value={name}>{name}</option>)}
          </select>
        </label>
      )}
      <p class="sentence-text" dir="auto">
        {one.rows.map((row, place) => {
          const to = { view: "neighbors", row, word: one.types[place]!, text: null, offset: null };
          const asked = values.row === undefined ? one.types[place] === values.word : String(row) === values.row;
          const link = <Link to={to} class={asked ? "chosen" : undefined} title={`Neighbours of row ${row}`}>{one.forms[place]}</Link>;
          return <Fragment key={row}>{one.gaps[place]}{label && one.forms[place]!.length <= MOST ? <ruby>{link}<rt>{one.labels[label]![place]}</rt></ruby> : link}</Fragment>;
        })}
        {one.gaps[one.rows.length]}
      </p>
    </section>
  );
}

function Similarities({ of: one }: { of: SentenceAnswer }) {
  const { index, layer } = useApp();
  const params = { store: index, sentence: one.sentence, layer };
  const found = useQuery<Arrays<Similarity>>("similarity", params);
  const canvas = useRef<HTMLCanvasElement | null>(null);
  return (
    <section aria-label="Similarity">
      <div class="toolbar tight"><h2>{`Similarity of the words at layer ${layer} (cosine)`}</h2><ExportMenu name="similarity" params={params} picture={() => canvas.current} /></div>
      <Answer of={found} what="similarities">
        {({ meta, arrays }) => meta.words.length < 2 ? <Empty title="One word">There is nothing to compare it with.</Empty> : (
          <>
            <Matrix label={`Cosine of every two words at layer ${meta.layer}`} words={meta.words} values={arrays.values!.values as Float32Array} canvas={canvas} />
            <PythonCall code={meta.python} />
          </>
        )}
      </Answer>
    </section>
  );
}

function Tree({ of: one, probe }: { of: SentenceAnswer; probe: string }) {
  const { index, layer } = useApp();
  const params = { store: index, sentence: one.sentence, probe, layer };
  const best = useQuery<Parse>("parse", { store: index, sentence: one.sentence, probe });
  const here = best.value?.layers.includes(layer);
  const found = useQuery<Parse>("parse", here ? params : null);
  return (
    <section aria-label={`Parse by ${probe}`}>
      <div class="toolbar tight">
        <h2>{`Tree that the structural probe ${probe} finds at layer ${here ? layer : best.value?.layer ?? layer}`}</h2>
        <ExportMenu name="parse" params={here ? params : { store: index, sentence: one.sentence, probe }} picture />
      </div>
      <Answer of={here ? found : best} what="the tree">
        {(tree) => (
          <>
            <Arcs words={tree.words} edges={tree.edges} depths={tree.depths} />
            {best.value && <p class="note">{`The probe was best on its dev trees at layer ${best.value.layer}. Edges have no direction; punctuation is left out.`}</p>}
            <PythonCall code={tree.python} />
          </>
        )}
      </Answer>
    </section>
  );
}

function Trace({ of: one, probe }: { of: SentenceAnswer; probe: string }) {
  const { index } = useApp();
  const [second, setSecond] = useState<number>();
  const [word, setWord] = useState(0);
  const params = { store: index, sentence: one.sentence, probe, second };
  const found = useQuery<Arrays<Traces>>("traces", params);
  return (
    <section aria-label={`Labels by ${probe}`}>
      <div class="toolbar tight"><h2>{`Labels that the edge probe ${probe} gives, reading layers 0 to ℓ`}</h2><ExportMenu name="traces" params={params} /></div>
      <Answer of={found} what="label traces">
        {({ meta, arrays }) => {
          const values = arrays.values!.values as Float32Array;
          const [targets, labels] = [meta.words.length, meta.labels.length];
          const at = (place: number, target: number, label: number) => values[(place * targets + target) * labels + label]!;
          const best = (place: number, target: number) => meta.labels.reduce((most, _, label) => (at(place, target, label) > at(place, target, most) ? label : most), 0);
          const chosen = Math.min(word, targets - 1);
          const total = (label: number) => meta.layers.reduce((sum, _, place) => sum + at(place, chosen, label), 0);
          const gold = meta.gold?.[chosen];
          const top = [...meta.labels.keys()].sort((a, b) => total(b) - total(a)).slice(0, 3);
          const known = gold ? meta.labels.indexOf(gold) : -1;
          if (known >= 0 && !top.includes(known)) top[2] = known;
          return (
            <>
              {meta.second !== null && (
                <label class="field"><span>Pairs with</span>
                  <select value={String(meta.second)} onChange={(event) => setSecond(Number(event.currentTarget.value))}>
                    {one.words.map((text, position) => <option key={position} value={String(position)}>{`${position + 1} ${text}`}</option>)}
                  </select>
                </label>
              )}
              <div class="scroll traces" tabIndex={0} role="region" aria-label="The likeliest label of each word, by the layers that are read">
                <table>
                  <thead><tr><th scope="col">Word</th>{meta.gold && <th scope="col">Label</th>}{meta.layers.map((layer) => <th key={layer} scope="col">{`0–${layer}`}</th>)}</tr></thead>
                  <tbody>
                    {meta.words.map((text, target) => (
                      <tr key={target} class={target === chosen ? "chosen" : undefined}>
                        <th scope="row"><button type="button" class="link" aria-pressed={target === chosen} onClick={() => setWord(target)}><bdi>{text}</bdi></button></th>
                        {meta.gold && <td class="value">{meta.gold[target] ?? ""}</td>}
                        {meta.layers.map((layer, place) => {
                          const label = best(place, target);
                          const right = meta.gold && meta.gold[target] === meta.labels[label];
                          return (
                            <td key={layer} title={`${(100 * at(place, target, label)).toFixed(0)} %`} class={meta.gold && !right ? "wrong" : undefined} style={{ background: `color-mix(in srgb, var(--accent) ${(30 * at(place, target, label)).toFixed(0)}%, transparent)` }}>
                              {meta.labels[label]}
                            </td>
                          );
                        })}
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
              <h3>{`Probability of labels of “${meta.words[chosen]}”${gold ? `, labelled ${gold}` : ""}`}</h3>
              <LayerCurves
                title={`Probability of labels of ${meta.words[chosen]}`}
                label="probability"
                points={top.flatMap((label) => meta.layers.map((layer, place) => ({ layer, series: meta.labels[label]!, value: at(place, chosen, label) })))}
              />
              <p class="note">{meta.gold ? "Labels other than the store's are in red; the likelier, the darker the cell. " : "The likelier a label, the darker its cell. "}Choose a word for its curves.</p>
              <PythonCall code={meta.python} />
            </>
          );
        }}
      </Answer>
    </section>
  );
}

/** The heads of a layer, small, and one of them large. */
function Heads({ of: one }: { of: SentenceAnswer }) {
  const { index, layer, values, go } = useApp();
  const [asked, setAsked] = useState(values.head !== undefined);
  const block = Math.max(1, layer);
  const params = { store: index, sentence: one.sentence, layer: block };
  const found = useQuery<Arrays<Attention>>("attention", asked ? params : null);
  const head = Number(values.head) || 0;
  const canvas = useRef<HTMLCanvasElement | null>(null);
  return (
    <section aria-label="Attention">
      <div class="toolbar tight"><h2>{`Attention of block ${block}`}</h2>{asked && <ExportMenu name="attention" params={params} picture={() => canvas.current} />}</div>
      {!asked && <p><button type="button" onClick={() => setAsked(true)}>Load the model</button> <span class="note">Attention is not stored: the model computes it again.</span></p>}
      <Answer of={found} what="the model and its attention">
        {({ meta, arrays }) => {
          const every = arrays.values!.values as Float32Array;
          const size = meta.subwords.length ** 2;
          const of = (number: number) => every.subarray(number * size, (number + 1) * size);
          const chosen = Math.min(head, meta.heads.length - 1);
          return (
            <>
              <ul class="heads">
                {meta.heads.map((number) => (
                  <li key={number}>
                    <button type="button" aria-pressed={number === chosen} aria-label={`Head ${number}`} onClick={() => go({ head: number }, { replace: true })}>
                      <Thumbnail values={of(number)} n={meta.subwords.length} />
                      <span>{number}</span>
                    </button>
                  </li>
                ))}
              </ul>
              <h3>{`Head ${chosen} of block ${meta.layer}: each row is what a subword attends to`}</h3>
              <Matrix label={`Attention of head ${chosen} of block ${meta.layer}`} words={readable(meta.subwords)} values={of(chosen)} canvas={canvas} low={0} high={1} />
              <PythonCall code={meta.python} />
            </>
          );
        }}
      </Answer>
    </section>
  );
}

function Thumbnail({ values, n }: { values: Float32Array; n: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const pixels = useMemo(() => {
    const image = new ImageData(n, n);
    for (let i = 0; i < values.length; i++) image.data.set([20, 110, 170, Math.round(255 * Math.sqrt(values[i]!))], 4 * i);
    return image;
  }, [values, n]);
  useEffect(() => canvas.current!.getContext("2d")!.putImageData(pixels, 0, 0), [pixels]);
  return <canvas ref={canvas} width={n} height={n} />;
}

export const sentence: View = { name: "sentence", title: "Sentence", component: SentenceView };
