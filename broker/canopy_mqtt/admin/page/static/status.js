// Links to upstream brokers, the store, and alarms.

import { ask, has, part } from "./api.js";
import { h, name, replace, sentence } from "./dom.js";
import { count, moment } from "./format.js";
import { live } from "./live.js";
import { action, failed, facts, table } from "./parts.js";

/** A view that follows a part of the snapshot. */
function follows(title, part, show) {
  return (root) => {
    const shown = h("div");
    replace(root, h("h1", {}, title), shown);
    let before = "";
    return {
      tick() {
        if (live.snapshot === null) return;
        const text = JSON.stringify(live.snapshot[part]);
        if (text !== before) {
          before = text;
          replace(shown, show(live.snapshot[part]));
        }
      },
    };
  };
}

const links = follows("Links to upstream brokers", "upstream", (links) => [
  table("Links to upstream brokers", [
    { title: "Name", cell: (each) => name(each.name) },
    { title: "State", cell: (each) => each.state },
    { title: "Trouble", cell: (each) => (each.trouble ? sentence(each.trouble) : "–") },
    { title: "Received", cell: (each) => count(each["messages/received"]), number: true },
    { title: "Sent", cell: (each) => count(each["messages/sent"]), number: true },
    { title: "Waiting", cell: (each) => count(each["messages/queued"]), number: true },
    { title: "Dropped", cell: (each) => count(each["messages/dropped"]), number: true },
  ], links),
  links.map((each) => [h("h2", {}, name(each.name)), facts({ ...each, down_since: each.up ? null : each.down_since }, { down_since: ["down since", moment] })]),
].flat(2));

export function upstreams(root) {
  const actions = h("p", { class: "actions" });
  const view = links(root);
  root.querySelector("h1").after(actions);
  let before = null;
  return {
    tick() {
      view.tick();
      if (live.snapshot === null || !has("/upstreams/{}/reset", "post")) return;
      const names = live.snapshot.upstream.map((each) => each.name);
      // Not at each snapshot: a button that was pressed once is to be there for the second time.
      if (JSON.stringify(names) === before) return;
      before = JSON.stringify(names);
      replace(actions, names.map((each) => action(`Connect ${each} again`, () => ask("POST", `/upstreams/${part(each)}/reset`))));
    },
  };
}

export const store = follows("Store", "store", (found) => [
  h("p", { class: found.failing ? "notice bad" : "notice" }, found.failing ? "The store cannot be written." : found.kept
    ? "Sessions, queued and retained messages are stored." : "Everything is in memory, and lost when the broker stops."),
  facts(found.figures),
]);

export function alarms(root) {
  const shown = h("div");
  const past = h("div");
  replace(root, h("h1", {}, "Alarms"), shown, h("h2", {}, "Before"), past);
  const columns = [
    { title: "Alarm", cell: (each) => name(each.name) },
    { title: "What", cell: (each) => sentence(each.message) },
    { title: "Since", cell: (each) => moment(each.activate_at) },
    { title: "Until", cell: (each) => moment(each.deactivate_at) },
  ];
  let timer = 0;
  let stopped = false;
  async function read() {
    clearTimeout(timer);
    for (const [element, activated] of [[shown, "true"], [past, "false"]]) {
      try {
        const answer = await ask("GET", "/alarms", { query: { activated } });
        if (stopped) return;
        replace(element, table("Alarms", columns, answer.data));
      } catch (error) {
        if (stopped) return;
        replace(element, failed(error));
      }
    }
    timer = setTimeout(read, 3000);
  }
  read();
  return { again: read, close() { stopped = true; clearTimeout(timer); } };
}
