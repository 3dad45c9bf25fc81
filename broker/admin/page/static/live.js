// The broker's state as `/events` tells it: the last snapshot, and the samples of ten minutes with what follows of them.

export const SAMPLE = [
  "at", "received", "sent", "bytes_in", "bytes_out", "dropped", "queued", "queued_bytes", "lag", "connected", "connections",
];
const MOST = 600;
const GAP = 5000;

export const live = {
  hello: null,
  snapshot: null,
  samples: [],
  /** When the last snapshot came, by this machine's clock; 0: none yet. */
  heard: 0,
  /** Drops by cause between the last two snapshots, a second. */
  dropping: {},
  store: {},
};

let before = null;

export function took(name, data) {
  if (name === "hello") {
    live.hello = data;
    before = null;
  } else if (name === "history") {
    live.samples = data.map(sample);
  } else if (name === "snapshot") {
    const now = sample(data.sample);
    const last = live.samples.at(-1);
    if (!last || now.at > last.at) live.samples.push(now);
    if (live.samples.length > MOST) live.samples.splice(0, live.samples.length - MOST);
    live.dropping = {};
    if (before !== null && now.at > before.sample[0]) {
      const each = 1000 / (now.at - before.sample[0]);
      for (const [cause, total] of Object.entries(data.dropped)) {
        const more = total - (before.dropped[cause] ?? 0);
        if (more > 0) live.dropping[cause] = more * each;
      }
    }
    before = data;
    live.snapshot = data;
    live.heard = Date.now();
  }
}

function sample(row) {
  return Object.fromEntries(SAMPLE.map((name, at) => [name, row[at]]));
}

/** What a total grew by, a second, at each sample; null after a pause. */
export function rates(name) {
  return live.samples.map((now, at) => {
    const last = live.samples[at - 1];
    if (!last || now.at - last.at > GAP || now[name] < last[name]) return null;
    return ((now[name] - last[name]) * 1000) / (now.at - last.at);
  });
}

export const values = (name) => live.samples.map((now) => now[name]);
export const times = () => live.samples.map((now) => now.at / 1000);

/** The mean of a rate over the last seconds. */
export function lately(name, seconds = 5) {
  const last = live.samples.at(-1);
  const first = live.samples.find((each) => each.at >= last?.at - seconds * 1000);
  if (!last || first === last || last[name] < first[name]) return null;
  return ((last[name] - first[name]) * 1000) / (last.at - first.at);
}
