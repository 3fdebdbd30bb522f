// A live list of exchanges as they end, from `…/exchanges`: newest first, some hundred at most, and only while it is wanted.

import { follow } from "/page/api.js";
import { card, h, setText } from "/page/dom.js";
import { bytes, clock, duration, plural } from "/page/format.js";

/** Rows that are kept: what a person can look through. */
const ROWS = 300;

const COLUMNS = ["Time", "Status", "Request", "Took", "In", "Out", "End", "From"];

/** The card with the list. `path` is where the API has the exchanges; `askToken()` is called when it wants a token, and
 *  gives whether there is one now. */
export class ExchangeTail {
  constructor(path, { askToken = async () => false } = {}) {
    this.path = path;
    this.askToken = askToken;
    this.fresh = [];
    this.fields = {
      status: h("select", {}, ...["", "1xx", "2xx", "3xx", "4xx", "5xx"].map((value) => h("option", { value }, value || "any"))),
      method: h("input", { size: 6, autocomplete: "off", spellcheck: "false", placeholder: "any" }),
      path: h("input", { autocomplete: "off", spellcheck: "false", placeholder: "/…" }),
      end: h("input", { size: 14, autocomplete: "off", spellcheck: "false", placeholder: "any" }),
    };
    this.button = h("button", { class: "main", type: "submit" }, "Start");
    this.said = h("span", { class: "soft", role: "status" }, "Not running: it shows exchanges as they end");
    const label = (text, field, wide) => h("label", { class: wide ? "wide" : null }, text, field);
    const filters = h(
      "form", { class: "filters", onsubmit: (event) => this.toggle(event) },
      label("Status", this.fields.status), label("Method", this.fields.method),
      label("Path begins with", this.fields.path, true), label("End", this.fields.end),
      this.button,
    );
    const heads = COLUMNS.map((title) => {
      const isNumber = ["Took", "In", "Out"].includes(title);
      return h("th", { role: "columnheader", scope: "col", class: isNumber ? "num" : null }, title);
    });
    this.body = h("tbody", { role: "rowgroup" });
    this.table = h("div", { class: "scroll", hidden: true }, h(
      "table", { role: "table", "aria-label": "Live exchanges" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ...heads)), this.body,
    ));
    this.element = card("Live exchanges", { extra: this.said }, filters, this.table);
    this.onVisibility = () => this.pauseOrGoOn();
    document.addEventListener("visibilitychange", this.onVisibility);
  }

  /** Ends the stream; to be called when the card is no longer shown. */
  close() {
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.isClosed = true;
    this.stop("");
  }

  toggle(event) {
    event.preventDefault();
    if (this.isWanted) this.stop("Stopped");
    else this.start();
  }

  start() {
    this.isWanted = true;
    this.button.textContent = "Stop";
    this.button.classList.remove("main");
    for (const field of Object.values(this.fields)) field.disabled = true;
    this.body.replaceChildren();
    this.table.hidden = false;
    this.open();
  }

  stop(text) {
    this.isWanted = false;
    this.abort?.abort();
    this.button.textContent = "Start";
    this.button.classList.add("main");
    for (const field of Object.values(this.fields)) field.disabled = false;
    setText(this.said, text);
  }

  pauseOrGoOn() {
    if (!this.isWanted) return;
    if (document.hidden) {
      this.abort.abort();
      this.add({ note: "paused while the page was hidden" });
    } else {
      this.open();
    }
  }

  open() {
    this.abort?.abort();
    const abort = new AbortController();
    this.abort = abort;
    const query = new URLSearchParams();
    for (const [name, field] of Object.entries(this.fields)) {
      const value = field.value.trim();
      if (value) query.set(name, name === "method" ? value.toUpperCase() : value);
    }
    setText(this.said, "Connecting…");
    const path = query.size > 0 ? `${this.path}?${query}` : this.path;
    follow(path, abort.signal, {
      open: () => setText(this.said, `Running, the last ${ROWS} are kept`),
      event: (name, data) => {
        if (name === "exchange") this.add(data);
        else if (name === "missed") this.add({ note: `${plural(data.missed, "exchange")} left out: there were too many to show` });
        else if (name === "unanswered") this.add({ note: `no answer from ${data.unanswered.join(", ")}: exchanges of these nodes are missing` });
      },
      closed: (error) => this.onClosed(error),
    });
  }

  onClosed(error) {
    if (error.status === 401) {
      this.stop("The admin token is needed to see exchanges");
      this.askToken().then((isGiven) => isGiven && !this.isClosed && this.start());
    } else if (error.status === 404 && error.reason !== "runtime_unknown") {
      this.stop("This program does not offer live exchanges");
    } else if (error.status === 0 || error.status >= 500) {
      setText(this.said, `Connecting again: ${error.message}`);
      return true;
    } else {
      this.stop(error.message);
    }
    return false;
  }

  /** Rows are added once for each picture of the screen, however many come. */
  add(row) {
    this.fresh.push(row);
    if (this.fresh.length > ROWS) this.fresh.shift();
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      this.body.prepend(...this.fresh.reverse().map(rowOf));
      this.fresh = [];
      while (this.body.childElementCount > ROWS) this.body.lastElementChild.remove();
    });
  }
}

function rowOf(row) {
  if (row.note) {
    return h("tr", { role: "row", class: "note" }, h("td", { role: "cell", colspan: COLUMNS.length }, row.note));
  }
  const cell = (index, classes, ...content) => {
    const isEmpty = content.every((part) => part === null || part === undefined || part === "");
    return h(
      "td", { role: "cell", class: isEmpty ? `${classes} empty` : classes, "data-label": COLUMNS[index] },
      ...(isEmpty ? ["–"] : content),
    );
  };
  const small = (text) => (text ? h("small", {}, text) : null);
  const status = row.status ?? null;
  const tone = status >= 500 || status === null ? "bad" : status >= 400 ? "warn" : "";
  const more = [row.host, row.route && `route ${row.route}`, row.upgrade && "upgrade", row.request_id && `request ${row.request_id}`,
    row.trace_id && `trace ${row.trace_id}`];
  const end = row.end === "whole" ? null : [row.end, row.hop && `at the ${row.hop}`].filter(Boolean).join(" ");
  return h(
    "tr", { role: "row", class: "row-new" },
    cell(0, "keep", clock(row.timestamp)),
    cell(1, tone, status === null ? null : String(status)),
    cell(2, "lead", `${row.method ?? ""} ${row.path ?? ""}`, small(more.filter(Boolean).join(" · "))),
    cell(3, "num", duration(row.duration_ms)),
    cell(4, "num", bytes(row.request_bytes)),
    cell(5, "num", bytes(row.response_bytes)),
    cell(6, "full", end, small(row.detail)),
    cell(7, "", row.peer),
  );
}
