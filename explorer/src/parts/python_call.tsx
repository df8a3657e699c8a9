import { useState } from "preact/hooks";

/** The call of the public API that gives what a view shows. */
export function PythonCall({ code }: { code: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(code);
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };
  return (
    <figure class="python">
      <figcaption>Python</figcaption>
      <pre tabIndex={0} aria-label="The Python call of this view"><code>{code}</code></pre>
      <button type="button" class="quiet" onClick={copy} aria-live="polite">{copied ? "Copied" : "Copy"}</button>
    </figure>
  );
}
