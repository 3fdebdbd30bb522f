// Reads the server and its runtimes, and makes of each runtime what a row of the list shows.

import { get } from "/page/api.js";

/** The most runtimes that one request gives. */
const PAGE = 1000;

/** Requests at the last read of each runtime, for rates. */
const before = new Map();

/** Requests per second since the last read of this runtime; null at the first, and after a restart of the server. */
function rateOf(view, now) {
  const last = before.get(view.label);
  // Two reads right behind each other say little.
  if (last && now - last.at < 500) return last.rate;
  const requests = view.requests - (last?.requests ?? Infinity);
  const rate = requests >= 0 ? (1000 * requests) / (now - last.at) : null;
  before.set(view.label, { requests: view.requests, at: now, rate });
  return rate;
}

/** Why a runtime is offline: the refusal of its client, or the end of its last session, whichever came later. */
export function whyOffline(view) {
  if (view.online) return null;
  const { last_refusal: refusal, last_session_end: end } = view;
  if (refusal && !(end && end.at >= refusal.at)) return { what: "refused", ...refusal };
  return end ? { what: "ended", ...end } : null;
}

/** The state of a runtime: a word, and its tone. */
export function stateOf(view) {
  if (!view.online) return whyOffline(view)?.what === "refused" ? ["refused", "bad"] : ["offline", "off"];
  const { sessions } = view;
  const isLeaving = sessions.length > 0 && sessions.every((session) => session.is_draining);
  return isLeaving ? ["draining", "warn"] : ["online", "good"];
}

/** The shortest round trip of the sessions; null if none is known. */
export function roundTrip(view) {
  const times = view.sessions.map((session) => session.round_trip_ms).filter((time) => time !== undefined);
  return times.length > 0 ? Math.min(...times) : null;
}

const distinct = (values) => [...new Set(values)].join(", ");

function rowOf(view, now) {
  const why = whyOffline(view);
  const [state, tone] = stateOf(view);
  const { sessions } = view;
  const versions = distinct(sessions.map((session) => session.client_version));
  const peers = distinct(sessions.map((session) => session.peer.replace(/:\d+$/, "")));
  const row = {
    label: view.label,
    account: view.account,
    state,
    tone,
    since: view.online ? view.online_since : view.last_online,
    why: why?.reason ?? null,
    detail: why?.detail ?? null,
    sessions: sessions.length,
    version: versions || why?.client_version || null,
    peer: peers || why?.peer?.replace(/:\d+$/, "") || null,
    nodes: view.nodes?.join(", ") ?? null,
    roundTrip: roundTrip(view),
    rate: view.online ? rateOf(view, now) : null,
    open: view.online ? view.open_exchanges : null,
    problem: view.last_problem?.reason ?? null,
    problemAt: view.last_problem?.at ?? null,
  };
  const text = [row.label, row.account, row.why, row.version, row.peer, row.nodes, row.problem, ...view.hosts];
  row.text = text.filter(Boolean).join(" ").toLowerCase();
  return row;
}

export const readServer = () => get("/api/v1/status");

/** Every runtime as a row, in the order of the labels, and the nodes that did not answer. */
export async function readFleet() {
  const rows = [];
  const unanswered = new Set();
  let after = null;
  do {
    const query = new URLSearchParams({ limit: PAGE });
    if (after !== null) query.set("after", after);
    const page = await get(`/api/v1/runtimes?${query}`);
    const now = performance.now();
    for (const view of page.runtimes) rows.push(rowOf(view, now));
    for (const node of page.unanswered ?? []) unanswered.add(node);
    after = page.next ?? null;
  } while (after !== null);
  const known = new Set(rows.map((row) => row.label));
  for (const label of before.keys()) if (!known.has(label)) before.delete(label);
  return { rows, unanswered: [...unanswered] };
}

/** One runtime as the API has it, with its rate. */
export async function readRuntime(label) {
  const view = await get(`/api/v1/runtimes/${encodeURIComponent(label)}`);
  return { ...view, rate: view.online ? rateOf(view, performance.now()) : null };
}

export const linkTo = (label) => `#/runtimes/${encodeURIComponent(label)}`;
