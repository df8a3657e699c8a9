import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { StoreInfo } from "./answers";
import { AppContext, useApp } from "./app";
import { Link } from "./parts/link";
import { StorePicker } from "./parts/store_picker";
import { ErrorState, Loading } from "./parts/states";
import type { Source } from "./source";
import type { State } from "./state";
import { setTheme, dark } from "./theme";
import { forget } from "./use_query";
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
  const changed = () => {
    forget(source);
    setTries(tries + 1);
  };
  if (error) return <ErrorState error={error} retry={() => setTries(tries + 1)} />;
  if (!stores) return <Loading what="the stores" />;
  return (
    <AppContext.Provider value={{ source, stores, state, views: VIEWS, changed }}>
      <Shell key={tries} />
    </AppContext.Provider>
  );
}

function Shell() {
  const { state, values, store } = useApp();
  const view = VIEWS.find((one) => one.name === values.view) ?? VIEWS[0]!;
  useEffect(() => {
    if (state.titled) document.title = [values.word, view.title, store.name, "embstore"].filter(Boolean).join(" · ");
  }, [values.word, view, store]);
  return (
    <>
      <a class="skip" href="#main">Skip to the view</a>
      <header class="bar">
        <span class="brand">embstore</span>
        <nav aria-label="Views">
          {VIEWS.map((one) => (
            <Link key={one.name} to={{ view: one.name, offset: null }} current={one === view}>{one.title}</Link>
          ))}
        </nav>
        {view.name === "compare" ? <span class="store" /> : <StorePicker />}
        <ThemeSwitch />
      </header>
      <main id="main" tabIndex={-1} class={`view view-${view.name}`}>
        <h1 class="sr">{view.title}</h1>
        <view.component key={view.name} />
      </main>
    </>
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
