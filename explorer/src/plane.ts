/** Vectors in two dimensions, computed in the browser. */

const COLUMNS = 6; // of the subspace in which the axes are found
const ITERATIONS = 60;

/** n vectors on their first two principal axes: x and y, and the share of the variance along each. */
export function principalPlane(vectors: Float32Array, size: number): { points: Float32Array; explained: [number, number] } {
  const n = vectors.length / size;
  const mean = new Float64Array(size);
  for (let i = 0; i < vectors.length; i++) mean[i % size]! += vectors[i]! / n;
  const centered = Float32Array.from(vectors, (value, i) => value - mean[i % size]!);
  let total = 0;
  for (const value of centered) total += value * value;
  const count = Math.min(COLUMNS, size);
  let basis = orthonormal(Array.from({ length: count }, (_, column) =>
    Float64Array.from({ length: size }, (_, i) => Math.sin(1 + i * (column + 1) * 1.618))));
  let before = 0;
  let axes = basis;
  for (let iteration = 0; iteration < ITERATIONS; iteration++) {
    const moved = basis.map((axis) => scattered(centered, axis, size));
    const { values, vectors: mixed } = eigen(basis.map((axis) => moved.map((each) => dot(axis, each))));
    axes = mixed.slice(0, 2).map((weights) => combined(basis, weights));
    const captured = values[0]! + (values[1] ?? 0);
    if (captured - before <= 1e-9 * captured) break;
    before = captured;
    basis = orthonormal(moved);
  }
  const points = new Float32Array(n * 2);
  const explained: [number, number] = [0, 0];
  axes.map(positive).forEach((axis, side) => {
    for (let row = 0; row < n; row++) {
      let sum = 0;
      for (let i = 0; i < size; i++) sum += centered[row * size + i]! * axis[i]!;
      points[row * 2 + side] = sum;
      explained[side]! += total ? (sum * sum) / total : 0;
    }
  });
  return { points, explained };
}

/** Points [n, 2] turned or mirrored to be as near as possible to others (orthogonal Procrustes, Schönemann 1966). */
export function turned(points: Float32Array, like: Float32Array): Float32Array {
  let [a, b, c, d] = [0, 0, 0, 0];
  for (let i = 0; i < points.length; i += 2) {
    a += points[i]! * like[i]!;
    b += points[i]! * like[i + 1]!;
    c += points[i + 1]! * like[i]!;
    d += points[i + 1]! * like[i + 1]!;
  }
  const mirror = a * d - b * c < 0 ? -1 : 1; // of two dimensions, the nearest rotation or reflection is closed
  const [p, q] = [a + mirror * d, b - mirror * c];
  const norm = Math.hypot(p, q) || 1;
  const [cos, sin] = [p / norm, q / norm];
  const found = new Float32Array(points.length);
  for (let i = 0; i < points.length; i += 2) {
    found[i] = points[i]! * cos - mirror * points[i + 1]! * sin;
    found[i + 1] = points[i]! * sin + mirror * points[i + 1]! * cos;
  }
  return found;
}

/** The mean cosine of all pairs of n vectors: (|sum u|^2 - n) / (n^2 - n) of the unit vectors u. */
export function selfSimilarity(vectors: Float32Array, size: number): number | null {
  const n = vectors.length / size;
  const sum = new Float64Array(size);
  let nonzero = 0;
  for (let row = 0; row < n; row++) {
    let squares = 0;
    for (let i = 0; i < size; i++) squares += vectors[row * size + i]! ** 2;
    if (!squares) continue;
    nonzero += 1;
    for (let i = 0; i < size; i++) sum[i]! += vectors[row * size + i]! / Math.sqrt(squares);
  }
  return n < 2 ? null : (dot(sum, sum) - nonzero) / (n * n - n);
}

function dot(a: Float64Array, b: Float64Array): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i]! * b[i]!;
  return sum;
}

/** X^T (X axis). */
function scattered(x: Float32Array, axis: Float64Array, size: number): Float64Array {
  const found = new Float64Array(size);
  for (let start = 0; start < x.length; start += size) {
    let sum = 0;
    for (let i = 0; i < size; i++) sum += x[start + i]! * axis[i]!;
    for (let i = 0; i < size; i++) found[i]! += x[start + i]! * sum;
  }
  return found;
}

/** The eigenvalues, descending, and eigenvectors of a small symmetric matrix, by Jacobi's rotations. */
function eigen(matrix: number[][]): { values: number[]; vectors: number[][] } {
  const size = matrix.length;
  const a = matrix.map((row) => [...row]);
  const vectors = a.map((_, i) => a.map((_, j) => (i === j ? 1 : 0)));
  for (let sweep = 0; sweep < 20; sweep++) {
    for (let p = 0; p < size; p++) {
      for (let q = p + 1; q < size; q++) {
        if (Math.abs(a[p]![q]!) < 1e-300) continue;
        const angle = Math.atan2(2 * a[p]![q]!, a[q]![q]! - a[p]![p]!) / 2;
        const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
        for (let i = 0; i < size; i++) {
          const [x, y] = [a[i]![p]!, a[i]![q]!];
          [a[i]![p], a[i]![q]] = [cos * x - sin * y, sin * x + cos * y];
        }
        for (const rows of [a, vectors]) {
          const [first, second] = [rows[p]!, rows[q]!];
          rows[p] = first.map((x, i) => cos * x - sin * second[i]!);
          rows[q] = first.map((x, i) => sin * x + cos * second[i]!);
        }
      }
    }
  }
  const order = a.map((_, i) => i).sort((i, j) => a[j]![j]! - a[i]![i]!);
  return { values: order.map((i) => a[i]![i]!), vectors: order.map((i) => vectors[i]!) };
}

function combined(basis: Float64Array[], weights: number[]): Float64Array {
  return basis[0]!.map((_, i) => basis.reduce((sum, axis, each) => sum + axis[i]! * weights[each]!, 0));
}

function orthonormal(columns: Float64Array[]): Float64Array[] {
  const found: Float64Array[] = [];
  for (const column of columns) {
    for (const earlier of found) {
      const share = dot(column, earlier);
      for (let i = 0; i < column.length; i++) column[i]! -= share * earlier[i]!;
    }
    const norm = Math.sqrt(dot(column, column));
    found.push(norm > 1e-300 ? column.map((value) => value / norm) : column.fill(0));
  }
  return found;
}

function positive(axis: Float64Array): Float64Array {
  let largest = 0;
  for (let i = 1; i < axis.length; i++) if (Math.abs(axis[i]!) > Math.abs(axis[largest]!)) largest = i;
  return axis[largest]! < 0 ? axis.map((value) => -value) : axis;
}
