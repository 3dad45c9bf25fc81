// Rates, lag, queues and drops at a glance, and who is slow.

import { has } from "./api.js";
import { chart } from "./charts.js";
import { client, h, link, name, refresh, replace, sentence } from "./dom.js";
import { bytes, count, moment, plural, rate, seconds, short } from "./format.js";
import { lately, live, rates, values } from "./live.js";
import { figures, table } from "./parts.js";

export const slowTable = (clients) => table("Slow subscribers", [
  { title: "Client", cell: (each) => client(each.clientid) },
  { title: "Lag", cell: (each) => seconds(each.delay), number: true },
  { title: "Queued", cell: (each) => count(each.waiting), number: true },
  { title: "Bytes", cell: (each) => bytes(each.bytes), number: true },
  { title: "Lost", cell: (each) => count(each.dropped), number: true },
], clients);

const when = [
  { title: "User", cell: (each) => (each.username == null ? "–" : name(each.username)) },
  { title: "Address", cell: (each) => (each.ip_address ? name(each.ip_address) : "–") },
  { title: "Last", cell: (each) => moment(each.last_at) },
];
const counts = (each) => Object.entries(each.counts).map(([what, number]) => `${what} ${count(number)}`).join(", ");
const whom = { title: "Client", cell: (each) => (each.here ? client(each.clientid) : [name(each.clientid), " (gone)"]) };

/** Clients that lost messages, also those that have left. */
export const LOSERS = [
  whom, ...when,
  { title: "Lost", number: true, cell: (each) => count(Object.values(each.counts).reduce((sum, one) => sum + one, 0)) },
  { title: "Causes", cell: counts },
];

/** Clients that were refused something, also those that have left. */
export const REFUSED = [
  whom, ...when,
  { title: "Refused", cell: counts },
  { title: "Last topic", cell: (each) => name(each.topic) },
  { title: "By", cell: (each) => sentence(each.reason) },
];

export function overview(root) {
  const now = figures({
    received: "Messages in/s", sent: "Messages out/s", dropped: "Dropped/s", lag: "Event loop lag",
    queued: "Queued messages", queued_bytes: "Queued bytes", connected: "Clients", connections: "Connections/s",
  });
  const charts = [
    chart("Messages per second", [
      { label: "in", colour: "--link", values: () => rates("received") },
      { label: "out", colour: "--good", values: () => rates("sent") },
    ], short),
    chart("Bytes per second", [
      { label: "in", colour: "--link", values: () => rates("bytes_in") },
      { label: "out", colour: "--good", values: () => rates("bytes_out") },
    ], short),
    chart("Dropped messages per second", [{ label: "dropped", colour: "--bad", values: () => rates("dropped") }], short),
    chart("Event loop lag", [{ label: "lag", colour: "--warn", values: () => values("lag") }], seconds, 0.02),
    chart("Queued messages", [{ label: "queued", colour: "--warn", values: () => values("queued") }], short),
    chart("Clients", [{ label: "connected", colour: "--link", values: () => values("connected") }], short),
  ];
  const slow = h("div");
  const losers = h("div");
  const refused = h("div");
  const causes = h("div");
  const more = figures({
    sessions: "Sessions", subscriptions: "Subscriptions", filters: "Filters", retained: "Retained", uptime: "Uptime",
    denied: "Not authorized", errors: "Protocol errors",
  });
  replace(root, h("h1", {}, "Overview"), now.list, h("div", { class: "charts" }, charts.map((each) => each.figure)),
    h("h2", {}, "Slow subscribers"), slow, h("h2", {}, "Clients that lost messages"), losers,
    h("h2", {}, "Clients that were refused something"), refused,
    h("h2", {}, "Dropped since the start"), causes, h("h2", {}, "Totals"), more.list);
  let shownSlow = "";
  const recently = { losers: "", refused: "" };
  let shownCauses = "";
  return {
    tick() {
      const snapshot = live.snapshot;
      const last = live.samples.at(-1);
      if (snapshot === null || !last) return;
      const dropped = lately("dropped");
      now.set("received", rate(lately("received")));
      now.set("sent", rate(lately("sent")));
      now.set("dropped", rate(dropped), dropped > 0 ? "bad" : "");
      now.set("lag", seconds(last.lag), last.lag > 0.25 ? "bad" : "");
      now.set("queued", count(last.queued));
      now.set("queued_bytes", bytes(last.queued_bytes));
      now.set("connected", count(last.connected));
      now.set("connections", rate(lately("connections")));
      charts.forEach((each) => each.update());
      const clients = JSON.stringify(snapshot.slow);
      if (clients !== shownSlow) {
        shownSlow = clients;
        const others = snapshot.slow.count - snapshot.slow.clients.length;
        refresh(slow, snapshot.slow.count ? slowTable(snapshot.slow.clients) : h("p", { class: "soft" }, "None."),
          others > 0 ? h("p", { class: "soft" }, `and ${plural(others, "other")}`) : null);
      }
      for (const [key, element, title, columns] of [
        ["losers", losers, "Clients that lost messages", LOSERS], ["refused", refused, "Clients that were refused something", REFUSED],
      ]) {
        const text = JSON.stringify(snapshot[key]);
        if (text === recently[key]) continue;
        recently[key] = text;
        refresh(element, snapshot[key].length
          ? [table(title, columns, snapshot[key]), has(`/${key}`) ? h("p", {}, link(key, {}, "The last 100")) : null]
          : h("p", { class: "soft" }, "None."));
      }
      const lost = JSON.stringify(snapshot.dropped);
      if (lost !== shownCauses) {
        shownCauses = lost;
        const rows = Object.entries(snapshot.dropped).filter(([, number]) => number > 0).sort((one, other) => other[1] - one[1]);
        refresh(causes, rows.length ? table("Dropped messages by cause", [
          { title: "Cause", cell: ([cause]) => cause },
          { title: "Messages", cell: ([, number]) => count(number), number: true },
          { title: "Now, per second", cell: ([cause]) => rate(live.dropping[cause] ?? 0), number: true },
        ], rows) : h("p", { class: "soft" }, "Nothing."));
      }
      const totals = snapshot.totals;
      more.set("sessions", count(totals.sessions));
      more.set("subscriptions", count(totals.subscriptions));
      more.set("filters", count(totals.filters));
      more.set("retained", `${count(totals.retained)} (${bytes(totals.retained_bytes)})`);
      more.set("uptime", seconds(snapshot.uptime));
      more.set("denied", count(totals.denied_publishes + totals.denied_subscriptions + totals.denied_deliveries));
      more.set("errors", count(totals.protocol_errors));
    },
    close: () => charts.forEach((each) => each.close()),
  };
}

export function slow(root) {
  const shown = h("div");
  replace(root, h("h1", {}, "Slow subscribers"),
    h("p", { class: "soft" }, "Subscribers whose oldest message has waited longer than queue.slow_after, the slowest first."), shown);
  let before = "";
  return {
    tick() {
      const text = JSON.stringify(live.snapshot?.slow ?? null);
      if (live.snapshot === null || text === before) return;
      before = text;
      const others = live.snapshot.slow.count - live.snapshot.slow.clients.length;
      refresh(shown, slowTable(live.snapshot.slow.clients), others > 0 ? h("p", { class: "soft" }, `and ${plural(others, "other")}`) : null);
    },
  };
}
