import { useApp } from "../app";

/** Chooses the store; with one store, says which. */
export function StorePicker() {
  const { stores, store, index, go } = useApp();
  const facts = `${store.model ?? "no model"} · ${store.rows.toLocaleString("en")} rows · ${store.layers.length} ${store.layers.length === 1 ? "layer" : "layers"}`;
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
