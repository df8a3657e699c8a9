import type { Completion } from "../answers";
import { useApp } from "../app";
import type { Changes } from "../state";
import { useQuery } from "../use_query";
import { Link } from "./link";

/** The commonest content words of a store. */
export function useContentWords(index: number, limit: number) {
  return useQuery<Completion>("complete", { store: index, prefix: "", content: true, limit });
}

interface Props { title: string; to: (word: string) => Changes; text?: (word: string) => string }

/** Three words to begin with, each a link; `text`: how one is shown. */
export function Examples({ title, to, text = (word) => word }: Props) {
  const { words } = useContentWords(useApp().index, 3).value ?? { words: [] };
  if (!words.length) return null;
  return (
    <p class="examples">
      <span class="muted">{title}</span>
      {words.map(({ word }) => <Link key={word} to={to(word)}><bdi>{text(word)}</bdi></Link>)}
    </p>
  );
}
