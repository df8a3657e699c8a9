import type { View } from "../app";
import { Empty } from "../parts/states";

function NeighboursView() {
  return <Empty title="Neighbours">This view is not built yet.</Empty>;
}

export const neighbors: View = { name: "neighbors", title: "Neighbours", needs: ["neighbors"], component: NeighboursView };
