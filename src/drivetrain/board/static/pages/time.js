// @ts-check
/** Where a run's time and memory went. */
import { get } from "../api.js";
import { Chart } from "../chart.js";
import { el, table } from "../dom.js";
import { bytes, moment, number, share, span } from "../format.js";

const USES = [
  "step",
  "start",
  "compile",
  "data wait",
  "evaluation",
  "commit",
  "pause",
  "rollback",
  "profile",
  "lost work",
  "restart",
  "other",
];

/** @param {HTMLElement} into @param {any} run */
export async function open(into, run) {
  const holder = el("div", {}),
    memory = el("div", { class: "grid" });
  const none = el("p", { class: "dim" }, "none yet");
  into.replaceChildren(holder, el("h2", {}, "Memory of the first process"), none, memory);
  const host = new Chart(memory, "memory/host", { zoom: () => {} }),
    device = new Chart(memory, "memory/device", { zoom: () => {} });
  return {
    draw: async () => {
      const told = await get(`/api/runs/${run.id}/time`);
      holder.replaceChildren(...whole(told), ...ranks(told.ranks), ...commits(told.commits));
      none.hidden = told.memory.step.length > 0;
      memory.hidden = !none.hidden;
      if (memory.hidden) return;
      show(host, told.memory, ["host", "host_peak"]);
      show(device, told.memory, ["device", "device_peak"]);
      device.figure.hidden = told.memory.device.every((/** @type {number | null} */ one) => one == null);
    },
  };
}

/** @param {any} told @returns {Node[]} */
function whole(told) {
  const uses = USES.filter((use) =>
    [told, ...told.attempts].some((/** @type {any} */ one) => Math.abs(one.seconds[use] ?? 0) >= 0.05),
  );
  const row = (/** @type {string} */ name, /** @type {any} */ seconds) => [
    name,
    ...uses.map((use) => span(seconds[use] ?? 0)),
    stack(seconds, uses),
  ];
  const total = uses.reduce((sum, use) => sum + told.seconds[use], 0);
  const shares = ["share", ...uses.map((use) => share(told.seconds[use] / total)), ""];
  const rows = [
    row("whole run", told.seconds),
    shares,
    ...told.attempts.map((/** @type {any} */ one) => row(`attempt ${one.number}`, one.seconds)),
  ];
  const phases = Object.entries(told.phases),
    all = phases.reduce((sum, [, seconds]) => sum + seconds, 0);
  const legend = el("p", { class: "dim" }, ...uses.map((use, i) => el("span", {}, swatch(i), ` ${use}  `)));
  return [
    table("Time by use; goodput is the share of “step”", ["", ...uses, "in parts"], rows),
    legend,
    table(
      "Phases of the first process",
      ["phase", "time", "share"],
      phases.map(([name, seconds]) => [name, span(seconds), share(seconds / all)]),
    ),
  ];
}

/** @param {any} seconds @param {string[]} uses */
function stack(seconds, uses) {
  const made = el("div", {
    class: "stack",
    role: "img",
    "aria-label": uses.map((use) => `${use} ${span(seconds[use] ?? 0)}`).join(", "),
  });
  uses.forEach((use, i) => {
    const part = el("div", { title: `${use} ${span(seconds[use] ?? 0)}` });
    part.style.flexGrow = String(Math.max(0, seconds[use] ?? 0));
    part.style.background = color(i);
    made.append(part);
  });
  return made;
}

/** @param {number} place */
function swatch(place) {
  const made = el("span", { "aria-hidden": "true" }, "■");
  made.style.color = color(place);
  return made;
}

/** @param {number} place */
function color(place) {
  return `var(--c${place % 8})`;
}

/** Which rank had most work of its own, as a heat map: a row a rank, a column some steps. @param {any} ranks @returns {Node[]} */
function ranks(ranks) {
  if (!ranks.step.length) return [];
  const world = Math.max(...ranks.world),
    columns = Math.min(200, ranks.step.length),
    counts = new Map();
  const each = Array.from({ length: columns }, () => 0),
    of = (/** @type {number} */ i) => Math.floor((i * columns) / ranks.step.length);
  ranks.rank.forEach((/** @type {number} */ rank, /** @type {number} */ i) => {
    counts.set(`${rank} ${of(i)}`, (counts.get(`${rank} ${of(i)}`) ?? 0) + 1);
    each[of(i)]++;
  });
  const often = Array.from(
    { length: world },
    (_, rank) => ranks.rank.filter((/** @type {number} */ one) => one === rank).length,
  );
  const canvas = el("canvas", {
    width: columns * 4,
    height: Math.min(world, 256) * 12,
    role: "img",
    "aria-label": `Slowest rank by step. ${often
      .map((n, rank) => `rank ${rank}: ${n} times`)
      .slice(0, 16)
      .join(", ")}`,
  });
  const draw = canvas.getContext("2d"),
    ink = getComputedStyle(document.documentElement).getPropertyValue("--c1");
  if (draw) {
    draw.fillStyle = ink;
    for (const [key, count] of counts) {
      const [rank, column] = key.split(" ").map(Number);
      draw.globalAlpha = count / each[column];
      draw.fillRect(column * 4, rank * 12, 4, 11);
    }
  }
  const most = ranks.most.map((/** @type {number} */ one, /** @type {number} */ i) => one / (ranks.least[i] || 1));
  const said = `Steps ${number(ranks.step[0])} to ${number(ranks.step.at(-1))}, ranks from 0 downward. The slowest takes ${number(Math.max(...most), 3)} times as long as the fastest at most.`;
  return [
    el("h2", {}, "Slowest ranks"),
    el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Slowest ranks" }, canvas),
    el("p", { class: "dim" }, said),
  ];
}

/** @param {any[]} told @returns {Node[]} */
function commits(told) {
  const rows = told
    .slice(-200)
    .reverse()
    .map((one) => [
      one.name,
      number(one.step),
      moment(one.time),
      span(one.seconds),
      span(one.waited),
      span(one.writing),
      bytes(one.bytes),
    ]);
  return [
    table(
      "Commits, the newest 200",
      ["commit", "step", "when", "training waited", "of it for the one before", "writing beside", "size"],
      rows,
    ),
  ];
}

/** @param {Chart} chart @param {any} memory @param {string[]} names */
function show(chart, memory, names) {
  const lines = names.map((name, i) => {
    const there = memory[name]
      .map((/** @type {any} */ one, /** @type {number} */ at) => (one == null ? -1 : at))
      .filter((/** @type {number} */ at) => at >= 0);
    const x = Float64Array.from(there, (at) => memory.step[at]),
      mean = Float32Array.from(there, (at) => memory[name][at]);
    const color = getComputedStyle(document.documentElement).getPropertyValue(`--c${i}`);
    return {
      label: name,
      color,
      dash: i ? [4, 3] : [],
      curve: { name, exact: true, x, low: mean, high: mean, mean, flags: new Uint8Array(x.length) },
    };
  });
  chart.show(lines, { by: "step", log: false, smooth: 0 }, []);
}
