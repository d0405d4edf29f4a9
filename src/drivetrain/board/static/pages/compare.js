// @ts-check
/** Many runs over each other: small multiples, keys that differ, metrics at equal places; as PNG, SVG and CSV. */
import { fail } from "../alerts.js";
import { get, getBinary, Refused } from "../api.js";
import { Chart, labels, leastRange } from "../chart.js";
import { decode, extent, VOID } from "../curves.js";
import { button, choice, dialog, el, table } from "../dom.js";
import { axisName, placed, valued } from "../format.js";
import { address, change, state, zoomed } from "../state.js";
import { paced } from "./runs.js";

// Seven dashes and eight colours have no common divisor: 56 runs can be told apart, the first seven without colour.
const COLOURS = 8,
  DASHES = [[], [8, 4], [2, 3], [8, 3, 2, 3], [14, 4], [8, 3, 2, 3, 2, 3], [1, 5]];
const AT_ONCE = 12,
  NAMES = 64,
  PACE = 1000;
const AXES = ["step", "samples", "tokens", "seconds", "time"];
const UNTOLD = /^(memory|phase|ranks|counted)\//;
const SVG = "http://www.w3.org/2000/svg";

/** @typedef {{id: string, label: string, color: string, dash: number[], names: string[], axes: string[]}} Shown */
/** @typedef {import("../chart.js").Line & {id: string}} Line */
/** @typedef {Map<string, Line[]>} Lines of each name, those of the runs that have it */

/** @param {HTMLElement} main @returns {Promise<import("../board.js").Page>} */
export async function open(main) {
  const problem = el("p", { class: "bad", role: "status" });
  const legend = el("div", { class: "bar", role: "list", "aria-label": "Runs" });
  const grid = el("div", { class: "grid" }),
    differ = el("div", {}),
    equal = el("div", {});
  const bar = controls(moved, pickRuns, saved);
  /** @type {Map<string, Chart>} */
  const charts = new Map();
  /** Names of charts that can be seen, and of those that show what was asked for last. @type {Set<string>} */
  const seen = new Set(),
    fresh = new Set();
  /** @type {Shown[]} */
  let runs = [];
  let arranged = "",
    closed = false;
  let under = new AbortController();
  /** @type {Promise<void>} */
  let current = Promise.resolve();
  const sight = new IntersectionObserver(sighted, { rootMargin: "200px" });
  document.title = "Compare – Drivetrain board";
  delete main.dataset.shown;
  main.replaceChildren(el("h1", {}, "Compare"), bar.bar, problem, legend, grid, differ, equal);
  // A board that is away now is asked again once it answers: the page stands already.
  await draw().catch(fail);

  /** @param {Record<string, string | null>} changes */
  function moved(changes) {
    change(changes);
    draw().catch(fail);
  }

  /** @param {IntersectionObserverEntry[]} entries */
  function sighted(entries) {
    for (const entry of entries) {
      const name = /** @type {HTMLElement} */ (entry.target).dataset.name ?? "";
      seen[entry.isIntersecting ? "add" : "delete"](name);
    }
    if ([...seen].some((name) => !fresh.has(name))) draw().catch(fail);
  }

  /** What the address asks for; a newer question takes the place of one under way, and both end with its answer. */
  function draw() {
    under.abort();
    if (closed) return current;
    under = new AbortController();
    current = drawn(under.signal);
    return current;
  }

  /** @param {AbortSignal} signal @returns {Promise<void>} */
  async function drawn(signal) {
    fresh.clear();
    bar.show(runs);
    try {
      await drawRuns(signal);
    } catch (error) {
      if (!signal.aborted) throw error;
      if (!closed) await current;
    }
  }

  /** @param {AbortSignal} signal */
  async function drawRuns(signal) {
    const ids = chosen(),
      found = await Promise.all(ids.map((id) => detail(id, signal)));
    runs = styled(found.filter((one) => one !== null));
    const gone = ids.length - runs.length;
    problem.textContent = gone ? `Not here, of the ${ids.length} runs that the address names: ${gone}.` : "";
    bar.show(runs);
    legend.replaceChildren(...runs.map(entry));
    arrange();
    const names = [...charts.keys()].filter((name) => seen.has(name));
    const { lines, records, span } = await linesOf(runs, names, signal);
    for (const name of names) {
      charts.get(name)?.show(lines.get(name) ?? [], { ...look(), span: zoomed() ?? span }, []);
      fresh.add(name);
    }
    main.dataset.shown = String(records);
    await tabulate(signal);
  }

  /** Charts of every name that one of the runs has, in the order of the first that has it. */
  function arrange() {
    const ids = runs.map(({ id }) => id).join();
    if (ids !== arranged) {
      // A chart keeps the colours that it was made with.
      arranged = ids;
      sight.disconnect();
      charts.clear();
      seen.clear();
      grid.replaceChildren();
    }
    if (!runs.length) grid.replaceChildren(el("p", {}, "Choose two runs or more."));
    const names = [...new Set(runs.flatMap((run) => run.names))];
    const added = names.filter((name) => !charts.has(name));
    for (const name of added) {
      const chart = new Chart(grid, name, { zoom: (lo, hi) => moved({ lo: text(lo), hi: text(hi) }) });
      chart.figure.dataset.name = name;
      charts.set(name, chart);
      if (charts.size <= AT_ONCE) seen.add(name);
      sight.observe(chart.figure);
    }
    // Only then: an element that is moved loses the focus.
    if (added.length) grid.append(...names.flatMap((name) => charts.get(name)?.figure ?? []));
  }

  /** @param {AbortSignal} signal */
  async function tabulate(signal) {
    if (runs.length < 2) {
      differ.replaceChildren();
      equal.replaceChildren();
      return;
    }
    const query = new URLSearchParams({ by: look().by });
    for (const { id } of runs) query.append("run", id);
    try {
      const told = await get(`/api/compare?${query}`, signal),
        heads = runs.map(({ label }) => label);
      renew(differ, table("Keys that differ", ["key", ...heads], differences(told, runs)));
      const axis = axisName(look().by),
        rows = places(told, runs);
      const none = el("p", { class: "dim" }, `By ${axis} the runs have no place in common yet.`);
      renew(equal, rows.length ? table(`At equal places, by ${axis}`, ["name", axis, ...heads], rows) : none);
    } catch (error) {
      // The charts are right without it.
      if (!(error instanceof Refused)) throw error;
      differ.replaceChildren(el("p", { class: "bad" }, error.message));
      equal.replaceChildren();
    }
  }

  async function pickRuns() {
    const told = await get("/api/runs"),
      own = new Set(chosen());
    const boxes = told.runs.map((/** @type {any} */ run) => box(run, own, () => moved({ runs: [...own].join(",") })));
    const search = el("input", {
      type: "search",
      oninput: () => {
        for (const one of boxes) one.hidden = !one.textContent?.toLowerCase().includes(search.value.toLowerCase());
      },
    });
    dialog("Runs to compare", el("p", {}, el("label", {}, "Only names with ", search)), ...boxes);
  }

  /** All curves, those too that were never in view. @param {"CSV" | "SVG" | "PNG"} kind */
  async function saved(kind) {
    const names = [...new Set(runs.flatMap((run) => run.names))];
    const { lines } = await linesOf(runs, names),
      picture = laidOut(lines, look(), runs);
    if (kind === "CSV") save("curves.csv", new Blob([csv(lines, look().by)], { type: "text/csv" }));
    else if (kind === "SVG") save("curves.svg", new Blob([svg(picture)], { type: "image/svg+xml" }));
    else save("curves.png", await png(picture));
  }

  const soon = paced(() => draw().catch(fail), PACE);
  return {
    told: (news) => {
      if (chosen().some((id) => id in news)) soon();
    },
    moved: () => {
      draw().catch(fail);
    },
    close: () => {
      closed = true;
      under.abort();
      sight.disconnect();
    },
  };
}

/** The runs that the address names. */
function chosen() {
  return [...new Set((state().get("runs") ?? "").split(",").filter(Boolean))];
}

function look() {
  const asked = state();
  return { by: asked.get("by") ?? "step", log: asked.get("log") === "1", smooth: Number(asked.get("smooth") ?? 0) };
}

/** @param {number | null} value */
function text(value) {
  return value == null ? null : String(value);
}

/** What is chosen about all charts. It is made once, and then follows the address: what has the focus keeps it.
 * @param {(changes: Record<string, string | null>) => void} moved @param {() => Promise<void>} pick
 * @param {(kind: "CSV" | "SVG" | "PNG") => Promise<void>} saved */
function controls(moved, pick, saved) {
  const log = el("input", { type: "checkbox", onchange: () => moved({ log: log.checked ? "1" : null }) });
  const smooth = el("input", {
    type: "range",
    min: 0,
    max: 0.99,
    step: 0.01,
    oninput: () => moved({ smooth: smooth.value === "0" ? null : smooth.value }),
  });
  const which = button("Runs…", () => pick().catch(fail));
  const whole = button("Show all", () => moved({ lo: null, hi: null }));
  const axes = /** @type {[string, string][]} */ (AXES.map((one) => [one, axisName(one)]));
  const by = choice("By", axes, look().by, (value) => moved({ by: value, lo: null, hi: null }));
  const axis = by.querySelector("select");
  const files = /** @type {("CSV" | "SVG" | "PNG")[]} */ (["CSV", "SVG", "PNG"]);
  const saves = files.map((kind) => button(kind, () => saved(kind).catch(fail), { "aria-label": `Save as ${kind}` }));
  const looks = [by, el("label", {}, log, " log axis"), el("label", {}, "Smooth ", smooth)];
  const bar = el("div", { class: "bar" }, which, ...looks, whole, ...saves);
  return {
    bar,
    /** @param {Shown[]} runs */
    show: (runs) => {
      const now = look();
      which.textContent = `Runs… (${runs.length})`;
      log.checked = now.log;
      if (document.activeElement !== smooth) smooth.value = String(now.smooth);
      whole.disabled = !state().has("lo");
      for (const one of saves) one.disabled = !runs.length;
      if (!axis) return;
      axis.value = now.by;
      // An axis that one of the runs has not counted would put all its points at one place.
      for (const one of axis.options) one.disabled = runs.some((run) => !run.axes.includes(one.value));
    },
  };
}

/** A run that can be chosen. @param {any} run @param {Set<string>} own @param {() => void} moved */
function box(run, own, moved) {
  const input = el("input", {
    type: "checkbox",
    checked: own.has(run.id),
    onchange: () => {
      own[input.checked ? "add" : "delete"](run.id);
      moved();
    },
  });
  return el("div", {}, el("label", {}, input, ` ${run.title ?? run.name}`));
}

/** A run, or null where there is none of this id (any more). @param {string} id @param {AbortSignal} signal */
async function detail(id, signal) {
  try {
    return await get(`/api/runs/${encodeURIComponent(id)}`, signal);
  } catch (error) {
    if (error instanceof Refused && error.status === 404) return null;
    throw error;
  }
}

/** Runs as they are told apart: in two folders may be two of a name. @param {any[]} rows @returns {Shown[]} */
function styled(rows) {
  const css = getComputedStyle(document.documentElement),
    titles = rows.map((row) => row.title ?? row.name);
  return rows.map((row, place) => {
    const title = titles[place],
      alone = titles.indexOf(title) === titles.lastIndexOf(title);
    const names = /** @type {string[]} */ (row.series.map((/** @type {any} */ one) => one.name));
    return {
      id: row.id,
      label: alone ? title : `${title} (${row.id.slice(0, 6)})`,
      color: css.getPropertyValue(`--c${place % COLOURS}`),
      dash: DASHES[place % DASHES.length],
      names: names.filter((name) => !UNTOLD.test(name)),
      axes: row.axes,
    };
  });
}

/** Which line is which run. @param {Shown} run */
function entry(run) {
  const drawing = shape("svg", { width: 36, height: 10, "aria-hidden": "true" });
  drawing.append(shape("line", { x1: 0, y1: 5, x2: 36, y2: 5, "stroke-width": 2, ...stroke(run) }));
  const link = el("a", { href: address({ page: "run", run: run.id }) }, run.label);
  return el("span", { role: "listitem" }, drawing, " ", link);
}

/** @param {Shown[]} runs @param {string[]} names @param {AbortSignal} [signal] */
async function linesOf(runs, names, signal) {
  const lines = /** @type {Lines} */ (new Map(names.map((name) => [name, []])));
  const every = await Promise.all(runs.map((run) => curvesOf(run, names, signal)));
  for (const [place, { curves }] of every.entries()) {
    for (const curve of curves) lines.get(curve.name)?.push({ ...runs[place], curve });
  }
  const spans = every.flatMap((one) => one.spans),
    curves = every.flatMap((one) => one.curves);
  return { lines, records: every.reduce((sum, one) => sum + one.records, 0), span: extent(spans, curves) };
}

/** What one run has of these names. @param {Shown} run @param {string[]} names @param {AbortSignal} [signal] */
async function curvesOf(run, names, signal) {
  const own = names.filter((name) => run.names.includes(name)),
    found = [],
    asked = state();
  /** @type {([number, number] | null)[]} */
  const spans = [];
  let records = 0;
  for (let at = 0; at < own.length; at += NAMES) {
    const query = new URLSearchParams({ by: look().by, points: "600" });
    for (const edge of ["lo", "hi"]) if (asked.has(edge)) query.set(edge, asked.get(edge) ?? "");
    for (const name of own.slice(at, at + NAMES)) query.append("n", name);
    const told = decode(await getBinary(`/api/runs/${run.id}/curves?${query}`, signal));
    found.push(...told.curves);
    spans.push(told.span);
    records = told.records;
  }
  return { curves: found, records, spans };
}

/** @param {any} told @param {Shown[]} runs */
function differences(told, runs) {
  return told.differences.map((/** @type {any} */ one) => [one.key, ...runs.map(({ id }) => written(one.values[id]))]);
}

/** @param {unknown} value of a recipe */
function written(value) {
  if (value == null) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** @param {any} told @param {Shown[]} runs */
function places(told, runs) {
  return told.at_equal.map((/** @type {any} */ one) => {
    return [one.name, placed(one.at, look().by), ...runs.map(({ id }) => valued(one.values[id], one.name))];
  });
}

/** Show a table where one may stand: its region keeps the focus, and how far it is scrolled.
 * @param {HTMLElement} holder @param {HTMLElement} made */
function renew(holder, made) {
  const region = holder.firstElementChild;
  const same = region?.getAttribute("aria-label") === made.getAttribute("aria-label");
  if (same) region?.replaceChildren(...made.childNodes);
  else holder.replaceChildren(made);
}

/** @param {string} name @param {Blob} content */
function save(name, content) {
  const link = el("a", { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** What is drawn, with the bounds of each point. @param {Lines} lines @param {string} by */
function csv(lines, by) {
  const quote = (/** @type {string} */ word) => `"${word.replaceAll('"', '""')}"`;
  const rows = [`name,run,id,${by},low,high,mean`];
  for (const { id, label, curve } of [...lines.values()].flat()) {
    for (let i = 0; i < curve.x.length; i++) {
      if (curve.flags[i] & VOID) continue;
      const values = [curve.x[i], curve.low[i], curve.high[i], curve.mean[i]];
      rows.push([quote(curve.name), quote(label), id, ...values].join(","));
    }
  }
  return `${rows.join("\n")}\n`;
}

/**
 * @typedef {{color: string, dash: number[], points: [number, number][]}} Stroke one point is a dot
 * @typedef {{x: number, y: number, text: string, end?: boolean}} Words which begin there, or end
 * @typedef {{width: number, height: number, rules: [number, number][][], strokes: Stroke[], words: Words[]}} Picture
 */
/** @typedef {{low: number, high: number}} Bounds none: not finite */
const CELL = { width: 640, height: 240, head: 32, foot: 32, left: 84, edge: 12 },
  ROW = 20,
  DOT = 2.5,
  SHARES = [0, 0.25, 0.5, 0.75, 1];

/** Charts beside and below each other, after a line for each run: one layout for both kinds of pictures.
 * @param {Lines} lines @param {{by: string, log: boolean}} how @param {Shown[]} runs @returns {Picture} */
function laidOut(lines, how, runs) {
  const across = Math.max(1, Math.min(3, Math.floor(Math.sqrt(lines.size))));
  const down = Math.ceil(lines.size / across);
  const top = ROW * runs.length + CELL.edge,
    width = across * CELL.width,
    height = top + down * CELL.height;
  const picture = /** @type {Picture} */ ({ width, height, rules: [], strokes: [], words: [] });
  for (const [place, { label, color, dash }] of runs.entries()) {
    const y = ROW * (place + 1);
    picture.strokes.push({
      color,
      dash,
      points: [
        [CELL.edge, y - 5],
        [CELL.edge + 48, y - 5],
      ],
    });
    picture.words.push({ x: CELL.edge + 56, y, text: label });
  }
  for (const [place, [name, told]] of [...lines].entries()) {
    const left = (place % across) * CELL.width,
      upper = top + Math.floor(place / across) * CELL.height;
    plot(picture, { left, top: upper }, name, told, how);
  }
  return picture;
}

/** @param {Picture} picture @param {{left: number, top: number}} at @param {string} name @param {Line[]} lines
 * @param {{by: string, log: boolean}} how */
function plot(picture, at, name, lines, how) {
  const drawn = lines.map((line) => extremes(line, how.log)),
    x = bounds(drawn, 0),
    y = bounds(drawn, 1);
  const left = at.left + CELL.left,
    top = at.top + CELL.head,
    wide = CELL.width - CELL.left - CELL.edge,
    high = CELL.height - CELL.head - CELL.foot;
  /** @param {[number, number]} point @returns {[number, number]} */
  const pinned = ([a, b]) => [
    left + (wide * (a - x.low)) / (x.high - x.low || 1),
    top + high - (high * (b - y.low)) / (y.high - y.low || 1),
  ];
  const none = Number.isFinite(y.low) ? "" : ": no value";
  picture.words.push({ x: left, y: at.top + 20, text: `${name}${how.log ? " (log axis)" : ""}${none}` });
  if (none) return;
  const least = leastRange(y.low, y.high);
  if (y.high - y.low < least) [y.low, y.high] = [y.low - least / 2, y.high + least / 2];
  const values = SHARES.map((share) => y.low + share * (y.high - y.low));
  const told = labels(how.log ? values.map((value) => 10 ** value) : values, name);
  for (const [number, share] of SHARES.entries()) {
    const [down, across] = [top + high * (1 - share), left + wide * share];
    const place = placed(x.low + share * (x.high - x.low), how.by);
    picture.rules.push(
      [
        [left, down],
        [left + wide, down],
      ],
      [
        [across, top],
        [across, top + high],
      ],
    );
    picture.words.push({ x: left - 6, y: down + 4, text: told[number], end: true });
    if (share === 0) picture.words.push({ x: left, y: top + high + 18, text: `${axisName(how.by)} ${place}` });
    else if (share === 1) picture.words.push({ x: left + wide, y: top + high + 18, text: place, end: true });
  }
  for (const [place, points] of drawn.entries()) {
    picture.strokes.push({ color: lines[place].color, dash: lines[place].dash, points: points.map(pinned) });
  }
}

/** Both extremes of each point: a spike of one step is in the picture. What is not finite has no place in it.
 * @param {Line} line @param {boolean} log @returns {[number, number][]} */
function extremes({ curve }, log) {
  const points = /** @type {[number, number][]} */ ([]);
  for (let i = 0; i < curve.x.length; i++) {
    if (curve.flags[i] & VOID) continue;
    for (const value of new Set([curve.low[i], curve.high[i]])) {
      const y = log ? Math.log10(value) : value;
      if (Number.isFinite(y)) points.push([curve.x[i], y]);
    }
  }
  return points;
}

/** @param {[number, number][][]} lines @param {0 | 1} part @returns {Bounds} */
function bounds(lines, part) {
  const found = { low: Infinity, high: -Infinity };
  for (const point of lines.flat()) {
    found.low = Math.min(found.low, point[part]);
    found.high = Math.max(found.high, point[part]);
  }
  return found;
}

/** @template {keyof SVGElementTagNameMap} T @param {T} tag @param {Record<string, string | number>} attributes */
function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}

/** @param {{color: string, dash: number[]}} line */
function stroke({ color, dash }) {
  return { fill: "none", stroke: color, "stroke-dasharray": dash.join(" ") };
}

/** The page's own ground and ink: its colours are chosen for them. */
function page() {
  const css = getComputedStyle(document.documentElement);
  const [ground, ink, rule] = ["--bg", "--fg", "--grid"].map((name) => css.getPropertyValue(name));
  return { ground, ink, rule };
}

/** @param {Picture} picture */
function svg({ width, height, rules, strokes, words }) {
  const { ground, ink, rule } = page(),
    root = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  root.append(shape("rect", { width, height, fill: ground }));
  const written = (/** @type {[number, number][]} */ points) =>
    points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
  for (const points of rules) root.append(shape("polyline", { points: written(points), stroke: rule }));
  for (const one of strokes) {
    const [[cx, cy] = [0, 0]] = one.points;
    root.append(
      one.points.length === 1
        ? shape("circle", { cx, cy, r: DOT, fill: one.color })
        : shape("polyline", { points: written(one.points), "stroke-width": 1.5, ...stroke(one) }),
    );
  }
  for (const { x, y, text, end } of words) {
    const anchor = end ? "end" : "start";
    const made = shape("text", {
      x,
      y,
      fill: ink,
      "font-family": "sans-serif",
      "font-size": 13,
      "text-anchor": anchor,
    });
    made.textContent = text;
    root.append(made);
  }
  return new XMLSerializer().serializeToString(root);
}

/** @param {Picture} picture @returns {Promise<Blob>} */
async function png(picture) {
  const canvas = el("canvas", { width: 2 * picture.width, height: 2 * picture.height });
  const draw = canvas.getContext("2d");
  if (draw) paint(draw, picture);
  const made = /** @type {Blob | null} */ (await new Promise((done) => canvas.toBlob(done, "image/png")));
  if (!made) throw new Error("This browser makes no picture that large: compare fewer curves, or save it as SVG.");
  return made;
}

/** @param {CanvasRenderingContext2D} draw @param {Picture} picture */
function paint(draw, { width, height, rules, strokes, words }) {
  const { ground, ink, rule } = page();
  draw.scale(2, 2);
  draw.fillStyle = ground;
  draw.fillRect(0, 0, width, height);
  const line = (/** @type {[number, number][]} */ points) => {
    draw.beginPath();
    for (const [x, y] of points) draw.lineTo(x, y);
    draw.stroke();
  };
  draw.strokeStyle = rule;
  rules.forEach(line);
  draw.lineWidth = 1.5;
  for (const { color, dash, points } of strokes) {
    [draw.strokeStyle, draw.fillStyle] = [color, color];
    draw.setLineDash(dash);
    if (points.length > 1) line(points);
    else for (const [x, y] of points) draw.fillRect(x - DOT, y - DOT, 2 * DOT, 2 * DOT);
  }
  draw.fillStyle = ink;
  draw.font = "13px sans-serif";
  for (const { x, y, text, end } of words) {
    draw.textAlign = end ? "end" : "start";
    draw.fillText(text, x, y);
  }
}
