// What would happen to a message now, and why: the broker's own sentences.

import { ask } from "./api.js";
import { client, h, place, replace, sentence } from "./dom.js";
import { plural } from "./format.js";
import { failed, table } from "./parts.js";

export function explain(root, parameters) {
  const field = (parameter, title, more = {}) => h("label", {}, title, h("input", { name: parameter, value: parameters[parameter] ?? "", autocomplete: "off", ...more }));
  const form = h("form", {
    class: "search",
    onsubmit(event) {
      event.preventDefault();
      location.hash = place("explain", Object.fromEntries(new FormData(form)));
    },
  },
  field("topic", "Topic", { type: "search", required: true }), field("client", "Receiver (empty: all clients)"),
  field("publisher", "Publisher"),
  h("label", {}, "QoS", h("select", { name: "qos" }, ["0", "1", "2"].map((each) => h("option", { value: each, selected: each === parameters.qos }, each)))),
  h("button", {}, "Explain"));
  const shown = h("div", { "aria-live": "polite" });
  replace(root, h("h1", {}, "Explain"), h("p", { class: "soft" }, "Who would receive a message published now. Nothing is published."), form, shown);
  async function read() {
    if (!parameters.topic) return;
    try {
      const answer = await ask("GET", "/explain", { query: { topic: parameters.topic, client: parameters.client, publisher: parameters.publisher, qos: parameters.qos, limit: 100 } });
      const said = (title, sentences) => (sentences.length ? [h("h2", {}, title), sentences.map((each) => h("p", {}, sentence(each)))] : []);
      replace(shown,
        said("The publisher", [answer.publisher.sentence]),
        h("h2", {}, "Receivers"),
        table("Receivers", [
          { title: "", cell: (each) => (each.gets ? (each.certain ? "yes" : "yes?") : "no") },
          { title: "Client", cell: (each) => client(each.client_id) },
          { title: "Why", cell: (each) => sentence(each.sentence) },
        ], answer.receivers),
        answer.cursor ? h("p", { class: "soft" }, "and others") : null,
        said("Shared subscriptions", answer.groups.map((each) => each.sentence)),
        answer.more_groups ? h("p", { class: "soft" }, `and ${plural(answer.more_groups, "more share group")}`) : null,
        answer.retained ? said("Retained", [answer.retained.sentence]) : null,
        said("Not known", answer.unknown));
    } catch (error) {
      replace(shown, failed(error));
    }
  }
  read();
  return { again: read };
}
