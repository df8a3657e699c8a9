import type { View } from "../app";
import { Empty } from "../parts/states";

function CompareView() {
  return <Empty title="Compare">This view is not built yet.</Empty>;
}

export const compare: View = { name: "compare", title: "Compare", needs: ["stores"], component: CompareView };
