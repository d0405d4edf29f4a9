// @ts-check
/** The commits of a run. */
import { get, send } from "../api.js";
import { button, dialog, el, table } from "../dom.js";
import { bytes, moment, number } from "../format.js";

/** @param {HTMLElement} into @param {any} run */
export async function open(into, run) {
  const holder = el("div", {}),
    said = el("p", { role: "status" });
  into.replaceChildren(said, holder);

  async function draw() {
    const { commits } = await get(`/api/runs/${run.id}/commits`);
    const rows = commits.map((/** @type {any} */ one) => [
      one.name,
      number(one.step),
      moment(one.time),
      bytes(one.bytes),
      files(one),
      one.pinned ? "pinned" : "",
      one.score == null ? "" : `${number(one.score)}${one.best ? ", best" : ""}`,
      one.parent ?? "",
      one.here && !run.read_only ? acts(one) : "",
    ]);
    holder.replaceChildren(
      table("Commits, newest first", ["commit", "step", "when", "size", "files", "pin", "score", "parent", ""], rows),
    );
  }

  /** @param {any} one */
  function acts(one) {
    const act = async (/** @type {string} */ what) => {
      said.textContent = `${what} ${one.name} …`;
      try {
        const told = await send("POST", `/api/runs/${run.id}/commits/${one.name}`, { act: what });
        said.textContent = `${what} ${one.name}: ${told.said}`;
      } catch (error) {
        said.textContent = `${what} ${one.name}: ${error instanceof Error ? error.message : error}`;
      }
      await draw();
    };
    const remove = () => {
      const made = dialog(
        `Remove ${one.name}?`,
        el("p", {}, "Its files are deleted. This cannot be undone."),
        button("Remove it", () => {
          made.close();
          act("remove");
        }),
      );
    };
    return el(
      "span",
      { class: "bar" },
      button("verify", () => act("verify"), { "aria-label": `verify ${one.name}` }),
      button(one.pinned ? "unpin" : "pin", () => act(one.pinned ? "unpin" : "pin"), {
        "aria-label": `${one.pinned ? "unpin" : "pin"} ${one.name}`,
      }),
      button("remove…", remove, {
        "aria-label": `remove ${one.name}`,
        disabled: one.pinned,
        title: one.pinned ? "unpin it first" : null,
      }),
    );
  }
  return { draw };
}

/** @param {any} one */
function files(one) {
  if (!one.here) return "not there any more";
  return one.bytes == null ? "whole; without a record that counts" : "verified when written";
}
