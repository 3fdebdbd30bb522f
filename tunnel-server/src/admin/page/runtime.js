// One runtime: what it is, its sessions and routes, what went wrong last, its events, its exchanges as they end, and what the
// operator can do to it.

import { DataTable, Facts, card, h, setText, state } from "/page/dom.js";
import { ago, bytes, clock, duration, moment, number, plural, rate, since } from "/page/format.js";
import { disconnect, drain, revoke } from "/page/dialogs.js";
import { readRuntime, readServer, roundTrip, stateOf, whyOffline } from "/page/fleet.js";
import { ExchangeTail } from "/page/tail.js";

const SESSIONS = [
  { name: "number", title: "Session", kind: "lead", cell: (session) => ({ text: `no. ${session.number}`, sub: session.node && `node ${session.node}` }) },
  { name: "state", title: "State", cell: (session) => (session.is_draining ? { text: "draining", tone: "warn" } : { text: "open", tone: "good" }) },
  { name: "peer", title: "Peer", cell: (session) => session.peer },
  { name: "version", title: "Client", cell: (session) => session.client_version },
  { name: "since", title: "For", cell: (session) => since(session.since) },
  { name: "round-trip", title: "Round trip", numeric: true, cell: (session) => duration(session.round_trip_ms) },
  { name: "open", title: "Open", numeric: true, cell: (session) => number(session.open_exchanges) },
  { name: "in", title: "In", numeric: true, cell: (session) => bytes(session.bytes_in) },
  { name: "out", title: "Out", numeric: true, cell: (session) => bytes(session.bytes_out) },
];

const ROUTE_TONES = { up: "good", own: "good", degraded: "warn", down: "bad" };

const ROUTES = [
  { name: "name", title: "Route", kind: "lead", cell: (route) => route.name },
  { name: "matches", title: "Matches", kind: "full break", cell: (route) => route.matches },
  { name: "to", title: "To", kind: "full break", cell: (route) => route.to },
  { name: "state", title: "State", cell: (route) => ({ text: route.state, tone: ROUTE_TONES[route.state] ?? "off" }) },
];

const EVENTS = [
  { name: "time", title: "Time", kind: "keep", cell: (event) => clock(event.time) },
  { name: "kind", title: "Event", kind: "lead", cell: (event) => event.kind },
  { name: "detail", title: "What", kind: "full", cell: (event) => ({ text: event.reason ?? event.session ?? "", sub: event.detail }) },
];

export class RuntimePage {
  constructor(context, label) {
    this.context = context;
    this.label = label;
    this.title = label;
    this.name = h("h2", { tabindex: "-1" }, label);
    this.state = h("span");
    this.hosts = h("p", { class: "soft" });
    const action = (text, run, isDanger) =>
      h("button", { type: "button", class: isDanger ? "danger" : null, disabled: true, onclick: () => this.act(run) }, text);
    this.actions = [action("Drain…", drain), action("Disconnect…", disconnect, true), action("Revoke…", revoke, true)];
    const heading = h("div", { class: "heading" }, this.name, this.state,
      h("div", { class: "actions", role: "group", "aria-label": "Actions" }, ...this.actions), this.hosts);
    this.facts = new Facts();
    this.limits = new Facts();
    this.last = new Facts();
    this.sessions = new DataTable("Sessions", SESSIONS, { key: (session) => session.id, empty: "no session" });
    this.routes = new DataTable("Routes", ROUTES, { key: (route) => route.name, empty: "its client has reported none" });
    this.routesMore = h("span", { class: "soft" });
    this.events = new DataTable("Events", EVENTS, { key: (event) => event.key, empty: "none since this page was opened" });
    this.tail = new ExchangeTail(`/api/v1/runtimes/${encodeURIComponent(label)}/exchanges`, {
      askToken: () => context.askToken("The server wants the admin token to show exchanges."),
    });
    this.elements = [
      h("nav", { "aria-label": "Where this is" }, h("a", { href: context.overviewLink }, "← All runtimes")),
      heading,
      h("div", { class: "grid" },
        card("Connection", {}, this.facts.element), card("Limits and use", {}, this.limits.element), card("What happened last", {}, this.last.element)),
      card("Sessions", {}, this.sessions.element),
      this.tail.element,
      card("Routes", { extra: this.routesMore }, this.routes.element),
      card("Events", {}, this.events.element),
    ];
    this.showEvents();
  }

  close() {
    this.tail.close();
  }

  async read() {
    const server = await readServer();
    this.context.showServer(server);
    try {
      this.show(await readRuntime(this.label));
    } catch (error) {
      if (error.reason !== "runtime_unknown") throw error;
      this.view = null;
      this.state.replaceChildren(state("unknown", "off"));
      setText(this.hosts, "The server knows no such runtime. One that is not in the runtimes file is known while it is online, and shortly after.");
      for (const button of this.actions) button.disabled = true;
    }
  }

  async act(run) {
    if (!this.view) return;
    await run(this.view);
    this.context.readNow();
  }

  show(view) {
    this.view = view;
    const [word, tone] = stateOf(view);
    if (this.state.textContent !== word) this.state.replaceChildren(state(word, tone));
    setText(this.hosts, view.hosts.join(" · "));
    const [drain, disconnect, revoke] = this.actions;
    drain.disabled = disconnect.disabled = !view.online;
    revoke.disabled = false;
    const { credential, limits } = view;
    this.facts.show([
      ["Account", view.account],
      ["Name", view.name],
      ["Online", view.online ? view.online_since && `for ${since(view.online_since)}, since ${moment(view.online_since)}` : "no"],
      ["Last online", view.online ? null : view.last_online ? `${ago(view.last_online)}, ${moment(view.last_online)}` : "not since the server was started"],
      ["Nodes", view.nodes?.join(", ")],
      ["Round trip", duration(roundTrip(view))],
      ["Credential", credential && { text: `${credential.kind} ${credential.id}`, sub: view.expires ? `expires ${moment(view.expires)}` : "does not expire" }],
      ["Instance", view.instance && { text: view.instance, sub: `epoch ${view.epoch}` }],
      ["Allowed from", view.allow_from?.join(", ") ?? "anywhere"],
    ]);
    const of = (limit, unit = number) => (limit === undefined ? "" : ` of ${unit(limit)}`);
    this.limits.show([
      ["Requests", `${rate(view.rate) ?? "–"}${of(limits.exchange_rate)} a second, ${number(view.requests)} in all`],
      ["Exchanges", `${number(view.open_exchanges)} open${of(limits.exchanges)}`],
      ["Waiting", view.waiting > 0 || limits.waiting !== undefined ? `${number(view.waiting)}${of(limits.waiting)}` : null],
      ["WebSockets", limits.websockets !== undefined ? `${number(limits.websockets)} at most` : null],
      ["Bytes in", `${bytes(view.bytes_in)}${limits.upload_rate === undefined ? "" : `, ${bytes(limits.upload_rate)}/s at most`}`],
      ["Bytes out", `${bytes(view.bytes_out)}${limits.download_rate === undefined ? "" : `, ${bytes(limits.download_rate)}/s at most`}`],
      ["Heads", limits.head_bytes !== undefined ? `${bytes(limits.head_bytes)} at most` : null],
      ["Held", limits.waiting_bytes !== undefined ? `${bytes(limits.waiting_bytes)} of waiting requests at most` : null],
    ]);
    this.last.show(lastOf(view));
    this.sessions.show([...view.sessions].sort((a, b) => a.number - b.number));
    this.routes.show(view.routes ?? []);
    setText(this.routesMore, view.routes_omitted ? `and ${plural(view.routes_omitted, "more route")}` : "");
  }

  showEvents() {
    const own = this.context.events.filter((event) => event.label === this.label || event.label === undefined);
    this.events.show(own);
  }
}

/** What the API says of a runtime's last refusal, session end and problem, the reason for being offline first. */
function lastOf(view) {
  const { last_refusal: refusal, last_session_end: end, last_problem: problem } = view;
  const by = (of) => [`peer ${of.peer}`, of.client_version && `client ${of.client_version}`,
    of.credential && `${of.credential.kind} ${of.credential.id}`].filter(Boolean).join(", ");
  const what = (of) => ({ text: `${of.reason}, ${ago(of.at)}: ${of.detail}`, sub: by(of) });
  const why = whyOffline(view);
  return [
    ["Offline because", why ? why.reason : view.online ? null : "no client of it has dialled since the server was started"],
    ["Refusal", refusal ? what(refusal) : "none"],
    ["Session end", end ? what(end) : "none"],
    ["Problem", problem ? `${problem.reason}, ${ago(problem.at)}` : "none"],
  ];
}
