import { computed, signal, type ReadonlySignal } from "@preact/signals";

/** What the page shows, as names and texts: all of it is in the address, so that a link restores it. */
export type Values = Readonly<Record<string, string>>;
export type Changes = Record<string, string | number | undefined | null>;

export interface State {
  readonly values: ReadonlySignal<Values>;
  /** Changes values (undefined removes one) as a new entry of the history, or in place of the present one. */
  go(changes: Changes, options?: { replace?: boolean }): void;
  /** Whether the document's title says what is shown. */
  readonly titled?: boolean;
  /** The address after some changes, for a link. */
  href(changes: Changes): string;
}

const MAPPED = ["store", "layer", "word", "where", "method", "sample"]; // of another one, a lasso is around other points

function changed(values: Values, changes: Changes): Values {
  const next: Record<string, string> = { ...values };
  if (MAPPED.some((name) => name in changes && String(changes[name] ?? "") !== (values[name] ?? ""))) delete next.lasso;
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === null || value === "") delete next[name];
    else next[name] = String(value);
  }
  return next;
}

/** The state in the query of the page's address. */
export function urlState(): State {
  const read = (): Values => Object.fromEntries(new URLSearchParams(location.search));
  const values = signal(read());
  addEventListener("popstate", () => (values.value = read()));
  const href = (changes: Changes) => `?${new URLSearchParams(changed(values.peek(), changes))}`;
  return {
    values,
    titled: true,
    href,
    go(changes, { replace = false } = {}) {
      const address = href(changes);
      if (replace || address === location.search) history.replaceState(null, "", address);
      else history.pushState(null, "", address);
      values.value = read();
    },
  };
}

/** A state of its own, for a page inside another page. */
export function memoryState(initial: Values = {}): State {
  const values = signal<Values>(initial);
  return {
    values,
    href: (changes) => `?${new URLSearchParams(changed(values.peek(), changes))}`,
    go: (changes) => void (values.value = changed(values.peek(), changes)),
  };
}

/** A state with other names in the address for some of its values: each side of Compare has its own store. Where one of
 * them is not in the address, it is that of `missing`, if any. */
export function renamed(state: State, names: Readonly<Record<string, string>>, missing: (values: Values) => Changes = () => ({})): State {
  const outward = (changes: Changes): Changes =>
    Object.fromEntries(Object.entries(changes).map(([name, value]) => [names[name] ?? name, value]));
  return {
    values: computed(() => {
      const all = state.values.value;
      const own = Object.fromEntries(Object.entries(names).map(([name, outer]) => [name, all[outer]]));
      const set = Object.entries(own).filter(([, value]) => value !== undefined);
      return changed(all, { ...own, ...missing(all), ...Object.fromEntries(set) });
    }),
    go: (changes, options) => state.go(outward(changes), options),
    href: (changes) => state.href(outward(changes)),
  };
}
