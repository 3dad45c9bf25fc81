// One client's story: who it is, what it subscribes to, what waits for it and what it has lost.

import { ask, has, part } from "./api.js";
import { h, link, name, replace, sentence } from "./dom.js";
import { bytes, count, moment, plural, seconds } from "./format.js";
import { live } from "./live.js";
import { action, failed, facts, figures, table } from "./parts.js";

const EVERY = 3000;
const MOST = 20; // subscriptions that are shown here

const WORDED = {
  clientid: ["client identifier"], username: ["user"], connected_at: ["connected since", moment], disconnected_at: ["disconnected", moment],
  node: ["connected to the node"], epoch: ["connections of its session"], expires_in: ["expires in", seconds],
  created_at: ["session created", moment], keepalive: ["keep alive", seconds], expiry_interval: ["session expiry", seconds],
  proto_ver: ["protocol", (version) => `MQTT ${version}`],
  port: ["port", String], ip_address: ["address"], mqueue_len: ["queued messages"], mqueue_bytes: ["queued bytes", bytes],
  mqueue_dropped: ["messages lost"], inflight_cnt: ["in flight"], inflight_bytes: ["bytes in flight", bytes],
  subscriptions_cnt: ["subscriptions"], awaiting_rel_cnt: ["QoS 2 messages without PUBREL"], lag: ["lag", seconds],
  max_delay: ["delay", seconds], dropped: ["lost by cause"], refused: ["refused"], received: ["published by this connection"], delivered: ["delivered to it"],
};

export function client(root, parameters) {
  const id = parameters.id ?? "";
  const at = `/clients/${part(id)}`;
  const now = figures({
    state: "State", mqueue_len: "Queued", inflight_cnt: "In flight", lost: "Lost", subscriptions_cnt: "Subscriptions",
    lag: "Lag", received: "Published", delivered: "Delivered",
  });
  const notice = h("div");
  const actions = h("div", { class: "actions" });
  const refusals = h("div");
  const details = h("div");
  const subscriptions = h("div");
  const about = h("div", { hidden: true }, now.list, actions, refusals,
    h("h2", {}, "Subscriptions"), subscriptions, h("h2", {}, "Details"), details);
  replace(root, h("h1", {}, "Client ", name(id)), notice, about);

  /** What can be done with it, as long as it is there. Made anew when it comes or goes: a button may be half pressed. */
  function offer(connected) {
    replace(actions,
      connected && has("/clients/{}", "delete")
        ? action("Disconnect", async () => { await ask("DELETE", at); await read(); }) : null,
      has("/banned", "post")
        ? action("Ban for an hour", async () => {
          await ask("POST", "/banned", { body: { as: "clientid", who: id, until: new Date(Date.now() + 3600e3).toISOString(), reason: "from the page" } });
          await read();
        }) : null,
      has("/trace", "post")
        ? action("Trace for a minute", () => ask("POST", "/trace", { body: { type: "clientid", value: id, duration: 60 } }), { sure: "records its packets", done: "See Traces." }) : null,
      has("/sessions/{}", "delete")
        ? action("End the session", async () => { await ask("DELETE", `/sessions/${part(id)}`); await read(); }, { sure: "its queued messages are lost" }) : null,
      has("/explain") ? link("explain", { client: id }, "Explain a message") : null);
  }

  let stopped = false;
  let timer = 0;
  let seen = "";
  let offered = null;

  async function read() {
    clearTimeout(timer);
    try {
      const [found, filters] = await Promise.all([
        ask("GET", at),
        ask("GET", `${at}/subscriptions`, { query: { limit: MOST } }),
      ]).catch(shared);
      if (stopped) return;
      show(found, filters);
    } catch (error) {
      if (stopped) return;
      if (error.status === 404) about.hidden = true;
      replace(notice, error.status === 404 ? h("p", { class: "notice", role: "alert" }, "There is no client or session with this identifier.") : failed(error));
    }
    timer = setTimeout(read, EVERY);
  }

  /** A session in the database that nodes share, whose client is away or connected to another node. */
  async function shared(error) {
    if (error.status !== 404 || !live.hello.shares_sessions) throw error;
    const { subscriptions: filters, ...found } = await ask("GET", `/sessions/${part(id)}`);
    return [found, { data: filters.slice(0, MOST) }];
  }

  function show(found, filters) {
    replace(notice);
    about.hidden = false;
    if (offered !== found.connected) {
      offered = found.connected;
      offer(offered);
    }
    now.set("state", found.connected ? "connected" : found.node ? "at another node" : "away");
    const lost = found.mqueue_dropped ?? found.dropped;
    const all = typeof lost === "object" && lost !== null ? Object.values(lost).reduce((sum, each) => sum + each, 0) : lost;
    now.set("lost", count(all), all > 0 ? "bad" : "");
    for (const key of ["inflight_cnt", "subscriptions_cnt"]) now.set(key, count(found[key]));
    for (const key of ["received", "delivered"]) now.set(key, count(found[key]));
    now.set("lag", seconds(found.lag), found.lag > 1 ? "warn" : "");
    now.set("mqueue_len", `${count(found.mqueue_len)}${found.mqueue_bytes ? ` (${bytes(found.mqueue_bytes)})` : ""}`);
    const text = JSON.stringify([found, filters]);
    if (text === seen) return;
    seen = text;
    const last = found.last_refusal;
    replace(refusals, last ? [h("h2", {}, "Refused"), h("p", {},
      `${Object.entries(found.refused).map(([what, number]) => `${what} ${count(number)}`).join(", ")}; the last at ${moment(last.at)}: ${last.action} `,
      name(last.topic), " by ", sentence(last.reason))] : []);
    const { last_refusal, ...rest } = found;
    replace(details, facts(rest, WORDED));
    const others = found.subscriptions_cnt - filters.data.length;
    replace(subscriptions, table("Subscriptions of this client", [
      { title: "Filter", cell: (each) => name(each.topic) },
      { title: "QoS", cell: (each) => String(each.qos ?? "–"), number: true },
      { title: "No Local", cell: (each) => (each.nl == null ? "–" : each.nl ? "yes" : "no") },
    ], filters.data), filters.meta === undefined ? h("p", { class: "soft" }, others > 0 ? `and ${plural(others, "other")}` : null)
      : filters.meta.hasnext ? h("p", {}, link("subscriptions", { clientid: id }, "All of them")) : null);
  }

  read();
  return {
    again: read,
    close() {
      stopped = true;
      clearTimeout(timer);
    },
  };
}
