import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { dark } from "../theme";
import { Grid, NONE, Scatter, type Rgb } from "./scatter";

export interface Region { x: number; y: number; name: string; count: number }
export interface Points {
  /** From -1 to 1. */
  x: Float32Array;
  y: Float32Array;
  row: Float64Array | Int32Array;
  color: Int8Array | Int32Array;
  regions: Region[];
}

interface Props {
  points: Points;
  /** The colours that are hidden, by number; -1 is that of points without one. */
  hidden: ReadonlySet<number>;
  /** The number of the colour of each code. */
  shades: number[];
  ordered: boolean;
  /** A row that is brought out. */
  row: number | undefined;
  /** The outline of a selection, in the coordinates of the map. */
  lasso: [number, number][] | null;
  setLasso: (outline: [number, number][] | null) => void;
  chosen: (points: Uint32Array | null) => void;
  hover: (row: number | null) => void;
  pick: (row: number) => void;
  /** Gives the picture with its labels, to be saved. */
  picture: { current: (() => HTMLCanvasElement | null) | null };
}

const MOVES = 200_000; // more points change places at once
const REACH = 10; // pixels

const palette = (element: Element, ordered: boolean, count: number): { colors: Rgb[]; none: Rgb } => {
  const probe = element.appendChild(document.createElement("span"));
  const read = (value: string): Rgb => {
    probe.style.color = value;
    const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g)!.map(Number);
    return [r!, g!, b!];
  };
  const ends: [Rgb, Rgb] = [read("var(--map-low)"), read("var(--map-high)")];
  const mixed = (share: number): Rgb => [0, 1, 2].map((i) => ends[0][i]! * (1 - share) + ends[1][i]! * share) as Rgb;
  const colors = Array.from({ length: Math.min(9, Math.max(count, 1)) }, (_, number) =>
    ordered ? mixed(count > 1 ? number / (count - 1) : 0) : read(`var(--c${number % 8})`),
  );
  const none = read(count ? "var(--map-none)" : "var(--c0)");
  probe.remove();
  return { colors, none };
};

/** The colour of a category or a step of a scale, as CSS. */
export const swatch = (number: number, count: number, ordered: boolean): string =>
  number < 0 ? "var(--map-none)"
    : ordered ? `color-mix(in srgb, var(--map-high) ${count > 1 ? (100 * number) / (count - 1) : 0}%, var(--map-low))`
      : `var(--c${number % 8})`;

/** Points by WebGL under an <svg> of names, marks and the lasso. */
export function MapCanvas(props: Props) {
  const { points, hidden, shades, ordered, row, lasso } = props;
  const count = shades.length;
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const over = useRef<SVGSVGElement>(null);
  const scatter = useRef<Scatter | null>(null);
  const grid = useRef<Grid | null>(null); // made when it is first needed
  const [error, setError] = useState<string>();
  const [drawing, setDrawing] = useState(false);
  const draft = useRef<[number, number][]>([]);
  const last = useRef(props);
  last.current = props;

  useLayoutEffect(() => { // before the first paint: no key is pressed or wheel turned in vain
    try {
      scatter.current = new Scatter(canvas.current!);
    } catch (problem) {
      return setError((problem as Error).message);
    }
    scatter.current.drawn = () => annotate(over.current!, scatter.current!, last.current, draft.current);
    props.picture.current = () => composed(scatter.current!, over.current!);
    const watch = new ResizeObserver(() => scatter.current!.draw());
    watch.observe(box.current!);
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      zoomAt(scatter.current!, Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), event.offsetX, event.offsetY);
    };
    box.current!.addEventListener("wheel", wheel, { passive: false });
    return () => {
      watch.disconnect();
      scatter.current!.close();
      props.picture.current = null;
    };
  }, []);

  useEffect(() => {
    if (!scatter.current) return;
    const still = points.x.length > MOVES || matchMedia("(prefers-reduced-motion: reduce)").matches;
    scatter.current.setPoints(points.x, points.y, still ? 0 : 600);
    grid.current = null;
  }, [points.x, points.y]);
  const found = () => (grid.current ??= new Grid(last.current.points.x, last.current.points.y));
  useEffect(() => {
    if (!scatter.current) return;
    const codes = new Uint8Array(points.color.length);
    for (let i = 0; i < codes.length; i++) codes[i] = points.color[i]! < 0 ? NONE : points.color[i]!;
    scatter.current.setCodes(codes);
  }, [points.color]);
  useEffect(() => {
    if (!scatter.current) return;
    const { colors, none } = palette(box.current!, ordered, Math.max(count, ...shades.map((shade) => shade + 1)));
    scatter.current.setColors(shades.map((shade, code) => (hidden.has(code) ? null : colors[shade]!)), hidden.has(-1) ? null : none);
  }, [hidden, shades, ordered, dark.value, points]);
  useEffect(() => {
    if (!scatter.current) return;
    const inside = lasso && found().inside(lasso, (point) => scatter.current!.visible(point));
    scatter.current.select(inside);
    props.chosen(inside);
  }, [lasso, points.x, points.color, hidden]);
  useEffect(() => scatter.current?.draw(), [row, points.regions]);

  const at = (event: PointerEvent): [number, number] => {
    const { left, top } = box.current!.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };
  const near = (px: number, py: number): number => {
    const one = scatter.current;
    if (!one) return -1;
    return found().nearest(...one.toMap(px, py), REACH / one.unit, (point) => one.visible(point));
  };
  const drag = useRef<{ x: number; y: number; moved: boolean; lasso: boolean } | null>(null);
  const down = (event: PointerEvent) => {
    if (event.button || !scatter.current) return;
    box.current!.setPointerCapture(event.pointerId);
    const [x, y] = at(event);
    drag.current = { x, y, moved: false, lasso: drawing || event.shiftKey };
    draft.current = drag.current.lasso ? [scatter.current.toMap(x, y)] : [];
  };
  const move = (event: PointerEvent) => {
    const one = scatter.current;
    if (!one) return;
    const [x, y] = at(event);
    const held = drag.current;
    if (!held) {
      const point = near(x, y);
      return props.hover(point < 0 ? null : points.row[point]!);
    }
    if (!held.moved && Math.hypot(x - held.x, y - held.y) < 4) return;
    held.moved = true;
    if (held.lasso) draft.current.push(one.toMap(x, y));
    else {
      one.sight.x -= (x - held.x) / one.unit;
      one.sight.y += (y - held.y) / one.unit;
      [held.x, held.y] = [x, y];
    }
    one.moved();
  };
  const up = (event: PointerEvent) => {
    const held = drag.current;
    drag.current = null;
    if (!held || !scatter.current) return;
    if (held.lasso) {
      const outline = thinned(draft.current);
      draft.current = [];
      setDrawing(false);
      props.setLasso(outline.length > 2 ? outline : null);
      scatter.current.draw();
    } else if (!held.moved) {
      const point = near(...at(event));
      if (point >= 0) props.pick(points.row[point]!);
    }
  };
  const zoom = (factor: number) => {
    if (!scatter.current) return;
    zoomAt(scatter.current, factor);
  };
  const pan = (x: number, y: number) => {
    const one = scatter.current;
    if (!one) return;
    one.sight.x += (x * 60) / one.unit;
    one.sight.y += (y * 60) / one.unit;
    one.moved();
  };
  const reset = () => {
    if (!scatter.current) return;
    scatter.current.sight = { x: 0, y: 0, zoom: 1 };
    scatter.current.draw();
  };
  const keys: Record<string, () => void> = {
    "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), "0": reset,
    ArrowLeft: () => pan(-1, 0), ArrowRight: () => pan(1, 0), ArrowUp: () => pan(0, 1), ArrowDown: () => pan(0, -1),
    Escape: () => { setDrawing(false); props.setLasso(null); },
  };
  if (error) return <div class="state error" role="alert"><strong>No map</strong><p>{error}</p></div>;
  return (
    <div class="map-frame">
      <div
        ref={box}
        class={drawing ? "map-box drawing" : "map-box"}
        tabIndex={0}
        role="application"
        aria-label={`Map of ${points.x.length} points: arrow keys move, plus and minus zoom, 0 shows all; the table below lists the points`}
        onPointerDown={down}
        onPointerMove={move}
        onPointerUp={up}
        onPointerLeave={() => props.hover(null)}
        onKeyDown={(event) => {
          const act = keys[event.key];
          if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
          event.preventDefault();
          act();
        }}
      >
        <canvas ref={canvas} />
        <svg ref={over} aria-hidden="true" />
      </div>
      <div class="map-tools" role="group" aria-label="Map">
        <button type="button" aria-pressed={drawing} title="Draw around points" onClick={() => setDrawing(!drawing)}>Lasso</button>
        {lasso && <button type="button" onClick={() => props.setLasso(null)}>Clear</button>}
        <button type="button" aria-label="Zoom in" onClick={() => zoom(1.4)}>+</button>
        <button type="button" aria-label="Zoom out" onClick={() => zoom(1 / 1.4)}>−</button>
        <button type="button" title="Show all points" onClick={reset}>All</button>
      </div>
    </div>
  );
}

function zoomAt(one: Scatter, factor: number, px = one.canvas.clientWidth / 2, py = one.canvas.clientHeight / 2): void {
  const [x, y] = one.toMap(px, py);
  one.sight.zoom = Math.max(0.5, Math.min(1000, one.sight.zoom * factor));
  const [nowX, nowY] = one.toMap(px, py);
  one.sight.x += x - nowX;
  one.sight.y += y - nowY;
  one.moved();
}

/** An outline with at most 48 corners of three decimals, so that an address holds it. */
function thinned(outline: [number, number][]): [number, number][] {
  const step = Math.max(1, outline.length / 48);
  return Array.from({ length: Math.floor(outline.length / step) }, (_, i) => outline[Math.floor(i * step)]!)
    .map(([x, y]) => [Number(x.toFixed(3)), Number(y.toFixed(3))]);
}

const SVG = "http://www.w3.org/2000/svg";

/** Draws the names of regions that do not touch, the outline of the lasso and the row that is brought out. */
function annotate(svg: SVGSVGElement, one: Scatter, props: Props, draft: [number, number][]): void {
  const add = (kind: string, attributes: Record<string, string | number>, text?: string) => {
    const element = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
    if (text !== undefined) element.textContent = text;
    return svg.appendChild(element);
  };
  svg.replaceChildren();
  const [width, height] = [one.canvas.clientWidth, one.canvas.clientHeight];
  const taken: [number, number, number][] = [];
  for (const region of props.points.regions) {
    const [x, y] = one.toScreen(region.x, region.y);
    const half = 3.9 * region.name.length + 4;
    if (!region.name || x < 0 || y < 12 || x > width || y > height - 4) continue;
    if (taken.some(([otherX, otherY, other]) => Math.abs(otherX - x) < half + other && Math.abs(otherY - y) < 17)) continue;
    taken.push([x, y, half]);
    add("text", { x: Math.max(half, Math.min(width - half, x)), y, class: "region" }, region.name);
  }
  const outline = draft.length ? draft : props.lasso;
  if (outline) add("polygon", { points: outline.map(([x, y]) => one.toScreen(x, y).join(",")).join(" "), class: "lasso" });
  const point = props.row === undefined ? -1 : props.points.row.indexOf(props.row);
  if (point >= 0) {
    const [x, y] = one.toScreen(props.points.x[point]!, props.points.y[point]!);
    add("circle", { cx: x, cy: y, r: 8, class: "found" });
  }
}

/** The points and what lies over them in one picture. */
function composed(one: Scatter, over: SVGSVGElement): HTMLCanvasElement {
  one.paint();
  const picture = document.createElement("canvas");
  [picture.width, picture.height] = [one.canvas.width, one.canvas.height];
  const ratio = picture.width / one.canvas.clientWidth;
  const context = picture.getContext("2d")!;
  const style = getComputedStyle(document.body);
  context.fillStyle = style.backgroundColor;
  context.fillRect(0, 0, picture.width, picture.height);
  context.drawImage(one.canvas, 0, 0);
  context.scale(ratio, ratio);
  context.textAlign = "center";
  context.lineJoin = "round";
  for (const text of over.querySelectorAll("text")) {
    context.font = `600 12px ${style.fontFamily}`;
    context.strokeStyle = style.backgroundColor;
    context.lineWidth = 4;
    context.strokeText(text.textContent!, Number(text.getAttribute("x")), Number(text.getAttribute("y")));
    context.fillStyle = style.color;
    context.fillText(text.textContent!, Number(text.getAttribute("x")), Number(text.getAttribute("y")));
  }
  return picture;
}
