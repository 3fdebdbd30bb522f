// All runtimes: the server's figures, its nodes, and a list to search, filter and sort. The list is shown in pages of a hundred,
// so that ten thousand runtimes are as quick as ten.

import { DataTable, Stats, card, h, setText } from "/page/dom.js";
import { duration, number, plural, rate, since } from "/page/format.js";
import { linkTo, readFleet, readServer } from "/page/fleet.js";

/** Rows shown at once. */
const ROWS = 100;
/** Accounts that are proposed. */
const PROPOSALS = 500;

const FILTERS = {
  all: ["All", () => true],
  online: ["Online", (row) => row.state === "online" || row.state === "draining"],
  offline: ["Offline", (row) => row.state === "offline" || row.state === "refused"],
  refused: ["Refused", (row) => row.state === "refused"],
};

const COLUMNS = [
  { name: "label", title: "Runtime", kind: "lead", sort: (row) => row.label,
    cell: (row) => ({ text: row.label, href: linkTo(row.label) }) },
  { name: "state", title: "State", kind: "full one-line", sort: (row) => row.state,
    cell: (row) => ({ text: row.state, tone: row.tone, sub: [row.since && since(row.since), row.why].filter(Boolean).join(", ") }) },
  { name: "version", title: "Client", sort: (row) => row.version, cell: (row) => row.version },
  { name: "peer", title: "Peer", sort: (row) => row.peer, cell: (row) => row.peer },
  { name: "nodes", title: "Nodes", sort: (row) => row.nodes, cell: (row) => row.nodes },
  { name: "sessions", title: "Sessions", numeric: true, kind: "wide-only", sort: (row) => row.sessions || null,
    cell: (row) => (row.sessions ? number(row.sessions) : null) },
  { name: "round-trip", title: "Round trip", numeric: true, sort: (row) => row.roundTrip, cell: (row) => duration(row.roundTrip) },
  { name: "rate", title: "Requests/s", numeric: true, sort: (row) => row.rate, cell: (row) => rate(row.rate) },
  { name: "open", title: "Open", numeric: true, sort: (row) => row.open, cell: (row) => (row.open === null ? null : number(row.open)) },
  { name: "problem", title: "Last problem", kind: "full one-line", sort: (row) => row.problemAt,
    cell: (row) => row.problem && { text: row.problem, sub: `${since(row.problemAt)} ago` } },
];

/** By these, the largest come first. */
const FALLING = new Set(["sessions", "round-trip", "rate", "open", "problem"]);

export class Overview {
  constructor(context) {
    this.context = context;
    this.rows = null;
    this.page = 0;
    this.sort = "label";
    this.isDescending = false;
    this.filter = "all";
    this.search = h("input", { type: "search", autocomplete: "off", spellcheck: "false", placeholder: "label, host, peer, reason…",
      oninput: () => this.onFilter() });
    this.account = h("input", { list: "accounts", autocomplete: "off", spellcheck: "false", placeholder: "any", oninput: () => this.onFilter() });
    this.accounts = h("datalist", { id: "accounts" });
    this.choices = Object.entries(FILTERS).map(([name, [title]]) => {
      const button = h("button", { type: "button", onclick: () => this.onFilter(name) }, title);
      return [name, button];
    });
    const sortable = COLUMNS.map(({ name, title }) => h("option", { value: name }, title));
    this.order = h("select", { onchange: () => this.onSort(this.order.value) }, ...sortable);
    this.count = h("span", { class: "soft", role: "status" });
    this.shown = h("span");
    this.back = h("button", { type: "button", onclick: () => this.turn(-1) }, "Previous");
    this.forth = h("button", { type: "button", onclick: () => this.turn(1) }, "Next");
    this.pages = h("nav", { class: "pages", "aria-label": "Pages of runtimes" }, this.shown, h("div", { class: "actions" }, this.back, this.forth));
    this.stats = new Stats();
    this.nodes = new DataTable("Nodes", [
      { name: "name", title: "Node", kind: "lead", cell: (node) => ({ text: node.name, sub: node.zone }) },
      { name: "state", title: "State", cell: (node) => ({ text: node.state, tone: node.state === "serving" ? "good" : "warn" }) },
      { name: "version", title: "Version", cell: (node) => node.version },
      { name: "runtimes", title: "Runtimes", numeric: true, cell: (node) => number(node.runtimes) },
      { name: "peer", title: "Links to", cell: (node) => node.peer },
    ], { key: (node) => node.name });
    this.nodesCard = card("Nodes", {}, this.nodes.element);
    this.nodesCard.hidden = true;
    this.makeTable(false);
    const filters = h(
      "form", { class: "filters", onsubmit: (event) => event.preventDefault() },
      h("label", { class: "wide" }, "Search", this.search),
      h("label", {}, "Account", this.account), this.accounts,
      h("label", { class: "narrow-only" }, "Sort by", this.order),
      h("div", { class: "choice", role: "group", "aria-label": "State" }, ...this.choices.map(([, button]) => button)),
    );
    this.list = card("Runtimes", { extra: this.count }, filters, this.table.element, this.pages);
    this.elements = [this.stats.element, this.nodesCard, this.list];
    this.onKey = (event) => {
      const isTyping = event.target.closest?.("input, select, textarea, dialog");
      if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        this.search.focus();
      }
    };
    this.table.empty = "reading…";
    this.table.show([]);
  }

  title = "Runtimes";

  open() {
    document.addEventListener("keydown", this.onKey);
  }

  close() {
    this.scrolled = window.scrollY;
    document.removeEventListener("keydown", this.onKey);
  }

  /** The table with the column of nodes, or without it. */
  makeTable(hasNodes) {
    this.hasNodes = hasNodes;
    const columns = COLUMNS.filter((column) => hasNodes || column.name !== "nodes");
    const table = new DataTable("Runtimes", columns, {
      key: (row) => row.label, empty: "no runtime matches", onSort: (name) => this.onSort(name),
    });
    this.table?.element.replaceWith(table.element);
    this.table = table;
  }

  /** Takes filters and order from the query of the page's address. */
  useQuery(query) {
    this.search.value = query.get("search") ?? "";
    this.account.value = query.get("account") ?? "";
    this.filter = query.get("state") in FILTERS ? query.get("state") : "all";
    const sort = query.get("sort") ?? "label";
    this.sort = COLUMNS.some((column) => column.name === sort) ? sort : "label";
    this.isDescending = query.has("descending");
    this.order.value = this.sort;
    if (this.rows) this.show();
  }

  async read() {
    const server = await readServer();
    this.context.showServer(server);
    const { rows, unanswered } = await readFleet();
    this.rows = rows;
    this.server = server;
    this.context.setUnanswered(unanswered);
    const accounts = [...new Set(rows.map((row) => row.account))].slice(0, PROPOSALS);
    if (accounts.length !== this.accounts.childElementCount) {
      this.accounts.replaceChildren(...accounts.map((value) => h("option", { value })));
    }
    const nodes = server.nodes ?? [];
    this.nodesCard.hidden = nodes.length === 0;
    if (nodes.length > 0) this.nodes.show(nodes);
    if (this.hasNodes !== nodes.length > 0) this.makeTable(nodes.length > 0);
    this.show();
  }

  onFilter(filter) {
    if (filter) this.filter = filter;
    this.page = 0;
    this.saveQuery();
    this.show();
  }

  onSort(name) {
    this.isDescending = this.sort === name ? !this.isDescending : FALLING.has(name);
    this.sort = name;
    this.order.value = name;
    this.page = 0;
    this.saveQuery();
    this.show();
  }

  turn(by) {
    this.page += by;
    this.show();
    this.list.scrollIntoView({ block: "start" });
  }

  saveQuery() {
    const query = new URLSearchParams();
    if (this.search.value) query.set("search", this.search.value);
    if (this.account.value) query.set("account", this.account.value);
    if (this.filter !== "all") query.set("state", this.filter);
    if (this.sort !== "label") query.set("sort", this.sort);
    if (this.isDescending) query.set("descending", "");
    this.context.overviewLink = query.size > 0 ? `#/?${query}` : "#/";
    history.replaceState(null, "", this.context.overviewLink);
  }

  show() {
    if (!this.rows) return;
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const account = this.account.value.trim();
    const found = this.rows.filter((row) => row.account.startsWith(account) && words.every((word) => row.text.includes(word)));
    for (const [name, button] of this.choices) {
      const [title, fits] = FILTERS[name];
      setText(button, `${title} ${number(found.filter(fits).length)}`);
      button.setAttribute("aria-pressed", String(name === this.filter));
    }
    const rows = this.sorted(found.filter(FILTERS[this.filter][1]));
    const last = Math.max(0, Math.ceil(rows.length / ROWS) - 1);
    this.page = Math.min(Math.max(this.page, 0), last);
    const first = this.page * ROWS;
    const part = rows.slice(first, first + ROWS);
    this.table.setSort(this.sort, this.isDescending);
    this.table.empty = this.rows.length === 0 ? "no runtime is known yet" : "no runtime matches";
    this.table.show(part);
    const all = plural(this.rows.length, "runtime");
    setText(this.count, rows.length === this.rows.length ? all : `${number(rows.length)} of ${all}`);
    this.pages.hidden = last === 0;
    setText(this.shown, `${number(first + 1)} to ${number(first + part.length)} of ${number(rows.length)}`);
    this.back.disabled = this.page === 0;
    this.forth.disabled = this.page === last;
    this.showStats();
  }

  sorted(rows) {
    const { sort } = COLUMNS.find((column) => column.name === this.sort);
    const sign = this.isDescending ? -1 : 1;
    const keyed = rows.map((row) => [sort(row) ?? null, row]);
    // What is unknown comes last in either order.
    keyed.sort(([a, one], [b, other]) => {
      if (a === b) return one.label < other.label ? -1 : 1;
      if (a === null) return 1;
      if (b === null) return -1;
      return a < b ? -sign : sign;
    });
    return keyed.map(([, row]) => row);
  }

  showStats() {
    const { server, rows } = this;
    const rates = rows.map((row) => row.rate).filter((value) => value !== null);
    const online = rows.filter(FILTERS.online[1]).length;
    const reload = server.last_reload ? `, reloaded ${since(server.last_reload)} ago` : "";
    this.stats.show("Runtimes online", number(online), `of ${number(rows.length)}`);
    this.stats.show("Sessions", number(rows.reduce((sum, row) => sum + row.sessions, 0)));
    this.stats.show("Requests/s", rates.length > 0 ? rate(rates.reduce((sum, value) => sum + value, 0)) : "–");
    this.stats.show("Open exchanges", number(rows.reduce((sum, row) => sum + (row.open ?? 0), 0)));
    this.stats.show("Configuration", `no. ${number(server.config_version)}`, server.last_reload_ok === false ? "last reload refused" : reload.slice(2));
  }
}
