import { useMemo } from "preact/hooks";
import { AppContext, useApp, type View } from "../app";
import { StorePicker } from "../parts/store_picker";
import { renamed } from "../state";

/** The values that each side has for itself; all others are shared. */
const OWN = ["row", "sentence", "offset", "sense", "layer", "layers"];

function CompareView() {
  const { views: all, stores, values, go } = useApp();
  const views = all.filter((view) => view !== compare && (stores.length > 1 || view.name !== "layers")); // it shows all layers
  const view = views.find((one) => one.name === values.of) ?? views[stores.length > 1 ? 0 : 1]!;
  return (
    <>
      <div class="toolbar">
        <label class="field">
          <span>View</span>
          <select value={view.name} onChange={(event) => go({ of: event.currentTarget.value })}>
            {views.map((one) => <option key={one.name} value={one.name}>{one.title}</option>)}
          </select>
        </label>
        <p class="note">
          {stores.length > 1
            ? "The word, the sentence and the condition are shared; each side has its own store and layer."
            : `${stores[0]!.layers.length > 1 ? "Two layers of one store" : "One store, of one layer"}: embstore explore ONE.zarr OTHER.zarr compares two stores, such as a model before and after fine-tuning.`}
        </p>
      </div>
      <div class="sides">
        <Side view={view} right={false} />
        <Side view={view} right={true} />
      </div>
    </>
  );
}

function Side({ view, right }: { view: View; right: boolean }) {
  const app = useApp();
  const state = useMemo(() => {
    const names = Object.fromEntries((right ? ["store", ...OWN] : []).map((name) => [name, `${name}2`]));
    return renamed(app.state, { view: "of", ...names }, ({ store, layer, layers }) => {
      if (app.stores.length === 1) return twoLayers(app.stores[0]!.layers, right, layer, layers);
      if (!right) return {};
      return { layer, layers, store: store === undefined || store === "0" ? 1 : 0 };
    });
  }, [app.state, app.stores, right]);
  return (
    <section class="side" aria-label={right ? "Right" : "Left"}>
      <AppContext.Provider value={{ ...app, state }}>
        <StorePicker />
        <view.component />
      </AppContext.Provider>
    </section>
  );
}

/** Of one store the left side has the first layer that is contextual, the right one the last, or another than the left. */
function twoLayers(all: number[], right: boolean, layer: string | undefined, layers: string | undefined) {
  const left = layer ?? String(all[Math.min(1, all.length - 1)]);
  const other = String(all.at(-1)) === left ? all[0] : all.at(-1);
  return right ? { layer: other, layers: other } : { layer: left, layers: layers ?? left };
}

export const compare: View = { name: "compare", title: "Compare", component: CompareView };
