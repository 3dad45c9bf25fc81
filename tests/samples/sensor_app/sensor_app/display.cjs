// A display, by mqtt.js: prints each reading in a line. `node display.cjs PORT`.

const mqtt = require("mqtt");

const client = mqtt.connect(`mqtt://127.0.0.1:${process.argv[2]}`, {
  clientId: "display", reconnectPeriod: 50, protocolVersion: 5,
});
client.on("connect", () => client.subscribe("sensors/+/temperature", { qos: 1 }));
client.on("message", (topic, payload) => console.log(`${topic.split("/")[1]}: ${payload} °C`));
client.on("error", () => {});
