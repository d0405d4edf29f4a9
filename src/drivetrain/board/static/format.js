// @ts-check
/** Numbers, sizes and times as people read them. */

/** @param {number | null | undefined} value @param {number} [digits] */
export function number(value, digits = 4) {
  if (value == null || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(digits - 1).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(digits)));
}

/** @param {number | null | undefined} value @param {string} [unit] @param {number} [digits] */
export function amount(value, unit = "", digits = 3) {
  if (value == null) return "–";
  const size = Math.abs(value);
  for (const [factor, letter] of /** @type {[number, string][]} */ ([
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ])) {
    if (size >= factor) return `${Number((value / factor).toPrecision(digits))}${letter}${unit}`;
  }
  return `${Number(value.toPrecision(digits))}${unit}`;
}

/** @param {number | null | undefined} value @param {number} [digits] */
export function bytes(value, digits = 3) {
  if (value == null) return "–";
  for (const [factor, unit] of /** @type {[number, string][]} */ ([
    [2 ** 40, "TiB"],
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
  ])) {
    if (Math.abs(value) >= factor) return `${(value / factor).toPrecision(digits)} ${unit}`;
  }
  return `${value} B`;
}

/** @param {number | null | undefined} seconds */
export function span(seconds) {
  if (seconds == null) return "–";
  if (Math.abs(seconds) < 60) return `${Number(seconds.toPrecision(3))} s`;
  const whole = Math.round(seconds),
    days = Math.trunc(whole / 86400),
    hours = Math.trunc(whole / 3600) % 24;
  const minutes = Math.trunc(whole / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return `${minutes} min ${whole % 60} s`;
}

/** @param {number | null | undefined} value */
export function share(value) {
  return value == null ? "–" : `${(100 * value).toFixed(1)} %`;
}

/** In the viewer's own zone. @param {number | null | undefined} unix */
export function moment(unix) {
  return unix == null ? "–" : new Date(1000 * unix).toLocaleString();
}

/** A value of a curve, by the unit that its name says.
 * @param {number | null} value @param {string} name @param {number} [digits] */
export function valued(value, name, digits = 4) {
  if (value == null || Number.isNaN(value)) return "–";
  if (name.startsWith("memory/")) return bytes(value, digits - 1);
  if (name.startsWith("mfu/")) return share(value);
  if (name.includes("_per_second/")) return amount(value, `/s`, digits - 1);
  if (name.startsWith("step/") || name.startsWith("phase/") || name.endsWith("_seconds"))
    return `${number(value, digits)} s`;
  return number(value, digits);
}

/** A place of an axis. @param {number | null} x @param {string} by */
export function placed(x, by) {
  if (x == null) return "";
  if (by === "time") return moment(x);
  return by === "seconds" ? span(x) : number(x, 6);
}

/** What an axis is called. @param {string} axis */
export function axisName(axis) {
  return { seconds: "training seconds", time: "wall time" }[axis] ?? axis;
}

/** @param {number} count @param {string} what one of them */
export function counted(count, what) {
  return `${number(count)} ${what}${count === 1 ? "" : "s"}`;
}
