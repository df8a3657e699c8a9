import * as Plot from "@observablehq/plot";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

interface Props {
  label: string;
  /** Whether the options set the width. */
  fixed?: boolean;
  /** The options for a width in pixels. */
  options: (width: number) => Plot.PlotOptions;
  /** Drawn again when one of these changes. */
  inputs: readonly unknown[];
}

/** A figure of Observable Plot as wide as its place. */
export function Chart({ label, options, inputs, fixed = false }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const measure = () => setWidth(place.current!.clientWidth);
    const observer = new ResizeObserver(measure);
    observer.observe(place.current!);
    measure();
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (!width) return;
    const figure = Plot.plot({ ariaLabel: label, ...(fixed ? {} : { width }), ...options(width) });
    // The stylesheet of the page has Plot's rules: a strict Content-Security-Policy forbids a <style> of its own.
    figure.querySelectorAll("style").forEach((style) => style.remove());
    // The figure is one image with a name: the names of its marks are for nobody but tests.
    figure.querySelectorAll("g[aria-label]").forEach((mark) => {
      mark.setAttribute("data-mark", mark.getAttribute("aria-label")!);
      mark.removeAttribute("aria-label");
    });
    (figure instanceof SVGElement ? figure : figure.querySelector("svg"))?.setAttribute("role", "img");
    place.current!.replaceChildren(figure);
    return () => figure.remove();
  }, [width, label, ...inputs]);
  return <div class="chart" ref={place} aria-busy={!width} />;
}
