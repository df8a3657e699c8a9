import { useEffect, useState } from "preact/hooks";
import { useApp } from "./app";
import type { Arrays } from "./safetensors";
import type { Params, QueryError, Source } from "./source";

export interface Query<T> {
  status: "idle" | "loading" | "error" | "done";
  /** The answer; while another is loading, the one before. */
  value?: T;
  error?: string;
  needs?: QueryError["needs"];
  progress?: { done: number; total: number | null };
  retry: () => void;
}

const ANSWERS = 40;
const KEPT = 256 * 1024 * 1024; // bytes of the arrays of these answers
const answers = new WeakMap<Source, Map<string, unknown>>();

function remembered(source: Source): Map<string, unknown> {
  if (!answers.has(source)) answers.set(source, new Map());
  return answers.get(source)!;
}

/** Forgets the answers of a source, which would now be others. */
export const forget = (source: Source): void => void answers.delete(source);

const nbytes = (values: unknown[]): number =>
  values.flatMap((each) => Object.values((each as Partial<Arrays>)?.arrays ?? {})).reduce((sum, { values }) => sum + values.byteLength, 0);

/** The answer of a query, asked again when its parameters change; `null` asks nothing. */
export function useQuery<T>(name: string, params: Params | null, options: { progress?: boolean } = {}): Query<T> {
  const { source } = useApp();
  const [tries, setTries] = useState(0);
  const key = params && `${name} ${JSON.stringify(params)}`;
  const [state, setState] = useState<Omit<Query<T>, "retry"> & { key: string | null }>({ status: "idle", key: null });
  useEffect(() => {
    if (!key || !params) return setState({ status: "idle", key });
    const known = remembered(source);
    if (known.has(key)) return setState({ status: "done", value: known.get(key) as T, key });
    const abort = new AbortController();
    setState((before) => ({ status: "loading", value: before.value, key }));
    const progress = options.progress
      ? (done: number, total: number | null) =>
          setState((before) => (before.key === key ? { ...before, progress: { done, total } } : before))
      : undefined;
    source.query<T>(name, params, { signal: abort.signal, progress }).then(
      (value) => {
        known.set(key, value);
        while (known.size > ANSWERS || (known.size > 1 && nbytes([...known.values()]) > KEPT)) known.delete(known.keys().next().value!);
        if (!abort.signal.aborted) setState({ status: "done", value, key });
      },
      (error: unknown) => {
        if (!abort.signal.aborted) setState({ status: "error", error: String((error as Error).message ?? error), needs: (error as QueryError).needs, key });
      },
    );
    return () => abort.abort();
  }, [source, key, tries]);
  const retry = () => setTries(tries + 1);
  if (state.key !== key) return { status: key ? "loading" : "idle", value: key ? state.value : undefined, retry };
  return { ...state, retry };
}
