import { useEffect, useState } from "preact/hooks";
import { useApp } from "../app";

const column = (name: string) => (/^[a-z_]\w*$/i.test(name) ? name : `"${name.replace(/"/g, '""')}"`);
const text = (value: string) => `'${value.replace(/'/g, "''")}'`;

/** The condition on labels and fields, in SQL as in `where`, with a menu that writes it. */
export function Filters() {
  const { store, values, go } = useApp();
  const [draft, setDraft] = useState(values.where ?? "");
  useEffect(() => setDraft(values.where ?? ""), [values.where]);
  const apply = (where: string) => go({ where, offset: null });
  const example = store.labels[0];
  return (
    <form
      class="field"
      onSubmit={(event) => {
        event.preventDefault();
        apply(draft.trim());
      }}
    >
      <label class="grow">
        <span>Where</span>
        <input
          type="text"
          class="mono"
          spellcheck={false}
          autocomplete="off"
          placeholder={example ? `${column(example.name)} = ${text(example.values[0] ?? "…")}` : "position < 3"}
          value={draft}
          onInput={(event) => setDraft(event.currentTarget.value)}
          onKeyDown={(event) => event.key === "Escape" && setDraft(values.where ?? "")}
        />
      </label>
      {store.labels.length > 0 && (
        <select
          aria-label="Add a condition on a label"
          class="narrow"
          value=""
          onChange={(event) => {
            const condition = event.currentTarget.value;
            event.currentTarget.value = "";
            apply([values.where, condition].filter(Boolean).join(" AND "));
          }}
        >
          <option value="">+ label</option>
          {store.labels.map((layer) => (
            <optgroup key={layer.name} label={layer.name}>
              {layer.values.slice(0, 200).map((value) => (
                <option key={value} value={`${column(layer.name)} = ${text(value)}`}>{value}</option>
              ))}
            </optgroup>
          ))}
        </select>
      )}
      {(values.where || draft) && <button type="button" class="quiet" onClick={() => { setDraft(""); apply(""); }}>Clear</button>}
    </form>
  );
}
