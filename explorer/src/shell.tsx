import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { StoreInfo } from "./answers";
import { AppContext, useApp, type View } from "./app";
import { Link } from "./parts/link";
import { ErrorState, Loading } from "./parts/states";
import type { Source } from "./source";
import type { State } from "./state";
import { setTheme, dark } from "./theme";
import { VIEWS } from "./views";

/** Shows the explorer in an element. */
export function mount(element: HTMLElement, source: Source, state: State): void {
  render(<Page source={source} state={state} />, element);
}

/** Takes the explorer out of its element. */
export function unmount(element: HTMLElement): void {
  render(null, element);
}

function Page({ source, state }: { source: Source; state: State }) {
  const [stores, setStores] = useState<StoreInfo[]>();
  const [error, setError] = useState<string>();
  const [tries, setTries] = useState(0);
  useEffect(() => {
    setError(undefined);
    source.query<StoreInfo[]>("stores", {}).then(setStores, (problem: Error) => setError(problem.message));
  }, [source, tries]);
  if (error) return <ErrorState error={error} retry={() => setTries(tries + 1)} />;
  if (!stores) return <Loading what="the stores" />;
  return (
    <AppContext.Provider value={{ source, stores, state }}>
      <Shell />
    </AppContext.Provider>
  );
}

function Shell() {
  const { source, values, store } = useApp();
  const views = VIEWS.filter((view) => view.needs.every((name) => source.has(name)));
  const view = views.find((one) => one.name === values.view) ?? views[0]!;
  useEffect(() => {
    document.title = [values.word, view.title, store.name, "embstore"].filter(Boolean).join(" · ");
  }, [values.word, view, store]);
  return (
    <>
      <a class="skip" href="#main">Skip to the view</a>
      <header class="bar">
        <span class="brand">embstore</span>
        <nav aria-label="Views">
          {views.map((one) => (
            <Link key={one.name} to={{ view: one.name, offset: null }} current={one === view}>{one.title}</Link>
          ))}
        </nav>
        <StorePicker />
        <ThemeSwitch />
      </header>
      <main id="main" tabIndex={-1} class={`view view-${view.name}`}>
        <h1 class="sr">{view.title}</h1>
        <Content key={view.name} view={view} />
      </main>
    </>
  );
}

function Content({ view }: { view: View }) {
  return <view.component />;
}

/** Chooses the store; with one store, says which. */
export function StorePicker() {
  const { stores, store, index, go } = useApp();
  const facts = `${store.model ?? "no model"} · ${store.rows.toLocaleString("en")} rows · ${store.layers.length} layers`;
  return (
    <span class="store" title={`${store.address}\n${facts}`}>
      {stores.length === 1 ? (
        <b>{store.name}</b>
      ) : (
        <select aria-label="Store" value={String(index)} onChange={(event) => go({ store: event.currentTarget.value, row: null, sentence: null, offset: null })}>
          {stores.map((one, position) => <option key={position} value={String(position)}>{one.name}</option>)}
        </select>
      )}
      <span class="facts">{facts}</span>
      {!store.finished && <span class="tag warn">unfinished</span>}
    </span>
  );
}

function ThemeSwitch() {
  const other = dark.value ? "light" : "dark";
  return (
    <button type="button" class="quiet icon" aria-label={`Switch to ${other} colours`} title={`Switch to ${other} colours`} onClick={() => setTheme(other)}>
      <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
        <circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" stroke-width="1.5" />
        <path d="M8 1.8a6.2 6.2 0 0 1 0 12.4z" fill="currentColor" />
      </svg>
    </button>
  );
}
