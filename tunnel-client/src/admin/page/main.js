// The page of a client's admin listener: is the tunnel up, and if not, why; what its routes lead to; what went wrong last. All
// of it comes from `/api/v1/status`, and from `/api/v1/exchanges` while somebody watches.

import { ApiError, get } from "/page/api.js";
import { DataTable, Facts, Stats, card, h, repeatedly, setText, showBanners, state } from "/page/dom.js";
import { ago, bytes, duration, moment, number, plural, rate, since } from "/page/format.js";
import { ExchangeTail } from "/page/tail.js";

/** Routes that are shown. */
const ROUTES_SHOWN = 200;

const TONES = {
  online: "good", serving: "good", dialling: "warn", "standing-by": "warn", refused: "bad", stopping: "warn", stopped: "off",
  up: "good", own: "good", degraded: "warn", ejected: "warn", down: "bad", unreachable: "bad", unhealthy: "bad", unknown: "off",
};

const SESSIONS = [
  { name: "number", title: "Session", kind: "lead", cell: (session) => ({ text: `no. ${session.number}`, sub: session.id }) },
  { name: "state", title: "State", cell: (session) => (session.is_draining ? { text: "draining", tone: "warn" } : { text: "open", tone: "good" }) },
  { name: "server", title: "Server", kind: "full", cell: (session) => ({ text: session.server, sub: session.node && `node ${session.node}` }) },
  { name: "peer", title: "Address", kind: "wide-only", cell: (session) => session.peer },
  { name: "version", title: "Version", kind: "wide-only", cell: (session) => session.server_version },
  { name: "since", title: "For", cell: (session) => since(session.since) },
  { name: "round-trip", title: "Round trip", numeric: true, cell: (session) => duration(session.round_trip_ms) },
  { name: "open", title: "Open", numeric: true, cell: (session) => number(session.open_exchanges) },
  { name: "in", title: "In", numeric: true, cell: (session) => bytes(session.bytes_in) },
  { name: "out", title: "Out", numeric: true, cell: (session) => bytes(session.bytes_out) },
];

const ROUTES = [
  { name: "name", title: "Route", kind: "lead", cell: (route) => route.name },
  { name: "matches", title: "Matches", kind: "full break", cell: (route) => route.matches },
  { name: "state", title: "State", cell: (route) => ({ text: route.state, tone: TONES[route.state] }) },
  { name: "to", title: "To", kind: "full break", cell: (route) => toOf(route) },
];

const PROBLEMS = [
  { name: "at", title: "Last", kind: "keep", cell: (problem) => ago(problem.at) },
  { name: "count", title: "Times", numeric: true, cell: (problem) => number(problem.count) },
  { name: "reason", title: "Problem", kind: "lead", cell: (problem) => problem.reason },
  { name: "detail", title: "What", kind: "full break", cell: (problem) => problem.detail },
];

/** Where a route leads: its upstreams with their states, or its own answer. */
function toOf(route) {
  if (route.upstreams.length < 2) return route.to;
  return route.upstreams.map(({ url, state: condition }) => ({ text: url, beside: condition, tone: TONES[condition] }));
}

const element = (id) => document.getElementById(id);

const name = h("h2", {}, "…");
const now = h("span");
const address = h("p", { class: "soft" });
const stats = new Stats();
const connection = new Facts();
const last = new Facts();
const sessions = new DataTable("Sessions", SESSIONS, { key: (session) => `${session.id} ${session.number}`, empty: "no session" });
const routes = new DataTable("Routes", ROUTES, { key: (route) => route.name, empty: "no route" });
const routesMore = h("span", { class: "soft" });
const problems = new DataTable("Problems", PROBLEMS, { key: (problem) => `${problem.reason} ${problem.detail}`, empty: "none since the start" });
const tail = new ExchangeTail("/api/v1/exchanges");
const tunnelCards = [
  h("div", { class: "grid" }, card("Connection", {}, connection.element), card("What happened last", {}, last.element)),
  card("Sessions", {}, sessions.element),
];

element("view").replaceChildren(
  h("div", { class: "heading" }, name, now, address), stats.element, ...tunnelCards,
  card("Routes", { extra: routesMore }, routes.element), tail.element, card("Last problems", {}, problems.element),
);

let failure = null;
let shown = null;
let before = null;

async function read() {
  try {
    show(await get("/api/v1/status"));
    failure = null;
    setText(element("updated"), `Updated ${new Date().toLocaleTimeString("sv")}`);
  } catch (error) {
    failure = error;
  }
  showState();
}

function show(client) {
  shown = client;
  const { tunnel } = client;
  setText(element("client-facts"), `version ${client.version}, for ${since(client.started)}`);
  element("client-facts").title = `since ${moment(client.started)}`;
  const word = tunnel ? tunnel.state : client.listening ? "serving" : "stopped";
  if (now.textContent !== word) now.replaceChildren(state(word, TONES[word]));
  setText(name, tunnel ? tunnel.runtime ?? "Tunnel" : "Without a tunnel");
  document.title = `${tunnel?.runtime ?? "tunnel-client"}: ${word}`;
  for (const part of tunnelCards) part.hidden = !tunnel;
  address.hidden = !tunnel?.url;
  if (tunnel?.url && address.textContent !== tunnel.url) {
    // The server says it, so only what is an address of the web becomes a link.
    const isWeb = /^https?:\/\//.test(tunnel.url);
    address.replaceChildren(isWeb ? h("a", { href: tunnel.url, rel: "noreferrer" }, tunnel.url) : tunnel.url);
  }
  if (tunnel) showTunnel(tunnel);
  const at = performance.now();
  const perSecond = before && (1000 * (client.requests - before.requests)) / (at - before.at);
  before = { requests: client.requests, at };
  const working = client.routes.filter((route) => ["up", "own", "unknown"].includes(route.state)).length;
  if (tunnel) stats.show("Sessions", number(tunnel.sessions.length));
  stats.show("Requests/s", rate(perSecond) ?? "–", `${number(client.requests)} in all`);
  stats.show("Open exchanges", number(client.open_exchanges));
  stats.show("Routes", number(working), `of ${number(client.routes.length)} without a fault`);
  routes.show(client.routes.slice(0, ROUTES_SHOWN));
  const more = client.routes.length - ROUTES_SHOWN;
  setText(routesMore, more > 0 ? `and ${plural(more, "more route")}` : "");
  problems.show(client.problems);
}

function showTunnel(tunnel) {
  const { last_failure: dial, last_session_end: end } = tunnel;
  const others = tunnel.servers.map(({ url, proxy }) => (proxy ? `${url} by the proxy ${proxy}` : url));
  connection.show([
    ["Runtime", tunnel.runtime ?? "not known before a server welcomes it"],
    ["Online", tunnel.online_since ? `for ${since(tunnel.online_since)}, since ${moment(tunnel.online_since)}` : "no"],
    ["Last online", tunnel.online_since ? null : tunnel.last_online ? ago(tunnel.last_online) : "not since the start"],
    ["Next dial", tunnel.next_dial && `in ${inFuture(tunnel.next_dial)}`],
    [others.length === 1 ? "Server" : "Servers", others.join(", ")],
    ["Instance", tunnel.instance],
  ]);
  last.show([
    ["Failed dial", dial ? { text: `${dial.reason}, ${ago(dial.at)}: ${dial.detail}`, sub: dial.server } : "none"],
    ["Session end", end ? `${end.reason}, ${ago(end.at)}: ${end.detail}` : "none"],
  ]);
  sessions.show(tunnel.sessions);
}

const inFuture = (time) => duration(Math.max(0, Date.parse(time) - Date.now()));

/** Why there is no session, as the tunnel's state has it. */
function whyOffline(tunnel) {
  const { last_failure: dial, last_session_end: end } = tunnel;
  const isDial = dial && !(end && end.at > dial.at);
  const why = isDial ? dial.detail : end?.detail;
  switch (tunnel.state) {
    case "standing-by": return "Another client holds this runtime: this one stands by, and takes it when the other is gone.";
    case "refused": return `The server refuses this client: ${why}`;
    case "dialling": return why ? `There is no session: ${why}` : null;
    default: return null;
  }
}

function showState() {
  const banners = [];
  const why = shown?.tunnel && whyOffline(shown.tunnel);
  if (failure instanceof ApiError && failure.status === 0) {
    banners.push({ bad: true, text: "The client does not answer. What is shown is from before; trying again." });
  } else if (failure) {
    banners.push({ bad: true, text: failure.message });
  } else if (why) {
    banners.push({ bad: true, text: why });
  }
  showBanners(banners);
}

repeatedly(read);
