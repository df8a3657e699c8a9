// Writes the licences of all packages that the page is built of next to it: what is shipped says whose it is.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";

const { packages } = JSON.parse(readFileSync("package-lock.json", "utf8"));
const texts = new Map(); // of a text: the packages under it
for (const path of Object.keys(packages).sort()) {
  const { dev, version } = packages[path];
  if (!path || dev) continue;
  const file = readdirSync(path).find((name) => /^(licen[cs]e|copying)/i.test(name));
  if (!file) throw new Error(`${path} has no file of its licence`);
  const text = readFileSync(`${path}/${file}`, "utf8").replace(/\r\n/g, "\n").trim();
  texts.set(text, [...(texts.get(text) ?? []), `${path.replace(/^.*node_modules\//, "")} ${version}`]);
}
const parts = [...texts].map(([text, names]) => `${names.join(", ")}\n\n${text}\n`);
writeFileSync("../page/THIRD_PARTY_LICENSES.txt", parts.join(`\n${"-".repeat(80)}\n\n`));
