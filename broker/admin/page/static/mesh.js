// The other nodes of the broker's mesh, those that are away first.

import { h, name, refresh, replace } from "./dom.js";
import { bytes, count, moment, plural } from "./format.js";
import { live } from "./live.js";
import { figures, table } from "./parts.js";

const STATES = {
  connected: () => "connected",
  joined: (each) => h("span", { class: "warn" }, `connected, but accepts no messages since ${moment(each.down_since)}`),
  gone: (each) => h("strong", { class: "bad" }, `not connected since ${moment(each.down_since)}`),
};

/** What is late at a node that is there; of one that is gone nothing is known. */
const late = (each, is, text, otherwise) => (each.state === "gone" ? "–" : is ? h("span", { class: "warn" }, text) : otherwise);

const COLUMNS = [
  { title: "Node", cell: (each) => name(each.name) },
  { title: "State", cell: (each) => STATES[each.state](each) },
  { title: "Queued for it", cell: (each) => count(each.waiting), number: true },
  { title: "Queued bytes", cell: (each) => bytes(each.waiting_bytes), number: true },
  { title: "Lost", cell: (each) => (each.dropped ? h("strong", { class: "bad" }, count(each.dropped)) : "0"), number: true },
  { title: "Its filters", cell: (each) => count(each.filters), number: true },
  { title: "Knows our filters", cell: (each) => late(each, each.behind, "not all", "yes") },
  { title: "Retained messages", cell: (each) => late(each, !each.synchronized, "synchronizing", "synchronized") },
];

export function mesh(root) {
  const title = h("h1", {}, "Mesh");
  const now = figures({
    connected: "Nodes connected", waiting: "Queued bytes", lost: "Lost messages", in: "Sessions taken over",
    out: "Sessions handed over", late: "Late answers", declared: "Filters declared",
  });
  const shown = h("div");
  replace(root, title, now.list, shown, h("p", { class: "soft" },
    "As this node sees the others. Messages for a node that is not connected are queued for mesh.node_expiry; then the node is removed from this list."));
  return {
    tick() {
      if (live.snapshot === null) return;
      const found = live.snapshot.mesh;
      if (!found) {
        replace(root, title, h("p", { class: "notice" }, "This broker has no mesh (mesh.name is not set)."));
        return;
      }
      refresh(title, "Mesh ", name(found.mesh), ", node ", name(found.node));
      const sum = (of) => found.nodes.reduce((all, each) => all + each[of], 0);
      const there = found.nodes.filter((each) => each.state === "connected").length;
      const all = found.nodes.length + found.others;
      now.set("connected", `${count(there)} of ${count(all)}`, there < found.nodes.length ? "bad" : "");
      now.set("waiting", bytes(sum("waiting_bytes")));
      now.set("lost", count(sum("dropped")), sum("dropped") ? "bad" : "");
      now.set("in", count(found.sessions_in));
      now.set("out", count(found.sessions_out));
      now.set("late", count(found.claims_unanswered + found.answers_late));
      now.set("declared", count(found.declared));
      refresh(shown, found.nodes.length ? table("Other nodes", COLUMNS, found.nodes) : h("p", { class: "notice" }, "No other node has connected yet."),
        found.others ? h("p", { class: "soft" }, `and ${plural(found.others, "other")} that are connected`) : null);
    },
  };
}
