import { useState } from "preact/hooks";
import { useApp } from "../app";

/** A field for the place of a store's model, which the server uses from then on if it is the one that made the store. */
export function ModelForm() {
  const { source, stores, index, changed } = useApp();
  const [number, setNumber] = useState(index);
  const [place, setPlace] = useState("");
  const [error, setError] = useState<string>();
  const [busy, setBusy] = useState(false);
  if (!stores[number]!.takes_model) return null;
  const use = async () => {
    setBusy(true);
    setError(undefined);
    try {
      await source.query("model", { store: number, place: place.trim() }, { changes: true });
      changed();
    } catch (problem) {
      setError((problem as Error).message);
      setBusy(false);
    }
  };
  return (
    <form
      class="model-form"
      aria-busy={busy}
      onSubmit={(event) => {
        event.preventDefault();
        if (place.trim() && !busy) void use();
      }}
    >
      <div class="field">
        {stores.length > 1 && (
          <select aria-label="Store of the model" value={String(number)} onChange={(event) => setNumber(Number(event.currentTarget.value))}>
            {stores.map((store, each) => <option key={each} value={String(each)}>{store.name}</option>)}
          </select>
        )}
        <label class="grow">
          <span>Model</span>
          <input type="text" class="mono" spellcheck={false} autocomplete="off" placeholder="Folder or name" value={place} onInput={(event) => setPlace(event.currentTarget.value)} />
        </label>
        <button disabled={!place.trim() || busy}>{busy ? "Loading…" : "Use it"}</button>
      </div>
      {error && <p class="warn" role="alert" dir="auto">{error}</p>}
    </form>
  );
}
