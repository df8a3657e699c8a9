import type { View } from "../app";
import { Empty } from "../parts/states";

function MapView() {
  return <Empty title="Map">This view is not built yet.</Empty>;
}

export const map: View = { name: "map", title: "Map", needs: ["map"], component: MapView };
