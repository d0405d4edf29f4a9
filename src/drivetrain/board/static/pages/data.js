// @ts-check
/** What a run was trained on: how much of each source, and what a sample is. */
import { fail } from "../alerts.js";
import { get, send } from "../api.js";
import { button, el, table } from "../dom.js";
import { number, share } from "../format.js";
import { change, state } from "../state.js";

/** @typedef {{source: string, total: number, ids: number[]}} OfSource */

/** The ids of a step's samples. @param {OfSource[]} found @returns {HTMLElement[]} */
export function idsOf(found) {
  return found.map(({ source, total, ids }) =>
    el("p", { class: "text" }, `${source}, ${total}: ${ids.join(", ")}${total > ids.length ? ", …" : ""}`),
  );
}

/** @param {HTMLElement} into @param {any} run */
export async function open(into, run) {
  const coverage = el("div", {}),
    decoded = el("div", {}),
    said = el("p", { role: "status" });
  const at = el("input", { type: "number", min: 0, step: 1, value: state().get("position") ?? "0" });
  const show = button("Show", () => look(Number(at.value)).catch(fail));
  const asking = el("form", { class: "bar" }, el("label", {}, "Samples from position ", at), show);
  asking.addEventListener("submit", (event) => {
    event.preventDefault();
    look(Number(at.value)).catch(fail);
  });
  into.replaceChildren(coverage, ...(run.read_only ? [] : [asking, said, decoded]));

  /** What stands there, decoded by a process of its own. @param {number} position */
  async function look(position) {
    change({ position: String(position) });
    at.value = String(position);
    said.textContent = `Opening the data for position ${position} …`;
    show.disabled = true;
    try {
      const { samples } = await send("POST", `/api/runs/${run.id}/samples`, { position });
      said.textContent = "";
      const next = samples.at(-1).position + 1;
      decoded.replaceChildren(
        table("Samples, by position", ["position", "source", "sample", ""], samples.map(cells)),
        button("Later ones", () => look(next).catch(fail)),
      );
    } catch (error) {
      said.textContent = error instanceof Error ? error.message : String(error);
    } finally {
      show.disabled = false;
    }
  }

  async function draw() {
    const told = await get(`/api/runs/${run.id}/data`);
    const rows = told.sources.map((/** @type {any} */ one) => [
      one.source,
      one.samples == null ? "a stream" : number(one.samples),
      number(one.taken),
      one.samples ? share(one.taken / one.samples) : "",
    ]);
    const held = told.left_out_total
      ? [el("p", { class: "text" }, `Left out, ${told.left_out_total}: ${told.left_out.join(", ")}`)]
      : [];
    coverage.replaceChildren(table("Coverage by source", ["source", "samples", "taken", "of it"], rows), ...held);
  }

  if (state().has("position") && !run.read_only) look(Number(at.value)).catch(fail);
  return { draw };
}

/** @param {any} sample */
function cells(sample) {
  const parts = sample.documents ?? [{ text: sample.value }];
  const texts = parts.map((/** @type {any} */ part) =>
    el("span", { class: "text", title: part.document == null ? null : documentOf(part) }, part.text, el("br")),
  );
  const held = sample.quarantined ? el("span", { class: "bad" }, "left out ") : null;
  return [number(sample.position), sample.source, number(sample.sample), el("div", {}, held, ...texts)];
}

/** @param {{document: number, start: number, tokens: number}} part */
function documentOf(part) {
  const name = part.document === -1 ? "padding" : `document ${part.document}`;
  return `${name}, tokens ${part.start} to ${part.start + part.tokens - 1} of the sample`;
}
