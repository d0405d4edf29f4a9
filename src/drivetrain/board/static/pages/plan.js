// @ts-check
/** What was planned beside the run, and what it came to. */
import { get } from "../api.js";
import { el, table } from "../dom.js";
import { bytes, number, share, span } from "../format.js";

const NAMES = /** @type {Record<string, string>} */ ({
  memory: "live memory of a step",
  commit: "rank 0's files of tensors in a commit",
  disk: "commits on the disk",
});

/** @param {HTMLElement} into @param {any} run */
export async function open(into, run) {
  return {
    draw: async () => {
      const told = await get(`/api/runs/${run.id}/plan`);
      if (!told.rows) {
        into.replaceChildren(
          el(
            "p",
            {},
            "There is no plan. A process of lowest priority makes one beside a run that takes a minute or more (telemetry.plan), and ends with the run.",
          ),
        );
        return;
      }
      const rows = Object.entries(told.rows).map(([name, one]) => [
        NAMES[name] ?? name,
        bytes(one.planned),
        bytes(one.measured),
        one.measured ? share(one.measured / one.planned - 1) : "–",
        one.measured_as,
      ]);
      const kinds = Object.entries(told.planned?.ranks ?? {}).map(([rank, one]) => {
        const kind = /** @type {any} */ (one).later.kinds;
        return [rank, ...KINDS.map((name) => bytes(kind[name] ?? 0))];
      });
      into.replaceChildren(
        ...(told.failed ? [el("p", { class: "bad" }, `Not planned: ${told.failed}`)] : []),
        table("Planned beside measured", ["", "planned", "measured", "off", "measured as"], rows),
        table("Live bytes of a step where most are alive", ["rank", ...KINDS], kinds),
        el(
          "p",
          { class: "dim" },
          `${number(told.flops)} FLOPs a step; the plan took ${span(told.seconds)} beside training.`,
        ),
      );
    },
  };
}

const KINDS = ["weights", "gradients", "optimizer", "activations", "communication", "temporary"];
