// @ts-check
/** What went wrong, said in the page. */
import { Unreachable } from "./api.js";
import { el } from "./dom.js";

const alerts = /** @type {HTMLElement} */ (document.getElementById("alerts"));
let unanswered = false;

/** @param {unknown} error */
export function fail(error) {
  if (error instanceof DOMException && error.name === "AbortError") return;
  const said = error instanceof Error ? error.message : String(error);
  const close = el("button", { type: "button", onclick: () => alerts.replaceChildren() }, "Close");
  alerts.replaceChildren(el("p", { class: "bad" }, said), close);
  unanswered = error instanceof Unreachable;
}

/** The board answers: that it did not is said no longer. */
export function answered() {
  if (unanswered) alerts.replaceChildren();
  unanswered = false;
}
