// @ts-check
/** The records of a run's ledger, newest first. */
import { fail } from "../alerts.js";
import { get, send } from "../api.js";
import { button, choice, dialog, el, table } from "../dom.js";
import { counted, moment, span } from "../format.js";
import { change, state } from "../state.js";

/** @param {HTMLElement} into @param {any} run */
export async function open(into, run) {
  const bar = el("div", { class: "bar" }),
    chain = el("p", {}),
    holder = el("div", {});
  const more = button("Older records", () => load(false).catch(fail));
  const search = el("input", {
    type: "search",
    value: state().get("search") ?? "",
    onchange: () => {
      change({ search: search.value });
      load(true).catch(fail);
    },
  });
  /** @type {any[]} */
  let found = [];
  let before = "",
    newest = -1;
  const proof = el("div", {}),
    verify = button("Verify the whole run", () => prove(run, proof).catch(fail));
  verify.hidden = run.read_only;
  into.replaceChildren(bar, chain, verify, proof, holder, more);
  const kinds = [
    ["", "every kind"],
    ...Object.entries(run.kinds)
      .filter(([kind]) => kind !== "skip")
      .map(([kind, n]) => [kind, `${kind} (${n})`]),
  ];
  bar.replaceChildren(
    choice("Kind", /** @type {[string, string][]} */ (kinds), state().get("kind") ?? "", (kind) => {
      change({ kind });
      load(true).catch(fail);
    }),
    el("label", {}, "Find ", search),
  );

  /** @param {boolean} anew */
  async function load(anew) {
    const query = new URLSearchParams({ limit: "100" });
    for (const key of ["kind", "search"]) if (state().get(key)) query.set(key, state().get(key) ?? "");
    if (!anew && before) query.set("before", before);
    const told = await get(`/api/runs/${run.id}/records?${query}`);
    found = anew ? told.records : [...found, ...told.records];
    before = String(told.before);
    newest = run.records;
    more.hidden = !told.more;
    chain.className = told.chain.whole ? "dim" : "bad";
    chain.textContent = told.chain.whole
      ? `The chain holds over ${told.chain.checked.toLocaleString("en")} records.`
      : `The chain is broken: ${told.chain.damage}. What came before it is shown.`;
    holder.replaceChildren(table(counted(found.length, "record"), ["kind", "step", "when", "record"], found.map(row)));
  }
  return {
    draw: async () => {
      if (newest !== run.records && found.length <= 100) await load(true);
    },
  };
}

/** @param {{offset: number, record: any}} one */
function row({ offset, record }) {
  const { kind, time, chain, step, ...rest } = record;
  const text = JSON.stringify(rest);
  const open = button(text.length > 110 ? `${text.slice(0, 109)}…` : text, () =>
    dialog(`Record at byte ${offset}`, el("pre", {}, JSON.stringify(record, null, 1))),
  );
  return [kind, step ?? "", moment(time), open];
}

/** Prove what the run did, and show what holds as it is found. @param {any} run @param {HTMLElement} into */
async function prove(run, into) {
  let told = await send("POST", `/api/runs/${run.id}/verify`, {});
  const began = performance.now(),
    said = el("p", { role: "status" }),
    found = el("div", {});
  into.replaceChildren(said, found);
  while (into.isConnected) {
    const passed = span((performance.now() - began) / 1000);
    if (told.state === "runs") said.textContent = `Verifying, for ${passed} …`;
    if (told.certificate) found.replaceChildren(certificate(told));
    if (told.state !== "runs") break;
    await new Promise((soon) => setTimeout(soon, 500));
    told = await get(`/api/runs/${run.id}/verify`);
  }
  said.textContent = told.state === "broken" ? `Does not hold (${told.code}): ${told.error}` : "Everything holds.";
  said.classList.toggle("bad", told.state === "broken");
}

/** @param {{holds: string[], certificate: Record<string, unknown>}} told */
function certificate({ holds, certificate }) {
  const rows = Object.entries(certificate).map(([key, value]) => [key, plain(value)]);
  return table("Certificate", ["", ""], [["holds so far", plain(holds.join(", "))], ...rows]);
}

/** @param {unknown} value */
function plain(value) {
  return el("span", { class: "text" }, typeof value === "object" ? JSON.stringify(value) : String(value));
}
