// @ts-check
/** In a report of one file nothing changes. */

/** @param {unknown} told @param {(answers: boolean) => void} answers */
export function follow(told, answers) {
  answers(true);
}
