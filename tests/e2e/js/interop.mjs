// Runs scenarios that the tests ask of mqtt.js: `node interop.mjs URL VERSION NAME SCENARIO...`. Prints one line of JSON: an
// object with what each scenario saw, or `{error}` when something that should come does not.

import mqtt from "mqtt";

const [url, version, stem, ...asked] = process.argv.slice(2);
const PATIENCE = 15_000;
const v5 = version === "5";
let name;

function within(what, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing within ${PATIENCE} ms: ${what}`)), PATIENCE);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

class Client {
  static async connect(id, options = {}) {
    const made = new Client();
    made.messages = [];
    made.waiting = [];
    made.client = mqtt.connect(url, {
      clientId: `${name}-${id}`, protocolVersion: Number(version), reconnectPeriod: 0, ...options,
    });
    made.client.on("message", (topic, payload, packet) => {
      const { qos, retain, properties } = packet;
      const seen = { topic, payload: payload.toString(), size: payload.length, qos, retain, properties };
      const next = made.waiting.shift();
      if (next) next(seen); else made.messages.push(seen);
    });
    made.closed = new Promise((resolve) => made.client.once("close", resolve));
    made.connack = await within("CONNACK", new Promise((resolve, reject) => {
      made.client.once("connect", resolve);
      made.client.once("error", reject);
    }));
    return made;
  }

  message() {
    if (this.messages.length) return Promise.resolve(this.messages.shift());
    return within("a message", new Promise((resolve) => this.waiting.push(resolve)));
  }

  subscribe(filter, options) { return within("SUBACK", this.client.subscribeAsync(filter, options)); }
  unsubscribe(filter) { return within("UNSUBACK", this.client.unsubscribeAsync(filter)); }
  publish(topic, payload, options) { return within("an acknowledgement", this.client.publishAsync(topic, payload, options)); }
  end() { return within("the end", this.client.endAsync()); }
  cut() { this.client.stream.destroy(); return within("the end", this.closed); }
}

const kept = v5 ? { clean: false, properties: { sessionExpiryInterval: 3600 } } : { clean: false };

const scenarios = {
  async qualities() {
    const client = await Client.connect("both");
    const seen = [];
    for (const granted of [0, 1, 2]) {
      await client.subscribe(`${name}/${granted}`, { qos: granted });
      for (const qos of [0, 1, 2]) {
        await client.publish(`${name}/${granted}`, "grüße 🌍", { qos });
        const { payload, qos: got } = await client.message();
        seen.push([granted, qos, got, payload]);
      }
    }
    await client.end();
    return seen;
  },

  async retained() {
    const publisher = await Client.connect("pub");
    await publisher.publish(`${name}/世界`, "old", { qos: 1, retain: true });
    await publisher.publish(`${name}/世界`, "new", { qos: 1, retain: true });
    const late = await Client.connect("late");
    await late.subscribe(`${name}/+`, { qos: 1 });
    const first = await late.message();
    await publisher.publish(`${name}/世界`, "", { qos: 1, retain: true });
    const cleared = await late.message();
    const later = await Client.connect("later");
    await later.subscribe([`${name}/#`, `${name}-fence`], { qos: 1 });
    await publisher.publish(`${name}-fence`, "fence", { qos: 1 });
    const next = await later.message();
    await Promise.all([publisher.end(), late.end(), later.end()]);
    return [[first.payload, first.retain], [cleared.payload, cleared.retain], [next.payload, next.retain]];
  },

  async will() {
    const watcher = await Client.connect("watch");
    await watcher.subscribe(name, { qos: 1 });
    const mortal = await Client.connect("mortal", { will: { topic: name, payload: Buffer.from("lost"), qos: 1 } });
    await mortal.cut();
    const { payload } = await watcher.message();
    await watcher.end();
    return payload;
  },

  async session() {
    const keeper = await Client.connect("keeper", kept);
    await keeper.subscribe(name, { qos: 2 });
    await keeper.end();
    const publisher = await Client.connect("pub");
    for (let number = 0; number < 20; number += 1) await publisher.publish(name, `${number}`, { qos: 1 + (number % 2) });
    const back = await Client.connect("keeper", kept);
    const seen = [];
    while (seen.length < 20) seen.push((await back.message()).payload);
    await Promise.all([publisher.end(), back.end()]);
    return [keeper.connack.sessionPresent, back.connack.sessionPresent, seen];
  },

  async takeover() {
    const first = await Client.connect("twin");
    let told = null;
    first.client.on("disconnect", (packet) => { told = packet.reasonCode; });
    const second = await Client.connect("twin");
    await within("the end of the first", first.closed);
    await second.end();
    return told;
  },

  async unsubscribing() {
    const client = await Client.connect("both");
    await client.subscribe([name, `${name}-fence`], { qos: 1 });
    await client.publish(name, "before", { qos: 1 });
    const before = await client.message();
    await client.unsubscribe(name);
    await client.publish(name, "after", { qos: 1 });
    await client.publish(`${name}-fence`, "fence", { qos: 1 });
    const after = await client.message();
    await client.end();
    return [before.payload, after.payload];
  },

  async shared() {
    const members = [await Client.connect("one"), await Client.connect("two")];
    for (const member of members) await member.subscribe([`$share/group/${name}`, `${name}-fence`], { qos: 1 });
    const publisher = await Client.connect("pub");
    for (let number = 0; number < 20; number += 1) await publisher.publish(name, `${number}`, { qos: 1 });
    await publisher.publish(`${name}-fence`, "fence", { qos: 1 });
    const shares = [];
    for (const member of members) {
      const share = [];
      for (let next = await member.message(); next.payload !== "fence"; next = await member.message()) {
        share.push(Number(next.payload));
      }
      shares.push(share);
    }
    await Promise.all([publisher, ...members].map((client) => client.end()));
    return shares;
  },

  async big() {
    const client = await Client.connect("big");
    await client.subscribe(name, { qos: 2 });
    await client.publish(name, Buffer.alloc(1_048_000, "x"), { qos: 2 });
    const { size, qos } = await client.message();
    await client.end();
    return [size, qos];
  },

  async properties() {
    const client = await Client.connect("both");
    await client.subscribe(name, { qos: 1, properties: { subscriptionIdentifier: 7 } });
    await client.publish(name, "body", {
      qos: 1,
      properties: {
        contentType: "text/plain", responseTopic: "answers", correlationData: Buffer.from("42"),
        messageExpiryInterval: 60, payloadFormatIndicator: true, userProperties: { a: ["1", "2"], b: "ñ" },
      },
    });
    const { properties } = await client.message();
    await client.end();
    return { ...properties, correlationData: properties.correlationData.toString() };
  },
};

const seen = {};
for (const scenario of asked) {
  name = `${stem}${scenario}`;
  try {
    seen[scenario] = await scenarios[scenario]();
  } catch (error) {
    seen[scenario] = { error: error.stack };
  }
}
console.log(JSON.stringify(seen));
process.exit(0);
