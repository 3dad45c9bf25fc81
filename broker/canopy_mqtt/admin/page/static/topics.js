// The tree of topics with retained messages, opened level by level, and the topics that cost most.

import { ask, has } from "./api.js";
import { client, h, link, name, replace } from "./dom.js";
import { bytes, count, rate, seconds, tenths } from "./format.js";
import { failed, table } from "./parts.js";

const MOST = 100;

/** What is in a tree: where its levels are read, what each says, and how much is right below it. */
const TOPICS = {
  path: "/topics",
  label: (each) => (each.retained && has("/mqtt/retainer/message/{}") ? link("message", { topic: each.topic }, name(each.level)) : name(each.level)),
  more: (each) => (each.retained ? ` ${bytes(each.size)}` : ""),
  prefix: (each) => each.topic,
};

export function topics(root) {
  const tree = h("ul", { class: "tree", "aria-label": "Topics with retained messages" });
  replace(root, h("h1", {}, "Topics"), h("p", { class: "soft" }, "Topics with a retained message, and the levels above them."), tree);
  fill(TOPICS, tree, null, "");
  return {};
}

/** Add a page of the levels below another. */
async function fill(of, list, prefix, cursor) {
  try {
    // A prefix of "" is the first level that is empty; ask() leaves out what is empty.
    const answer = prefix === "" ? await ask("GET", `${of.path}?prefix=` + (cursor ? `&cursor=${encodeURIComponent(cursor)}` : "") + `&limit=${MOST}`)
      : await ask("GET", of.path, { query: { prefix, cursor, limit: MOST } });
    list.append(...answer.data.map((each) => level(of, each)));
    if (answer.data.length === 0 && cursor === "") list.append(h("li", { class: "soft" }, "None."));
    if (answer.meta.hasnext) {
      const more = h("li", {}, h("button", {
        type: "button",
        onclick: async () => {
          more.remove();
          const before = list.children.length;
          await fill(of, list, prefix, answer.meta.cursor);
          list.children[before]?.querySelector("a, button")?.focus();
        },
      }, "More…"));
      list.append(more);
    }
  } catch (error) {
    list.append(h("li", {}, failed(error)));
  }
}

function level(of, each) {
  const label = of.label(each);
  const more = h("span", { class: "soft" }, of.more(each));
  if (each.below === 0) return h("li", {}, h("span", { class: "leaf" }), label, more);
  const below = h("ul", { hidden: true });
  let filled = false;
  const opens = h("button", {
    type: "button",
    class: "opens",
    "aria-expanded": "false",
    "aria-label": `Open ${each.level || "(empty)"}`,
    onclick: () => {
      below.hidden = !below.hidden;
      opens.setAttribute("aria-expanded", String(!below.hidden));
      opens.textContent = below.hidden ? "▸" : "▾";
      if (!filled) {
        filled = true;
        fill(of, below, of.prefix(each), "");
      }
    },
  }, "▸");
  return h("li", {}, opens, label, more, h("span", { class: "soft" }, ` (${count(each.below)})`), below);
}

const share = (part) => (part > 0 && part < 0.0005 ? "< 0.1 %" : `${tenths(100 * part)} %`);

const OF = ["topics", "prefixes", "publishers", "subscribers"];
const BY = ["messages", "bytes"];
const OF_SUBSCRIBERS = [...BY, "drops", "lag"];

/** What costs most, as the broker counts it by samples. */
export function top(root, parameters) {
  const shown = h("div");
  const of = OF.includes(parameters.of) ? parameters.of : "topics";
  const choices = of === "subscribers" ? OF_SUBSCRIBERS : BY;
  const by = choices.includes(parameters.by) ? parameters.by : "messages";
  const choice = (title, all, chosen, other) => h("p", {}, `${title}: `, all.map((each) => [
    link("top", { of, by, ...other(each) }, each === chosen ? h("strong", {}, each) : each), " "]));
  replace(root, h("h1", {}, "Top"), choice("Of", OF, of, (each) => ({ of: each })), choice("By", choices, by, (each) => ({ by: each })), shown);
  let timer = 0;
  let stopped = false;
  async function read() {
    clearTimeout(timer);
    try {
      const answer = await ask("GET", "/top", { query: { of, by, limit: 20 } });
      if (stopped) return;
      const people = of === "publishers" || of === "subscribers";
      const worded = by === "lag" ? seconds : by === "bytes" ? bytes : rate;
      const title = { lag: "Lag", bytes: "Bytes per second", drops: "Lost per second", messages: "Messages per second" }[by];
      const sampled = answer.data.some((row) => row.error || row.deviation);
      replace(shown, table("Top", [
        { title: people ? "Client" : "Topic", cell: (row) => (people ? client(row.name) : name(row.name)) },
        { title, number: true, cell: (row) => worded(row.value) },
        { title: "Share", number: true, cell: (row) => (by === "lag" || !answer.total ? "–" : share(row.value / answer.total)) },
        ...(sampled ? [{ title: "Error at most", number: true, cell: (row) => worded(row.error) }] : []),
      ], answer.data), h("p", { class: "soft" }, `Over ${seconds(answer.seconds)}; ${by === "lag" ? "the longest" : "all together"}: ${worded(answer.total)}.`));
    } catch (error) {
      if (!stopped) replace(shown, failed(error));
    }
    if (!stopped) timer = setTimeout(read, 3000);
  }
  read();
  return { again: read, close() { stopped = true; clearTimeout(timer); } };
}
