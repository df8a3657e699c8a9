/** What the queries answer. */

export interface LabelLayer {
  name: string;
  values: string[];
}

export interface StoreInfo {
  name: string;
  address: string;
  model: string | null;
  layers: number[];
  dim: number;
  rows: number;
  types: number;
  sentences: number;
  finished: boolean;
  /** Whether whoever asks may say where its model is. */
  takes_model: boolean;
  /** Why new sentences cannot be encoded, where the place of the model would mend it. */
  missing_model: string | null;
  can_encode: boolean;
  /** Whether its occurrences are subwords. */
  subwords: boolean;
  /** Whether umap-learn is installed. */
  umap: boolean;
  labels: LabelLayer[];
  fields: { name: string; kind: string }[];
  probes: { name: string; kind: string }[];
}

export interface Occurrence {
  row: number;
  sentence: number;
  position: number;
  left: string;
  word: string;
  right: string;
  form: string; // by which the word is found
  labels: Record<string, string | number | null>;
}

export interface Completion {
  words: { word: string; count: number }[];
}

export interface Occurrences {
  total: number;
  /** The labels and fields that differ between the occurrences, and the value of each that does not. */
  columns: { name: string; kind: string }[];
  same: Record<string, string | null>;
  rows: Occurrence[];
  python: string;
}

export interface WordAnswer {
  word: string;
  count: number;
  layers: number[];
  selfsimilarity: (number | null)[];
  corpus: (number | null)[];
  anisotropy: (number | null)[];
  python: string;
}

export interface Sense {
  cluster: number;
  count: number;
  markers: string[];
  examples: Occurrence[];
}

export interface Senses {
  layer: number;
  silhouette: number | null;
  null: number | null;
  p: number | null;
  caveat: string | null;
  clusters: Sense[];
  rows: number[];
  codes: number[];
  python: string;
}

export type Neighbor = Occurrence & { similarity: number };

export interface Neighbors {
  query: { word: string; left: string; right: string; count: number };
  layers: { layer: number; neighbors: Neighbor[] }[];
  /** How far these are the nearest. */
  note?: string;
  python: string;
}

export interface Geometry {
  note: string | null;
  rows: { layer: number; metric: string; value: number | null; low: number | null; high: number | null }[];
  python: string;
}

export interface Cka {
  a: number[];
  b: number[];
  values: (number | null)[][];
  python: string;
}

export interface ProbeResults {
  results: { name: string; kind: string; rows: Record<string, string | number | null>[] }[];
  python: string;
}
