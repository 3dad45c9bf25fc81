// Traces: everything of one client, topic or address for a while.

import { ask, download, part } from "./api.js";
import { h, name, replace } from "./dom.js";
import { bytes, count, moment, seconds } from "./format.js";
import { action, failed, table } from "./parts.js";

const FORMS = [["text", "txt"], ["jsonl", "jsonl"], ["pcapng", "pcapng"]];

export function traces(root) {
  const shown = h("div");
  const notice = h("div");
  const form = h("form", {
    class: "search",
    async onsubmit(event) {
      event.preventDefault();
      const { type, value, duration } = Object.fromEntries(new FormData(form));
      try {
        await ask("POST", "/trace", { body: { type, value, duration: Number(duration) } });
        replace(notice);
      } catch (error) {
        replace(notice, failed(error));
      }
      read();
    },
  },
  h("label", {}, "What", h("select", { name: "type" }, [["clientid", "client"], ["topic", "topic filter"], ["ip_address", "address"]].map(([value, title]) => h("option", { value }, title)))),
  h("label", {}, "Which", h("input", { name: "value", required: true, autocomplete: "off" })),
  h("label", {}, "Seconds", h("input", { name: "duration", type: "number", min: 1, max: 86400, value: 60, required: true })),
  h("button", {}, "Begin"));
  replace(root, h("h1", {}, "Traces"), form, notice, shown);
  let timer = 0;
  let stopped = false;
  let before = null;
  const cells = new Map();

  const save = (each) => FORMS.map(([kind, suffix]) => [h("button", {
    type: "button",
    onclick: () => download(`/trace/${part(each.name)}/download?format=${kind}`, `trace.${suffix}`).catch((error) => replace(notice, failed(error))),
  }, kind), " "]);

  async function read() {
    clearTimeout(timer);
    try {
      const { data } = await ask("GET", "/trace");
      if (stopped) return;
      // While the traces are the same, numbers alone change: who is about to press a button finds it where it was.
      const text = JSON.stringify(data.map((each) => each.name));
      if (text !== before) {
        before = text;
        cells.clear();
        const changing = (each, key) => {
          const cell = h("span");
          cells.set(`${key} ${each.name}`, cell);
          return cell;
        };
        replace(shown, table("Traces", [
          { title: "Of", cell: (each) => name(`${each.type} ${each.value}`) },
          { title: "State", cell: (each) => changing(each, "status") },
          { title: "Begun", cell: (each) => moment(each.started_at) },
          { title: "For", cell: (each) => seconds(each.duration), number: true },
          { title: "Packets", cell: (each) => changing(each, "packets"), number: true },
          { title: "Size", cell: (each) => changing(each, "bytes"), number: true },
          { title: "Save as", cell: (each) => h("span", {}, save(each)) },
          { title: "", cell: (each) => action("Forget", async () => { await ask("DELETE", `/trace/${part(each.name)}`); await read(); }) ?? "" },
        ], data));
      }
      for (const each of data) {
        for (const [key, word] of [["status", String], ["packets", count], ["bytes", bytes]]) {
          const cell = cells.get(`${key} ${each.name}`);
          if (cell.textContent !== word(each[key])) cell.textContent = word(each[key]);
        }
      }
    } catch (error) {
      if (!stopped) replace(shown, failed(error));
    }
    if (!stopped) timer = setTimeout(read, 3000);
  }
  read();
  return { again: read, close() { stopped = true; clearTimeout(timer); } };
}
