// @ts-check
/** The page: what the address names is shown, and shown anew when its run has changed. */
import { el } from "./dom.js";
import { follow } from "./events.js";
import { state } from "./state.js";

/**
 * @typedef {object} Page
 * @property {(news: import("./events.js").News) => void} [told] what has changed
 * @property {() => void} [moved] the address has changed, and names the same page
 * @property {() => void} [close]
 */

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const status = /** @type {HTMLElement} */ (document.getElementById("state"));
const alerts = /** @type {HTMLElement} */ (document.getElementById("alerts"));
const PAGES = /** @type {Record<string, () => Promise<{open: (main: HTMLElement) => Promise<Page>}>>} */ ({
  runs: () => import("./pages/runs.js"),
  run: () => import("./pages/run.js"),
  compare: () => import("./pages/compare.js"),
  jobs: () => import("./pages/jobs.js"),
});

/** @type {Page} */
let shown = {};
let place = "";

async function show() {
  const asked = state(),
    page = asked.get("page") ?? "runs",
    wanted = `${page} ${asked.get("run")} ${asked.get("tab")}`;
  if (wanted === place) {
    shown.moved?.();
    return;
  }
  place = wanted;
  shown.close?.();
  shown = {};
  document.body.removeAttribute("data-ready");
  mark(page);
  main.replaceChildren(el("p", { class: "dim" }, "…"));
  const made = await (PAGES[page] ?? PAGES.runs)();
  if (wanted !== place) return;
  const opened = await made.open(main);
  // Somebody went on to another page meanwhile.
  if (wanted !== place) {
    opened.close?.();
    return;
  }
  shown = opened;
  document.body.dataset.ready = "1";
}

/** @param {string} page */
function mark(page) {
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.getAttribute("href") === `#page=${page}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** Say what went wrong, in the page. @param {unknown} error */
export function fail(error) {
  if (error instanceof DOMException && error.name === "AbortError") return;
  const said = error instanceof Error ? error.message : String(error);
  const close = el("button", { type: "button", onclick: () => alerts.replaceChildren() }, "Close");
  alerts.replaceChildren(el("p", { class: "bad" }, said), close);
}

window.addEventListener("popstate", () => show().catch(fail));
window.addEventListener("hashchange", () => show().catch(fail));
window.addEventListener("error", (event) => fail(event.error ?? event.message));
window.addEventListener("unhandledrejection", (event) => fail(event.reason));
show().catch(fail);
follow(
  (news) => shown.told?.(news),
  (answers) => {
    status.textContent = answers ? "" : "The board does not answer. This page goes on by itself.";
    if (answers) shown.moved?.();
  },
);
