/** Many points as a picture: how many lie in each pixel, in the mean of their colours. */

import type { Rgb } from "./scatter";

export interface Cloud {
  x: Float32Array;
  y: Float32Array;
  codes: Uint8Array;
  /** 1 for the points that are brought out; empty where none are. */
  flags: Uint8Array;
}

/** From the map to pixels: x * scale + left, top - y * scale. */
export interface Frame { width: number; height: number; scale: number; left: number; top: number }

const FAINT = 0.15; // weight of points that are not brought out
const LEAST = 90; // opacity of a pixel with a single point, of 255

export class Density {
  private sums = new Float32Array(0); // of each pixel: red, green, blue and how many
  pixels: Uint8Array<ArrayBuffer> = new Uint8Array(0);
  /** The points inside the last picture: how many, and which, as far as there is room. */
  n_seen = 0;
  readonly seen: Uint32Array;

  constructor(room: number) {
    this.seen = new Uint32Array(room);
  }

  /** Counts every `step`th point; `colors` by code, null for hidden ones. Pixels are premultiplied, the top row first. */
  count({ x, y, codes, flags }: Cloud, colors: (Rgb | null)[], frame: Frame, step: number): void {
    const { width, height, scale, left, top } = frame;
    if (this.sums.length !== 4 * width * height) [this.sums, this.pixels] = [new Float32Array(4 * width * height), new Uint8Array(4 * width * height)];
    const { sums, seen } = this;
    sums.fill(0);
    const shown = Uint8Array.from(colors, (each) => (each ? 1 : 0));
    const parts = Float32Array.from(colors.flatMap((each) => each ?? [0, 0, 0]));
    let found = 0;
    for (let i = 0; i < x.length; i += step) {
      const across = x[i]! * scale + left;
      const down = top - y[i]! * scale;
      const code = codes[i]!;
      if (!(across >= 0 && across < width && down >= 0 && down < height) || !shown[code]) continue;
      if (found < seen.length) seen[found] = i;
      found += 1;
      const weight = flags.length && !flags[i] ? FAINT : 1;
      const at = 4 * ((down | 0) * width + (across | 0));
      sums[at]! += weight * parts[3 * code]!;
      sums[at + 1]! += weight * parts[3 * code + 1]!;
      sums[at + 2]! += weight * parts[3 * code + 2]!;
      sums[at + 3]! += weight;
    }
    this.n_seen = found * step;
  }

  /** Turns the counts into pixels, whose opacity is the logarithm of the count. */
  paint(): void {
    const { sums, pixels } = this;
    let most = 1;
    for (let at = 3; at < sums.length; at += 4) if (sums[at]! > most) most = sums[at]!;
    const gain = (255 - LEAST) / Math.log(most + 1);
    for (let at = 0; at < sums.length; at += 4) {
      const count = sums[at + 3]!;
      const opacity = count ? Math.min(1, count) * LEAST + gain * Math.log(count + 1) : 0;
      const share = count ? Math.min(255, opacity) / (255 * count) : 0;
      pixels[at] = sums[at]! * share;
      pixels[at + 1] = sums[at + 1]! * share;
      pixels[at + 2] = sums[at + 2]! * share;
      pixels[at + 3] = Math.min(255, opacity);
    }
  }
}
