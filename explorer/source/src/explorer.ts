import { effect } from "@preact/signals";
import { ServerSource } from "./server_source";
import { mount, unmount } from "./shell";
import { memoryState, urlState, type Values } from "./state";
import style from "./style.css?inline";
import { startTheme } from "./theme";
import { WidgetSource, type Model } from "./widget_source";

/** The explorer as the page of a server. */
export function start(): void {
  startTheme();
  mount(document.getElementById("app")!, new ServerSource(new URLSearchParams(location.search).get("token")), urlState());
}

/** The explorer in a notebook: the page in a box of its own, whose styles and the notebook's do not meet. */
function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const root = el.attachShadow({ mode: "open" });
  const sheet = document.createElement("style");
  const scoped = style.replace(/(:root|\bhtml\b)(\[[^\]]*\])?(?=[\s,{])/g, (_, __, theme: string) => (theme ? `:host(${theme})` : ":host"));
  sheet.textContent = scoped.replace(/(^|[\s,}])body(?=[\s,{])/g, "$1.box") + ":host{display:block}.box{position:relative;overflow:auto;border:1px solid var(--line)}";
  const box = document.createElement("div");
  box.className = "box";
  box.style.height = `${model.get("height")}px`;
  root.append(sheet, box);

  const source = new WidgetSource(model);
  const state = memoryState(model.get("state") as Values);
  const stop = effect(() => {
    const values = state.values.value;
    if (same(values, model.get("state") as Values)) return;
    model.set("state", { ...values });
    model.save_changes();
  });
  const changed = () => {
    const values = model.get("state") as Values;
    const removed = Object.keys(state.values.peek()).filter((name) => !(name in values));
    if (!same(values, state.values.peek())) state.go({ ...Object.fromEntries(removed.map((name) => [name, null])), ...values });
  };
  model.on("change:state", changed);
  mount(box, source, state);
  return () => {
    stop();
    model.off("change:state", changed);
    source.close();
    unmount(box);
  };
}

function same(one: Values, other: Values): boolean {
  return JSON.stringify(Object.entries(one).sort()) === JSON.stringify(Object.entries(other).sort());
}

export default { render };
