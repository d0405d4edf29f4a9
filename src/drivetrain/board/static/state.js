// @ts-check
/** What is shown stands in the address: a link shows the same, and Back goes back. */

/** @returns {URLSearchParams} */
export function state() {
  return new URLSearchParams(location.hash.slice(1));
}

/** The part of an axis that was zoomed to; null where all is shown. @returns {[number, number] | null} */
export function zoomed() {
  const asked = state();
  return asked.has("lo") && asked.has("hi") ? [Number(asked.get("lo")), Number(asked.get("hi"))] : null;
}

/**
 * Change some of it; null takes a key away. A new page is a step of the history, anything else is not.
 * @param {Record<string, string | null>} changes
 */
export function change(changes) {
  const next = state(),
    page = next.get("page"),
    run = next.get("run"),
    tab = next.get("tab");
  for (const [key, value] of Object.entries(changes)) {
    if (value == null || value === "") next.delete(key);
    else next.set(key, value);
  }
  const stays = next.get("page") === page && next.get("run") === run && next.get("tab") === tab;
  history[stays ? "replaceState" : "pushState"](null, "", `#${next}`);
}

/** The address of something else. @param {Record<string, string>} keys */
export function address(keys) {
  return `#${new URLSearchParams(keys)}`;
}
