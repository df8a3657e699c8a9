interface Props {
  words: string[];
  /** Pairs of positions with the predicted distance. */
  edges: [number, number, number][];
  depths: number[] | null;
}

/** A tree as arcs over its words; the word of least predicted depth is the root. */
export function Arcs({ words, edges, depths }: Props) {
  const centers: number[] = [];
  let width = 12;
  for (const word of words) {
    const own = 7.4 * [...word].length + 14;
    centers.push(width + own / 2);
    width += own;
  }
  const inTree = new Set(edges.flatMap(([one, other]) => [one, other]));
  const root = depths && [...inTree].reduce((best, one) => (best < 0 || depths[one]! < depths[best]! ? one : best), -1);
  const farthest = Math.max(1, ...edges.map(([one, other]) => other - one));
  const height = 30 + Math.min(260, 18 * farthest);
  const rise = (reach: number) => (height - 30) * Math.pow(reach / farthest, 0.7);
  return (
    <div class="scroll chart" tabIndex={0} role="region" aria-label="Tree">
      <svg class="arcs" width={width} height={height + 16} role="img" aria-label={edges.map(([one, other]) => `${words[one]} – ${words[other]}`).join(", ")}>
        {edges.map(([one, other, distance]) => {
          const [from, to, top] = [centers[one]!, centers[other]!, height - 8 - rise(other - one)];
          return (
            <path key={`${one}-${other}`} d={`M${from},${height - 8}C${from},${top} ${to},${top} ${to},${height - 8}`}>
              <title>{`${words[one]} – ${words[other]}: squared distance ${distance.toFixed(2)}`}</title>
            </path>
          );
        })}
        {words.map((word, position) => (
          <text key={position} x={centers[position]} y={height + 8} class={position === root ? "root" : inTree.has(position) ? undefined : "out"}>{word}</text>
        ))}
      </svg>
    </div>
  );
}
