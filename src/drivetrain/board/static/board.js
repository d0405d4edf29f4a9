// @ts-check
/** The page: what the address names is shown, and shown anew when its run has changed. */
import { answered, fail } from "./alerts.js";
import { Unreachable } from "./api.js";
import { el } from "./dom.js";
import { follow } from "./events.js";
import { open as compare } from "./pages/compare.js";
import { open as jobs } from "./pages/jobs.js";
import { open as run } from "./pages/run.js";
import { open as runs } from "./pages/runs.js";
import { state } from "./state.js";

/**
 * @typedef {object} Page
 * @property {(news: import("./events.js").News) => void} [told] what has changed
 * @property {() => void} [moved] the address has changed, and names the same page
 * @property {() => void} [close]
 */

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const status = /** @type {HTMLElement} */ (document.getElementById("state"));
// All are loaded at once: a browser never asks again for a module that it once failed to get.
const PAGES = /** @type {Record<string, (main: HTMLElement) => Promise<Page>>} */ ({ runs, run, compare, jobs });
const AGAIN = 1000; // milliseconds until a page is opened once more for which the board did not answer

/** @type {Page} */
let shown = {};
let place = "";
/** What the page was not told while nobody saw it: it would have drawn for nothing. @type {import("./events.js").News} */
let untold = {};

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
  try {
    const opened = await (PAGES[page] ?? runs)(main);
    // Somebody went on to another page meanwhile.
    if (wanted !== place) {
      opened.close?.();
      return;
    }
    shown = opened;
  } catch (error) {
    if (wanted !== place) return;
    place = "";
    if (error instanceof Unreachable) setTimeout(() => show().catch(fail), AGAIN);
    throw error;
  }
  answered();
  document.body.dataset.ready = "1";
}

/** @param {import("./events.js").News} news */
function tell(news) {
  Object.assign(untold, news);
  if (document.hidden || !Object.keys(untold).length) return;
  const all = untold;
  untold = {};
  shown.told?.(all);
}

/** @param {string} page */
function mark(page) {
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.getAttribute("href") === `#page=${page}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// Charts are drawn in the colours of the moment.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  place = "";
  show().catch(fail);
});
window.addEventListener("popstate", () => show().catch(fail));
window.addEventListener("hashchange", () => show().catch(fail));
window.addEventListener("error", (event) => fail(event.error ?? event.message));
window.addEventListener("unhandledrejection", (event) => fail(event.reason));
document.addEventListener("visibilitychange", () => tell({}));
show().catch(fail);
follow(tell, (answers) => {
  status.textContent = answers ? "" : "The board does not answer. This page goes on by itself.";
  if (answers) shown.moved?.();
});
