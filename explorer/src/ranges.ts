/** Bytes of files on a web host, by range requests: near spans together, several requests at a time. */

export interface Span {
  start: number;
  nbytes: number;
}

const GAP = 32 * 1024; // bytes that are read rather than asked for apart
const MOST = 4 * 1024 * 1024; // of one request of several spans
const AT_ONCE = 24;

export class Ranges {
  private running = 0;
  private waiting: (() => void)[] = [];

  /** `base`: the address of the folder, relative to the page or absolute. */
  constructor(private readonly base: string) {}

  /** The bytes of spans of a file, in their order. */
  async read(path: string, spans: Span[], signal?: AbortSignal): Promise<Uint8Array<ArrayBuffer>[]> {
    const order = spans.map((_, number) => number).sort((a, b) => spans[a]!.start - spans[b]!.start);
    const found: Uint8Array<ArrayBuffer>[] = new Array(spans.length);
    const runs: { start: number; stop: number; members: number[] }[] = [];
    for (const number of order) {
      const { start, nbytes } = spans[number]!;
      const last = runs.at(-1);
      if (last && start - last.stop <= GAP && start + nbytes - last.start <= MOST) {
        last.stop = Math.max(last.stop, start + nbytes);
        last.members.push(number);
      } else runs.push({ start, stop: start + nbytes, members: [number] });
    }
    await Promise.all(
      runs.map(async (run) => {
        if (run.stop === run.start) return run.members.forEach((number) => (found[number] = new Uint8Array(0)));
        const bytes = await this.fetched(path, run.start, run.stop, signal);
        for (const number of run.members) {
          const { start, nbytes } = spans[number]!;
          found[number] = bytes.slice(start - run.start, start - run.start + nbytes);
        }
      }),
    );
    return found;
  }

  /** Elements of an array of int32 or int64 at some positions, as numbers. */
  async numbers(path: string, positions: number[], size: 4 | 8, signal?: AbortSignal): Promise<number[]> {
    const parts = await this.read(path, positions.map((each) => ({ start: each * size, nbytes: size })), signal);
    return parts.map((bytes) => integers(bytes, size)[0]!);
  }

  private async fetched(path: string, start: number, stop: number, signal?: AbortSignal): Promise<Uint8Array<ArrayBuffer>> {
    if (this.running >= AT_ONCE) await new Promise<void>((resolve) => this.waiting.push(resolve));
    else this.running += 1;
    try {
      signal?.throwIfAborted();
      // Chromium's cache lets one request of a file wait for the other.
      const headers = { Range: `bytes=${start}-${stop - 1}` };
      const response = await fetch(`${this.base}/${path}`, { headers, signal, cache: "no-store" });
      if (response.status === 200) throw new Error("the store's web host does not answer range requests: use another host");
      if (response.status !== 206) throw new Error(`the store's web host answers ${response.status} to ${path}`);
      const bytes = new Uint8Array(await response.arrayBuffer());
      if (bytes.length !== stop - start) throw new Error(`the store's web host has ${bytes.length} of ${stop - start} bytes of ${path}`);
      return bytes;
    } finally {
      const next = this.waiting.shift();
      if (next) next();
      else this.running -= 1;
    }
  }
}

/** Little-endian integers as numbers. */
export function integers(bytes: Uint8Array<ArrayBuffer>, size: 4 | 8): number[] {
  return size === 4 ? Array.from(new Int32Array(bytes.buffer)) : Array.from(new BigInt64Array(bytes.buffer), Number);
}

export type VectorType = "float16" | "float32" | "bfloat16";
export const ITEM_NBYTES: Record<VectorType, number> = { float16: 2, float32: 4, bfloat16: 2 };

let halves: Float32Array | undefined;

/** Stored vectors as float32. */
export function decode(bytes: Uint8Array<ArrayBuffer>, dtype: VectorType): Float32Array {
  if (dtype === "float32") return new Float32Array(bytes.buffer);
  const bits = new Uint16Array(bytes.buffer);
  if (dtype === "bfloat16") return new Float32Array(Uint32Array.from(bits, (each) => each << 16).buffer);
  halves ??= Float32Array.from({ length: 65536 }, (_, each) => {
    const [exponent, fraction] = [(each >> 10) & 31, each & 1023];
    const sign = each & 0x8000 ? -1 : 1;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
  });
  const table = halves;
  return Float32Array.from(bits, (each) => table[each]!);
}
