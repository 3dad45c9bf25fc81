// The broker's state as `/events` tells it: the last snapshot, and the samples of ten minutes with what follows of them.

export const SAMPLE = [
  "at", "received", "sent", "bytes_in", "bytes_out", "dropped", "queued", "queued_bytes", "lag", "connected", "connections",
];
const MOST = 600; // samples, and seconds
const GAP = 3000; // milliseconds without a sample: nobody knows what was then

export const live = {
  hello: null,
  snapshot: null,
  samples: [],
  /** When the last snapshot came, by this machine's clock; 0: none yet. */
  heard: 0,
  /** Whether the broker answers: the stream of its state is open. */
  answers: false,
  /** Drops by cause between the last two snapshots, a second. */
  dropping: {},
  store: {},
};

let before = null;

export function took(name, data) {
  if (name === "hello") {
    live.hello = data;
    live.answers = true;
    before = null;
  } else if (name === "history") {
    live.samples = data.map(sample);
    rows = null;
  } else if (name === "snapshot") {
    const now = sample(data.sample);
    const last = live.samples.at(-1);
    // The broker's clock was set back: what was before has no place on the axis any more.
    if (last && now.at < last.at) live.samples = [];
    if (!last || now.at !== last.at) live.samples.push(now);
    rows = null;
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

let rows = null;

/** The samples of the last ten minutes, with an empty one in each gap: no line leads over what was not measured. */
function drawn() {
  if (rows !== null) return rows;
  rows = [];
  const from = (live.samples.at(-1)?.at ?? 0) - MOST * 1000;
  let last = null;
  for (const now of live.samples) {
    if (now.at < from) continue;
    if (last !== null && now.at - last.at > GAP) rows.push({ at: last.at + 1000, empty: true });
    rows.push(now);
    last = now;
  }
  return rows;
}

/** What a total grew by, a second, at each sample; null at a gap and behind it. */
export function rates(name) {
  const all = drawn();
  return all.map((now, at) => {
    const last = all[at - 1];
    if (!last || last.empty || now.empty || now[name] < last[name]) return null;
    return ((now[name] - last[name]) * 1000) / (now.at - last.at);
  });
}

export const values = (name) => drawn().map((now) => now[name] ?? null);
export const times = () => drawn().map((now) => now.at / 1000);

/** The mean of a rate over the last seconds. */
export function lately(name, seconds = 5) {
  const last = live.samples.at(-1);
  const first = live.samples.find((each) => each.at >= last?.at - seconds * 1000);
  if (!last || first === last || last[name] < first[name]) return null;
  return ((last[name] - first[name]) * 1000) / (last.at - first.at);
}
