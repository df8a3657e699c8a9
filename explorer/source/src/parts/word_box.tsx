import { useEffect, useId, useRef, useState } from "preact/hooks";
import type { Completion } from "../answers";
import { useApp } from "../app";

interface Props {
  label: string;
  value: string;
  placeholder: string;
  /** Takes what was chosen or typed. */
  choose: (text: string) => void;
}

/** A text box that completes words: the arrow keys move through them, Enter takes one, Escape closes the list. */
export function WordBox({ label, value, placeholder, choose }: Props) {
  const { source, index } = useApp();
  const [text, setText] = useState(value);
  const [{ of, words: found }, setFound] = useState<{ of?: string; words: Completion["words"] }>({ words: [] });
  const [open, setOpen] = useState(false);
  const [active, setActive] = useState(-1);
  const id = useId();
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (!open || text.includes(" ")) return setFound({ words: [] });
    const abort = new AbortController();
    source.query<Completion>("complete", { store: index, prefix: text, content: !text, limit: 20 }, { signal: abort.signal }).then(
      (answer) => {
        setFound({ of: text, words: answer.words });
        setActive(-1);
      },
      () => abort.signal.aborted || setFound({ of: text, words: [] }), // the box works without completion
    );
    return () => abort.abort();
  }, [text, open, index, source]);
  useEffect(() => list.current?.children[active]?.scrollIntoView({ block: "nearest" }), [active]);
  const take = (chosen: string) => {
    setText(chosen);
    setOpen(false);
    setActive(-1);
    choose(chosen.trim());
  };
  const shown = open && found.length > 0;
  const keys = (event: KeyboardEvent) => {
    if (event.key === "Enter") {
      event.preventDefault();
      take(found[active]?.word ?? text);
    } else if (event.key === "Escape") {
      if (!open) setText(value);
      setOpen(false);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!open) return setOpen(true);
      const size = found.length + 1; // the place after the last word is the text itself
      setActive(((active + 1 + (event.key === "ArrowDown" ? 1 : size - 1)) % size) - 1);
    }
  };
  return (
    <div class="field combo" onFocusOut={(event) => event.currentTarget.contains(event.relatedTarget as Node) || setOpen(false)}>
      <label class="grow">
        <span>{label}</span>
        <input
          type="text"
          role="combobox"
          aria-expanded={shown}
          aria-controls={id}
          aria-autocomplete="list"
          aria-activedescendant={shown && active >= 0 ? `${id}-${active}` : undefined}
          dir="auto"
          spellcheck={false}
          autocomplete="off"
          placeholder={placeholder}
          value={text}
          onInput={(event) => {
            setText(event.currentTarget.value);
            setOpen(true);
          }}
          onKeyDown={keys}
          onClick={() => setOpen(true)}
        />
      </label>
      {text && <button type="button" class="quiet" aria-label="Clear" onClick={() => take("")}>×</button>}
      <ul id={id} role="listbox" aria-label="Words" ref={list} hidden={!shown} aria-busy={shown && of !== text}>
        {found.map(({ word, count }, position) => (
          <li
            key={word}
            id={`${id}-${position}`}
            role="option"
            aria-selected={position === active}
            onMouseDown={(event) => {
              event.preventDefault();
              take(word);
            }}
          >
            <bdi>{word}</bdi>
            <span class="number">{count.toLocaleString("en")}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}
