import type { Completion, Neighbors, Occurrence, Occurrences, WordAnswer } from "./answers";
import { principalPlane, selfSimilarity, turned } from "./plane";
import { decode, integers, ITEM_NBYTES, Ranges, type VectorType } from "./ranges";
import { readSafetensors, type Arrays } from "./safetensors";
import type { Params, QueryOptions, Source } from "./source";

/** What `embstore explore --static` says of a store: where its bytes are, and what was computed of the whole of it. */
interface Held {
  url: string;
  python: string;
  layers: number[];
  dim: number;
  dtype: VectorType;
  rows: number;
  vectors: string;
  partition_rows: number;
  columns: { name: string; kind: string }[];
  documents: boolean;
  words: string;
  /** The folder of the first principal components of each layer, in the order of the words, and how many they are. */
  maps: string | null;
  components: number;
  /** The folder of the vectors among which neighbours are found, and how many they are. */
  sample: string;
  sampled: number;
  sentences: number;
  /** The words whose senses were computed. */
  senses: string[];
  corpus: { selfsim: (number | null)[]; anisotropy: (number | null)[]; min_contexts: number };
}

interface Manifest {
  stores: Held[];
  answers: Record<string, string>;
}

/** Of the words, which are sorted without their case: first position in types/occurrences, self-similarity by layer, and
 * where the first lines are: start and bytes. */
type Entry = [word: string, start: number, count: number, similarities: number[] | null, lines: [number, number] | null];

interface Words {
  firsts: string[];
  frequent: Record<string, [string, number][]>;
}

const READ = 64 * 1024 * 1024; // bytes of vectors that one answer may need
const SHOWN = 100_000; // points of a map, where no more are asked for
const LARGE = 1_000_000; // points of the larger maps
const SORTED = 2000; // occurrences that are fetched to be sorted
const NEAR = 128; // occurrences of a word that are mapped from their vectors, one request each, where there are maps
const MAPPED = 20_000;
const CONTEXT = 1000;
const COLORS = 7;
const ATTACHED = "\x1f";
const LINES = 50; // of a word, at once
const FILTERED = 100_000; // occurrences of a word that a condition is asked of
const COMPUTED = ["complete", "occurrences", "word", "map", "sentence", "similarity", "neighbors"];

/** A folder of files on any web host: answers computed beforehand, and the store itself, read by ranges. */
export class StaticSource implements Source {
  private ranges: Ranges[];
  private kept = new Map<string, Promise<unknown>>();
  private before = new Map<string, Float32Array>(); // the last map of some rows, like which the next one is turned

  private constructor(private readonly manifest: Manifest) {
    this.ranges = manifest.stores.map((each) => new Ranges(each.url));
  }

  static async open(address: string): Promise<StaticSource> {
    return new StaticSource(await json<Manifest>(address));
  }

  has(name: string, params?: Params): boolean {
    if (name === "senses" && params) return this.manifest.stores[Number(params.store ?? 0)]!.senses.includes(String(params.word));
    return COMPUTED.includes(name) || Object.keys(this.manifest.answers).some((key) => key.split("?")[0] === name);
  }

  stored(name: string, params: Params): boolean {
    return keyOf(name, params, Number(params.sample) > SHOWN ? LARGE : undefined) in this.manifest.answers;
  }

  async query<T>(name: string, params: Params, { signal, progress }: QueryOptions = {}): Promise<T> {
    const many = Number(params.sample) > SHOWN && this.manifest.answers[keyOf(name, params, LARGE)];
    const prepared = many || this.manifest.answers[keyOf(name, params)];
    if (prepared?.endsWith(".json")) return json<T>(prepared, signal);
    if (prepared) return readSafetensors(await (await found(prepared, signal)).arrayBuffer()) as T;
    const asked = new Asked(this, this.manifest.stores[Number(params.store ?? 0)]!, this.ranges[Number(params.store ?? 0)]!, params, signal);
    if (name === "complete") return (await asked.complete()) as T;
    if (name === "occurrences") return (await asked.occurrences()) as T;
    if (name === "word") return (await asked.word(progress)) as T;
    if (name === "map" && (params.word || params.rows)) return (await asked.map(this.before)) as T;
    if (name === "sentence") return (await asked.sentence()) as T;
    if (name === "similarity") return (await asked.similarity()) as T;
    if (name === "neighbors") return (await asked.neighbors(progress)) as T;
    if (name === "senses") throw new Error(asked.noSenses());
    throw new Error(`this page is static and has no answer to this: run embstore explore on the store`);
  }

  /** What is fetched once. */
  once<T>(key: string, make: () => Promise<T>): Promise<T> {
    if (!this.kept.has(key)) this.kept.set(key, make().catch((error) => (this.kept.delete(key), Promise.reject(error))));
    return this.kept.get(key) as Promise<T>;
  }
}

/** The name under which an answer was stored: parameters that do not choose among stored answers are left out. */
export function keyOf(name: string, params: Params, sample?: number): string {
  const given = Object.entries({ ...params, sample }).filter(([key, value]) => value !== undefined && !["seed", "parts"].includes(key));
  if (params.method === "pca") given.splice(given.findIndex(([key]) => key === "method"), 1);
  if (!given.some(([key]) => key === "store") && name !== "stores") given.push(["store", 0]);
  return `${name}?${given.sort(([a], [b]) => (a < b ? -1 : 1)).map(([key, value]) => `${key}=${value}`).join("&")}`;
}

interface Chosen {
  total: number;
  rows: (start: number, stop: number) => Promise<number[]>;
  start?: number; // of a word, the position of its first row in types/occurrences
  similarities?: number[] | null;
  lines?: [number, number] | null;
}

/** One question about one store. */
class Asked {
  constructor(
    private readonly source: StaticSource,
    private readonly held: Held,
    private readonly ranges: Ranges,
    private readonly params: Params,
    private readonly signal?: AbortSignal,
  ) {}

  async complete(): Promise<Completion> {
    const prefix = String(this.params.prefix ?? "").toLowerCase();
    const limit = Number(this.params.limit ?? 20);
    const { frequent } = await this.wordIndex();
    const best = frequent[prefix] ?? (await this.entries(prefix, (each) => each.startsWith(prefix)))
      .sort((a, b) => b[2] - a[2] || a[1] - b[1]).map(([word, , count]): [string, number] => [word, count]);
    return { words: best.slice(0, limit).map(([word, count]) => ({ word, count })) };
  }

  async occurrences(): Promise<Occurrences> {
    const { sort = "row", descending = false, offset = 0, limit = 50 } = this.params;
    const chosen = await this.chosen();
    const [first, last] = [Number(offset), Math.min(Number(offset) + Number(limit), chosen.total)];
    const python = this.params.where ? this.held.python.replace("\n", "\nimport polars as pl\n") : this.held.python;
    const answer = { total: chosen.total, columns: this.held.columns, python: `${python}\n${this.selecting()}.table()${this.filtering()}` };
    if (sort === "row" && !descending && chosen.lines && last <= LINES) return { ...answer, rows: (await this.lines(chosen.lines)).slice(first, last) };
    if (sort === "row") {
      const rows = descending
        ? (await chosen.rows(chosen.total - last, chosen.total - first)).reverse()
        : await chosen.rows(first, last);
      return { ...answer, rows: await this.described(rows) };
    }
    if (chosen.total > SORTED) throw new Error(`a static page sorts ${SORTED.toLocaleString("en")} occurrences at most: there are ${chosen.total.toLocaleString("en")}`);
    const all = await this.described(await chosen.rows(0, chosen.total));
    return { ...answer, rows: sorted(all, String(sort), Boolean(descending)).slice(first, last) };
  }

  async word(progress?: QueryOptions["progress"]): Promise<WordAnswer> {
    const { layers, corpus, dim, dtype, python } = this.held;
    const chosen = await this.chosen();
    const most = Math.floor(READ / (layers.length * dim * ITEM_NBYTES[dtype]));
    if (chosen.total > most && !chosen.similarities) throw new Error(`a static page computes the self-similarity of ${most.toLocaleString("en")} occurrences at most: run embstore explore on the store`);
    let done = 0;
    const rows = chosen.similarities ? [] : await chosen.rows(0, chosen.total);
    const own = chosen.similarities ?? await Promise.all(layers.map(async (layer) => {
      const value = selfSimilarity(await this.vectors(rows, layer), dim);
      progress?.(++done, layers.length);
      return value;
    }));
    return {
      word: String(this.params.word), count: chosen.total, layers, selfsimilarity: own, corpus: corpus.selfsim, anisotropy: corpus.anisotropy,
      python: `${python}\nes.geometry(${this.selecting()}, metrics='selfsim', min_contexts=1)\n` +
        `es.geometry(store, metrics=['selfsim', 'anisotropy'], min_contexts=${corpus.min_contexts})`,
    };
  }

  async map(before: Map<string, Float32Array>): Promise<Arrays> {
    const { dim, dtype, maps, components } = this.held;
    const layer = this.layer();
    const chosen = await this.chosen();
    if (chosen.total < 3) throw new Error(`a map of ${chosen.total} occurrences is not possible: choose a word with three or more`);
    const shown = Math.min(chosen.total, MAPPED, Number(this.params.sample ?? MAPPED), Math.floor(READ / (dim * ITEM_NBYTES[dtype])));
    const drawn = Array.from({ length: shown }, (_, each) => Math.floor((each * chosen.total) / shown));
    const reduced = maps && chosen.start !== undefined && chosen.total > NEAR
      ? this.components(`${maps}/${layer}`, drawn.map((each) => chosen.start! + each)) : null;
    const every = await chosen.rows(0, chosen.total);
    const rows = drawn.map((each) => every[each]!);
    const plane = reduced ? principalPlane(await reduced, components) : principalPlane(await this.vectors(rows, layer), dim);
    const key = JSON.stringify([this.params.store, this.params.word, this.params.rows, this.params.where, this.params.sample]);
    const points = before.has(key) ? turned(plane.points, before.get(key)!) : plane.points;
    before.set(key, points);
    const { codes, names } = await this.colors(every, drawn, chosen.start);
    const array = (values: Float32Array | Float64Array | Int32Array) => ({ values, shape: [shown] });
    const reach = Float32Array.from(points, Math.abs).sort();
    return {
      meta: {
        layer, method: "pca", total: chosen.total, shown, explained: reduced ? null : plane.explained, seed: 0,
        colors: names, scale: "categories", regions: [], note: reduced && `A sketch: the plane is that of the first ${components} principal components of the layer.`, extent: reach[Math.floor(0.998 * (reach.length - 1))],
        python: `${this.held.python}\n${this.params.where ? "import polars as pl\n" : ""}es.analysis.project(${this.selecting(true)}, layer=${layer}, method='pca', sample=${MAPPED})`,
      },
      arrays: {
        row: array(Float64Array.from(rows)),
        x: array(points.filter((_, each) => each % 2 === 0)),
        y: array(points.filter((_, each) => each % 2 === 1)),
        color: array(codes),
      },
    };
  }

  private layer(): number {
    const { layers } = this.held;
    const given = this.params.layer === undefined || this.params.layer === "last" ? -1 : Number(this.params.layer);
    const layer = given < 0 ? layers.at(given) : given;
    if (layer === undefined || !layers.includes(layer)) throw new Error(`layer ${this.params.layer} is not stored: choose among ${layers.join(", ")}`);
    return layer;
  }

  private selecting(filtered = false): string {
    const { word, rows, where } = this.params;
    const list = rows ? rowNumbers(String(rows)) : [];
    const numbers = `rows=[${[...list.slice(0, 20), ...(list.length > 20 ? ["..."] : [])].join(", ")}]`;
    return `store.select(${[word && `words=${quoted(String(word))}`, rows && numbers, filtered && where && `where=pl.sql_expr(${quoted(String(where))})`].filter(Boolean).join(", ")})`;
  }

  /** The rows that are asked for: how many, and a function that fetches some of them. */
  private async chosen(): Promise<Chosen> {
    const { word, where, rows } = this.params;
    if (where && !word && !rows) throw new Error("a static page filters the occurrences of a word: choose a word, or run embstore explore on the store");
    if (rows) {
      const list = await this.filtered(rowNumbers(String(rows)));
      return { total: list.length, rows: async (start, stop) => list.slice(start, stop) };
    }
    if (!word) return { total: this.held.rows, rows: async (start, stop) => Array.from({ length: stop - start }, (_, each) => start + each) };
    const folded = String(word).toLowerCase();
    const entry = (await this.entries(folded, (each) => each === folded)).find(([each]) => each === word);
    if (!entry) throw new Error(`the store has no word ${quoted(String(word))}: words are spelled as in the corpus`);
    const read = async (start: number, stop: number) => {
      const span = { start: (entry[1] + start) * 8, nbytes: (stop - start) * 8 };
      return integers((await this.ranges.read("types/occurrences/c/0", [span], this.signal))[0]!, 8);
    };
    if (!where) return { total: entry[2], start: entry[1], similarities: entry[3], lines: entry[4], rows: read };
    if (entry[2] > FILTERED) throw new Error(`a static page filters ${FILTERED.toLocaleString("en")} occurrences at most: there are ${entry[2].toLocaleString("en")}`);
    const every = await this.filtered(await read(0, entry[2]), entry[1]);
    return { total: every.length, rows: async (start, stop) => every.slice(start, stop) };
  }

  /** The rows that satisfy the condition; `start`: of all rows of a word, the position of the first in types/occurrences. */
  private async filtered(rows: number[], start?: number): Promise<number[]> {
    if (!this.params.where) return rows;
    const columns = new Set(this.held.columns.filter(({ kind }) => kind === "label").map(({ name }) => name));
    const tests = await Promise.all(conditions(String(this.params.where)).map(async ({ column, holds }) => {
      if (column !== "position" && !columns.has(column)) throw new Error(`a static page filters by ${[...columns, "position"].join(", ")}: there is no ${quoted(column)}`);
      const values = column === "position" ? await this.ranges.numbers("occurrences/position/c/0", rows, 4, this.signal) : await this.labelled(column, rows, start);
      return values.map((value) => value !== null && holds(value));
    }));
    return rows.filter((_, each) => tests.every((test) => test[each]));
  }

  private filtering(): string {
    return this.params.where ? `.filter(pl.sql_expr(${quoted(String(this.params.where))}))` : "";
  }

  /** A label of rows; of all rows of a word from one range, where they were written in the order of the words. */
  private async labelled(name: string, rows: number[], start?: number): Promise<(string | number | null)[]> {
    if (!this.held.maps || start === undefined) {
      if (rows.length > SORTED) throw new Error(`a static page without maps reads the labels of ${SORTED.toLocaleString("en")} occurrences at most: there are ${rows.length.toLocaleString("en")}`);
      return this.values(name, "label", rows);
    }
    const span = { start: start * 4, nbytes: rows.length * 4 };
    const file = `label-${encodeURIComponent(encodeURIComponent(name))}`;
    const [bytes] = await new Ranges(".").read(`${this.held.maps}/${file}`, [span], this.signal);
    return this.named(`labels/${name}/name`, "label", integers(bytes!, 4));
  }

  private async lines([start, nbytes]: [number, number]): Promise<Occurrence[]> {
    const [bytes] = await new Ranges(".").read(`${this.held.words}/lines`, [{ start, nbytes }], this.signal);
    return JSON.parse(new TextDecoder().decode(bytes)) as Occurrence[];
  }

  noSenses(): string {
    const { layers, senses } = this.held;
    const at = [...new Set([layers[layers.length >> 1], layers.at(-1)])].join(" and ");
    return senses.length
      ? `senses were computed at layers ${at} of ${senses.join(", ")}: choose one of these, or run embstore explore on the store`
      : "no senses were computed: run embstore explore on the store";
  }

  async sentence() {
    const { layers, columns, sentences, python } = this.held;
    const { row } = this.params;
    const number = this.params.sentence !== undefined ? Number(this.params.sentence)
      : row === undefined ? 0 : (await this.ranges.numbers("occurrences/sentence/c/0", [Number(row)], 8, this.signal))[0]!;
    const [[text], own] = await Promise.all([this.strings("sentences/text", [number]), this.inSentence(number)]);
    const words = text!.replaceAll(ATTACHED, " ").split(" ");
    const labels = await this.labels(own.rows, own.rows.map(() => number));
    const at = <V>(value: (each: number) => V): (V | null)[] => words.map((_, position) => {
      const each = own.positions.indexOf(position);
      return each < 0 ? null : value(each);
    });
    return {
      sentence: number, sentences, words, rows: at((each) => own.rows[each]!),
      labels: Object.fromEntries(columns.map(({ name }) => [name, at((each) => labels[each]![name]!)])),
      text: text!.replaceAll(ATTACHED, ""), layers, probes: [], attention: false, python: `${python}\nstore.select(sentences=${number}).table()`,
    };
  }

  async similarity(): Promise<Arrays> {
    const number = Number(this.params.sentence);
    const layer = this.layer();
    const { rows, positions } = await this.inSentence(number);
    if (rows.length > 1000) throw new Error(`sentence ${number} has ${rows.length.toLocaleString("en")} words: at most 1,000 are compared`);
    const types = await this.ranges.numbers("occurrences/type/c/0", rows, 4, this.signal);
    const words = await this.strings("types/form", types);
    const { dim } = this.held;
    const unit = normed(await this.vectors(rows, layer), dim);
    const values = new Float32Array(rows.length ** 2);
    for (let i = 0; i < rows.length; i++) for (let j = 0; j < rows.length; j++) values[i * rows.length + j] = product(unit, i * dim, unit, j * dim, dim);
    const python = `${this.held.python}\nes.analysis.sentence_similarity(store, sentence=${number}, layers=[${layer}]).values[0]`;
    return { meta: { layer, words, positions, python }, arrays: { values: { values, shape: [rows.length, rows.length] } } };
  }

  /** The rows of a sentence, which follow each other, and the positions of their words. */
  private async inSentence(number: number): Promise<{ rows: number[]; positions: number[] }> {
    const [bytes] = await this.ranges.read("sentences/indptr/c/0", [{ start: number * 8, nbytes: 16 }], this.signal);
    const [first, stop] = integers(bytes!, 8) as [number, number];
    const rows = Array.from({ length: stop - first }, (_, each) => first + each);
    return { rows, positions: await this.ranges.numbers("occurrences/position/c/0", rows, 4, this.signal) };
  }

  /** The nearest of a sample of occurrences, by vectors of 8 bits. */
  async neighbors(progress?: QueryOptions["progress"]): Promise<Neighbors> {
    const { row, word, text, where, k = 10 } = this.params;
    if (text !== undefined) throw new Error("a static page cannot encode a sentence: run embstore explore on the store");
    if (where) throw new Error("a static page finds neighbours without a condition: run embstore explore on the store");
    const { layers: stored, dim, sample, sampled, python } = this.held;
    const layers = this.params.layers === undefined ? [...new Set([stored[0]!, stored[stored.length >> 1]!, stored.at(-1)!])]
      : String(this.params.layers).split(",").map((layer) => new Asked(this.source, this.held, this.ranges, { ...this.params, layer }).layer());
    const chosen = row === undefined ? await this.chosen() : { total: 1, rows: async () => [Number(row)] };
    const some = Math.min(chosen.total, NEAR);
    const every = await chosen.rows(0, chosen.total);
    const rows = Array.from({ length: some }, (_, each) => every[Math.floor((each * chosen.total) / some)]!);
    const own = new Ranges(".");
    const candidates = await this.source.once(`${sample}/rows`, async () => integers((await own.read(`${sample}/rows`, [{ start: 0, nbytes: sampled * 8 }]))[0]!, 8));
    const [query] = word === undefined ? await this.described(rows) : [];
    let done = 0;
    const found = await Promise.all([...new Set(layers)].map(async (layer) => {
      const vectors = await this.vectors(rows, layer);
      const mean = new Float32Array(dim);
      for (let each = 0; each < vectors.length; each++) mean[each % dim]! += vectors[each]! / some;
      const held = await this.source.once(`${sample}/${layer}`, async () =>
        normed(Float32Array.from(new Int8Array((await own.read(`${sample}/${layer}`, [{ start: 0, nbytes: sampled * dim }]))[0]!.buffer)), dim));
      const unit = normed(mean, dim);
      const scores = candidates.map((_, each) => product(held, each * dim, unit, 0, dim));
      const order = scores.map((_, each) => each).filter((each) => candidates[each] !== Number(row ?? -1))
        .sort((a, b) => scores[b]! - scores[a]! || a - b).slice(0, Number(k));
      const near = await new Asked(this.source, this.held, this.ranges, {}, this.signal).described(order.map((each) => candidates[each]!));
      progress?.(++done, layers.length);
      return { layer, neighbors: near.map((each, at) => ({ ...each, similarity: scores[order[at]!]! })) };
    }));
    const of = chosen.total > some ? ` The word is the mean of ${some} of its ${chosen.total.toLocaleString("en")} occurrences.` : "";
    return {
      query: query ? { word: query.word, left: query.left, right: query.right, count: 1 } : { word: String(word), left: "", right: "", count: some },
      layers: found,
      note: sampled < this.held.rows || of
        ? `A static page compares with ${sampled.toLocaleString("en")} occurrences drawn evenly from ${this.held.rows.toLocaleString("en")}, by numbers of 8 bits: the nearest of all are found by embstore explore.${of}`
        : "By numbers of 8 bits.",
      python: `${python}\nfor layer in [${layers.join(", ")}]:\n    print(es.neighbors(store, ${row === undefined ? `${quoted(String(word))}, pool='mean'` : `occurrence=${row}`}, layer=layer, k=${k}))`,
    };
  }

  private wordIndex(): Promise<Words> {
    return this.source.once(this.held.words, () => json<Words>(`${this.held.words}/index.json`));
  }

  /** The words whose spelling without case satisfies a condition; those that do follow each other, from `folded` on. */
  private async entries(folded: string, wanted: (each: string) => boolean): Promise<Entry[]> {
    const { firsts } = await this.wordIndex();
    let piece = firsts.findLastIndex((first) => first < folded);
    const found: Entry[] = [];
    for (piece = Math.max(piece, 0); piece < firsts.length; piece++) {
      const name = `${this.held.words}/${piece}.json`;
      const entries = await this.source.once(name, () => json<Entry[]>(name));
      found.push(...entries.filter(([word]) => wanted(word.toLowerCase())));
      if (entries.some(([word]) => word.toLowerCase() > folded && !wanted(word.toLowerCase()))) break;
    }
    return found;
  }

  private async described(rows: number[]): Promise<Occurrence[]> {
    const read = (path: string, positions: number[], size: 4 | 8) => this.ranges.numbers(path, positions, size, this.signal);
    const forms = this.params.word
      ? rows.map(() => String(this.params.word)) : read("occurrences/type/c/0", rows, 4).then((types) => this.strings("types/form", types));
    const positions = read("occurrences/position/c/0", rows, 4);
    const sentences = await read("occurrences/sentence/c/0", rows, 8);
    const [texts, labels, at, words] = await Promise.all([
      this.strings("sentences/text", sentences), this.labels(rows, sentences), positions, forms]);
    return rows.map((row, each) => {
      const [left, word, right] = concordance(texts[each]!, at[each]!, words[each]!);
      return {
        row, sentence: sentences[each]!, position: at[each]!, word,
        left: left.length <= CONTEXT ? left : `…${left.slice(-CONTEXT)}`,
        right: right.length <= CONTEXT ? right : `${right.slice(0, CONTEXT)}…`,
        labels: labels[each]!,
      };
    });
  }

  private async labels(rows: number[], sentences: number[]): Promise<Occurrence["labels"][]> {
    const { columns } = this.held;
    const documents = this.held.documents && columns.some(({ kind }) => kind !== "label")
      ? await this.ranges.numbers("sentences/document/c/0", sentences, 8, this.signal) : sentences;
    const values = await Promise.all(columns.map(({ name, kind }) => this.values(name, kind, kind === "label" ? rows : documents)));
    return rows.map((_, each) => Object.fromEntries(columns.map(({ name }, column) => [name, values[column]![each]!])));
  }

  private async values(name: string, kind: string, positions: number[]): Promise<(string | number | null)[]> {
    const [codes, names] = kind === "label"
      ? [`occurrences/labels/${name}`, `labels/${name}/name`] : [`documents/fields/${name}/codes`, `documents/fields/${name}/name`];
    return this.named(names, kind, await this.ranges.numbers(`${codes}/c/0`, positions, 4, this.signal));
  }

  /** The values of codes, by the column of their names; null for -1. */
  private async named(names: string, kind: string, found: number[]): Promise<(string | number | null)[]> {
    const known = [...new Set(found)].filter((code) => code >= 0);
    const texts = await this.strings(names, known);
    const parse = (text: string) => (kind === "int" || kind === "float" ? Number(text) : kind === "bool" ? ((text === "true") as unknown as number) : text);
    const named = new Map(known.map((code, each) => [code, parse(texts[each]!)]));
    return found.map((code) => named.get(code) ?? null);
  }

  /** Some strings of a column in Arrow's layout. */
  private async strings(path: string, positions: number[]): Promise<string[]> {
    const bounds = await this.ranges.read(`${path}_offsets/c/0`, positions.map((each) => ({ start: each * 8, nbytes: 16 })), this.signal);
    const spans = bounds.map((bytes) => {
      const [start, stop] = integers(bytes, 8) as [number, number];
      return { start, nbytes: stop - start };
    });
    const decoder = new TextDecoder();
    return (await this.ranges.read(`${path}_bytes/c/0`, spans, this.signal)).map((bytes) => decoder.decode(bytes));
  }

  /** The vectors of rows at a layer: float32 [n, dim]. */
  private async vectors(rows: number[], layer: number): Promise<Float32Array> {
    const { dim, dtype, vectors, partition_rows: size, layers } = this.held;
    const nbytes = dim * ITEM_NBYTES[dtype];
    const partitions = Map.groupBy(rows.map((row, each) => [row, each] as const), ([row]) => Math.floor(row / size));
    const found = new Float32Array(rows.length * dim);
    await Promise.all([...partitions].map(async ([partition, members]) => {
      const padded = Math.ceil(Math.min(size, this.held.rows - partition * size) / 256) * 256;
      const first = layers.indexOf(layer) * padded - partition * size;
      const spans = members.map(([row]) => ({ start: (first + row) * nbytes, nbytes }));
      const parts = await this.ranges.read(`${vectors}/c/0/${partition}/0`, spans, this.signal);
      parts.forEach((bytes, each) => found.set(decode(bytes, dtype), members[each]![1] * dim));
    }));
    return found;
  }

  /** Rows on the first principal components of a layer, by their positions in the order of the words: float32 [n, components]. */
  private async components(path: string, positions: number[]): Promise<Float32Array> {
    const nbytes = this.held.components * ITEM_NBYTES.float16;
    const parts = await new Ranges(".").read(path, positions.map((each) => ({ start: each * nbytes, nbytes })), this.signal);
    const found = new Float32Array(parts.length * this.held.components);
    parts.forEach((bytes, each) => found.set(decode(bytes, "float16"), each * this.held.components));
    return found;
  }

  /** The colours of some of the rows by a label. */
  private async colors(rows: number[], drawn: number[], start?: number): Promise<{ codes: Int32Array; names: string[] }> {
    const column = this.held.columns.find(({ name }) => name === this.params.color);
    if (!column || column.kind !== "label") return { codes: new Int32Array(drawn.length).fill(-1), names: [] };
    const values = this.held.maps && start !== undefined
      ? await this.labelled(column.name, rows, start).then((all) => drawn.map((each) => all[each]!))
      : await this.values(column.name, "label", drawn.map((each) => rows[each]!));
    const counts = [...Map.groupBy(values.filter((value) => value !== null), (value) => value)].map(([value, all]) => [value, all.length] as const);
    const order = counts.sort((a, b) => b[1] - a[1]).map(([value]) => String(value));
    const apart = order.length <= COLORS + 1 ? order.length : COLORS;
    const names = [...order.slice(0, apart), ...(apart < order.length ? [`${order.length - COLORS} others`] : [])];
    const codes = Int32Array.from(values, (value) => (value === null ? -1 : Math.min(order.indexOf(String(value)), apart)));
    return { codes, names };
  }
}

/** The parts of a stored sentence before a word, the word, and after it, as they are read. */
export function concordance(text: string, position: number, form: string): [string, string, string] {
  const words = text.replaceAll(ATTACHED, ` ${ATTACHED}`).split(" ");
  const natural = (part: string[]) => part.join(" ").replaceAll(` ${ATTACHED}`, "").replaceAll(ATTACHED, "");
  if (position < 0) return ["", form, ` ${natural(words)}`];
  if (position >= words.length) return [`${natural(words)} `, form, ""];
  const stop = position + form.split(" ").length;
  const space = (at: number) => (at > 0 && at < words.length && !words[at]!.startsWith(ATTACHED) ? " " : "");
  return [natural(words.slice(0, position)) + space(position), natural(words.slice(position, stop)), space(stop) + natural(words.slice(stop))];
}

/** The row numbers of a text such as 3,7-9, ascending, each once. */
function rowNumbers(text: string): number[] {
  const rows = text.split(",").flatMap((part) => {
    const [first, last] = part.split("-").map(Number) as [number, number?];
    return Array.from({ length: (last ?? first) - first + 1 }, (_, each) => first + each);
  });
  return [...new Set(rows)].sort((a, b) => a - b);
}

interface Condition { column: string; holds: (value: string | number) => boolean }

const CONDITION = /^\s*("(?:[^"]|"")+"|\w+)\s*(=|==|!=|<>|<=|>=|<|>)\s*('(?:[^']|'')*'|-?\d+(?:\.\d+)?)\s*(?:AND\b|$)/i;

/** The parts of a condition such as upos = 'NOUN' AND position < 3. */
export function conditions(where: string): Condition[] {
  const found: Condition[] = [];
  for (let rest = where; rest.trim() || !found.length; ) {
    const part = CONDITION.exec(rest);
    if (!part || /AND\s*$/i.test(rest)) throw new Error(`a static page reads conditions such as upos = 'NOUN' AND position < 3, not ${quoted(where)}: run embstore explore on the store`);
    const [whole, name, sign, given] = part as unknown as [string, string, string, string];
    const wanted = given.startsWith("'") ? given.slice(1, -1).replaceAll("''", "'") : Number(given);
    const holds: Record<string, (value: string | number) => boolean> = {
      "=": (value) => value === wanted, "!=": (value) => value !== wanted, "<": (value) => value < wanted,
      "<=": (value) => value <= wanted, ">": (value) => value > wanted, ">=": (value) => value >= wanted,
    };
    found.push({ column: name.startsWith('"') ? name.slice(1, -1).replaceAll('""', '"') : name, holds: holds[sign === "==" ? "=" : sign === "<>" ? "!=" : sign]! });
    rest = rest.slice(whole.length);
  }
  return found;
}

/** Vectors [n, size] of length one; zero ones stay. */
function normed(vectors: Float32Array, size: number): Float32Array {
  const found = new Float32Array(vectors.length);
  for (let start = 0; start < vectors.length; start += size) {
    const norm = Math.sqrt(product(vectors, start, vectors, start, size)) || 1;
    for (let i = start; i < start + size; i++) found[i] = vectors[i]! / norm;
  }
  return found;
}

function product(a: Float32Array, atA: number, b: Float32Array, atB: number, size: number): number {
  let sum = 0;
  for (let i = 0; i < size; i++) sum += a[atA + i]! * b[atB + i]!;
  return sum;
}

function sorted(rows: Occurrence[], by: string, descending: boolean): Occurrence[] {
  const words = (text: string) => text.toLowerCase().split(/\s+/).filter(Boolean);
  const keys: Record<string, (each: Occurrence) => string | number | null> = {
    word: (each) => each.word.toLowerCase(), sentence: (each) => each.sentence, position: (each) => each.position,
    left: (each) => words(each.left).reverse().join("\0"), right: (each) => words(each.right).join("\0"),
  };
  const key = keys[by] ?? ((each: Occurrence) => each.labels[by] ?? null);
  const known = rows.map((each) => [key(each), each] as const);
  const order = (a: string | number, b: string | number) => (a < b ? -1 : a > b ? 1 : 0) * (descending ? -1 : 1);
  return known
    .sort(([a, first], [b, second]) => (a === null ? 1 : 0) - (b === null ? 1 : 0) || (a === null ? 0 : order(a, b!)) || first.row - second.row)
    .map(([, each]) => each);
}

/** A text as Python writes it. */
function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  return quote + text.replaceAll("\\", "\\\\").replaceAll(quote, `\\${quote}`) + quote;
}

async function found(address: string, signal?: AbortSignal): Promise<Response> {
  const response = await fetch(address, { signal });
  if (!response.ok) throw new Error(`the web host answers ${response.status} to ${address}`);
  return response;
}

async function json<T>(address: string, signal?: AbortSignal): Promise<T> {
  return (await found(address, signal)).json() as Promise<T>;
}
