import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { useApp } from "../app";
import type { Needs } from "../source";
import type { Query } from "../use_query";
import { Link } from "./link";
import { ModelForm } from "./model_form";

/** What a part shows before anything is asked, or when the answer holds nothing. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="state">
      <strong>{title}</strong>
      {children && <p>{children}</p>}
    </div>
  );
}

/** A query under way: a bar, with numbers once it reports progress. */
export function Loading({ what, progress }: { what: string; progress?: { done: number; total: number | null } }) {
  const known = progress?.total ? progress : undefined;
  return (
    <div class="state" role="status">
      <progress aria-label={`Loading ${what}`} max={known?.total ?? undefined} value={known?.done} />
      <p>
        Loading {what}
        {known && ` · ${Math.floor((100 * known.done) / known.total!)} %`}
      </p>
    </div>
  );
}

interface Problem { error: string; needs?: Needs; retry: () => void }

/** An error, with what mends it where the page can: another place of the model, or the store opened again. */
export function ErrorState({ error, needs, retry }: Problem) {
  return (
    <div class={Array.isArray(needs) ? "state" : "state error"} role="alert">
      <strong>{Array.isArray(needs) ? "No such word" : "This did not work"}</strong>
      <p dir="auto">{error}</p>
      {needs === "model" && <ModelForm />}
      {needs === "reopen" ? <OpenAgain /> : Array.isArray(needs) ? <Instead words={needs} /> : <button type="button" onClick={retry}>Try again</button>}
    </div>
  );
}

/** Words that a store has, to take one instead of another. */
function Instead({ words }: { words: string[] }) {
  return <p class="examples">{words.map((word) => <Link key={word} to={{ word, row: null, offset: null, sense: null }}><bdi>{word}</bdi></Link>)}</p>;
}

/** Opens what is now at the place of a store that was replaced. */
function OpenAgain() {
  const { source, index, go, changed } = useApp();
  const [error, setError] = useState<string>();
  const open = () => {
    setError(undefined);
    source.query("reopen", { store: index }, { changes: true }).then(() => {
      go({ row: null, sentence: null, offset: null, sense: null }, { replace: true }); // they were those of the other store
      changed();
    }, (problem: Error) => setError(problem.message));
  };
  return (
    <>
      <button type="button" onClick={open}>Open again</button>
      {error && <p class="warn" dir="auto">{error}</p>}
    </>
  );
}

/** The answer of a query once it is here, until then its state; a newer answer under way dims the older one. */
export function Answer<T>({ of, what, children }: { of: Query<T>; what: string; children: (value: T) => ComponentChildren }) {
  if (of.status === "error") return <ErrorState error={of.error!} needs={of.needs} retry={of.retry} />;
  if (of.value === undefined) return of.status === "idle" ? null : <Loading what={what} progress={of.progress} />;
  const busy = of.status === "loading";
  return (
    <div class={busy ? "answer busy" : "answer"} aria-busy={busy}>
      {children(of.value)}
    </div>
  );
}
