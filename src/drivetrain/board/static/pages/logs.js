// @ts-check
/** Logs by rank, stacks of a hang, profiles to download. */
import { fileOf, get } from "../api.js";
import { fail } from "../board.js";
import { button, el, table } from "../dom.js";
import { bytes, moment } from "../format.js";
import { change, state } from "../state.js";

/** @param {HTMLElement} into @param {any} run */
export async function open(into, run) {
  const list = el("div", {}),
    shown = el("div", {});
  into.replaceChildren(list, shown);

  async function draw() {
    const { logs, profiles } = await get(`/api/runs/${run.id}/logs`);
    const rows = logs.map((/** @type {any} */ one) => [
      button(one.name, () => {
        change({ log_name: one.name });
        look(-1).catch(fail);
      }),
      bytes(one.bytes),
      moment(one.time),
    ]);
    const files = profiles.map((/** @type {any} */ one) => [
      el(
        "a",
        {
          href: fileOf(run.id, `profile/${one.name}`),
          download: one.name.split("/").at(-1),
        },
        one.name,
      ),
      bytes(one.bytes),
      moment(one.time),
    ]);
    list.replaceChildren(
      table("Logs", ["file", "size", "written"], rows),
      ...(files.length ? [table("Profiles", ["file", "size", "written"], files)] : []),
    );
    if (state().get("log_name")) await look(-1);
  }

  /** @param {number} end */
  async function look(end) {
    const name = state().get("log_name") ?? "";
    const told = await get(`/api/runs/${run.id}/logs?${new URLSearchParams({ name, end: String(end) })}`);
    const before = told.begin > 0 ? button("What stands before", () => look(told.begin).catch(fail)) : null;
    shown.replaceChildren(
      el("h2", {}, name),
      el("p", { class: "dim" }, `bytes ${told.begin} to ${told.end} of ${told.size}`),
      el("div", {}, before),
      el("pre", { tabindex: 0 }, told.text),
    );
  }
  return { draw };
}
