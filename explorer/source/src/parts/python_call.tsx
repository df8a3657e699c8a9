import { useState } from "preact/hooks";

/** The call of the public API that gives what a view shows, with a button that copies it. */
export function PythonCall({ code, folded = false }: { code: string; folded?: boolean }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(code);
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };
  return (
    <div class="python">
      <details open={!folded}>
        <summary>Python</summary>
        <pre tabIndex={0} role="region" aria-label="The Python call"><code>{code}</code></pre>
      </details>
      <button type="button" class="quiet" onClick={copy}>
        <span aria-live="polite">{copied ? "Copied" : "Copy"}</span>
      </button>
    </div>
  );
}
