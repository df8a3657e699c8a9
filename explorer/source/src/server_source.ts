import { readSafetensors } from "./safetensors";
import { QueryError, type Params, type QueryOptions, type Source } from "./source";

const LONGEST = 4000; // characters of an address; longer parameters go into the body

/** The queries of the server that serves this page. */
export class ServerSource implements Source {
  constructor(private readonly token: string | null) {}

  exportUrl(name: string, params: Params, format: "csv" | "parquet"): string | undefined {
    if (String(params.rows ?? "").length > LONGEST) return undefined;
    const address = this.url(`export/${name}.${format}`, params);
    return address.length <= LONGEST ? address : undefined;
  }

  async exported(name: string, params: Params, format: "csv" | "parquet"): Promise<Blob> {
    return (await this.ask(`export/${name}.${format}`, params)).blob();
  }

  async query<T>(name: string, params: Params, { signal, progress, changes }: QueryOptions = {}): Promise<T> {
    const response = await this.ask(name, params, { signal, method: changes ? "POST" : "GET", headers: progress && { Accept: "application/x-ndjson" } });
    const type = response.headers.get("content-type") ?? "";
    if (type.startsWith("application/x-ndjson")) return (await lastOf(response, progress)) as T;
    if (type.startsWith("application/json")) return (await response.json()) as T;
    return readSafetensors(await response.arrayBuffer()) as T;
  }

  private async ask(name: string, params: Params, request: RequestInit = {}): Promise<Response> {
    const address = this.url(name, params);
    let response: Response;
    try {
      response = await (address.length <= LONGEST && request.method !== "POST"
        ? fetch(address, { ...request, cache: "no-store" })
        : fetch(this.url(name, {}), { ...request, cache: "no-store", method: "POST", body: JSON.stringify(params) }));
    } catch (error) {
      if (request.signal?.aborted) throw error;
      throw new Error("the server does not answer: is `embstore explore` still running?");
    }
    if (response.ok) return response;
    const body = response.headers.get("content-type")?.startsWith("application/json") ? await response.json() : null;
    throw new QueryError(body?.error ?? (response.status === 401 ? "open the address that `embstore explore` printed" : `the server answers ${response.status}`), body?.needs);
  }

  private url(name: string, params: Params): string {
    const query = new URLSearchParams();
    for (const [key, value] of Object.entries(params)) if (value !== undefined) query.set(key, String(value));
    if (this.token) query.set("token", this.token);
    return `api/${name}?${query}`;
  }
}

/** The result after lines of progress: the last line, or the arrays that it says follow. */
async function lastOf(response: Response, progress: QueryOptions["progress"]): Promise<unknown> {
  const reader = response.body!.getReader();
  let bytes = new Uint8Array();
  for (;;) {
    const end = bytes.indexOf(10);
    if (end >= 0) {
      const line = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)));
      bytes = bytes.slice(end + 1);
      if (line.error) throw new QueryError(line.error, line.needs);
      if (line.progress) progress?.(line.progress[0], line.progress[1]);
      else if (line.safetensors) return readSafetensors(await filled(reader, bytes, line.safetensors));
      else return line.result;
    } else {
      const { done, value } = await reader.read();
      if (done) throw new Error("the answer ends before its result");
      bytes = joined(bytes, value);
    }
  }
}

async function filled(reader: ReadableStreamDefaultReader<Uint8Array>, start: Uint8Array, size: number): Promise<ArrayBuffer> {
  const all = new Uint8Array(size);
  all.set(start);
  for (let at = start.length; at < size; ) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the answer ends before its arrays");
    all.set(value, at);
    at += value.length;
  }
  return all.buffer;
}

function joined(first: Uint8Array, second: Uint8Array): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(first.length + second.length);
  all.set(first);
  all.set(second, first.length);
  return all;
}
