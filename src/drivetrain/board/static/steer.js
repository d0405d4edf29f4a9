// @ts-check
/** What a run is told: said before it is done, asked again where it cannot be undone, shown as the ledger has it. */
import { get, Refused, send } from "./api.js";
import { button, dialog, el } from "./dom.js";
import { moment } from "./format.js";

const VERBS = ["pause", "resume", "save", "evaluate", "pin", "profile", "stop", "set"];
const NEEDS = /** @type {Record<string, [string, string]>} */ ({
  profile: ["Steps", "20"],
  set: ["KEY=VALUE", "optimizer.lr=1e-4"],
});

/** @param {string} id @returns {{bar: HTMLElement, show: (run: any) => void}} */
export function steering(id) {
  const buttons = VERBS.map((verb) => button(verb, () => ask(id, verb)));
  const bar = el(
    "div",
    { class: "bar", role: "group", "aria-label": "Steer" },
    ...buttons,
    button("Commands so far", () => list(id)),
  );
  return {
    bar,
    show: (run) => {
      const trains = ["trains", "paused"].includes(run.state);
      bar.hidden = run.read_only === true;
      for (const one of buttons) one.disabled = !trains;
      buttons[0].hidden = run.state === "paused";
      buttons[1].hidden = run.state !== "paused";
    },
  };
}

/** @param {string} id @param {string} verb */
async function ask(id, verb) {
  const needs = NEEDS[verb],
    argument = el("input", { value: "", placeholder: needs?.[1] ?? "", size: 40 });
  const affects = el("p", {}),
    said = el("p", { class: "bad", role: "status" }),
    acts = el("div", { class: "bar" });
  const made = dialog(
    `Tell the run: ${verb}`,
    needs && el("p", {}, el("label", {}, `${needs[0]} `, argument)),
    affects,
    acts,
    said,
  );
  const next = button(needs ? "What will it do?" : "…", () => prepare());
  acts.append(next);
  if (needs) argument.focus();
  else await prepare();

  async function prepare() {
    said.textContent = "";
    try {
      const command = { verb, argument: argument.value },
        told = await send("POST", `/api/runs/${id}/commands`, command);
      affects.textContent = `${told.command}: ${told.affects}.`;
      const sure = el("input", { type: "checkbox" });
      const act = button(`Do it: ${told.command}`, () => {
        if (told.ask && !sure.checked) said.textContent = "This cannot be undone: tick the box first.";
        else give(command, told.id);
      });
      acts.replaceChildren(...(told.ask ? [el("label", {}, sure, " it cannot be undone: I mean it")] : []), act);
      act.focus();
    } catch (error) {
      said.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  /** @param {{verb: string, argument: string}} command @param {string} number */
  async function give(command, number) {
    acts.replaceChildren();
    affects.textContent = "It is left for the run, which does it after the step under way …";
    // The same id as often as it takes: it is done once.
    for (;;) {
      try {
        const told = await send("PUT", `/api/runs/${id}/commands/${number}`, command);
        if (told.state !== "left") {
          done(told);
          return;
        }
      } catch (error) {
        if (error instanceof Refused) {
          said.textContent = error.message;
          return;
        }
        said.textContent = "The board does not answer. It is tried again.";
      }
      if (!made.open) return;
      await new Promise((soon) => setTimeout(soon, 250));
    }
  }

  /** @param {any} told */
  function done(told) {
    said.textContent = told.refused ? `The run refused: ${told.refused}` : "";
    affects.textContent = told.refused ? "Nothing was changed." : `Done after step ${told.step}. The ledger has it:`;
    made.dataset.done = told.state;
    acts.replaceChildren(el("pre", {}, JSON.stringify(told.record, null, 1)));
  }
}

/** @param {string} id */
async function list(id) {
  const { commands } = await get(`/api/runs/${id}/commands`);
  const rows = commands.map((/** @type {any} */ one) =>
    el(
      "li",
      {},
      `step ${one.step}: ${one.verb} ${one.argument} – ${one.refused ? `refused: ${one.refused}` : "done"}, ${moment(one.time)}`,
    ),
  );
  dialog("Commands that the ledger has, newest first", rows.length ? el("ol", {}, ...rows) : el("p", {}, "none"));
}
