import { useEffect, useState } from "preact/hooks";
import { useApp } from "../app";

const quoted = (value: string) => (/^[\w.+-]+$/.test(value) ? value : `"${value.replace(/(["\\])/g, "\\$1")}"`);

/** The text of `--where`, with a menu that writes a condition on a label. */
export function Filters() {
  const { store, values, go } = useApp();
  const [text, setText] = useState(values.where ?? "");
  useEffect(() => setText(values.where ?? ""), [values.where]);
  const apply = (where: string) => go({ where, offset: null });
  return (
    <form
      class="filters"
      onSubmit={(event) => {
        event.preventDefault();
        apply(text.trim());
      }}
    >
      <label>
        <span>Where</span>
        <input
          type="text"
          dir="auto"
          spellcheck={false}
          autocomplete="off"
          placeholder={store.labels.length ? `${store.labels[0]!.name} == …` : "a condition"}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => event.key === "Escape" && setText(values.where ?? "")}
        />
      </label>
      {store.labels.length > 0 && (
        <select
          aria-label="Add a condition on a label"
          value=""
          onChange={(event) => {
            const condition = event.currentTarget.value;
            event.currentTarget.value = "";
            apply([values.where, condition].filter(Boolean).join(" & "));
          }}
        >
          <option value="">Label…</option>
          {store.labels.map((layer) => (
            <optgroup key={layer.name} label={layer.name}>
              {layer.values.slice(0, 200).map((value) => (
                <option key={value} value={`${layer.name} == ${quoted(value)}`}>{value}</option>
              ))}
            </optgroup>
          ))}
        </select>
      )}
      {values.where && <button type="button" class="quiet" onClick={() => apply("")}>Clear</button>}
    </form>
  );
}
