// @ts-check
/** Many runs over each other: small multiples, keys that differ, metrics at equal places; as PNG, SVG and CSV. */
import { get, getBinary } from "../api.js";
import { fail } from "../board.js";
import { Chart } from "../chart.js";
import { decode, VOID } from "../curves.js";
import { button, choice, dialog, el, table } from "../dom.js";
import { number } from "../format.js";
import { change, state } from "../state.js";
import { paced } from "./runs.js";

const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
/** @typedef {import("../chart.js").Line} Line */

/** @param {HTMLElement} main @returns {Promise<import("../board.js").Page>} */
export async function open(main) {
  const bar = el("div", { class: "bar" }), grid = el("div", { class: "grid" }), tables = el("div", {});
  /** @type {Map<string, Chart>} */
  const charts = new Map();
  /** @type {Map<string, Line[]>} */
  let lines = new Map();
  const { runs } = await get("/api/runs");
  main.replaceChildren(el("h1", {}, "Compare"), bar, grid, tables);
  controls();
  await draw();

  function chosen() {
    return (state().get("runs") ?? "").split(",").filter((id) => runs.some((/** @type {any} */ one) => one.id === id));
  }

  function look() {
    return { by: state().get("by") ?? "step", log: state().get("log") === "1", smooth: Number(state().get("smooth") ?? 0) };
  }

  /** @param {Record<string, string | null>} changes */
  function moved(changes) {
    change(changes);
    controls();
    draw().catch(fail);
  }

  function controls() {
    const logs = el("input", { type: "checkbox", checked: look().log, onchange: () => moved({ log: logs.checked ? "1" : null }) });
    const axes = /** @type {[string, string][]} */ (["step", "samples", "tokens", "seconds", "time"].map((one) => [one, one]));
    bar.replaceChildren(button(`Runs… (${chosen().length})`, pickRuns), choice("By", axes, look().by, (by) => moved({ by, lo: null, hi: null })), el("label", {}, logs, " log axis"),
      button("Show all", () => moved({ lo: null, hi: null })), button("CSV", () => save("curves.csv", "text/csv", csv(lines))), button("SVG", () => save("curves.svg", "image/svg+xml", svg(lines))), button("PNG", () => png(charts)));
  }

  function pickRuns() {
    const own = new Set(chosen());
    const boxes = runs.map((/** @type {any} */ run) => {
      const input = el("input", { type: "checkbox", checked: own.has(run.id), onchange: () => { own[input.checked ? "add" : "delete"](run.id); moved({ runs: [...own].join(",") }); } });
      return el("div", {}, el("label", {}, input, ` ${run.title ?? run.name}`));
    });
    dialog("Runs to compare", ...boxes);
  }

  async function draw() {
    const ids = chosen();
    if (!ids.length) {
      grid.replaceChildren(el("p", {}, "Choose two runs or more."));
      charts.clear();
      return;
    }
    const found = /** @type {Map<string, Line[]>} */ (new Map());
    const each = await Promise.all(ids.map((id, place) => linesOf(id, place)));
    for (const line of each.flat()) found.set(line.curve.name, [...(found.get(line.curve.name) ?? []), line]);
    if (!charts.size) grid.replaceChildren();
    lines = new Map([...found].sort(([a], [b]) => a.localeCompare(b)));
    for (const [name, told] of lines) {
      if (!charts.has(name)) charts.set(name, new Chart(grid, name, { zoom: (lo, hi) => moved({ lo: lo == null ? null : String(lo), hi: hi == null ? null : String(hi) }) }));
      charts.get(name)?.show(told, look(), []);
    }
    for (const [name, chart] of charts) chart.figure.hidden = !lines.has(name);
    const query = new URLSearchParams({ by: look().by });
    for (const id of ids) query.append("run", id);
    if (ids.length > 1) tables.replaceChildren(...told(await get(`/api/compare?${query}`), ids));
    main.dataset.shown = String(lines.size);
  }

  /** @param {string} id @param {number} place @returns {Promise<Line[]>} */
  async function linesOf(id, place) {
    const run = runs.find((/** @type {any} */ one) => one.id === id), detail = await get(`/api/runs/${id}`);
    const names = detail.series.map((/** @type {any} */ one) => one.name).filter((/** @type {string} */ name) => !/^(memory|phase|ranks|counted)\//.test(name)).slice(0, 60);
    const query = new URLSearchParams({ by: look().by, points: "600" });
    for (const edge of ["lo", "hi"]) if (state().has(edge)) query.set(edge, state().get(edge) ?? "");
    for (const name of names) query.append("n", name);
    const color = getComputedStyle(document.documentElement).getPropertyValue(`--c${place % 8}`), dash = DASHES[place % 4];
    const { curves } = decode(await getBinary(`/api/runs/${id}/curves?${query}`));
    return curves.map((curve) => ({ label: run.title ?? run.name, color, dash, curve }));
  }

  /** @param {any} said @param {string[]} ids */
  function told(said, ids) {
    const names = ids.map((id) => runs.find((/** @type {any} */ one) => one.id === id)).map((one) => one.title ?? one.name);
    const differ = said.differences.map((/** @type {any} */ one) => [one.key, ...ids.map((id) => String(one.values[id] ?? "–"))]);
    const rows = said.at_equal.map((/** @type {any} */ one) => [one.name, number(one.at), ...ids.map((id) => number(one.values[id]))]);
    return [table("Keys that differ", ["key", ...names], differ), table(`At equal places, by ${look().by}`, ["name", look().by, ...names], rows)];
  }
  const soon = paced(() => draw().catch(fail), 1000);
  return { told: (news) => { if (chosen().some((id) => id in news)) soon(); }, moved: () => { controls(); draw().catch(fail); } };
}

/** @param {string} name @param {string} kind @param {BlobPart} content */
function save(name, kind, content) {
  const link = el("a", { href: URL.createObjectURL(new Blob([content], { type: kind })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** @param {Map<string, Line[]>} lines */
function csv(lines) {
  const quote = (/** @type {string} */ text) => `"${text.replaceAll('"', '""')}"`, rows = ["name,run,x,low,high,mean"];
  for (const [name, told] of lines) for (const { label, curve } of told) for (let i = 0; i < curve.x.length; i++) {
    if (!(curve.flags[i] & VOID)) rows.push(`${quote(name)},${quote(label)},${curve.x[i]},${curve.low[i]},${curve.high[i]},${curve.mean[i]}`);
  }
  return rows.join("\n") + "\n";
}

/** Curves as paths, a chart below the other. @param {Map<string, Line[]>} lines */
function svg(lines) {
  const space = "http://www.w3.org/2000/svg", wide = 640, high = 200, root = document.createElementNS(space, "svg");
  root.setAttribute("viewBox", `0 0 ${wide} ${high * lines.size}`);
  let top = 0;
  for (const [name, told] of lines) {
    const x = told.flatMap(({ curve }) => [curve.x[0], curve.x.at(-1) ?? 0]).filter(Number.isFinite);
    const y = told.flatMap(({ curve }) => [curve.low.reduce((a, b) => Math.min(a, b), Infinity), curve.high.reduce((a, b) => Math.max(a, b), -Infinity)]).filter(Number.isFinite);
    const [left, right, low, upper] = [Math.min(...x), Math.max(...x), Math.min(...y), Math.max(...y)];
    const at = (/** @type {number} */ a, /** @type {number} */ b) => `${(10 + ((wide - 20) * (a - left)) / (right - left || 1)).toFixed(1)},${(top + high - 20 - ((high - 50) * (b - low)) / (upper - low || 1)).toFixed(1)}`;
    const title = document.createElementNS(space, "text");
    for (const [key, value] of Object.entries({ x: "10", y: String(top + 16), "font-family": "sans-serif", "font-size": "12" })) title.setAttribute(key, value);
    title.textContent = `${name}: ${number(low)} to ${number(upper)}; ${number(left)} to ${number(right)}; ${told.map(({ label }) => label).join(", ")}`;
    root.append(title);
    for (const { curve, color, dash } of told) {
      const path = document.createElementNS(space, "polyline"), points = [];
      // Both extremes of each point: a spike of one step is in the picture.
      for (let i = 0; i < curve.x.length; i++) if (!(curve.flags[i] & VOID)) points.push(at(curve.x[i], curve.low[i]), at(curve.x[i], curve.high[i]));
      for (const [key, value] of Object.entries({ points: points.join(" "), fill: "none", stroke: color, "stroke-dasharray": dash.join(" ") })) path.setAttribute(key, value);
      root.append(path);
    }
    top += high;
  }
  return new XMLSerializer().serializeToString(root);
}

/** The charts as they are drawn. @param {Map<string, Chart>} charts */
function png(charts) {
  const shown = [...charts.values()].filter((chart) => !chart.figure.hidden && chart.u), each = shown.map((chart) => /** @type {any} */ (chart.u).ctx.canvas);
  const canvas = el("canvas", { width: Math.max(...each.map((one) => one.width)), height: each.reduce((sum, one) => sum + one.height + 24, 0) }), draw = canvas.getContext("2d");
  if (!draw) return;
  const css = getComputedStyle(document.documentElement);
  draw.fillStyle = css.getPropertyValue("--bg");
  draw.fillRect(0, 0, canvas.width, canvas.height);
  let top = 0;
  each.forEach((one, i) => {
    draw.fillStyle = css.getPropertyValue("--fg");
    draw.font = "16px sans-serif";
    draw.fillText(shown[i].name, 8, top + 18);
    draw.drawImage(one, 0, top + 24);
    top += one.height + 24;
  });
  canvas.toBlob((blob) => blob && save("curves.png", "image/png", blob));
}
