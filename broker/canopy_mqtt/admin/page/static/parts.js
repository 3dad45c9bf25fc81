// Pieces that several views share: figures, tables, lists a page at a time, and buttons that change something.

import { ask, Refused, takes } from "./api.js";
import { h, name, place, replace } from "./dom.js";
import { count } from "./format.js";
import { live } from "./live.js";

/** Figures under their names, whose values are put in later: `set(key, value, state)`. */
export function figures(named) {
  const cells = {};
  const boxes = {};
  const list = h("dl", { class: "figures" }, Object.entries(named).map(([key, title]) => {
    cells[key] = h("dd", {}, "–");
    boxes[key] = h("div", {}, h("dt", {}, title), cells[key]);
    return boxes[key];
  }));
  return {
    list,
    set(key, value, state = "") {
      if (value instanceof Node) cells[key].replaceChildren(value);
      else if (cells[key].textContent !== value) cells[key].textContent = value;
      if (boxes[key].className !== state) boxes[key].className = state;
    },
  };
}

/** Everything that the API tells of one thing. Names are the API's. */
export function facts(thing, worded = {}) {
  const rows = Object.entries(thing).filter(([, value]) => value !== null && value !== "");
  return h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, rows.map(([key, value]) =>
    h("tr", {}, h("th", { scope: "row" }, worded[key]?.[0] ?? key.replaceAll("_", " ")), h("td", {}, shown(value, worded[key]?.[1])))))));
}

function shown(value, word) {
  if (word) return word(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return count(value) === "0" && value !== 0 ? String(value) : count(value);
  if (typeof value === "object") {
    const text = Array.isArray(value)
      ? value.map((each) => (typeof each === "object" ? JSON.stringify(each) : String(each))).join(", ")
      : Object.entries(value).filter(([, each]) => each !== 0).map(([key, each]) => `${key}: ${typeof each === "object" ? JSON.stringify(each) : each}`).join(", ");
    return text === "" ? "–" : name(text);
  }
  return name(value);
}

/** A table. `columns`: `{title, cell(row), number}`. */
export function table(caption, columns, rows) {
  return h("div", { class: "scroll" }, h("table", { "aria-label": caption },
    h("thead", {}, h("tr", {}, columns.map((each) => h("th", { scope: "col", class: each.number && "number" }, each.title)))),
    h("tbody", {}, rows.length
      ? rows.map((row) => h("tr", {}, columns.map((each) => h("td", { class: each.number && "number" }, cell(each.cell(row))))))
      : h("tr", {}, h("td", { colspan: columns.length, class: "soft" }, "No entries.")))));
}

const cell = (value) => (value === undefined || value === null ? "–" : value);

export function failed(error) {
  const text = error instanceof Refused ? error.message : "the broker does not answer";
  return h("p", { class: "notice bad", role: "alert" }, text);
}

const EVERY = 3000; // milliseconds between two looks at a list
const SHARE = 20; // and at least so many times as long as the broker took for the last one

/**
 * A list of the API, a page at a time, with a search. `search`: `{parameter, title}`, of which those are shown that the
 * route takes; what is searched for stands in the address, so that it can be kept and sent.
 */
export function list({ view, path, parameters, fixed = {}, caption, columns, search = [], limit = 50 }) {
  const results = h("div", { "aria-live": "polite" });
  const next = h("button", { type: "button", disabled: true, onclick: () => turn(cursors.length) }, "Next page");
  const previous = h("button", { type: "button", disabled: true, onclick: () => turn(cursors.length - 2) }, "Previous page");
  const where = h("span", { class: "soft" });
  const fields = search.filter((each) => takes(path, each.parameter));
  const inputs = fields.map((each) => each.choices ? choice(each) : h("input", { type: "search", name: each.parameter, value: parameters[each.parameter] ?? "", autocomplete: "off" }));
  const form = h("form", { class: "search", role: "search", onsubmit: submit },
    fields.map((each, at) => h("label", {}, each.title, inputs[at])), fields.length ? h("button", {}, "Search") : null);
  // The cursors of this page and of those before it.
  let cursors = [];
  let going = null;
  let shownRows = "";

  function choice({ parameter, choices }) {
    return h("select", { name: parameter }, ["", ...choices].map((each) =>
      h("option", { value: each, selected: each === (parameters[parameter] ?? "") }, each || "any")));
  }

  function submit(event) {
    event.preventDefault();
    const wanted = Object.fromEntries(inputs.map((each) => [each.name, each.value]));
    location.hash = place(view, { ...parameters, ...wanted });
  }

  async function turn(page) {
    going?.abort();
    const mine = (going = new AbortController());
    const cursor = page <= 0 ? "" : (following[page] ?? "");
    try {
      const query = { ...fixed, limit, cursor };
      for (const each of fields) query[each.parameter] = parameters[each.parameter];
      const answer = await ask("GET", path, { query, signal: mine.signal });
      cursors = cursors.slice(0, Math.max(page, 0));
      cursors.push(cursor);
      following = following.slice(0, cursors.length);
      following[cursors.length] = answer.meta.cursor ?? null;
      const rows = answer.data;
      const text = JSON.stringify(rows);
      if (text !== shownRows) {
        shownRows = text;
        replace(results, table(caption, columns, rows));
      }
      next.disabled = !answer.meta.hasnext;
      previous.disabled = cursors.length < 2;
      where.textContent = rows.length ? `Page ${cursors.length}` : "";
    } catch (error) {
      if (error.name === "AbortError") return;
      shownRows = "";
      replace(results, failed(error));
    } finally {
      if (going === mine) going = null;
    }
  }
  let following = [];
  let timer = 0;

  /**
   * Read the page again while somebody sees it; what takes the broker long, less often. Not under a pressed button, and
   * not while a page is being turned to: that request would be aborted, and the click lost.
   */
  async function follow() {
    const began = Date.now();
    if (!going && document.visibilityState === "visible" && !results.querySelector("[data-asked], :focus-visible")) await turn(cursors.length - 1);
    timer = setTimeout(follow, Math.max(EVERY, SHARE * (Date.now() - began)));
  }

  turn(0);
  timer = setTimeout(follow, EVERY);
  return {
    element: h("div", {}, form, results, h("div", { class: "pager" }, previous, next, where)),
    again: () => turn(cursors.length - 1),
    close() {
      clearTimeout(timer);
      going?.abort();
    },
  };
}

/** Whether who looks may change something. */
export const operator = () => live.hello?.role === "operator";

/** A button that changes something, once it was pressed twice; `act()` answers what was done. Viewers get none. */
export function action(title, act, { sure = "Sure?", done = "Done." } = {}) {
  if (!operator()) return null;
  const notice = h("span", { role: "status" });
  let asked = false;
  let timer = 0;
  const rest = () => {
    asked = false;
    button.removeAttribute("data-asked");
    button.textContent = title;
  };
  const button = h("button", {
    type: "button",
    class: "danger",
    async onclick() {
      clearTimeout(timer);
      if (!asked) {
        asked = true;
        button.setAttribute("data-asked", "");
        button.textContent = `${title}: ${sure}`;
        timer = setTimeout(rest, 5000);
        return;
      }
      rest();
      button.disabled = true;
      try {
        await act();
        notice.textContent = ` ${done}`;
      } catch (error) {
        replace(notice, failed(error));
      }
      button.disabled = false;
    },
  }, title);
  return h("span", {}, button, notice);
}
