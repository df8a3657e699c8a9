import { readSafetensors } from "./safetensors";
import type { Params, QueryOptions, Source } from "./source";

/** The queries of the server that serves this page. */
export class ServerSource implements Source {
  constructor(private readonly token: string | null) {}

  has(): boolean {
    return true;
  }

  exportUrl(name: string, params: Params, format: "csv" | "parquet"): string {
    return this.url(`export/${name}.${format}`, params);
  }

  async query<T>(name: string, params: Params, options: QueryOptions = {}): Promise<T> {
    const headers = options.progress ? { Accept: "application/x-ndjson" } : undefined;
    let response: Response;
    try {
      response = await fetch(this.url(name, params), { signal: options.signal, headers, cache: "no-store" });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new Error("the server does not answer: is `embstore explore` still running?");
    }
    const type = response.headers.get("content-type") ?? "";
    if (!response.ok) {
      const body = type.startsWith("application/json") ? await response.json() : null;
      throw new Error(body?.error ?? `the server answers ${response.status} to ${name}`);
    }
    if (type.startsWith("application/x-ndjson")) return (await readLines(response, options)) as T;
    if (type.startsWith("application/json")) return (await response.json()) as T;
    return readSafetensors(await response.arrayBuffer()) as T;
  }

  private url(name: string, params: Params): string {
    const query = new URLSearchParams();
    for (const [key, value] of Object.entries(params)) if (value !== undefined) query.set(key, String(value));
    if (this.token) query.set("token", this.token);
    return `api/${name}?${query}`;
  }
}

/** The last of newline-separated JSON values; those before it report progress. */
async function readLines(response: Response, options: QueryOptions): Promise<unknown> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let answer: unknown;
  const take = (line: string) => {
    if (!line) return;
    const value = JSON.parse(line);
    if (value.error) throw new Error(value.error);
    if (value.progress) options.progress?.(value.progress[0], value.progress[1]);
    else answer = value.result ?? value;
  };
  for (;;) {
    const { done, value } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = done ? "" : lines.pop()!;
    lines.forEach(take);
    if (done) break;
  }
  if (answer === undefined) throw new Error("the answer ends before its result");
  return answer;
}
