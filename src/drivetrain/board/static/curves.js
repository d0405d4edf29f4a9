// @ts-check
/** Curves as the board sends them: see `encoded` of routes/curves.py. */

export const VOID = 1,
  OPENS = 2;

/**
 * @typedef {{name: string, exact: boolean, x: Float64Array, low: Float32Array, high: Float32Array, mean: Float32Array,
 *   flags: Uint8Array}} Curve
 */

/** @typedef {{records: number, rows: number, span: [number, number] | null, curves: Curve[]}} Told */

/** @param {ArrayBuffer} data @returns {Told} */
export function decode(data) {
  const length = new DataView(data).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
  let at = 4 + length;
  /** @param {number} bytes */
  const next = (bytes) => {
    const begin = at;
    at += bytes + ((8 - (bytes % 8)) % 8);
    return begin;
  };
  const curves = head.curves.map((/** @type {{name: string, length: number, exact: boolean}} */ told) => {
    const n = told.length;
    const x = new Float64Array(data, next(8 * n), n);
    const [low, high, mean] = [0, 1, 2].map(() => new Float32Array(data, next(4 * n), n));
    return { name: told.name, exact: told.exact, x, low, high, mean, flags: new Uint8Array(data, next(n), n) };
  });
  return { records: head.records, rows: head.rows, span: head.span, curves };
}

/** From where to where runs and these curves of them go; null where nothing is.
 * @param {([number, number] | null)[]} spans @param {Curve[]} curves @returns {[number, number] | null} */
export function extent(spans, curves) {
  let [lo, hi] = [Infinity, -Infinity];
  for (const span of spans) if (span) [lo, hi] = [Math.min(lo, span[0]), Math.max(hi, span[1])];
  for (const { x } of curves) for (const at of x) [lo, hi] = [Math.min(lo, at), Math.max(hi, at)];
  return lo <= hi ? [lo, hi] : null;
}

/**
 * The running mean of what counts, over a share of the points (0: none).
 * @param {Curve} curve @param {number} amount 0 to 1 @returns {Float64Array}
 */
export function smoothed(curve, amount) {
  const found = new Float64Array(curve.mean.length);
  let value = NaN,
    weight = 0;
  for (let i = 0; i < found.length; i++) {
    // A stretch begins anew: what an earlier one came to says nothing of it.
    if (curve.flags[i] & OPENS) [value, weight] = [NaN, 0];
    weight = amount * weight + 1 - amount;
    value = Number.isNaN(value) ? curve.mean[i] : value + ((1 - amount) / weight) * (curve.mean[i] - value);
    found[i] = value;
  }
  return found;
}
