// @ts-check
/** The recipe with its origins, what differs from another run, code and environment. */
import { get } from "../api.js";
import { choice, el, table } from "../dom.js";
import { counted } from "../format.js";
import { change, state } from "../state.js";

/** @param {HTMLElement} into @param {any} run */
export async function open(into, run) {
  const bar = el("div", { class: "bar" }),
    holder = el("div", {}),
    base = `/api/runs/${run.id}/recipe`;
  const search = el("input", { type: "search", oninput: () => show() });
  /** @type {any} */
  let told = null;
  into.replaceChildren(bar, holder);
  const { runs } = await get("/api/runs");
  const others = runs
    .filter((/** @type {any} */ one) => one.id !== run.id)
    .map((/** @type {any} */ one) => [one.id, one.title ?? one.name]);
  bar.replaceChildren(
    el("label", {}, "Find ", search),
    choice("What differs from", [["", "–"], ...others], state().get("other") ?? "", (id) => {
      change({ other: id });
      load();
    }),
  );

  async function load() {
    const other = state().get("other");
    told = await get(other ? `${base}?${new URLSearchParams({ other })}` : base);
    show();
  }

  function show() {
    const wanted = search.value.toLowerCase();
    if (told.differences) {
      const rows = told.differences
        .map((/** @type {any} */ one) => [one.key, text(one.here), text(one.there)])
        .filter((/** @type {string[]} */ cells) => cells.join(" ").toLowerCase().includes(wanted))
        .map((/** @type {string[]} */ [key, here, there]) => [key, whole(here), whole(there)]);
      holder.replaceChildren(
        table(`${counted(rows.length, "key")} of the recipes not alike`, ["key", "here", "there"], rows),
      );
      return;
    }
    const rows = told.values
      .filter((/** @type {any} */ one) => `${one.key} ${text(one.value)}`.toLowerCase().includes(wanted))
      .map((/** @type {any} */ one) => [one.key, whole(text(one.value)), one.origin]);
    const environment = Object.entries(told.environment).map(([key, value]) => [key, text(value)]);
    const code = Object.entries(told.code?.files ?? {}).map(([name, file]) => [
      name,
      /** @type {any} */ (file).digest,
      /** @type {any} */ (file).affects,
    ]);
    holder.replaceChildren(
      table(counted(rows.length, "key"), ["key", "value", "where it comes from"], rows),
      table("Environment of the newest start", ["", ""], environment),
      ...(code.length ? [table("Your own code", ["file", "digest", "affects"], code)] : []),
    );
  }
  return {
    draw: async () => {
      if (!told) await load();
    },
  };
}

/** With its spaces and lines. @param {string} value */
function whole(value) {
  return el("span", { class: "text" }, value);
}

/** @param {unknown} value */
function text(value) {
  return value == null ? "null" : typeof value === "object" ? JSON.stringify(value) : String(value);
}
