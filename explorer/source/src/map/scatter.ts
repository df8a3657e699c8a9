/** Points drawn by WebGL: their own renderer, as those of the packages compile code at run time, which the page forbids. */

import { Density } from "./density";

const VERTEX = `#version 300 es
in float xa; in float ya; in float xb; in float yb; in uint code; in uint flag;
uniform float t, size, alpha; uniform vec2 scale, offset; uniform vec4 colors[10]; uniform bool selecting; uniform vec3 marked;
out vec4 color;
void main() {
  vec4 own = colors[min(int(code), 9)];
  bool chosen = flag == 1u;
  gl_Position = own.a == 0.0 ? vec4(2.0, 2.0, 2.0, 1.0)
    : vec4(mix(vec2(xa, ya), vec2(xb, yb), t) * scale + offset, 0.0, 1.0);
  gl_PointSize = size;
  color = vec4(own.rgb, selecting && !chosen ? alpha * 0.15 : alpha);
}`;
const FRAGMENT = `#version 300 es
precision highp float;
in vec4 color; out vec4 drawn; uniform float size;
void main() {
  float edge = length(gl_PointCoord - 0.5);
  if (size > 2.5 && edge > 0.5) discard;
  drawn = vec4(color.rgb * color.a, color.a);
}`;

const PICTURE = `#version 300 es
out vec2 at;
void main() {
  at = vec2(gl_VertexID & 1, gl_VertexID >> 1);
  gl_Position = vec4(2.0 * at.x - 1.0, 1.0 - 2.0 * at.y, 0.0, 1.0);
}`;
const COPY = `#version 300 es
precision highp float;
in vec2 at; out vec4 drawn; uniform sampler2D picture;
void main() { drawn = texture(picture, at); }`;
const MANY = 250_000; // more points are drawn as a picture of their density, unless few of them are seen
const COARSE = 500_000; // points of a picture while it moves
const SETTLED = 150; // milliseconds after which it no longer moves

export type Rgb = [number, number, number];
export const NONE = 9;

/** What is seen: `x`, `y` in the middle, and `zoom`, 1 for the square from -1 to 1. */
export interface Sight { x: number; y: number; zoom: number }

export class Scatter {
  private readonly gl: WebGL2RenderingContext;
  private readonly program: WebGLProgram;
  private readonly copy: WebGLProgram;
  private readonly buffers: Record<string, WebGLBuffer> = {};
  private colors: (Rgb | null)[] = [];
  private count = 0;
  private t = 1;
  private frame = 0;
  private settling = 0;
  private density: Density | undefined;
  private texture: WebGLTexture | undefined;
  flags: Uint8Array = new Uint8Array(0);
  x: Float32Array = new Float32Array(0);
  y: Float32Array = new Float32Array(0);
  private fromX = this.x;
  private fromY = this.y;
  codes: Uint8Array = new Uint8Array(0);
  sight: Sight = { x: 0, y: 0, zoom: 1 };
  /** Called after each picture, for what lies over it. */
  drawn: () => void = () => {};

  /** Throws where the browser has no WebGL 2. */
  constructor(readonly canvas: HTMLCanvasElement) {
    const gl = canvas.getContext("webgl2", { antialias: false, premultipliedAlpha: true, preserveDrawingBuffer: true });
    if (!gl) throw new Error("This browser has no WebGL 2, which maps need: switch hardware acceleration on, or use another browser. The table shows the same occurrences.");
    this.gl = gl;
    this.program = program(gl, VERTEX, FRAGMENT);
    this.copy = program(gl, PICTURE, COPY);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  /** Puts points where they are; `animate`: they move there from where they were, in milliseconds. */
  setPoints(x: Float32Array, y: Float32Array, animate = 0): void {
    const moves = animate > 0 && x.length === this.count && this.count > 0;
    this.fromX = moves ? this.x : x;
    this.fromY = moves ? this.y : y;
    [this.x, this.y, this.count] = [x, y, x.length];
    if (this.count <= MANY) this.place(this.fromX, this.fromY, x, y);
    if (this.codes.length !== this.count) this.setCodes(new Uint8Array(this.count).fill(NONE));
    this.select(null);
    this.t = moves ? 0 : 1;
    const began = performance.now();
    const step = () => {
      this.t = Math.min(1, (performance.now() - began) / animate);
      this.t = this.t * this.t * (3 - 2 * this.t);
      this.paint();
      if (this.t < 1) this.frame = requestAnimationFrame(step);
    };
    cancelAnimationFrame(this.frame);
    if (moves) this.frame = requestAnimationFrame(step);
    else this.draw();
  }

  /** The number of each point's colour, `NONE` for none. */
  setCodes(codes: Uint8Array): void {
    this.codes = codes;
    if (this.count <= MANY) this.bytes("code", codes);
    this.draw();
  }

  /** The colours by number, null for hidden points; the last is that of points without one. */
  setColors(colors: (Rgb | null)[], none: Rgb | null): void {
    this.colors = [...colors.slice(0, 9), ...Array<null>(Math.max(0, 9 - colors.length)).fill(null), none];
    this.draw();
  }

  /** Whether a point's colour is shown. */
  visible(point: number): boolean {
    return Boolean(this.colors[Math.min(this.codes[point]!, NONE)]);
  }

  /** Brings some points out, null for none. */
  select(points: ArrayLike<number> | null): void {
    this.flags = new Uint8Array(points?.length ? this.count : 0);
    if (points) for (let i = 0; i < points.length; i++) this.flags[points[i]!] = 1;
    if (this.count <= MANY) this.bytes("flag", this.flags.length ? this.flags : new Uint8Array(this.count));
    this.draw();
  }

  private place(fromX: Float32Array, fromY: Float32Array, x: Float32Array, y: Float32Array): void {
    for (const [name, values] of [["xa", fromX], ["ya", fromY], ["xb", x], ["yb", y]] as const) this.floats(name, values);
  }

  private floats(name: string, values: Float32Array): void {
    const { gl } = this;
    const place = gl.getAttribLocation(this.program, name);
    gl.bindBuffer(gl.ARRAY_BUFFER, (this.buffers[name] ??= gl.createBuffer()!));
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(place);
    gl.vertexAttribPointer(place, 1, gl.FLOAT, false, 0, 0);
  }

  private bytes(name: string, values: Uint8Array): void {
    const { gl } = this;
    const place = gl.getAttribLocation(this.program, name);
    gl.bindBuffer(gl.ARRAY_BUFFER, (this.buffers[name] ??= gl.createBuffer()!));
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(place);
    gl.vertexAttribIPointer(place, 1, gl.UNSIGNED_BYTE, 0, 0);
  }

  /** Draws at the next frame while what is seen changes: of very many points some, and all once it rests. */
  moved(): void {
    if (this.count <= MANY) return this.draw();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.settling);
    this.frame = requestAnimationFrame(() => this.paint(true));
    this.settling = setTimeout(() => this.paint(), SETTLED);
  }

  /** Draws at the next frame. */
  draw(): void {
    if (this.t < 1) return; // it moves, and is drawn at every frame
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  /** Pixels of the screen by unit of the map. */
  get unit(): number {
    return (0.47 * Math.min(this.canvas.clientWidth, this.canvas.clientHeight)) * this.sight.zoom;
  }

  toScreen(x: number, y: number): [number, number] {
    return [this.canvas.clientWidth / 2 + (x - this.sight.x) * this.unit, this.canvas.clientHeight / 2 - (y - this.sight.y) * this.unit];
  }

  toMap(px: number, py: number): [number, number] {
    return [this.sight.x + (px - this.canvas.clientWidth / 2) / this.unit, this.sight.y - (py - this.canvas.clientHeight / 2) / this.unit];
  }

  /** Points become smaller and clearer the more of them there are, so that their density shows. */
  private look(seen: number): { size: number; alpha: number } {
    const size = Math.max(1.5, Math.min(9, 60 / Math.pow(Math.max(seen, 1), 0.3)));
    const cover = (seen * size * size) / (this.canvas.clientWidth * this.canvas.clientHeight + 1);
    return { size, alpha: Math.max(0.04, Math.min(0.85, 0.9 / (1 + 3 * cover))) };
  }

  paint(moving = false): void {
    const { gl, canvas } = this;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    if (this.count && width && height) {
      if (this.count <= MANY) this.points(this.count, this.count / Math.max(1, this.sight.zoom * this.sight.zoom));
      else this.cloud(moving);
    }
    this.drawn();
  }

  /** Draws the first points of the buffers, of which so many are seen. */
  private points(count: number, seen: number): void {
    const { gl, canvas } = this;
    gl.useProgram(this.program);
    const at = (name: string) => gl.getUniformLocation(this.program, name);
    const scale = [(2 * this.unit) / canvas.clientWidth, (2 * this.unit) / canvas.clientHeight] as const;
    const { size, alpha } = this.look(seen);
    gl.uniform1f(at("t"), this.t);
    gl.uniform1f(at("size"), size * (devicePixelRatio || 1));
    gl.uniform1f(at("alpha"), alpha);
    gl.uniform2f(at("scale"), ...scale);
    gl.uniform2f(at("offset"), -this.sight.x * scale[0], -this.sight.y * scale[1]);
    gl.uniform4fv(at("colors"), this.colors.flatMap((rgb) => (rgb ? [...rgb.map((part) => part / 255), 1] : [0, 0, 0, 0])));
    gl.uniform1i(at("selecting"), this.flags.length ? 1 : 0);
    gl.drawArrays(gl.POINTS, 0, count);
  }

  /** Draws very many points: their density, or where few are seen these one by one. */
  private cloud(moving: boolean): void {
    const { gl } = this;
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    const own = (this.density ??= new Density(MANY));
    const step = moving ? Math.max(1, Math.floor(own.n_seen / COARSE)) : 1;
    const frame = { width, height, scale: this.unit, left: width / 2 - this.sight.x * this.unit, top: height / 2 + this.sight.y * this.unit };
    own.count(this, this.colors, frame, step);
    if (own.n_seen <= MANY) {
      const seen = own.seen.subarray(0, own.n_seen);
      const [x, y] = [Float32Array.from(seen, (i) => this.x[i]!), Float32Array.from(seen, (i) => this.y[i]!)];
      this.place(x, y, x, y);
      this.bytes("code", Uint8Array.from(seen, (i) => this.codes[i]!));
      this.bytes("flag", Uint8Array.from(seen, (i) => this.flags[i] ?? 0));
      return this.points(seen.length, seen.length);
    }
    own.paint();
    gl.useProgram(this.copy);
    this.texture ??= gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, this.texture);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, width, height, 0, gl.RGBA, gl.UNSIGNED_BYTE, own.pixels);
    for (const side of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T]) gl.texParameteri(gl.TEXTURE_2D, side, gl.CLAMP_TO_EDGE);
    for (const way of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, way, gl.NEAREST);
    gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
  }

  close(): void {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.settling);
    this.gl.getExtension("WEBGL_lose_context")?.loseContext();
  }
}

function program(gl: WebGL2RenderingContext, vertex: string, fragment: string): WebGLProgram {
  const made = gl.createProgram()!;
  for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]] as const) {
    const shader = gl.createShader(kind)!;
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    gl.attachShader(made, shader);
  }
  gl.linkProgram(made);
  if (!gl.getProgramParameter(made, gl.LINK_STATUS)) throw new Error(`WebGL cannot draw points: ${gl.getProgramInfoLog(made)}`);
  return made;
}

const CELLS = 256;

/** Finds points by where they are. */
export class Grid {
  private readonly starts = new Uint32Array(CELLS * CELLS + 1);
  private readonly order: Uint32Array;

  constructor(private readonly x: Float32Array, private readonly y: Float32Array) {
    this.order = new Uint32Array(x.length);
    const cells = new Uint16Array(x.length);
    for (let i = 0; i < x.length; i++) {
      cells[i] = cell(x[i]!) * CELLS + cell(y[i]!);
      this.starts[cells[i]! + 1]!++;
    }
    for (let i = 0; i < CELLS * CELLS; i++) this.starts[i + 1]! += this.starts[i]!;
    const next = this.starts.slice();
    for (let i = 0; i < x.length; i++) this.order[next[cells[i]!]!++] = i;
  }

  /** The nearest point to a place, no farther than `reach`, of those that are `wanted`; -1 for none. */
  nearest(x: number, y: number, reach: number, wanted: (point: number) => boolean): number {
    let [best, least] = [-1, reach * reach];
    this.each(x - reach, x + reach, y - reach, y + reach, (point) => {
      const far = (this.x[point]! - x) ** 2 + (this.y[point]! - y) ** 2;
      if (far < least && wanted(point)) [best, least] = [point, far];
    });
    return best;
  }

  /** The points inside a polygon, ascending. */
  inside(polygon: [number, number][], wanted: (point: number) => boolean): Uint32Array {
    const [xs, ys] = [polygon.map((one) => one[0]), polygon.map((one) => one[1])];
    const found: number[] = [];
    this.each(Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys), (point) => {
      if (contains(xs, ys, this.x[point]!, this.y[point]!) && wanted(point)) found.push(point);
    });
    return Uint32Array.from(found).sort();
  }

  private each(left: number, right: number, low: number, high: number, visit: (point: number) => void): void {
    for (let column = cell(left); column <= cell(right); column++) {
      for (let row = cell(low); row <= cell(high); row++) {
        const place = column * CELLS + row;
        for (let at = this.starts[place]!; at < this.starts[place + 1]!; at++) visit(this.order[at]!);
      }
    }
  }
}

const cell = (value: number): number => Math.max(0, Math.min(CELLS - 1, Math.floor(((value + 1.25) / 2.5) * CELLS)));

function contains(xs: number[], ys: number[], x: number, y: number): boolean {
  let odd = false;
  for (let i = 0, j = xs.length - 1; i < xs.length; j = i++) {
    if (ys[i]! > y !== ys[j]! > y && x < ((xs[j]! - xs[i]!) * (y - ys[i]!)) / (ys[j]! - ys[i]!) + xs[i]!) odd = !odd;
  }
  return odd;
}
