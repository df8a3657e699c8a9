import type { View } from "../app";
import { Empty } from "../parts/states";

function SentenceView() {
  return <Empty title="Sentence">This view is not built yet.</Empty>;
}

export const sentence: View = { name: "sentence", title: "Sentence", needs: ["sentence"], component: SentenceView };
