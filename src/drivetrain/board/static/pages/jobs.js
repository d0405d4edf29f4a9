// @ts-check
/** What was submitted, and where it stands. */
import { get, send } from "../api.js";
import { button, dialog, el, table } from "../dom.js";
import { counted, moment } from "../format.js";
import { address } from "../state.js";

const EVERY = 10_000,
  LOG_EVERY = 2000;
/** Of these nothing more comes by itself: see launch/states.py. */
const ENDED = ["succeeded", "failed", "cancelled", "lost"];
const HEADS = ["job", "acts", "target", "state", "engine", "step", "attempt", "submitted", "run"];

/** @param {HTMLElement} main @returns {Promise<import("../board.js").Page>} */
export async function open(main) {
  const holder = el("div", {}, el("p", { class: "dim" }, "The engines are asked …"));
  const said = el("p", { role: "status" }),
    problem = el("p", { class: "bad", role: "status" });
  let closed = false,
    before = "";
  document.title = "Jobs – Drivetrain board";
  delete main.dataset.shown;
  main.replaceChildren(el("h1", {}, "Jobs"), said, problem, holder);

  async function draw() {
    try {
      const told = await get("/api/jobs"),
        now = JSON.stringify(told);
      problem.textContent = "";
      if (now !== before) show(told.jobs, told.read_only);
      before = now;
    } catch (error) {
      problem.textContent = `${worded(error)} It is asked again.`;
    }
  }

  /** @param {any[]} jobs @param {boolean} readOnly */
  function show(jobs, readOnly) {
    const focused = holder.contains(document.activeElement) ? document.activeElement?.getAttribute("aria-label") : null;
    const rows = jobs.map((job) => [job.job, acts(job, readOnly), ...facts(job)]);
    const none = el("p", {}, "No job was submitted from here.");
    holder.replaceChildren(rows.length ? table(counted(rows.length, "job"), HEADS, rows) : none);
    // Who was at a button is at the same one of the new table.
    const same = focused && holder.querySelector(`[aria-label="${CSS.escape(focused)}"]`);
    if (same instanceof HTMLElement) same.focus();
  }

  /** @param {any} job @param {boolean} readOnly */
  function acts(job, readOnly) {
    const named = (/** @type {string} */ verb) => ({ "aria-label": `${verb} ${job.job}` });
    const may = /** @type {[string, string, boolean][]} */ ([
      ["cancel", "The job commits, if it can, and ends.", !ENDED.includes(job.state)],
      ["requeue", "The engine starts it again; it goes on from its newest commit.", job.state !== "succeeded"],
    ]);
    const shown = may.filter(([, , applies]) => applies && !readOnly);
    const buttons = shown.map(([verb, why]) => button(`${verb}…`, () => sure(job.job, verb, why), named(verb)));
    const reads = button("log", () => log(job.job), named("log of"));
    return el("span", { class: "bar" }, reads, ...buttons);
  }

  /** @param {string} job @param {string} verb @param {string} why */
  function sure(job, verb, why) {
    const does = button(`${verb} it`, () => {
      made.close();
      act(job, verb);
    });
    const made = dialog(`${verb} ${job}?`, el("p", {}, why), does);
  }

  /** @param {string} job @param {string} verb */
  async function act(job, verb) {
    said.textContent = `${verb} ${job} …`;
    try {
      await send("POST", `/api/jobs/${encodeURIComponent(job)}`, { act: verb });
      said.textContent = `${verb} ${job}: done`;
    } catch (error) {
      said.textContent = worded(error);
    }
    await draw();
  }

  // One question at a time, and none while nobody looks: an engine may take minutes to answer.
  async function follow() {
    while (!closed) {
      await wait(EVERY);
      if (!closed && !document.hidden) await draw();
    }
  }
  await draw();
  follow();
  return {
    moved: () => {
      if (problem.textContent) draw();
    },
    close: () => {
      closed = true;
    },
  };
}

/** @param {any} job */
function facts(job) {
  const state = job.unreachable ? `${job.state} (not reached: ${job.unreachable})` : job.state;
  const code = job.code ? ` (${job.code})` : "",
    engine = [job.native_state, job.reason].filter(Boolean).join(": ");
  // Of a job that only its engine knows there is no more.
  const attempt = job.attempt == null ? "–" : String(job.attempt + 1);
  const told = [`${state}${code}`, engine].map((text) => el("div", { class: "cause" }, text));
  const to = address({ page: "run", run: job.id ?? "" }),
    run = job.id ? el("a", { href: to, title: job.run }, job.run.split("/").at(-1)) : job.run;
  return [job.target, ...told, job.progress, attempt, moment(job.submitted), run];
}

/** The end of a job's log, which follows as long as its end is in view. @param {string} job */
async function log(job) {
  const text = el("pre", { tabindex: 0, role: "region", "aria-label": `Log of ${job}` }, "…");
  const said = el("p", { class: "bad", role: "status" }),
    made = dialog(`Log of ${job}`, text, said);
  while (made.open) {
    try {
      const told = (await get(`/api/jobs/${encodeURIComponent(job)}/log`)).text || "nothing yet";
      said.textContent = "";
      if (told !== text.textContent) renew(text, told);
    } catch (error) {
      said.textContent = `${worded(error)} It is asked again.`;
    }
    await wait(LOG_EVERY);
  }
}

/** Who reads further up stays there. @param {HTMLElement} into @param {string} told */
function renew(into, told) {
  const atEnd = into.scrollHeight - into.clientHeight - into.scrollTop < 4;
  into.textContent = told;
  if (atEnd) into.scrollTop = into.scrollHeight;
}

/** @param {unknown} error */
function worded(error) {
  return error instanceof Error ? `${error.message}.` : String(error);
}

/** @param {number} milliseconds */
function wait(milliseconds) {
  return new Promise((soon) => setTimeout(soon, milliseconds));
}
