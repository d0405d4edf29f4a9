// @ts-check
/** What the board is asked. */

/** An answer that says what is wrong, or none. */
export class Refused extends Error {
  /** @param {number} status @param {string} said @param {string} hint */
  constructor(status, said, hint) {
    super(hint ? `${said}: ${hint}` : said);
    this.status = status;
  }
}

/** No answer at all: the board is not there, or will be again. */
export class Unreachable extends Error {
  constructor() {
    super("The board did not answer. It is asked again.");
  }
}

/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function get(path, signal) {
  return (await asked(path, { signal })).json();
}

/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<ArrayBuffer>} */
export async function getBinary(path, signal) {
  return (await asked(path, { signal })).arrayBuffer();
}

/** @param {string} method @param {string} path @param {unknown} value @returns {Promise<any>} */
export async function send(method, path, value) {
  const headers = { "content-type": "application/json", "x-board-key": localStorage.getItem("board-key") ?? "" };
  return (await asked(path, { method, headers, body: JSON.stringify(value) })).json();
}

/** Where a file of a run is. @param {string} id @param {string} path @returns {string} */
export function fileOf(id, path) {
  return `/api/runs/${id}/file?${new URLSearchParams({ path })}`;
}

/** @param {string} path @param {RequestInit} options */
async function asked(path, options) {
  const answer = await fetch(path, options).catch((error) => {
    throw error instanceof TypeError ? new Unreachable() : error;
  });
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, told.error ?? `the board answered ${answer.status}`, told.hint ?? "");
}
