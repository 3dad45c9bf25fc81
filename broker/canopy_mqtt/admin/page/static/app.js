// The page: which view is shown, the line on top of all, keys, and signing in.

import { learn, listen, has, Refused, signedIn, signIn, signOut } from "./api.js";
import { client } from "./client.js";
import { h, name, place, refresh, replace } from "./dom.js";
import { explain } from "./explain.js";
import { headline } from "./findings.js";
import { lists, message } from "./lists.js";
import { live, took } from "./live.js";
import { overview, slow } from "./overview.js";
import { alarms, store, upstreams } from "./status.js";
import { top, topics } from "./topics.js";
import { traces } from "./traces.js";

/** In the order in which they are offered: `path` is what they need of the API. */
const VIEWS = {
  overview: { title: "Overview", make: overview },
  slow: { title: "Slow", make: slow },
  losers: { title: "Losers", make: lists.losers, path: "/losers" },
  refused: { title: "Refused", make: lists.refused, path: "/refused" },
  top: { title: "Top", make: top, path: "/top" },
  topics: { title: "Topics", make: topics, path: "/topics" },
  clients: { title: "Clients", make: lists.clients, path: "/clients" },
  sessions: { title: "Sessions", make: lists.sessions, path: "/clients" },
  subscriptions: { title: "Subscriptions", make: lists.subscriptions, path: "/subscriptions" },
  retained: { title: "Retained", make: lists.retained, path: "/mqtt/retainer/messages" },
  upstreams: { title: "Upstream", make: upstreams },
  store: { title: "Store", make: store },
  explain: { title: "Explain", make: explain, path: "/explain" },
  traces: { title: "Traces", make: traces, path: "/trace", operators: true },
  alarms: { title: "Alarms", make: alarms, path: "/alarms" },
  banned: { title: "Bans", make: lists.banned, path: "/banned" },
  client: { title: "Client", make: client, hidden: true },
  message: { title: "Retained message", make: message, hidden: true },
  missing: { title: "No such view", make: missing, hidden: true },
};

const PAUSE = 2000; // milliseconds before the broker is asked again

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const top_ = document.getElementById("headline");
let view = null;
let offered = [];

function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const wanted = path === "" ? "overview" : Object.hasOwn(VIEWS, path) ? path : "missing";
  return [wanted, Object.fromEntries(new URLSearchParams(query))];
}

/** What stands where an address names no view. */
function missing(root) {
  replace(root, h("h1", {}, "There is no such view"), h("p", {}, "The address names none of the views of this page. There are:"),
    h("ul", {}, offered.map((each) => h("li", {}, h("a", { href: place(each) }, VIEWS[each].title)))));
  return {};
}

/** Have the tab of the present view be marked, and be on the screen. */
function mark() {
  const [wanted] = here();
  for (const each of nav.querySelectorAll("a")) {
    if (each.getAttribute("href") !== place(wanted)) {
      each.removeAttribute("aria-current");
      continue;
    }
    each.setAttribute("aria-current", "page");
    each.scrollIntoView({ inline: "center", block: "nearest" });
  }
}

function show(focus = true) {
  const [wanted, parameters] = here();
  view?.close?.();
  mark();
  document.title = `${VIEWS[wanted].title} · ${location.host} · Canopy`;
  replace(main);
  view = VIEWS[wanted].make(main, parameters);
  view.tick?.();
  if (focus) main.focus();
}

function offer() {
  offered = Object.keys(VIEWS).filter((each) => {
    const { hidden, path, operators } = VIEWS[each];
    return !hidden && (!path || has(path)) && (!operators || live.hello?.role === "operator");
  });
  replace(nav, offered.map((each) => h("a", { href: place(each) }, VIEWS[each].title)));
  mark();
}

let said = "";
let role = "";

function tell() {
  const line = headline();
  // What is only a little more or less than a second ago is not read out again.
  const text = line.textContent;
  const gist = text.replace(/[\d.,:]+/g, "");
  refresh(top_, line); // which may take pieces out of the line
  if (gist !== said) {
    said = gist;
    document.getElementById("said").textContent = text;
  }
}

function greet() {
  const { role, who, name: broker, node, version } = live.hello;
  // Without a name in its settings (federation.broker_id) it has a new one at each start, which tells nothing.
  replace(document.getElementById("broker"), name(broker || location.host), ...(node ? [" (node ", name(node), " of its cluster: its own clients and figures)"] : []), ` ${version}`);
  replace(document.getElementById("who"), name(who), ` (${role})`);
  document.getElementById("sign-out").hidden = !signedIn();
}

/** Ask who it is; resolves when somebody has answered. */
function askWho(wrong) {
  return new Promise((resolve) => {
    const user = h("input", { name: "user", autocomplete: "username", maxlength: 1000 });
    const secret = h("input", { type: "password", name: "secret", autocomplete: "current-password", maxlength: 1000, required: true });
    const dialog = h("dialog", { "aria-label": "Sign in" }, h("form", {
      onsubmit(event) {
        event.preventDefault();
        signIn(user.value.trim(), secret.value);
        secret.value = "";
        dialog.close();
        dialog.remove();
        resolve();
      },
    }, h("h2", {}, "Sign in"), wrong ? h("p", { class: "notice bad", role: "alert" }, wrong) : null,
    h("label", {}, "User (empty: with a token)", user), h("label", {}, "Password or token", secret), h("button", {}, "Sign in")));
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    document.body.append(dialog);
    dialog.showModal();
  });
}

let stream = null;
let back = false; // it was connected before: what views have read is old

async function run() {
  offer();
  for (;;) {
    try {
      await learn();
      offer();
      stream = new AbortController();
      await listen((kind, data) => {
        took(kind, data);
        if (kind === "hello") {
          greet();
          if (back) view?.again?.();
          back = true;
        }
        if (kind !== "snapshot") return;
        if (role !== live.hello.role) {
          // Who it is decides which buttons there are.
          role = live.hello.role;
          offer();
          show(false);
        }
        tell();
        view?.tick?.();
      }, stream.signal);
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        const wrong = signedIn() ? error.message : "";
        signOut();
        await askWho(wrong);
        continue;
      }
      if (error instanceof Refused) replace(top_, h("p", {}, error.message));
    }
    live.answers = false;
    if (live.snapshot !== null) tell();
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
}

document.getElementById("sign-out").addEventListener("click", () => {
  signOut();
  location.reload();
});
window.addEventListener("hashchange", () => live.hello && show());
window.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog")) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const number = Number(event.key);
  if (number >= 1 && number <= offered.length) location.hash = place(offered[number - 1]);
  else if (event.key === "/") {
    const field = main.querySelector("input[type=search]");
    if (field) field.focus();
    else if (has("/clients")) location.hash = place("clients");
    event.preventDefault();
  } else if (event.key === "r") view?.again?.();
});
setInterval(() => {
  // Also while nothing comes: that is to be told.
  if (live.snapshot !== null && Date.now() - live.heard > 3000) tell();
}, 1000);
run();
