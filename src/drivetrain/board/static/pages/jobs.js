// @ts-check
/** What was submitted, and where it stands. */
import { get, send } from "../api.js";
import { fail } from "../board.js";
import { button, dialog, el, table } from "../dom.js";

/** @param {HTMLElement} main @returns {Promise<import("../board.js").Page>} */
export async function open(main) {
  const holder = el("div", {}), said = el("p", { role: "status" });
  let timer = 0;
  main.replaceChildren(el("h1", {}, "Jobs"), said, holder);

  async function draw() {
    const { jobs, read_only } = await get("/api/jobs");
    const rows = jobs.map((/** @type {any} */ job) => [job.job, job.target, job.unreachable ? `${job.state} (not reached: ${job.unreachable})` : job.state, job.native_state, job.progress, job.run, acts(job, read_only)]);
    holder.replaceChildren(rows.length ? table(`${rows.length} jobs`, ["job", "target", "state", "engine", "step", "run", ""], rows) : el("p", {}, "No job was submitted from here."));
  }

  /** @param {any} job @param {boolean} readOnly */
  function acts(job, readOnly) {
    const act = async (/** @type {string} */ what) => {
      said.textContent = `${what} ${job.job} …`;
      try {
        await send("POST", `/api/jobs/${encodeURIComponent(job.job)}`, { act: what });
        said.textContent = `${what} ${job.job}: done`;
      } catch (error) {
        said.textContent = error instanceof Error ? error.message : String(error);
      }
      await draw();
    };
    const sure = (/** @type {string} */ what, /** @type {string} */ why) => {
      const made = dialog(`${what} ${job.job}?`, el("p", {}, why), button(`${what} it`, () => { made.close(); act(what); }));
    };
    return el("span", { class: "bar" }, button("log", () => log(job.job), { "aria-label": `log of ${job.job}` }),
      ...(readOnly ? [] : [button("cancel…", () => sure("cancel", "The job commits, if it can, and ends."), { "aria-label": `cancel ${job.job}` }), button("requeue…", () => sure("requeue", "The engine starts it again; it goes on from its newest commit."), { "aria-label": `requeue ${job.job}` })]));
  }
  await draw();
  timer = window.setInterval(() => draw().catch(fail), 10000);
  return { moved: () => draw().catch(fail), close: () => clearInterval(timer) };
}

/** The end of a job's log, again every two seconds. @param {string} job */
async function log(job) {
  const text = el("pre", { tabindex: 0 }, "…"), made = dialog(`Log of ${job}`, text);
  while (made.open) {
    try {
      text.textContent = (await get(`/api/jobs/${encodeURIComponent(job)}/log`)).text || "nothing yet";
    } catch (error) {
      text.textContent = error instanceof Error ? error.message : String(error);
    }
    await new Promise((soon) => setTimeout(soon, 2000));
  }
}
