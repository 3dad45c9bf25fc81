// Elements. Text from the broker is only ever a text node or the value of a harmless attribute: nothing here takes HTML.

const HARMLESS = new Set([
  "class", "id", "for", "type", "name", "value", "placeholder", "title", "role", "tabindex", "colspan", "scope",
  "autocomplete", "maxlength", "min", "max", "rows", "hidden", "disabled", "checked", "selected", "required", "open",
]);

/** An element. `href` is for places in this page, `on…` for listeners, `aria-…` and HARMLESS for attributes. */
const LONGEST_BROKEN = 1000; // characters of a name that is broken between its levels

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function" && name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "href" && String(value).startsWith("#")) element.setAttribute("href", value);
    else if (name.startsWith("aria-") || HARMLESS.has(name)) element.setAttribute(name, value === true ? "" : String(value));
    else throw new Error(`${tag}: ${name} is not set here`);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/**
 * Have an element show these children, and change only what is different: a link that has the focus keeps it. For
 * children without listeners.
 */
export function refresh(element, ...children) {
  const fresh = element.cloneNode(false);
  replace(fresh, ...children);
  patch(element, fresh);
}

function patch(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name: attribute, value } of fresh.attributes) {
    if (old.getAttribute(attribute) !== value) old.setAttribute(attribute, value);
  }
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  if (before.length === after.length && before.every((each, at) => each.nodeName === after[at].nodeName)) {
    before.forEach((each, at) => patch(each, after[at]));
  } else {
    old.replaceChildren(...after);
  }
}

/** A name from a client: control and invisible characters can be seen, and the direction of its text stays inside. */
export function name(text, kind = "name") {
  const shown = String(text).replace(
    /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu,
    (character) => `⟨${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`,
  );
  if (shown === "") return h("bdi", { class: kind }, "(empty)");
  // A narrow screen breaks a topic between its levels.
  return h("bdi", { class: kind }, shown.length > LONGEST_BROKEN ? shown
    : shown.split(/(?<=\/)/).flatMap((level, at) => (at ? [document.createElement("wbr"), level] : [level])));
}

/** A sentence of the broker with such names in it. */
export const sentence = (text) => name(text, "sentence");

/** A place in this page. */
export function place(view, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value != null));
  const text = query.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

export function link(view, parameters, ...children) {
  return h("a", { href: place(view, parameters) }, ...children);
}

export const client = (id) => link("client", { id }, name(id));
