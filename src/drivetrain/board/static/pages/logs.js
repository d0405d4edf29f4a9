// @ts-check
/** Logs by rank, stacks of a hang, profiles to download. */
import { fail } from "../alerts.js";
import { fileOf, get } from "../api.js";
import { button, el, table } from "../dom.js";
import { bytes, moment } from "../format.js";
import { change, state } from "../state.js";

const FOLLOWED = 1000; // milliseconds

/** @param {HTMLElement} into @param {any} run */
export async function open(into, run) {
  const list = el("div", {}),
    shown = el("div", {});
  let following = true,
    size = -1;
  into.replaceChildren(list, shown);

  async function draw() {
    const { logs, profiles } = await get(`/api/runs/${run.id}/logs`);
    const rows = logs.map((/** @type {any} */ one) => [
      button(one.name, () => {
        change({ log_name: one.name });
        size = -1;
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
    if (!rows.length && !files.length) {
      list.replaceChildren(el("p", { class: "dim" }, "No log is here. A report of one file has none."));
      return;
    }
    list.replaceChildren(
      table("Logs", ["file", "size", "written"], rows),
      ...(files.length ? [table("Profiles", ["file", "size", "written"], files)] : []),
    );
  }

  /** @param {number} end -1: the end of the log, which is then followed */
  async function look(end) {
    const name = state().get("log_name") ?? "";
    if (!name) return;
    const told = await get(`/api/runs/${run.id}/logs?${new URLSearchParams({ name, end: String(end) })}`);
    // An answer that comes late is of another log, or of another place in it.
    if (name !== state().get("log_name") || !into.isConnected) return;
    following = end < 0;
    if (following && told.size === size && shown.dataset.name === name) return;
    size = following ? told.size : -1;
    const stays = shown.querySelector("pre"),
      atEnd = !stays || stays.scrollTop + stays.clientHeight >= stays.scrollHeight - 8;
    const before = told.begin > 0 ? button("What stands before", () => look(told.begin).catch(fail)) : null;
    const newest = following ? null : button("The end, as it grows", () => look(-1).catch(fail));
    const text = el("pre", { tabindex: 0, class: "log" }, told.text);
    shown.dataset.name = name;
    shown.replaceChildren(
      el("h2", {}, name),
      el("p", { class: "dim" }, told.size ? `bytes ${told.begin} to ${told.end} of ${told.size}` : "empty"),
      el("div", { class: "bar" }, before, newest),
      text,
    );
    // Who has gone up to read is left there.
    if (following) text.scrollTop = atEnd ? text.scrollHeight : (stays?.scrollTop ?? 0);
  }

  await look(-1);
  // A log may grow while the ledger does not: that is when it is looked at.
  const timer = setInterval(() => {
    if (following && document.visibilityState === "visible") look(-1).catch(fail);
  }, FOLLOWED);
  return { draw, close: () => clearInterval(timer) };
}
