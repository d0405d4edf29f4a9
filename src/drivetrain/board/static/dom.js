// @ts-check
/** Elements, made without a line of HTML: what users wrote can only ever be text. */

/**
 * @typedef {Node | string | number | null | undefined | false} Child
 * @typedef {Record<string, unknown>} Properties
 */

/**
 * An element with properties (`class`, `data-…`, `aria-…` and other attributes by name; functions as listeners).
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag @param {Properties} [properties] @param {...Child} children @returns {HTMLElementTagNameMap[T]}
 */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function")
      made.addEventListener(name.replace(/^on/, ""), /** @type {EventListener} */ (value));
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, String(value));
  }
  for (const child of children)
    if (child != null && child !== false) made.append(child instanceof Node ? child : String(child));
  return made;
}

/**
 * A table with heads; `rows` are cells each.
 * @param {string} caption @param {Child[]} heads @param {Child[][]} rows @returns {HTMLElement}
 */
export function table(caption, heads, rows) {
  const head = el("tr", {}, ...heads.map((one) => el("th", { scope: "col" }, one)));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, cell))));
  if (!rows.length) body.push(el("tr", {}, el("td", { class: "dim", colspan: heads.length }, "none yet")));
  const made = el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, ...body));
  // Wide tables scroll by themselves, with the keyboard too; the page does not.
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption }, made);
}

/** @param {string} label @param {() => unknown} act @param {Properties} [more] */
export function button(label, act, more = {}) {
  return el("button", { type: "button", onclick: act, ...more }, label);
}

/**
 * A choice. @param {string} label @param {[string, string][]} options value and text @param {string} value
 * @param {(value: string) => unknown} chosen
 */
export function choice(label, options, value, chosen) {
  const select = el("select", { onchange: () => chosen(select.value) });
  for (const [name, text] of options) select.append(el("option", { value: name, selected: name === value }, text));
  return el("label", {}, `${label} `, select);
}

/**
 * A dialog that is closed by Escape or its button; it is removed then.
 * @param {string} title @param {...Child} children
 */
export function dialog(title, ...children) {
  const close = button("Close", () => made.close());
  const made = el(
    "dialog",
    { "aria-label": title, onclose: () => made.remove() },
    el("div", { class: "bar" }, el("h2", {}, title), close),
    ...children,
  );
  document.body.append(made);
  made.showModal();
  return made;
}
