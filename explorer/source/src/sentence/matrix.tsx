import type { RefObject } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { dark } from "../theme";

interface Props {
  label: string;
  words: string[];
  /** Row after row, words times words. */
  values: Float32Array;
  canvas: RefObject<HTMLCanvasElement | null>;
  /** The ends of the scale; by default those of the values off the diagonal. */
  low?: number;
  high?: number;
}

const [LEAST, MOST] = [14, 34]; // pixels of a cell
const decimal = (value: number) => value.toFixed(2).replace(/^-(0\.00)$/, "$1");
const shortened = (word: string) => ([...word].length > 14 ? `${[...word].slice(0, 13).join("")}…` : word);

/** A matrix over the words of a sentence: cells stay large enough for their words, and only those in sight are drawn. */
export function Matrix({ label, words, values, canvas, low, high }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const pointer = useRef<PointerEvent | null>(null);
  const [at, setAt] = useState<[number, number] | null>(null);
  const [width, setWidth] = useState(0);
  const n = words.length;
  const head = 14 + 7 * Math.max(4, ...words.map((word) => shortened(word).length)); // pixels of the words at the sides
  const [least, most] = useMemo(() => {
    const found = [Infinity, -Infinity] as [number, number];
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) if (i !== j) {
      found[0] = Math.min(found[0], values[i * n + j]!);
      found[1] = Math.max(found[1], values[i * n + j]!);
    }
    return [low ?? found[0], high ?? found[1]] as const;
  }, [values, low, high]);
  const cell = Math.max(LEAST, Math.min(MOST, Math.floor((Math.min(width, 860) - head) / n)));
  const size = head + n * cell;

  const draw = () => {
    const box = place.current!;
    const shown = canvas.current!;
    const ratio = devicePixelRatio || 1;
    const [wide, tall] = [Math.min(size, box.clientWidth), Math.min(size, box.clientHeight)];
    [shown.width, shown.height] = [Math.round(wide * ratio), Math.round(tall * ratio)];
    [shown.style.width, shown.style.height] = [`${wide}px`, `${tall}px`];
    const pen = shown.getContext("2d")!;
    const style = getComputedStyle(box);
    // light-dark() is resolved on a property that is a colour, not on a variable.
    const probe = box.appendChild(document.createElement("span"));
    const ends = ["var(--heat-low)", "var(--heat-high)"].map((value) => {
      probe.style.color = value;
      return getComputedStyle(probe).color.match(/[\d.]+/g)!.map(Number);
    });
    probe.remove();
    pen.scale(ratio, ratio);
    pen.fillStyle = getComputedStyle(document.body).backgroundColor;
    pen.fillRect(0, 0, wide, tall);
    const [left, top] = [box.scrollLeft, box.scrollTop];
    const columns = [Math.max(0, Math.floor(left / cell)), Math.min(n, Math.ceil((left + wide - head) / cell))] as const;
    const rows = [Math.max(0, Math.floor(top / cell)), Math.min(n, Math.ceil((top + tall - head) / cell))] as const;
    pen.save();
    pen.beginPath();
    pen.rect(head, head, wide - head, tall - head);
    pen.clip();
    for (let row = rows[0]; row < rows[1]; row++) {
      for (let column = columns[0]; column < columns[1]; column++) {
        const share = Math.max(0, Math.min(1, (values[row * n + column]! - least) / (most - least || 1)));
        pen.fillStyle = `rgb(${[0, 1, 2].map((i) => Math.round(ends[0]![i]! * (1 - share) + ends[1]![i]! * share)).join(" ")})`;
        pen.fillRect(head + column * cell - left, head + row * cell - top, cell - 1, cell - 1);
      }
    }
    pen.restore();
    pen.font = `${Math.min(12, cell - 2)}px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    const ink = (chosen: boolean) => {
      pen.fillStyle = style.color;
      pen.globalAlpha = chosen ? 1 : 0.75;
    };
    pen.textAlign = "right";
    pen.save();
    pen.beginPath();
    pen.rect(0, head, head, tall - head);
    pen.clip();
    for (let row = rows[0]; row < rows[1]; row++) {
      ink(at?.[0] === row);
      pen.fillText(shortened(words[row]!), head - 5, head + (row + 0.5) * cell - top);
    }
    pen.restore();
    pen.textAlign = "left";
    pen.beginPath();
    pen.rect(head, 0, wide - head, head);
    pen.clip();
    for (let column = columns[0]; column < columns[1]; column++) {
      pen.save();
      ink(at?.[1] === column);
      pen.translate(head + (column + 0.5) * cell - left, head - 5);
      pen.rotate(-Math.PI / 2);
      pen.fillText(shortened(words[column]!), 0, 0);
      pen.restore();
    }
  };
  useLayoutEffect(() => {
    const measure = () => setWidth(place.current!.clientWidth);
    const observer = new ResizeObserver(measure);
    observer.observe(place.current!);
    measure();
    return () => observer.disconnect();
  }, []);
  /** Finds the cell under the pointer, which may rest while the cells come or move. */
  const aim = () => {
    const [box, event] = [place.current!, pointer.current];
    const { left, top } = box.getBoundingClientRect();
    const column = event ? Math.floor((event.clientX - left + box.scrollLeft - head) / cell) : -1;
    const row = event ? Math.floor((event.clientY - top + box.scrollTop - head) / cell) : -1;
    const next: [number, number] | null = row >= 0 && column >= 0 && row < n && column < n ? [row, column] : null;
    setAt((before) => (String(before) === String(next) ? before : next));
  };
  const point = (event: PointerEvent | null) => {
    pointer.current = event;
    aim();
  };
  useLayoutEffect(aim, [words, width]);
  useLayoutEffect(() => void (width && draw()), [values, width, at, dark.value, least, most]);
  const found = at && at[0] < n && at[1] < n && [words[at[0]], words[at[1]], values[at[0] * n + at[1]]!.toFixed(3)];
  return (
    <div class="matrix">
      <p class="note">
        <span class="scale" aria-hidden="true" />
        {`${decimal(least)} to ${decimal(most)}`}
        {found && <> · <bdi>{found[0]}</bdi> × <bdi>{found[1]}</bdi>: <b>{found[2]}</b></>}
      </p>
      <div
        ref={place}
        class="matrix-scroll"
        tabIndex={0}
        role="region"
        aria-label={label}
        aria-busy={!width}
        onScroll={() => {
          aim();
          draw();
        }}
        onPointerEnter={point}
        onPointerMove={point}
        onPointerLeave={() => point(null)}
      >
        <div style={{ width: `${size}px`, height: `${size}px` }}><canvas ref={canvas} role="img" aria-label={label} /></div>
      </div>
    </div>
  );
}
