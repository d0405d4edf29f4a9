// @ts-check
/** The table of runs. */
import { fail } from "../alerts.js";
import { get, send } from "../api.js";
import { button, choice, dialog, el } from "../dom.js";
import { amount, bytes, counted, moment, number, share, span } from "../format.js";
import { address, change, state } from "../state.js";

/** @typedef {any} Row */
/** @typedef {{name: string, unit?: string, value: (row: Row) => number | string | null, cell: (row: Row) => import("../dom.js").Child}} Column */

/** @type {Record<string, Column>} */
const COLUMNS = {
  run: { name: "run", value: (row) => row.title ?? row.name, cell: named },
  state: { name: "state", value: (row) => row.state, cell: stateCell },
  step: { name: "step", value: (row) => row.step, cell: progress },
  left: { name: "time left", value: (row) => row.left, cell: (row) => span(row.left) },
  loss: { name: "last loss", value: (row) => first(row.losses), cell: lossCell },
  best: { name: "best metric", value: (row) => row.best?.value ?? null, cell: bestCell },
  rate: { name: "rate", value: (row) => row.rates.tokens ?? row.rates.samples ?? null, cell: rateCell },
  mfu: { name: "MFU", value: (row) => row.mfu, cell: (row) => share(row.mfu) },
  goodput: { name: "goodput", value: (row) => row.goodput, cell: (row) => share(row.goodput) },
  attempts: { name: "attempts", value: (row) => row.attempts, cell: (row) => number(row.attempts) },
  processes: { name: "processes", value: (row) => row.world, cell: meshCell },
  commit: { name: "commit", value: (row) => row.commit_bytes, cell: (row) => bytes(row.commit_bytes) },
  last: { name: "last record", value: (row) => row.last, cell: (row) => moment(row.last) },
  tags: { name: "tags", value: (row) => row.tags.join(" "), cell: (row) => el("span", {}, ...row.tags.map(tag)) },
};
const USUAL = "run,state,step,left,loss,best,rate,mfu,goodput,attempts,processes,commit,last,tags";

/** @param {HTMLElement} main @returns {Promise<import("../board.js").Page>} */
export async function open(main) {
  const filter = el("input", {
    type: "search",
    size: 40,
    "aria-label": "Filter, such as optimizer.lr > 1e-4 and state = trains",
    placeholder: "optimizer.lr > 1e-4 and state = trains",
  });
  const bar = el("div", { class: "bar" }),
    problem = el("p", { class: "bad", role: "status" });
  const holder = el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Runs" });
  let keys = /** @type {{keys: string[], metrics: string[]}} */ ({ keys: [], metrics: [] });
  let busy = false,
    again = false;

  async function draw() {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      const asked = state(),
        query = new URLSearchParams();
      if (asked.get("filter")) query.set("filter", asked.get("filter") ?? "");
      for (const name of extra(asked)) query.append("column", name);
      const told = await get(`/api/runs?${query}`);
      problem.textContent = told.problem ?? "";
      holder.replaceChildren(table(told, asked, draw));
      main.dataset.shown = String(told.runs.length);
    } finally {
      busy = false;
    }
    if (again) {
      again = false;
      await draw();
    }
  }

  function controls() {
    const asked = state();
    if (document.activeElement !== filter) filter.value = asked.get("filter") ?? "";
    const groups = [["", "nothing"], ["state", "state"], ["tags", "tags"], ...keys.keys.map((key) => [key, key])];
    const show = el("input", {
      type: "checkbox",
      checked: asked.get("hidden") === "1",
      onchange: () => moved({ hidden: show.checked ? "1" : null }),
    });
    bar.replaceChildren(
      el("label", {}, "Filter ", filter),
      choice("Group by", /** @type {[string, string][]} */ (groups), asked.get("group") ?? "", (value) =>
        moved({ group: value }),
      ),
      button("Columns…", () => columns(keys, moved)),
      el("label", {}, show, " hidden and archived too"),
    );
  }

  /** @param {Record<string, string | null>} changes */
  function moved(changes) {
    change(changes);
    draw().catch(fail);
  }

  filter.addEventListener("change", () => moved({ filter: filter.value }));
  main.replaceChildren(el("h1", {}, "Runs"), bar, problem, holder);
  controls();
  await draw();
  get("/api/keys")
    .then((told) => {
      keys = told;
      controls();
    })
    .catch(fail);
  const soon = paced(() => draw().catch(fail), 300);
  return {
    told: soon,
    moved: () => {
      controls();
      draw().catch(fail);
    },
  };
}

/** @param {{runs: Row[], total: number, read_only: boolean}} told @param {URLSearchParams} asked
 * @param {() => Promise<void>} draw */
function table({ runs, total, read_only: readOnly }, asked, draw) {
  const names = (asked.get("columns") ?? USUAL).split(",").filter(Boolean);
  const shown = names.map((name) => COLUMNS[name] ?? keyed(name));
  const sort = asked.get("sort") ?? "",
    down = sort.startsWith("-"),
    by = sort.replace("-", "");
  const heads = names.map((name, place) =>
    head(name, shown[place], by === name ? (down ? "descending" : "ascending") : "none", down),
  );
  let found = runs.filter((row) => asked.get("hidden") === "1" || !(row.hidden || row.archived));
  const column = by && (COLUMNS[by] ?? keyed(by));
  if (column) found = found.toSorted((a, b) => order(column.value(a), column.value(b), down ? -1 : 1));
  const body = el("tbody", {}),
    group = asked.get("group");
  let before = null;
  const grouping = group ? (COLUMNS[group] ?? keyed(group)) : null;
  if (grouping) found = found.toSorted((a, b) => order(grouping.value(a), grouping.value(b)));
  for (const row of found) {
    const of = grouping && (String(grouping.value(row) ?? "") || "–");
    if (of != null && of !== before)
      body.append(el("tr", {}, el("th", { colspan: names.length + 1, scope: "rowgroup" }, `${group}: ${of}`)));
    before = of;
    const menu = readOnly
      ? null
      : button("…", () => about(row, draw), { "aria-label": `Name, tags and more of ${row.name}` });
    body.append(
      el(
        "tr",
        { class: row.hidden || row.archived ? "hidden" : null, "data-run": row.name },
        el("td", {}, menu),
        ...shown.map((one) => el("td", {}, one.cell(row))),
      ),
    );
  }
  if (!found.length) body.append(el("tr", {}, el("td", { colspan: names.length + 1, class: "dim" }, nothing(total))));
  const caption = el("caption", {}, `${found.length} of ${counted(total, "run")}`);
  return el("table", {}, caption, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "more"), ...heads)), body);
}

/** @param {string} name @param {Column} column @param {string} sorted @param {boolean} down */
function head(name, column, sorted, down) {
  const next = sorted === "none" ? name : down ? "" : `-${name}`;
  return el(
    "th",
    { scope: "col", "aria-sort": sorted },
    button(column.name, () => {
      change({ sort: next });
      window.dispatchEvent(new Event("hashchange"));
    }),
  );
}

/** @param {string} key @returns {Column} */
function keyed(key) {
  const value = (/** @type {Row} */ row) => row.values?.[key] ?? null;
  return {
    name: key,
    value,
    cell: (row) => (typeof value(row) === "number" ? number(value(row)) : String(value(row) ?? "–")),
  };
}

/** @param {URLSearchParams} asked */
function extra(asked) {
  const names = [
    ...(asked.get("columns") ?? USUAL).split(","),
    asked.get("group") ?? "",
    (asked.get("sort") ?? "").replace("-", ""),
  ];
  return [...new Set(names.filter((name) => name && !COLUMNS[name]))];
}

/** @param {{keys: string[], metrics: string[]}} keys @param {(changes: Record<string, string | null>) => void} moved */
function columns(keys, moved) {
  const chosen = new Set((state().get("columns") ?? USUAL).split(",").filter(Boolean));
  const box = (/** @type {string} */ name, /** @type {string} */ text) => {
    const input = el("input", {
      type: "checkbox",
      checked: chosen.has(name),
      onchange: () => {
        if (input.checked) chosen.add(name);
        else chosen.delete(name);
        const told = [...chosen].join(",");
        moved({ columns: told === USUAL ? null : told });
      },
    });
    return el("div", {}, el("label", {}, input, ` ${text}`));
  };
  const own = Object.entries(COLUMNS).map(([name, column]) => box(name, column.name));
  const find = el("input", {
    type: "search",
    oninput: () => {
      for (const label of made.querySelectorAll("label:has([type=checkbox])")) {
        const fits = (label.textContent ?? "").toLowerCase().includes(find.value.toLowerCase());
        label.toggleAttribute("hidden", !fits);
      }
    },
  });
  const made = dialog(
    "Columns",
    el("label", {}, "Find ", find),
    ...own,
    el("h3", {}, "Metrics"),
    ...keys.metrics.map((name) => box(name, name)),
    el("h3", {}, "Recipe"),
    ...keys.keys.map((name) => box(name, name)),
  );
}

/** Name, tags, hide, archive, delete. @param {Row} row @param {() => Promise<void>} draw */
function about(row, draw) {
  const keep = () => set({ title: title.value || null, tags: split() }),
    onkeydown = (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && keep();
  const title = el("input", { value: row.title ?? "", placeholder: row.name, onkeydown }),
    tags = el("input", { value: row.tags.join(", "), onkeydown });
  const said = el("p", { class: "bad", role: "status" });
  const act = async (/** @type {() => Promise<unknown>} */ what) => {
    try {
      await what();
      made.close();
      await draw();
    } catch (error) {
      said.textContent = error instanceof Error ? error.message : String(error);
    }
  };
  const set = (/** @type {Record<string, unknown>} */ changes) =>
    act(() => send("PATCH", `/api/runs/${row.id}`, changes));
  const split = () =>
    tags.value
      .split(",")
      .map((one) => one.trim())
      .filter(Boolean);
  const confirm = el("input", { "aria-label": `Type ${row.name} to delete the run` });
  const made = dialog(
    `About ${row.name}`,
    el("p", { class: "dim" }, row.folder),
    el("p", {}, el("label", {}, "Name ", title)),
    el("p", {}, el("label", {}, "Tags, with commas between ", tags)),
    el(
      "div",
      { class: "bar" },
      button("Keep", keep),
      button(row.hidden ? "Show" : "Hide", () => set({ hidden: !row.hidden })),
      button(row.archived ? "Take out of the archive" : "Archive", () => set({ archived: !row.archived })),
    ),
    el(
      "details",
      {},
      el("summary", {}, "Delete the run directory"),
      el("p", {}, `All its commits, its ledger and its logs are removed. Type ${row.name} to do it: `, confirm),
      button("Delete for good", () => act(() => send("DELETE", `/api/runs/${row.id}`, { confirm: confirm.value }))),
    ),
    said,
  );
}

/** @param {Row} row */
function named(row) {
  const link = el("a", { href: address({ page: "run", run: row.id }) }, row.title ?? row.name);
  return row.title ? el("span", {}, link, el("br"), el("span", { class: "dim" }, row.name)) : link;
}

/** @param {Row} row */
export function stateCell(row) {
  const code = row.code == null || row.code === 0 ? "" : ` (${row.code})`;
  const reading = row.read < 1 ? ` · ${Math.floor(100 * row.read)} % read` : "";
  const state = el("span", { class: `state ${row.state}` }, `${row.state}${code}${reading}`);
  return row.cause && row.state !== "done" && row.cause !== row.state
    ? el("span", { title: row.cause }, state, el("div", { class: "cause" }, cut(row.cause)))
    : state;
}

/** @param {Row} row */
export function progress(row) {
  if (!row.steps) return number(row.step);
  const bar = el("progress", { max: row.steps, value: row.step, "aria-label": `step ${row.step} of ${row.steps}` });
  return el("span", {}, bar, ` ${number(row.step)} of ${number(row.steps)}`);
}

/** @param {Row} row */
function lossCell(row) {
  return el("span", {}, number(/** @type {number | null} */ (first(row.losses))), spark(row.spark));
}

/** @param {(number | null)[]} values */
function spark(values) {
  const told = values.filter((value) => value != null);
  const space = "http://www.w3.org/2000/svg",
    made = document.createElementNS(space, "svg"),
    line = document.createElementNS(space, "polyline");
  const lo = Math.min(...told),
    wide = Math.max(...told) - lo || 1,
    last = Math.max(1, told.length - 1);
  line.setAttribute(
    "points",
    told.map((value, i) => `${(90 * i) / last},${20 - (18 * (value - lo)) / wide}`).join(" "),
  );
  made.setAttribute("class", "spark");
  made.setAttribute("viewBox", "0 0 90 22");
  made.setAttribute("aria-hidden", "true");
  made.append(line);
  return made;
}

/** @param {Row} row */
function bestCell(row) {
  if (!row.best) return "–";
  const which = row.best.mode
    ? { min: "lowest", max: "highest" }[/** @type {"min" | "max"} */ (row.best.mode)]
    : "last";
  return el(
    "span",
    { title: `${which} of ${row.best.metric}, at step ${row.best.step}` },
    `${row.best.metric} ${number(row.best.value)}${row.best.mode ? "" : " (last)"}`,
  );
}

/** @param {Row} row */
function rateCell(row) {
  if (row.rates.tokens) return amount(row.rates.tokens, " tokens/s");
  return row.rates.samples == null ? "–" : amount(row.rates.samples, " samples/s");
}

/** @param {Row} row */
function meshCell(row) {
  const axes = Object.entries(row.mesh).map(([axis, n]) => `${axis} ${n}`);
  return axes.length ? `${row.world} (${axes.join(" × ")})` : number(row.world);
}

/** @param {string} text */
function tag(text) {
  return el("span", { class: "tag" }, text);
}

/** @param {Record<string, number>} values */
function first(values) {
  return Object.values(values)[0] ?? null;
}

/** @param {string} text */
function cut(text) {
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

/** Missing values come last, either way. @param {number | string | null} a @param {number | string | null} b @param {1 | -1} way */
function order(a, b, way = 1) {
  if (a == null || b == null) return a == null ? (b == null ? 0 : 1) : -1;
  return (
    way *
    (typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), undefined, { numeric: true }))
  );
}

/** @param {number} total */
function nothing(total) {
  return total ? "No run fits: see the filter, and what is hidden." : "No run is there yet. One that begins appears.";
}

const REST = 4, // times as long as an update has taken, from its begin to the next one's
  PATIENCE = 5000; // milliseconds that an update may hold up the next one

/**
 * At most once in so many milliseconds, and once more after the last time.
 * @param {() => Promise<void>} act which never fails @param {number} pause
 */
export function paced(act, pause) {
  let busy = false,
    more = false,
    next = -Infinity;
  return function soon() {
    more = true;
    if (busy) return;
    busy = true;
    setTimeout(
      async () => {
        const began = performance.now();
        more = false;
        await Promise.race([act(), new Promise((resolve) => setTimeout(resolve, PATIENCE))]);
        // Where drawing is slow something else wants the machine, such as the run.
        next = began + Math.max(pause, REST * (performance.now() - began));
        busy = false;
        if (more) soon();
      },
      Math.max(0, next - performance.now()),
    );
  };
}
