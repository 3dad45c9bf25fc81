// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const tenths = (value) => tenth.format(value);

export const count = (value) => (value == null ? "–" : whole.format(value));
export const rate = (value) => (value == null ? "–" : value > 0 && value < 10 ? tenths(value) : whole.format(value));

export function short(value) {
  if (value == null) return "";
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (Math.abs(value) >= size) return tenths(value / size) + unit;
  }
  return tenths(value);
}

export function bytes(value) {
  if (value == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at === 0 ? whole.format(value) : tenths(value)} ${units[at]}`;
}

export function seconds(value) {
  if (value == null) return "–";
  if (value === 0) return "0 s";
  if (value < 1) return `${whole.format(value * 1000)} ms`;
  if (value < 60) return `${tenths(value)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = units.findIndex(([, size]) => value >= size);
  const [unit, size] = units[at];
  const first = Math.floor(value / size);
  const rest = at + 1 < units.length ? Math.floor((value % size) / units[at + 1][1]) : 0;
  return rest ? `${first} ${unit} ${rest} ${units[at + 1][0]}` : `${first} ${unit}`;
}

/** A time as the API has it: ISO 8601, or seconds or milliseconds since 1970. */
export function moment(value) {
  if (value == null || value === "") return "–";
  const date = new Date(typeof value === "number" && value < 1e11 ? value * 1000 : value);
  if (Number.isNaN(date.getTime())) return String(value);
  const today = new Date().toDateString() === date.toDateString();
  return today ? date.toLocaleTimeString() : date.toLocaleString();
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
