// What is wrong, and with whom: the line on top of the page.

import { client, h, link, name, sentence } from "./dom.js";
import { count, moment, plural, rate, seconds } from "./format.js";
import { lately, live } from "./live.js";

const LATE = 0.25; // seconds of lag that clients notice
const MOST = 5; // alarms that are told one by one
const QUIET = 5000; // milliseconds without a snapshot

/** The findings, the worst first: `{bad, parts}`. */
export function findings() {
  const now = live.snapshot;
  const found = [];
  const add = (bad, ...parts) => found.push({ bad, parts });
  if (now === null) return found;
  if (!live.answers) {
    add(true, "the broker does not answer; what is shown is from ", moment(live.heard));
    return found;
  }
  if (Date.now() - live.heard > QUIET) {
    add(true, `no data from the broker for ${seconds((Date.now() - live.heard) / 1000)}`);
  }
  const kinds = new Set(now.alarms.active.map((each) => each.name));
  for (const alarm of now.alarms.active.slice(0, MOST)) {
    add(true, link("alarms", {}, name(alarm.name)), ` since ${moment(alarm.since)}: `, sentence(alarm.message));
  }
  const others = now.alarms.count - Math.min(MOST, now.alarms.active.length);
  if (others > 0) add(true, link("alarms", {}, `${plural(others, "more alarm")}`));
  for (const line of now.not_ready) add(true, "not ready: ", sentence(line));
  for (const each of now.upstream) {
    if (each.up || each.state === "stopped" || kinds.has(`upstream-down/${each.name}`)) continue;
    add(true, "upstream ", link("upstreams", {}, name(each.name)), ` down since ${moment(each.down_since)}`, each.trouble ? [": ", sentence(each.trouble)] : "");
  }
  if (now.store.failing && now.not_ready.length === 0) add(true, link("store", {}, "the store cannot be written"));
  if (now.slow.count > 0) {
    const worst = now.slow.clients[0];
    const parts = [link("slow", {}, plural(now.slow.count, "slow subscriber"))];
    if (worst) {
      parts.push(", worst ", client(worst.clientid), ` with a lag of ${seconds(worst.delay)}`);
      if (worst.dropped) parts.push(`, lost ${count(worst.dropped)}`);
    }
    add(false, ...parts);
  }
  const dropped = lately("dropped", 10);
  if (dropped > 0 && !kinds.has("drop-rate")) {
    const causes = Object.entries(live.dropping).sort((one, other) => other[1] - one[1]);
    add(false, `the broker drops ${rate(dropped)} messages/s`, causes.length ? `: ${causes.slice(0, 3).map(([cause]) => cause).join(", ")}` : "");
  }
  const lag = Math.max(0, ...live.samples.slice(-10).map((each) => each.lag));
  if (lag > LATE) add(false, `the event loop was ${seconds(lag)} late`);
  return found;
}

/** The line on top of the page. */
export function headline() {
  const found = findings();
  if (live.snapshot === null) return h("p", { class: "quiet" }, "Waiting for data…");
  if (found.length === 0) {
    const [sample] = live.samples.slice(-1);
    return h("p", { class: "good" }, `All is well: ${plural(sample.connected, "client")} connected, no message is dropped, no subscriber is slow.`);
  }
  found.sort((one, other) => Number(other.bad) - Number(one.bad));
  return h("ul", { class: found.some((each) => each.bad) ? "bad" : "warn" }, found.map((each) => h("li", { class: each.bad ? "bad" : "warn" }, each.parts)));
}
