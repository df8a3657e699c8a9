import type { View } from "../app";
import { Empty } from "../parts/states";

function LayersView() {
  return <Empty title="Layers">This view is not built yet.</Empty>;
}

export const layers: View = { name: "layers", title: "Layers", needs: ["geometry"], component: LayersView };
