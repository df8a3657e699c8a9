import { useApp } from "../app";

/** Chooses a layer of the store, where it has several: the arrow keys move it too. */
export function LayerSlider({ label = "Layer" }: { label?: string }) {
  const { store, layer, go } = useApp();
  const last = store.layers.length - 1;
  return (
    <label class="slider">
      <span>{label}</span>
      {last > 0 && (
        <input
          type="range"
          min={0}
          max={last}
          step={1}
          value={store.layers.indexOf(layer)}
          aria-valuetext={`layer ${layer}`}
          onInput={(event) => go({ layer: store.layers[Number(event.currentTarget.value)] }, { replace: true })}
        />
      )}
      <output>{layer}</output>
    </label>
  );
}
