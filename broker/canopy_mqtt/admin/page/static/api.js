// What asks the broker. Credentials go along with each request by hand and are kept for this tab alone: the browser has
// none of its own that a page of another site could use.

const KEY = "canopy-authorization";

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

let paths = {};

function authorization() {
  return sessionStorage.getItem(KEY);
}

/** Keep what the person typed. Without a user it is a token. */
export function signIn(user, secret) {
  const text = user === "" ? `Bearer ${secret}` : `Basic ${base64(`${user}:${secret}`)}`;
  sessionStorage.setItem(KEY, text);
}

export function signOut() {
  sessionStorage.removeItem(KEY);
}

export const signedIn = () => authorization() !== null;

function base64(text) {
  return btoa(Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join(""));
}

async function send(method, path, body, signal) {
  const headers = {};
  const known = authorization();
  if (known !== null) headers.Authorization = known;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  // Beside this file's folder, so that the page also works below a path of a proxy.
  return fetch(new URL(`..${path}`, import.meta.url), {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "omit",
    redirect: "error",
    cache: "no-store",
    signal,
  });
}

async function refusal(answer) {
  let refused = {};
  try {
    refused = await answer.json();
  } catch {
    // No JSON: the status says it.
  }
  return new Refused(answer.status, refused.code ?? "", refused.message ?? `HTTP ${answer.status}`);
}

/** Ask the API. What it answers; null for no content. Throws Refused. */
export async function ask(method, path, { query = {}, body, signal } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const search = new URLSearchParams(given).toString();
  const answer = await send(method, `/api/v5${path}${search ? `?${search}` : ""}`, body, signal);
  if (!answer.ok) throw await refusal(answer);
  if (answer.status === 204) return null;
  return answer.json();
}

/** Learn which routes this broker has. */
export async function learn() {
  const answer = await send("GET", "/api/v5/openapi.json");
  if (!answer.ok) return;
  const routes = (await answer.json()).paths ?? {};
  paths = Object.fromEntries(Object.entries(routes).map(([path, methods]) => [nameless(path), methods]));
}

/** A path with what stands for its parts left out: `/clients/{}`. */
const nameless = (path) => path.replace(/\{[^}]*\}/g, "{}");

/** Whether there is a route. `path` has `{}` for each of its parts. */
export function has(path, method = "get") {
  return paths[`/api/v5${path}`]?.[method] !== undefined;
}

/** The parameters that a route takes in its query. */
export function takes(path, parameter, method = "get") {
  return (paths[`/api/v5${path}`]?.[method]?.parameters ?? []).some((each) => each.name === parameter);
}

/** A part of a path. The escape is for names that would be steps of it: the API leaves one out. */
export const part = (name) => encodeURIComponent(/^(\.{1,2}$|\x1b)/.test(name) ? `\x1b${name}` : name);

/** A file of the API, which the browser then keeps where it keeps downloads. Throws Refused. */
export async function download(path, filename) {
  const answer = await send("GET", `/api/v5${path}`);
  if (!answer.ok) throw await refusal(answer);
  const url = URL.createObjectURL(await answer.blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = filename;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Read `/events` until it ends; `on(name, data)` for each event. Throws Refused. */
export async function listen(on, signal) {
  const answer = await send("GET", "/events", undefined, signal);
  if (!answer.ok) throw await refusal(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      on(lines[0].replace("event: ", ""), JSON.parse(lines[1].replace("data: ", "")));
    }
  }
}
