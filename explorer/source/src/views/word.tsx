import type { Occurrence, Occurrences, Senses, WordAnswer } from "../answers";
import { useApp, type View } from "../app";
import { color } from "../palette";
import { Concordance, Quote } from "../parts/concordance";
import { Examples, useContentWords } from "../parts/examples";
import { ExportMenu } from "../parts/export_menu";
import { Filters } from "../parts/filters";
import { LayerCurves } from "../parts/layer_curves";
import { LayerSlider } from "../parts/layer_slider";
import { Link } from "../parts/link";
import { PythonCall } from "../parts/python_call";
import { Answer, Empty } from "../parts/states";
import { Pager, type Column } from "../parts/table";
import { WordBox } from "../parts/word_box";
import { useQuery, type Query } from "../use_query";

const SIZE = 50;
const LOWEST_P = 0.05; // of 19 draws

function WordView() {
  const { index, layer, values, go } = useApp();
  const { word, sense } = values;
  const senses = useQuery<Senses>("senses", word ? { store: index, word, layer, clusters: values.clusters } : null, { progress: true });
  const codes = new Map(senses.value?.rows.map((row, at) => [row, senses.value!.codes[at]!]));
  const rows = sense && senses.value ? senses.value.rows.filter((row) => codes.get(row) === Number(sense)).join() : undefined;
  const waiting = sense !== undefined && word !== undefined && senses.status === "loading" && rows === undefined;
  const params = { store: index, word, where: values.where, rows, sort: values.sort, descending: values.desc ? true : undefined };
  const occurrences = useQuery<Occurrences>("occurrences", waiting ? null : { ...params, offset: Number(values.offset) || 0, limit: SIZE });
  const unknown = senses.status === "error" && senses.error === occurrences.error; // one message is enough
  const coded: Column<Occurrence>[] = codes.size
    ? [{ name: "sense", title: <span class="sr">Cluster</span>, class: "sense", cell: (row) => <Code code={codes.get(row.row)} /> }]
    : [];
  return (
    <>
      <div class="toolbar">
        <WordBox label="Word" value={word ?? ""} placeholder="Type a word" choose={(text) => go({ word: text, sense: null, offset: null, row: null })} />
        <Filters />
        {!word && <Examples title="For example" to={(one) => ({ word: one, offset: null, sense: null })} />}
      </div>
      <div class="split">
        <section class="primary" aria-label="Concordance">
          <Answer of={occurrences} what="occurrences">
            {(answer) => (
              <>
                <div class="toolbar tight">
                  <h2>{word ? <bdi>{word}</bdi> : "All words"}{sense && <span class="tag">cluster {Number(sense) + 1}</span>}</h2>
                  <Pager total={answer.total} size={SIZE} />
                  <ExportMenu name="occurrences" params={params} />
                </div>
                <Same values={answer.same} />
                {answer.total === 0 ? (
                  <Empty title="No occurrence">Nothing fulfils this. Change the word or the condition.</Empty>
                ) : (
                  <Concordance rows={answer.rows} columns={answer.columns} extra={coded} sortable />
                )}
                <PythonCall code={answer.python} />
              </>
            )}
          </Answer>
        </section>
        <aside class="secondary" aria-label={word && !unknown ? "The word" : "Frequent words"}>
          {word && !unknown ? (
            <>
              <SelfSimilarity word={word} />
              <SenseList of={senses} />
            </>
          ) : (
            <FrequentWords />
          )}
        </aside>
      </div>
    </>
  );
}

/** The labels and fields that are the same in all lines, hence no columns. */
function Same({ values }: { values: Record<string, string | null> }) {
  const known = Object.entries(values).filter(([, value]) => value !== null);
  if (!known.length) return null;
  return <p class="facts-line note">All lines: {known.map(([name, value]) => <span key={name}>{name} <bdi>{value}</bdi></span>)}</p>;
}

/** The mark of a cluster: a colour and a number, so that the colour alone says nothing. */
function Code({ code }: { code: number | undefined }) {
  if (code === undefined || code < 0) return <span class="code none">·</span>;
  return <span class="code" ref={(element) => void element?.style.setProperty("--code", color(code))}>{code + 1}</span>;
}

function SelfSimilarity({ word }: { word: string }) {
  const { index, layer } = useApp();
  const answer = useQuery<WordAnswer>("word", { store: index, word }, { progress: true });
  return (
    <section>
      <div class="toolbar tight">
        <h2>Self-similarity</h2>
        <ExportMenu name="word" params={{ store: index, word }} picture />
      </div>
      <Answer of={answer} what="self-similarity">
        {(found) => {
          const of = (series: string, values: (number | null)[]) => found.layers.map((each, at) => ({ layer: each, series, value: values[at] ?? null }));
          return (
            <>
              <LayerCurves
                title={`Self-similarity of ${word} by layer, next to the mean over words and the anisotropy`}
                label="cosine" height={190} layer={layer}
                points={[...of("this word", found.selfsimilarity), ...of("all words", found.corpus), ...of("anisotropy", found.anisotropy)]}
              />
              {found.selfsimilarity.every((value) => value === null) && <p class="note">One occurrence has no self-similarity.</p>}
              <PythonCall folded code={found.python} />
            </>
          );
        }}
      </Answer>
    </section>
  );
}

function SenseList({ of }: { of: Query<Senses> }) {
  const { index, layer, values, go } = useApp();
  return (
    <section>
      <div class="toolbar tight">
        <h2>Clusters</h2>
        <ExportMenu name="senses" params={{ store: index, word: values.word, layer, clusters: values.clusters }} />
      </div>
      <LayerSlider />
      <Answer of={of} what="senses">
        {(answer) => {
          const total = answer.clusters.reduce((sum, one) => sum + one.count, 0);
          return (
            <>
              {answer.caveat && <p class="note warn">{answer.caveat}</p>}
              <ol class="senses">
                {answer.clusters.map((one) => {
                  const chosen = values.sense === String(one.cluster);
                  return (
                    <li key={one.cluster}>
                      <button type="button" aria-pressed={chosen} onClick={() => go({ sense: chosen ? null : one.cluster, offset: null })}>
                        <span class="line">
                          <Code code={one.cluster} />
                          <span class="markers">{one.markers.length ? one.markers.map((marker) => <bdi key={marker}>{marker}</bdi>) : <span class="muted">Cluster {one.cluster + 1}</span>}</span>
                          <span class="number">{one.count.toLocaleString("en")} · {Math.round((100 * one.count) / Math.max(1, total))} %</span>
                        </span>
                        {one.examples.slice(0, 1).map((example) => <span class="example" key={example.row}><Quote of={example} left={24} right={60} /></span>)}
                      </button>
                    </li>
                  );
                })}
              </ol>
              <p class="note">
                {answer.silhouette !== null && `Silhouette ${answer.silhouette.toFixed(2)}, of vectors without clusters ${answer.null!.toFixed(2)} (p ${answer.p!.toFixed(2)}${answer.p! <= LOWEST_P ? ", the lowest possible" : ""}). `}
                {answer.p !== null && answer.p <= LOWEST_P && "Only the lines can say whether these are senses. "}
                {`Clusters of vectors of layer ${answer.layer}`}
                {answer.clusters.some((one) => one.markers.length) ? "; the words are those that mark each." : ": no word is significantly more frequent around one of them."}
              </p>
              <PythonCall folded code={answer.python} />
            </>
          );
        }}
      </Answer>
    </section>
  );
}

function FrequentWords() {
  const { index } = useApp();
  const answer = useContentWords(index, 60);
  return (
    <section>
      <h2>Frequent words</h2>
      <Answer of={answer} what="words">
        {({ words }) => (
          <ul class="words">
            {words.map(({ word, count }) => (
              <li key={word}>
                <Link to={{ word, offset: null, sense: null }}><bdi>{word}</bdi></Link> <span class="number">{count.toLocaleString("en")}</span>
              </li>
            ))}
          </ul>
        )}
      </Answer>
    </section>
  );
}

export const word: View = { name: "word", title: "Word", component: WordView };
