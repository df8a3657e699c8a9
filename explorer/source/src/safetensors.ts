/** Arrays as the safetensors layout: 8 bytes of length, a JSON header, the data. */

export type Numbers =
  | Float64Array | Float32Array | Int32Array | Uint32Array | Int16Array | Uint16Array | Int8Array | Uint8Array | BigInt64Array;

export interface Arrays<Meta = unknown> {
  meta: Meta;
  arrays: Record<string, { values: Numbers; shape: number[] }>;
}

const KINDS = {
  F64: Float64Array, F32: Float32Array, I32: Int32Array, U32: Uint32Array, I16: Int16Array,
  U16: Uint16Array, I8: Int8Array, U8: Uint8Array, BOOL: Uint8Array, I64: BigInt64Array,
} as const;

interface Entry {
  dtype: keyof typeof KINDS;
  shape: number[];
  data_offsets: [number, number];
}

/** The arrays of a buffer, and the JSON that its header carries under `__metadata__.json`. */
export function readSafetensors<Meta>(buffer: ArrayBuffer): Arrays<Meta> {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const { __metadata__: metadata, ...entries } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const arrays: Arrays["arrays"] = {};
  for (const [name, { dtype, shape, data_offsets: [start, stop] }] of Object.entries(entries as Record<string, Entry>)) {
    const kind = KINDS[dtype];
    if (!kind) throw new Error(`an array of type ${dtype} cannot be shown`);
    const begin = 8 + length + start; // where it is no multiple of the size of a number, the bytes are copied
    const values = begin % kind.BYTES_PER_ELEMENT
      ? new kind(buffer.slice(begin, begin + stop - start)) : new kind(buffer, begin, (stop - start) / kind.BYTES_PER_ELEMENT);
    arrays[name] = { values, shape };
  }
  return { meta: JSON.parse(metadata?.json ?? "{}") as Meta, arrays };
}
