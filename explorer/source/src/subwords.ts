/** Subwords as text: byte-level tokenizers, as that of GPT-2, spell bytes that are no letters as others from U+0100 on. */
export function readable(subwords: string[]): string[] {
  if (!subwords.some((one) => one.startsWith("Ġ"))) return subwords.map((one) => one.replace(/^▁(?=.)/, ""));
  const others = [...Array(256).keys()].filter((byte) => byte < 33 || (byte > 126 && byte < 161) || byte === 173);
  const byte = (point: number) => (point < 256 ? point : others[point - 256] ?? 63);
  return subwords.map((one) => new TextDecoder().decode(Uint8Array.from([...one].map((letter) => byte(letter.codePointAt(0)!)))).trim() || "␣");
}

/** Names that are subwords, separated by commas, as text; each once. */
export function readableNames(names: string[]): string[] {
  const own = names.map((name) => name.split(", "));
  const texts = readable(own.flat());
  return own.map((parts) => [...new Set(texts.splice(0, parts.length))].join(", "));
}
