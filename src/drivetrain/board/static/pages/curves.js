// @ts-check
/** All scalars of a run as linked charts. */
import { fail } from "../alerts.js";
import { get, getBinary } from "../api.js";
import { Chart } from "../chart.js";
import { decode, extent } from "../curves.js";
import { button, choice, dialog, el } from "../dom.js";
import { axisName } from "../format.js";
import { address, change, state, zoomed } from "../state.js";
import { idsOf } from "./data.js";

const AT_ONCE = 12;
const SECTIONS = /** @type {[RegExp, string][]} */ ([
  [/^(step|mfu)\/|_per_second\//, "Speed"],
  [/^(memory|phase|ranks|counted)\//, "Processes"],
  [/^statistics\//, "Statistics"],
]);

/** @param {HTMLElement} into @param {any} run */
export async function open(into, run) {
  const bar = el("div", { class: "bar" }),
    holder = el("div", {}),
    base = `/api/runs/${run.id}`;
  /** @type {Map<string, Chart>} */
  const charts = new Map();
  /** Names of charts that can be seen. @type {Set<string>} */
  const seen = new Set();
  /** @type {any[]} */
  let marks = [];
  let marked = ""; // how many records that are no steps the marks are of
  let drawn = "";
  /** @type {AbortController | null} */
  let under = null;
  const sight = new IntersectionObserver(
    (entries) => {
      for (const entry of entries)
        seen[entry.isIntersecting ? "add" : "delete"](/** @type {HTMLElement} */ (entry.target).dataset.name ?? "");
      draw(true).catch(fail);
    },
    { rootMargin: "200px" },
  );
  into.replaceChildren(bar, holder);
  controls();
  arrange();

  function look() {
    const asked = state();
    return { by: asked.get("by") ?? "step", log: asked.get("log") === "1", smooth: Number(asked.get("smooth") ?? 0) };
  }

  /** @param {Record<string, string | null>} changes */
  function moved(changes) {
    change(changes);
    controls();
    draw(true).catch(fail);
  }

  function controls() {
    const asked = state(),
      { by, log, smooth } = look();
    const axes = run.axes.map((/** @type {string} */ one) => [one, axisName(one)]);
    const logs = el("input", {
      type: "checkbox",
      checked: log,
      onchange: () => moved({ log: logs.checked ? "1" : null }),
    });
    const amount = el("input", {
      type: "range",
      min: 0,
      max: 0.99,
      step: 0.01,
      value: smooth,
      oninput: () => moved({ smooth: amount.value === "0" ? null : amount.value }),
    });
    if (bar.contains(document.activeElement) && bar.childElementCount) {
      bar.querySelector("button")?.toggleAttribute("disabled", !asked.has("lo"));
      return;
    }
    bar.replaceChildren(
      choice("By", axes, by, (value) => moved({ by: value, lo: null, hi: null })),
      el("label", {}, logs, " log axis"),
      el("label", {}, "Smooth ", amount),
      button("Show all", () => zoom(null, null), { disabled: !asked.has("lo") }),
    );
  }

  function arrange() {
    /** @type {Map<string, string[]>} */
    const groups = new Map();
    for (const { name } of run.series) groups.set(sectionOf(name), [...(groups.get(sectionOf(name)) ?? []), name]);
    for (const [group, names] of groups) {
      let section = /** @type {HTMLElement | null} */ (holder.querySelector(`[data-group="${CSS.escape(group)}"]`));
      if (!section) {
        section = el("div", { class: "grid" });
        holder.append(el("details", { open: true, "data-group": group }, el("summary", {}, group), section));
      } else section = section.querySelector(".grid");
      for (const name of names) {
        if (charts.has(name) || !section) continue;
        const chart = new Chart(section, name, { zoom, pick });
        chart.figure.dataset.name = name;
        charts.set(name, chart);
        if (charts.size <= AT_ONCE) seen.add(name);
        sight.observe(chart.figure);
      }
    }
  }

  /** @param {boolean} [anew] also where the ledger has not grown */
  async function draw(anew = false) {
    const asked = state(),
      names = [...seen].filter((name) => charts.has(name));
    const want = `${run.records} ${asked} ${names}`;
    if (!names.length || (want === drawn && !anew)) return;
    if (want === drawn) return;
    drawn = want;
    under?.abort();
    under = new AbortController();
    const query = new URLSearchParams({ by: look().by, points: "1000" });
    for (const edge of ["lo", "hi"]) if (asked.has(edge)) query.set(edge, asked.get(edge) ?? "");
    for (const name of names) query.append("n", name);
    try {
      const others = String(Object.entries(run.kinds).filter(([kind]) => kind !== "step"));
      const [data, told] = await Promise.all([
        getBinary(`${base}/curves?${query}`, under.signal),
        // Of a long run there are thousands, each a line of the ledger.
        others === marked ? null : get(`${base}/marks`, under.signal),
      ]);
      const got = decode(data);
      if (told) [marks, marked] = [told.marks.filter((/** @type {any} */ mark) => !mark.void), others];
      const placed = marks.map((mark) => ({ kind: mark.kind, x: mark[look().by], text: mark.text }));
      const span = zoomed() ?? extent([got.span], got.curves);
      for (const curve of got.curves) show(curve, placed, span);
      const main = document.getElementById("main");
      if (main) main.dataset.shown = String(got.records);
    } catch (error) {
      // A newer question has taken this one's place, and shows what it comes to.
      if (error instanceof DOMException && error.name === "AbortError") return;
      drawn = "";
      throw error;
    }
  }

  /** @param {import("../curves.js").Curve} curve @param {import("../chart.js").Mark[]} placed
   * @param {[number, number] | null} span */
  function show(curve, placed, span) {
    const color = getComputedStyle(document.documentElement).getPropertyValue("--c0");
    charts.get(curve.name)?.show([{ label: run.name, color, dash: [], curve }], { ...look(), span }, placed);
  }

  /** @param {number | null} lo @param {number | null} hi */
  function zoom(lo, hi) {
    moved({ lo: lo == null ? null : String(lo), hi: hi == null ? null : String(hi) });
  }

  /** The record of a point. @param {number} x */
  async function pick(x) {
    try {
      const told = await get(`${base}/record?by=${look().by}&at=${x}`);
      const made = dialog(
        `Record of step ${told.record.step}`,
        el("pre", {}, JSON.stringify(told.record, null, 1)),
        el("h3", {}, "Samples"),
        ...idsOf(told.samples),
        el(
          "a",
          {
            href: address({ page: "run", run: run.id, tab: "data", position: told.record.start }),
            onclick: () => made.close(),
          },
          "What they are",
        ),
      );
    } catch (error) {
      fail(error);
    }
  }

  return {
    draw: async () => {
      arrange();
      controls();
      await draw();
    },
    close: () => {
      sight.disconnect();
      under?.abort();
    },
  };
}

/** @param {string} name */
function sectionOf(name) {
  return SECTIONS.find(([pattern]) => pattern.test(name))?.[1] ?? "Losses and metrics";
}
