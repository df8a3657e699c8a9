import type { Completion } from "../answers";
import { useApp } from "../app";
import type { Changes } from "../state";
import { useQuery } from "../use_query";
import { Link } from "./link";

/** The commonest content words of a store. */
export function useContentWords(index: number, limit: number) {
  return useQuery<Completion>("complete", { store: index, prefix: "", content: true, limit });
}

/** Three words to begin with, each a link. */
export function Examples({ title, to }: { title: string; to: (word: string) => Changes }) {
  const { words } = useContentWords(useApp().index, 3).value ?? { words: [] };
  if (!words.length) return null;
  return (
    <p class="examples">
      <span class="muted">{title}</span>
      {words.map(({ word }) => <Link key={word} to={to(word)}><bdi>{word}</bdi></Link>)}
    </p>
  );
}
