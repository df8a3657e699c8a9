/** Where a view's data come from: a server or a notebook's kernel. */

export type Params = Record<string, string | number | boolean | undefined>;

/** What mends an error: the place of the model, that the store is opened again, or one of these words for one that is not there. */
export type Needs = "model" | "reopen" | string[];

/** An error of one line; `needs` says what would mend it. */
export class QueryError extends Error {
  constructor(message: string, readonly needs?: Needs) {
    super(message);
  }
}

export interface QueryOptions {
  /** Whether the query changes what others answer. */
  changes?: boolean;
  signal?: AbortSignal;
  progress?: (done: number, total: number | null) => void;
}

export interface Source {
  /** The answer of a named query; a query of arrays resolves to `Arrays`. Rejects with a QueryError. */
  query<T>(name: string, params: Params, options?: QueryOptions): Promise<T>;
  /** The address of a query's table, where the source has tables; undefined for one that is too long. */
  exportUrl?(name: string, params: Params, format: "csv" | "parquet"): string | undefined;
  /** The table itself. Rejects as `query`. */
  exported?(name: string, params: Params, format: "csv" | "parquet"): Promise<Blob>;
  /** Is told of the rows that are selected on the map, for code outside the page. */
  selected?(rows: number[] | null): void;
}
