// @ts-check
/** One run: its head, what steers it, and a tab. */
import { fail } from "../alerts.js";
import { get } from "../api.js";
import { el } from "../dom.js";
import { amount, moment, number, share, span } from "../format.js";
import { address, state } from "../state.js";
import { steering } from "../steer.js";
import { open as commits } from "./commits.js";
import { open as curves } from "./curves.js";
import { open as data } from "./data.js";
import { open as gallery } from "./gallery.js";
import { open as ledger } from "./ledger.js";
import { open as logs } from "./logs.js";
import { open as plan } from "./plan.js";
import { open as recipe } from "./recipe.js";
import { open as time } from "./time.js";
import { paced, progress, stateCell } from "./runs.js";

/** @typedef {{draw: () => Promise<void>, close?: () => void}} Tab */
const TABS = /** @type {Record<string, (into: HTMLElement, run: any) => Promise<Tab>>} */ ({
  curves,
  time,
  data,
  gallery,
  commits,
  recipe,
  plan,
  ledger,
  logs,
});

/** @param {HTMLElement} main @returns {Promise<import("../board.js").Page>} */
export async function open(main) {
  const id = state().get("run") ?? "",
    name = state().get("tab") ?? "curves";
  let run = await get(`/api/runs/${id}`);
  const head = el("div", {}),
    body = el("section", { "aria-label": name }),
    steer = steering(id);
  const links = Object.keys(TABS).map((tab) =>
    el("a", { href: address({ page: "run", run: id, tab }), "aria-current": tab === name ? "page" : null }, tab),
  );
  main.replaceChildren(head, steer.bar, el("nav", { class: "tabs", "aria-label": "Of this run" }, ...links), body);
  draw();
  const tab = await (TABS[name] ?? curves)(body, run);
  await tab.draw();

  function draw() {
    document.title = `${run.title ?? run.name} – Drivetrain board`;
    head.replaceChildren(...heading(run));
    steer.show(run);
  }
  const again = paced(async () => {
    try {
      run = Object.assign(run, await get(`/api/runs/${id}`));
      draw();
      await tab.draw();
    } catch (error) {
      fail(error);
    }
  }, 200);
  return {
    told: (news) => {
      if (!(id in news)) return;
      if (news[id] === null) fail(new Error("The run directory was removed. What you see is what it was."));
      else again();
    },
    moved: again,
    close: () => tab.close?.(),
  };
}

/** @param {any} run */
function heading(run) {
  const rate = run.rates.tokens ? amount(run.rates.tokens, " tokens/s") : amount(run.rates.samples, " samples/s");
  const facts = [
    ["left", span(run.left)],
    ["rate", rate],
    ["MFU", share(run.mfu)],
    ["goodput", share(run.goodput)],
    ["attempts", number(run.attempts)],
    ["processes", number(run.world)],
    ["last record", moment(run.last)],
  ];
  const told = facts.map(([name, value]) => el("span", {}, el("span", { class: "dim" }, `${name} `), value));
  return [
    el("h1", {}, run.title ?? run.name),
    el("div", { class: "bar" }, stateCell(run), progress(run), ...told),
    run.state === "damaged" && el("p", { class: "bad" }, run.cause),
  ].filter((one) => one instanceof Node);
}
