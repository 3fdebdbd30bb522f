// Requests of the admin API, with the admin token if there is one.

/** A refusal of the API, or no answer at all (`status` 0). */
export class ApiError extends Error {
  constructor(status, reason, detail) {
    super(detail);
    this.status = status;
    this.reason = reason;
  }

  /** Whether a token, or another one, may help. */
  get wantsToken() {
    return this.status === 401;
  }
}

let adminToken = null;

/** The admin token. It is kept in memory alone: what is stored for this address would be there for whatever program is reached
 *  by a forwarded port next. */
export const token = {
  isGiven: () => adminToken !== null,
  set(value) { adminToken = value; },
  forget() { adminToken = null; },
};

/** The response to a request, if it is a success. */
async function request(path, { method = "GET", body, headers = {}, signal } = {}) {
  const fields = new Headers(headers);
  if (adminToken !== null) fields.set("Authorization", `Bearer ${adminToken}`);
  if (body !== undefined) fields.set("Content-Type", "application/json");
  const content = body === undefined ? undefined : JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, { method, body: content, headers: fields, signal, cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "no answer");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new ApiError(response.status, problem.reason ?? "", problem.detail ?? `status ${response.status}`);
}

export async function get(path, options) {
  const response = await request(path, options);
  return response.json().catch(() => {
    throw new ApiError(0, "unreachable", "the answer is cut");
  });
}

export async function post(path, body) {
  const response = await request(path, { method: "POST", body });
  return response.json();
}

/** The Server-Sent Events of a response, one after another: `{ event, data, id }`. An `EventSource` could not send the
 *  token. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = {};
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (event.data !== undefined) yield event;
        event = {};
        continue;
      }
      const colon = line.indexOf(":");
      if (colon === 0) continue;
      const name = colon < 0 ? line : line.slice(0, colon);
      const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (name === "data") event.data = event.data === undefined ? text : `${event.data}\n${text}`;
      else event[name] = text;
    }
  }
}

/** How long the stream of a process that was replaced is read on, in milliseconds: a browser has six connections for a host. */
const REPLACED_MS = 10_000;

/** Reads a stream until `signal` aborts it, and opens it anew when it breaks. When a new process takes the listener over, its
 *  stream is read, and for a while the old one. `on` gets `open()`, `event(name, data)`,
 *  and `closed(error)`, which returns whether to go on. With `position`, an object, the stream continues where the last one that
 *  had this object ended. */
export async function follow(path, signal, on, position) {
  while (!signal.aborted) {
    let failure = new ApiError(0, "unreachable", "the stream has ended");
    let isReplaced = false;
    const over = new AbortController();
    const either = AbortSignal.any([signal, over.signal]);
    try {
      const headers = position?.last ? { "Last-Event-ID": position.last } : {};
      const response = await request(path, { signal: either, headers });
      on.open?.();
      for await (const { event, data, id } of eventsOf(response)) {
        if (signal.aborted) return;
        if (isReplaced && event === "replaced") continue;
        if (position && id && !isReplaced) position.last = id;
        if (event === "replaced") {
          isReplaced = true;
          setTimeout(() => over.abort(), REPLACED_MS);
          follow(path, signal, on, position);
          continue;
        }
        on.event(event, JSON.parse(data));
      }
    } catch (error) {
      if (error instanceof ApiError) failure = error;
    }
    if (signal.aborted || isReplaced || !on.closed(failure)) return;
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, 2000);
      signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
    });
  }
}
