// @ts-check
/** One chart: lines over bands of extremes, with a layer for the keyboard, which uPlot has not. */
import { smoothed, VOID } from "./curves.js";
import { el } from "./dom.js";
import { placed, valued } from "./format.js";

/** @typedef {import("./vendor/uPlot.js")} uPlot */
/** @typedef {import("./curves.js").Curve} Curve */
/** @typedef {{label: string, color: string, dash: number[], curve: Curve}} Line */
/** @typedef {{kind: string, x: number, text: string}} Mark */
/** `span`: from where to where, the same in all linked charts; else as far as this chart's own values go.
 * @typedef {{by: string, log: boolean, smooth: number, span?: [number, number] | null}} Look */
/**
 * @typedef {object} Listener
 * @property {(lo: number | null, hi: number | null) => void} zoom
 * @property {(x: number) => void} [pick]
 */

/** The page loads uPlot before its own modules. @type {typeof import("./vendor/uPlot.js")} */
const Plot = /** @type {any} */ (window).uPlot;
const HEIGHT = 220,
  DOUBLE = 300, // milliseconds in which a second click may follow
  NEAR = 6,
  SPARSE = 40;
const MARKS = /** @type {Record<string, string>} */ ({
  attempt: "--restart",
  rollback: "--bad",
  spike: "--bad",
  skip: "--bad",
  miss: "--bad",
  command: "--command",
  commit: "--commit",
  evaluation: "--evaluation",
  exit: "--restart",
  note: "--command",
});

/** In which chart the mouse went down last. @type {Chart | null} */
let held = null;

/** A chart of one name. */
export class Chart {
  /** @param {HTMLElement} into @param {string} name @param {Listener} listener */
  constructor(into, name, listener) {
    this.name = name;
    this.listener = listener;
    this.value = el("output", {});
    this.plot = el("div", { class: "plot", tabindex: 0, role: "img", "aria-label": name });
    this.figure = el("figure", {}, el("figcaption", {}, el("span", {}, name), this.value), this.plot);
    into.append(this.figure);
    /** @type {uPlot | null} */
    this.u = null;
    /** @type {Line[]} */
    this.lines = [];
    /** @type {Mark[]} */
    this.marks = [];
    /** @type {Look} */
    this.look = { by: "step", log: false, smooth: 0 };
    this.plot.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.u?.setSize({ width: this.plot.clientWidth, height: HEIGHT })).observe(this.plot);
  }

  /** @param {Line[]} lines @param {Look} look @param {Mark[]} marks */
  show(lines, look, marks) {
    const same = this.u && lines.length === this.lines.length && look.log === this.look.log && look.by === this.look.by;
    [this.lines, this.look, this.marks] = [lines, look, marks];
    const data = columns(lines, look.smooth);
    if (same && this.u) this.u.setData(/** @type {any} */ (data));
    else {
      this.u?.destroy();
      this.u = new Plot(this.options(), /** @type {any} */ (data), this.plot);
    }
    this.plot.dataset.points = String(data[0].length);
    this.say(null);
  }

  /** @returns {any} */
  options() {
    const css = getComputedStyle(document.documentElement),
      color = (/** @type {string} */ v) => css.getPropertyValue(v);
    const grid = { stroke: color("--grid"), width: 1 };
    const axis = { stroke: color("--dim"), grid, ticks: grid };
    const series = [{}],
      bands = [];
    for (const [place, line] of this.lines.entries()) {
      const edge = { stroke: `${line.color}99`, width: 1, spanGaps: true, points: { show: false } };
      // The band has an outline: a spike of one step is thinner than a pixel, and only its edge is then seen.
      series.push(
        edge,
        edge,
        { stroke: line.color, width: 1.5, dash: line.dash, spanGaps: true, points: { show: sparse, size: 5 } },
        { stroke: line.color, width: 2.5, dash: line.dash, spanGaps: true, points: { show: false } },
      );
      bands.push({ series: [4 * place + 2, 4 * place + 1], fill: `${line.color}33` });
    }
    return {
      width: this.plot.clientWidth || 400,
      height: HEIGHT,
      legend: { show: false },
      series,
      bands,
      padding: [8, 44, 0, 0], // half of the last place's label
      scales: { x: { time: this.look.by === "time", range: this.reach.bind(this) }, y: this.scale() },
      axes: [
        {
          ...axis,
          // Wall time has the day below the hour, and long spans are long words.
          size: this.look.by === "time" ? 50 : 34,
          space: this.look.by === "seconds" ? 110 : 80,
          values:
            this.look.by === "time"
              ? undefined
              : (/** @type {any} */ _, /** @type {number[]} */ at) => at.map((x) => placed(x, this.look.by)),
        },
        {
          ...axis,
          size: wide,
          values: (/** @type {any} */ _, /** @type {number[]} */ at) => labels(at, this.name),
        },
      ],
      cursor: { sync: { key: "board" }, drag: { setScale: false, x: true, y: false }, points: { show: false } },
      hooks: {
        draw: [(/** @type {uPlot} */ u) => this.beside(u)],
        setCursor: [(/** @type {uPlot} */ u) => this.say(u.cursor.idx ?? null)],
        setSelect: [(/** @type {uPlot} */ u) => this.selected(u)],
        ready: [(/** @type {uPlot} */ u) => this.listen(u)],
      },
    };
  }

  /** @param {any} _ @param {number | null} lo @param {number | null} hi @returns {[number, number]} */
  reach(_, lo, hi) {
    const [from, to] = this.look.span ?? [lo ?? 0, hi ?? 1];
    return from === to ? [from - 1, to + 1] : [from, to];
  }

  scale() {
    if (this.look.log) return { distr: 3 };
    // A flat line fills no chart: what rounding makes of it would look like a curve.
    return { range: (/** @type {any} */ _, /** @type {number} */ lo, /** @type {number} */ hi) => padded(lo, hi) };
  }

  /** @param {uPlot} u */
  listen(u) {
    u.over.addEventListener("mousedown", () => (held = this));
    let waits = 0;
    u.over.addEventListener("dblclick", () => {
      clearTimeout(waits);
      this.listener.zoom(null, null);
    });
    u.over.addEventListener("click", () => {
      const place = u.cursor.idx;
      clearTimeout(waits);
      // The first click of two is none by itself.
      if (u.select.width < 2 && u.cursor.left != null) waits = window.setTimeout(() => this.pick(place), DOUBLE);
    });
  }

  /** @param {number | null | undefined} place */
  pick(place) {
    if (place != null && this.u) this.listener.pick?.(this.u.data[0][place]);
  }

  /** @param {uPlot} u */
  selected(u) {
    if (u.select.width < 2) return;
    const lo = u.posToVal(u.select.left, "x"),
      hi = u.posToVal(u.select.left + u.select.width, "x");
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    // All linked charts are told of what was chosen in one of them.
    if (held === this) this.listener.zoom(lo, hi);
  }

  /** What is void, and marks. @param {uPlot} u */
  beside(u) {
    const css = getComputedStyle(document.documentElement),
      at = (/** @type {number} */ x) => u.valToPos(x, "x", true);
    const draw = u.ctx;
    this.plot.dataset.span = `${u.scales.x.min} ${u.scales.x.max}`;
    draw.save();
    draw.beginPath();
    draw.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    draw.clip();
    for (const { curve, color } of this.lines) dimmed(u, curve, color);
    // A long run has thousands: a kind's colour is asked for once, and where one of its marks stands no other is drawn.
    /** @type {Map<string, {color: string, last: number}>} */
    const kinds = new Map();
    for (const mark of this.marks) {
      const place = Math.round(at(mark.x));
      const kind = kinds.get(mark.kind) ?? { color: css.getPropertyValue(MARKS[mark.kind] ?? "--dim"), last: -1 };
      kinds.set(mark.kind, kind);
      if (place === kind.last || place < u.bbox.left || place > u.bbox.left + u.bbox.width) continue;
      kind.last = place;
      draw.fillStyle = kind.color;
      draw.fillRect(place - 1, u.bbox.top + u.bbox.height - 9, 2, 9);
    }
    draw.restore();
  }

  /** Tell what stands at a place of the data. @param {number | null} place */
  say(place) {
    const u = this.u;
    if (!u) return;
    const told = this.lines.map((line, number) => {
      const values = u.data[4 * number + 3],
        at = place ?? ended(values);
      const value = values[at] ?? null,
        low = u.data[4 * number + 1][at],
        high = u.data[4 * number + 2][at];
      const bounds =
        low != null && low !== high ? ` (${valued(low, this.name)} to ${valued(high ?? null, this.name)})` : "";
      return `${this.lines.length > 1 ? `${line.label} ` : ""}${valued(value, this.name)}${bounds}`;
    });
    if (place != null) told.unshift(placed(u.data[0][place], this.look.by));
    const near =
      place == null
        ? undefined
        : this.marks.find((mark) => Math.abs(u.valToPos(mark.x, "x") - (u.cursor.left ?? -99)) < NEAR);
    this.value.textContent = told.join(" · ") + (near ? ` · ${near.text}` : "");
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const u = this.u;
    if (!u || !u.data[0].length || event.ctrlKey || event.altKey || event.metaKey) return;
    const x = u.data[0],
      last = x.length - 1,
      at = Math.min(last, u.cursor.idx ?? last),
      big = Math.max(1, Math.round(last / 10));
    const to = /** @type {Record<string, number>} */ ({
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      PageDown: at + big,
      PageUp: at - big,
      Home: 0,
      End: last,
    })[event.key];
    if (to != null) this.move(Math.min(last, Math.max(0, to)));
    else if (event.key === "Enter") this.pick(at);
    else if (event.key === "+" || event.key === "=") this.listener.zoom(...around(x, at, 0.25));
    else if (event.key === "-") this.listener.zoom(...around(x, at, 1));
    else if (event.key === "0" || event.key === "Escape") this.listener.zoom(null, null);
    else return;
    event.preventDefault();
  }

  /** @param {number} place */
  move(place) {
    const u = this.u;
    if (!u) return;
    const at = { left: u.valToPos(u.data[0][place], "x"), top: u.bbox.height / (4 * devicePixelRatio) };
    // The last one, which its types do not have: linked charts are told.
    /** @type {any} */ (u).setCursor(at, true, true);
  }
}

/** Columns over all places of all lines that count: x, and of each line low, high, mean, smoothed.
 * @param {Line[]} lines @param {number} smooth @returns {(number | null)[][]} */
function columns(lines, smooth) {
  const places = new Set();
  const told = lines.map(({ curve }) => {
    const line = smooth > 0 ? smoothed(curve, smooth) : null,
      at = new Map();
    for (let i = 0; i < curve.x.length; i++) {
      if (curve.flags[i] & VOID) continue;
      at.set(curve.x[i], [
        curve.exact ? null : curve.low[i],
        curve.exact ? null : curve.high[i],
        curve.mean[i],
        line?.[i] ?? null,
      ]);
      places.add(curve.x[i]);
    }
    return at;
  });
  const x = [...places].sort((a, b) => a - b);
  /** @type {(number | null)[][]} */
  const data = [x];
  for (const at of told) for (let part = 0; part < 4; part++) data.push(x.map((one) => at.get(one)?.[part] ?? null));
  return data;
}

/** Whether a line is drawn with its points: one alone would not be seen. @param {uPlot} u @param {number} place */
function sparse(u, place) {
  let count = 0;
  for (const value of u.data[place]) if (value != null && ++count > SPARSE) return false;
  return true;
}

/** As many digits as tell ticks apart. @param {(number | null)[]} at @param {string} name */
export function labels(at, name) {
  let told = /** @type {string[]} */ ([]);
  for (let digits = 4; digits < 9; digits++) {
    told = at.map((y) => (y == null ? "" : valued(y, name, digits)));
    const shown = told.filter(Boolean);
    if (new Set(shown).size === shown.length) break;
  }
  return told;
}

/** The place of the last value. @param {ArrayLike<number | null | undefined>} values */
function ended(values) {
  let at = values.length - 1;
  while (at > 0 && values[at] == null) at--;
  return at;
}

/** What was made again later, dashed. @param {uPlot} u @param {Curve} curve @param {string} color */
function dimmed(u, curve, color) {
  const draw = u.ctx;
  draw.strokeStyle = `${color}80`;
  draw.setLineDash([2, 3]);
  draw.beginPath();
  let joined = false;
  for (let i = 0; i < curve.x.length; i++) {
    if (!(curve.flags[i] & VOID)) {
      joined = false;
      continue;
    }
    const x = u.valToPos(curve.x[i], "x", true);
    draw[joined ? "lineTo" : "moveTo"](x, u.valToPos(curve.mean[i], "y", true));
    if (!curve.exact) {
      draw.moveTo(x, u.valToPos(curve.low[i], "y", true));
      draw.lineTo(x, u.valToPos(curve.high[i], "y", true));
      draw.moveTo(x, u.valToPos(curve.mean[i], "y", true));
    }
    joined = true;
  }
  draw.stroke();
  draw.setLineDash([]);
}

/** Room for the longest label: one that is cut off would tell another number.
 * @param {any} u @param {string[] | null} labels */
function wide(u, labels) {
  // The first time nothing is drawn yet, and the canvas has another font.
  u.ctx.font = u.axes[1].font[0];
  return Math.max(
    48,
    22 + Math.max(0, ...(labels ?? []).map((text) => u.ctx.measureText(text).width / devicePixelRatio)),
  );
}

/** What an axis shows at least around values that are nearly alike. @param {number} lo @param {number} hi */
export function leastRange(lo, hi) {
  return 1e-3 * Math.max(Math.abs(lo), Math.abs(hi), 1e-9);
}

/** @param {number} lo @param {number} hi @returns {[number, number]} */
function padded(lo, hi) {
  if (lo == null || hi == null || !Number.isFinite(lo) || !Number.isFinite(hi)) return [0, 1];
  const least = leastRange(lo, hi),
    room = Math.max(hi - lo, least);
  return [lo - 0.05 * room - (hi - lo < least ? least / 2 : 0), hi + 0.05 * room + (hi - lo < least ? least / 2 : 0)];
}

/** A part of what is shown, around one place. @param {ArrayLike<number>} x @param {number} at @param {number} half
 * @returns {[number, number]} */
function around(x, at, half) {
  const whole = x[x.length - 1] - x[0] || 1;
  return [x[at] - half * whole, x[at] + half * whole];
}
