// SCRAM-SHA-256 as enhanced authentication, by mqtt.js and Node's own hashes: node scram.mjs URL USER PASSWORD
// Prints, as JSON, the reason code of the CONNACK, and whether the broker has proved that it knows the password too.
import { createHash, createHmac, pbkdf2Sync, randomBytes } from "node:crypto";
import mqtt from "mqtt";

const [url, user, password] = process.argv.slice(2);
const hmac = (key, text) => createHmac("sha256", key).update(text).digest();
const bare = `n=${user},r=${randomBytes(18).toString("base64")}`;
let proof = "";

const client = mqtt.connect(url, {
  protocolVersion: 5,
  clientId: "mqttjs-scram",
  reconnectPeriod: 0,
  properties: { authenticationMethod: "SCRAM-SHA-256", authenticationData: Buffer.from(`n,,${bare}`) }
});

client.handleAuth = (packet, callback) => {
  const challenge = packet.properties.authenticationData.toString();
  const [nonce, salt, iterations] = challenge.split(",").map(part => part.slice(2));
  const salted = pbkdf2Sync(password, Buffer.from(salt, "base64"), Number(iterations), 32, "sha256");
  const key = hmac(salted, "Client Key");
  const final = `c=biws,r=${nonce}`;
  const signed = `${bare},${challenge},${final}`;
  const signature = hmac(createHash("sha256").update(key).digest(), signed);
  proof = `v=${hmac(hmac(salted, "Server Key"), signed).toString("base64")}`;
  const answer = Buffer.from(key.map((byte, at) => byte ^ signature[at])).toString("base64");
  callback(null, {
    cmd: "auth",
    reasonCode: 0x18,
    properties: {
      authenticationMethod: "SCRAM-SHA-256",
      authenticationData: Buffer.from(`${final},p=${answer}`)
    }
  });
}

const end = told => {
  console.log(JSON.stringify(told));
  client.end(true, () => process.exit(0));
}
client.on("connect", packet => end([packet.reasonCode, packet.properties.authenticationData.toString() === proof]));
client.on("error", error => end([error.code ?? String(error), false]));
