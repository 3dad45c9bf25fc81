// Clients, sessions, subscriptions and retained messages.

import { ask, has, part } from "./api.js";
import { client, h, link, name, replace } from "./dom.js";
import { bytes, count, moment, seconds } from "./format.js";
import { live } from "./live.js";
import { LOSERS, REFUSED } from "./overview.js";
import { action, list, table } from "./parts.js";

const number = (title, key, shown = count) => ({ title, number: true, cell: (row) => (row[key] == null ? "–" : shown(row[key])) });
const text = (title, key) => ({ title, cell: (row) => (row[key] == null || row[key] === "" ? "–" : name(row[key])) });

const end = (again) => has("/sessions/{}", "delete") && {
  title: "", cell: (row) => action("End", async () => {
    await ask("DELETE", `/sessions/${part(row.clientid)}`);
    again();
  }, { sure: "its queued messages are lost" }) ?? "",
};

const VIEWS = {
  clients: {
    title: "Clients", path: "/clients",
    search: [
      { parameter: "like_clientid", title: "Client identifier contains" }, { parameter: "like_username", title: "User contains" },
      { parameter: "ip_address", title: "Address or network" }, { parameter: "conn_state", title: "State", choices: ["connected", "disconnected"] },
      { parameter: "min_lag", title: "Lag of at least, s" }, { parameter: "min_dropped", title: "Lost at least" },
    ],
    columns: () => [
      { title: "Client", cell: (row) => client(row.clientid) },
      text("User", "username"),
      { title: "Address", cell: (row) => (row.ip_address ? name(`${row.ip_address}${row.port ? `:${row.port}` : ""}`) : "–") },
      { title: "State", cell: (row) => (row.connected ? "connected" : "away") },
      { title: "Since", cell: (row) => moment(row.connected ? row.connected_at : row.disconnected_at) },
      number("Subscriptions", "subscriptions_cnt"), number("Queued", "mqueue_len"), number("Lag", "lag", (lag) => (lag ? seconds(lag) : "–")),
      number("In flight", "inflight_cnt"), number("Lost", "mqueue_dropped"),
    ],
  },
  sessions: {
    title: "Sessions whose clients are away", path: "/clients", fixed: { conn_state: "disconnected" },
    search: [
      { parameter: "like_clientid", title: "Client identifier contains" }, { parameter: "like_username", title: "User contains" },
      { parameter: "min_dropped", title: "Lost at least" },
    ],
    columns: (again) => [
      { title: "Client", cell: (row) => client(row.clientid) },
      text("User", "username"),
      { title: "Disconnected", cell: (row) => moment(row.disconnected_at) },
      { title: "Expires after", cell: (row) => (row.expiry_interval == null ? "never" : seconds(row.expiry_interval)) },
      number("Subscriptions", "subscriptions_cnt"), number("Queued", "mqueue_len"), number("Queued bytes", "mqueue_bytes", bytes),
      number("Lost", "mqueue_dropped"),
      end(again),
    ].filter(Boolean),
  },
  subscriptions: {
    title: "Subscriptions", path: "/subscriptions",
    search: [
      { parameter: "clientid", title: "Client identifier is" }, { parameter: "topic", title: "Filter is" },
      { parameter: "share_group", title: "Share group is" }, { parameter: "qos", title: "QoS", choices: ["0", "1", "2"] },
    ],
    columns: () => [
      { title: "Client", cell: (row) => client(row.clientid) }, text("Filter", "topic"), number("QoS", "qos"),
      { title: "No Local", cell: (row) => (row.nl ? "yes" : "no") },
    ],
  },
  retained: {
    title: "Retained messages", path: "/mqtt/retainer/messages",
    search: [{ parameter: "topic", title: "Topic matches the filter" }],
    columns: (again) => [
      { title: "Topic", cell: (row) => link("message", { topic: row.topic }, name(row.topic)) },
      number("QoS", "qos"),
      number("Payload", "payload_size", bytes), number("Expires in", "expires_in", seconds),
      { title: "Published by", cell: (row) => (row.from_clientid ? client(row.from_clientid) : "–") },
      has("/mqtt/retainer/message/{}", "delete") && {
        title: "", cell: (row) => action("Clear", async () => {
          await ask("DELETE", `/mqtt/retainer/message/${part(row.topic)}`);
          again();
        }) ?? "",
      },
    ].filter(Boolean),
  },
  losers: { title: "Clients that lost messages", path: "/losers", search: [], columns: () => LOSERS },
  refused: { title: "Clients that were refused something", path: "/refused", search: [], columns: () => REFUSED },
  banned: {
    title: "Bans", path: "/banned", search: [],
    columns: (again) => [
      { title: "What", cell: (row) => row.as ?? "–" }, text("Who", "who"), text("Why", "reason"),
      { title: "Until", cell: (row) => (row.until == null || row.until === "infinity" ? "lifted" : moment(row.until)) },
      has("/banned/{}/{}", "delete") && {
        title: "", cell: (row) => action("Lift", async () => {
          await ask("DELETE", `/banned/${part(row.as)}/${part(row.who)}`);
          again();
        }) ?? "",
      },
    ].filter(Boolean),
  },
};

const MOST_COUNTED = 10000; // queued messages of a session in a list

/** The list of sessions at a node that shares them with others by a database: those of all nodes. */
const SHARED_SESSIONS = {
  title: "Durable sessions of all nodes", path: "/sessions",
  search: [
    { parameter: "like_clientid", title: "Client identifier contains" },
    { parameter: "conn_state", title: "State", choices: ["connected", "disconnected"] },
  ],
  columns: (again) => [
    { title: "Client", cell: (row) => client(row.clientid) }, text("Account", "account"),
    { title: "Connected to", cell: (row) => (row.node ? name(row.node) : "away") },
    { title: "Expires after", cell: (row) => (row.expiry_interval == null ? "never" : seconds(row.expiry_interval)) },
    number("Expires in", "expires_in", seconds), number("Subscriptions", "subscriptions_cnt"),
    number("Queued", "mqueue_len", (queued) => (queued < MOST_COUNTED ? count(queued) : `${count(MOST_COUNTED)} or more`)),
    end(again),
  ].filter(Boolean),
};

const SHARED_CLIENTS = () => h("p", { class: "soft" }, "Clients that are connected to this node. The ",
  link("sessions", {}, "sessions"), " are those of all nodes, also of clients that are away.");

/** The view of one of these lists. */
export const lists = Object.fromEntries(Object.keys(VIEWS).map((view) => [view, (root, parameters) => {
  const shared = live.hello.shares_sessions;
  const described = shared && view === "sessions" ? SHARED_SESSIONS : VIEWS[view];
  let made = null;
  const columns = described.columns(() => made.again());
  made = list({ view, path: described.path, fixed: described.fixed, parameters, caption: described.title, columns, search: described.search });
  replace(root, h("h1", {}, described.title), shared && view === "clients" ? SHARED_CLIENTS() : null, made.element);
  return made;
}]));

/** One retained message. */
export function message(root, parameters) {
  const shown = h("div");
  replace(root, h("h1", {}, "Retained message ", name(parameters.topic ?? "")), shown);
  read();
  async function read() {
    try {
      const found = await ask("GET", `/mqtt/retainer/message/${part(parameters.topic ?? "")}`);
      const raw = payload(found.payload ?? "");
      const again = () => read();
      replace(shown,
        h("p", {}, `QoS ${found.qos}, ${bytes(raw.length)}`, found.from_clientid ? [", published by ", client(found.from_clientid)] : null,
          found.expires_in == null ? null : `, expires in ${seconds(found.expires_in)}`,
          found.content_type ? [", ", name(found.content_type)] : null),
        found.user_properties.length ? table("User properties", [
          { title: "Property", cell: ([key]) => name(key) }, { title: "Value", cell: ([, value]) => name(value) },
        ], found.user_properties) : null,
        h("pre", { tabindex: 0, "aria-label": "Payload" }, readable(raw)),
        h("div", { class: "actions" }, has("/mqtt/retainer/message/{}", "delete")
          ? action("Clear", async () => { await ask("DELETE", `/mqtt/retainer/message/${part(parameters.topic)}`); await again(); }) : null));
    } catch (error) {
      replace(shown, h("p", { class: "notice", role: "alert" }, error.message));
    }
  }
  return {};
}

const payload = (text) => {
  try {
    return Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  } catch {
    return new TextEncoder().encode(text);
  }
};

const SHOWN = 65536;

/** A payload as text where it is some, else in hexadecimal digits. */
function readable(raw) {
  const some = raw.slice(0, SHOWN);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(some, { stream: raw.length > SHOWN });
    try {
      return raw.length > SHOWN ? `${text}…` : JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      return raw.length > SHOWN ? `${text}…` : text;
    }
  } catch {
    return Array.from(some.slice(0, 4096), (each) => each.toString(16).padStart(2, "0")).join(" ");
  }
}
