// @ts-check
/** What the task showed: texts, sounds and pictures by step, two steps beside each other. */
import { fileOf, get } from "../api.js";
import { el } from "../dom.js";
import { change, state } from "../state.js";

/** @param {HTMLElement} into @param {any} run */
export async function open(into, run) {
  const bar = el("div", { class: "bar" }),
    holder = el("div", {});
  into.replaceChildren(bar, holder);
  let told = { steps: /** @type {number[]} */ ([]), items: /** @type {any[]} */ ([]) };

  /** @param {string} key @param {string} label @param {number} usual */
  function slider(key, label, usual) {
    const at = told.steps.indexOf(Number(state().get(key) ?? told.steps[usual]));
    const input = el("input", {
      type: "range",
      min: 0,
      max: told.steps.length - 1,
      step: 1,
      value: Math.max(0, at),
      oninput: () => {
        change({ [key]: String(told.steps[Number(input.value)]) });
        said.textContent = `step ${told.steps[Number(input.value)]}`;
        show();
      },
    });
    const said = el("output", {}, `step ${told.steps[Math.max(0, at)]}`);
    return el("label", {}, `${label} `, input, " ", said);
  }

  function show() {
    const last = told.steps.at(-1),
      steps = [Number(state().get("at") ?? last)];
    if (state().get("beside")) steps.push(Number(state().get("beside")));
    const names = [...new Set(told.items.map((item) => item.name))];
    const parts = names.map((name) =>
      el(
        "section",
        { "aria-label": name },
        el("h2", {}, name),
        el(
          "div",
          { class: "media" },
          ...steps.map((step) =>
            one(
              run.id,
              told.items.find((item) => item.name === name && item.step === step),
              step,
            ),
          ),
        ),
      ),
    );
    holder.replaceChildren(...parts);
  }

  return {
    draw: async () => {
      const before = told.steps.length;
      told = await get(`/api/runs/${run.id}/gallery`);
      if (!told.steps.length) {
        holder.replaceChildren(el("p", {}, "The task has shown nothing yet."));
        return;
      }
      if (told.steps.length !== before) {
        const two = el("input", {
          type: "checkbox",
          checked: Boolean(state().get("beside")),
          onchange: () => {
            change({ beside: two.checked ? String(told.steps[0]) : null });
            controls();
            show();
          },
        });
        const controls = () =>
          bar.replaceChildren(
            slider("at", "At", told.steps.length - 1),
            el("label", {}, two, " another step beside it"),
            ...(two.checked ? [slider("beside", "Beside", 0)] : []),
          );
        controls();
        show();
      }
    },
  };
}

/** @param {string} id @param {any} item @param {number} step */
function one(id, item, step) {
  const caption = el("figcaption", {}, `step ${step}`);
  if (!item) return el("figure", {}, caption, el("p", { class: "dim" }, "nothing"));
  if (item.kind === "text") return el("figure", {}, caption, el("pre", {}, item.text));
  const from = fileOf(id, item.file);
  if (item.kind === "audio")
    return el(
      "figure",
      {},
      caption,
      el("audio", { controls: true, preload: "none", src: from, "aria-label": `${item.name} at step ${step}` }),
    );
  return el("figure", {}, caption, el("img", { src: from, loading: "lazy", alt: `${item.name} at step ${step}` }));
}
