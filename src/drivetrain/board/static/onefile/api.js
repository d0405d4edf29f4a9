// @ts-check
/** In a report of one file: what the board would answer lies in the file itself. */
import { decode, extent } from "../curves.js";

/**
 * @typedef {object} Kept
 * @property {Record<string, any>} answers JSON by path
 * @property {Record<string, string>} curves by run, as the board sends them by step, in base 64
 * @property {Record<string, Record<string, {of: number[], x: string[]}>>} places by run and axis: x of the same points,
 *   f8, in base 64; `of` has for each curve its place in `x`
 * @property {Record<string, string>} files data addresses by run and path
 */
const opened = unpacked(document.getElementById("kept")?.textContent ?? "");
/** By run and path: there once something was asked for. @type {Record<string, string>} */
let files = {};

/** An answer that says what is wrong. */
export class Refused extends Error {
  /** @param {number} status @param {string} said */
  constructor(status, said) {
    super(said);
    this.status = status;
  }
}

/** Never here: a file answers. */
export class Unreachable extends Error {}

/** @param {string} path @returns {Promise<any>} */
export async function get(path) {
  const { pathname, searchParams } = new URL(path, "http://report"),
    kept = await opened;
  const by = searchParams.get("other") ?? searchParams.get("by");
  const found = kept.answers[by == null ? pathname : `${pathname} ${by}`] ?? kept.answers[pathname];
  if (!found) throw new Refused(404, "This file does not hold that. `drivetrain board` shows it beside the run.");
  return structuredClone(found);
}

/** @param {string} path @returns {Promise<ArrayBuffer>} */
export async function getBinary(path) {
  const { pathname, searchParams } = new URL(path, "http://report"),
    kept = await opened;
  const id = pathname.split("/")[3];
  const all = decode(bytes(kept.curves[id])),
    places = kept.places[id][searchParams.get("by") ?? "step"];
  const names = searchParams.getAll("n"),
    lo = Number(searchParams.get("lo") ?? -Infinity),
    hi = Number(searchParams.get("hi") ?? Infinity);
  // Curves of steps share their places.
  const shared = places?.x.map((x) => new Float64Array(bytes(x)));
  const placed = all.curves.map((curve, number) => (shared ? { ...curve, x: shared[places.of[number]] } : curve));
  const curves = placed.filter(({ name }) => names.includes(name)).map((curve) => within(curve, lo, hi));
  return encode({ ...all, span: extent([], placed) }, curves);
}

/** @returns {Promise<any>} */
export async function send() {
  throw new Refused(403, "This file shows a run as it was, and steers nothing.");
}

/** @param {string} id @param {string} path @returns {string} */
export function fileOf(id, path) {
  return files[`${id} ${path}`] ?? "data:,";
}

/** JSON that was compressed, in base 64. @param {string} text @returns {Promise<Kept>} */
async function unpacked(text) {
  const plain = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  const kept = await new Response(plain).json();
  files = kept.files;
  return kept;
}

/** @param {string} text @returns {ArrayBuffer} */
function bytes(text) {
  return Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer;
}

/** @param {import("../curves.js").Curve} curve @param {number} lo @param {number} hi */
function within(curve, lo, hi) {
  /** @type {number[]} */
  const places = [];
  for (let i = 0; i < curve.x.length; i++) if (curve.x[i] >= lo && curve.x[i] <= hi) places.push(i);
  const part = (/** @type {Float32Array} */ column) => Float32Array.from(places, (i) => column[i]);
  return {
    ...curve,
    x: Float64Array.from(places, (i) => curve.x[i]),
    ...{ low: part(curve.low), high: part(curve.high), mean: part(curve.mean) },
    flags: Uint8Array.from(places, (i) => curve.flags[i]),
  };
}

/** The opposite of `decode`. @param {Omit<import("../curves.js").Told, "curves">} head @param {import("../curves.js").Curve[]} curves */
function encode({ records, rows, span }, curves) {
  const told = curves.map(({ name, exact, x }) => ({ name, exact, length: x.length }));
  let line = JSON.stringify({ records, rows, span, curves: told });
  /** @type {Uint8Array<ArrayBufferLike>} */
  let head = new TextEncoder().encode(line);
  while ((4 + head.length) % 8) head = new TextEncoder().encode((line += " "));
  /** @type {Uint8Array<ArrayBufferLike>[]} */
  const parts = [new Uint8Array(new Uint32Array([head.length]).buffer), head];
  for (const { x, low, high, mean, flags } of curves) {
    for (const column of [x, low, high, mean, flags]) {
      parts.push(new Uint8Array(column.buffer), new Uint8Array((8 - (column.byteLength % 8)) % 8));
    }
  }
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole.buffer;
}
