import type { ComponentChildren } from "preact";
import { useApp } from "../app";
import type { Changes } from "../state";

interface Props {
  to: Changes;
  children: ComponentChildren;
  current?: boolean;
  class?: string;
  title?: string;
  label?: string;
}

/** A link to another state of the page: an ordinary address, followed without loading the page again. */
export function Link({ to, children, current, class: name, title, label }: Props) {
  const { go, href } = useApp();
  return (
    <a
      href={href(to)}
      class={name}
      title={title}
      aria-label={label}
      aria-current={current ? "page" : undefined}
      onClick={(event) => {
        if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
        event.preventDefault();
        go(to);
      }}
    >
      {children}
    </a>
  );
}
