// Makes and updates elements. Text from the API becomes text nodes and attributes, never markup.

/** An element: `h("a", { href, class: "x", onclick }, "text", child)`. Children that are null are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets an element's text, unless it has it already: what is unchanged is neither painted nor read out again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A state with its dot; `tone` is good, warn, bad or off. */
export function state(text, tone) {
  return h("span", { class: `state ${tone ?? ""}` }, text);
}

/** A card with a title; `extra` stands beside the title. */
export function card(title, { extra = [], id } = {}, ...children) {
  const header = h("header", {}, h("h2", { id }, title), ...[extra].flat());
  return h("section", { class: "card", "aria-label": title }, header, ...children);
}

/** A list of names and values; those without a value are left out. A value is text or an element. */
export class Facts {
  constructor() {
    this.element = h("dl", { class: "facts" });
    this.shown = "";
  }

  show(facts) {
    const given = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
    const shown = JSON.stringify(given);
    if (shown === this.shown) return;
    this.shown = shown;
    this.element.replaceChildren(
      ...given.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, ...cellContent(value))]),
    );
  }
}

/** What a cell or a fact shows: text, or `{ text, href, tone, sub }`: a link, a state, a second line; `beside` is a state
 *  beside the text. A list has a line for each. */
function cellContent(value) {
  if (Array.isArray(value)) return value.map((line) => h("div", {}, ...cellContent(line)));
  if (typeof value !== "object") return [String(value)];
  const { text, href, tone, sub, beside } = value;
  let main = text;
  if (href) main = h("a", { href }, text);
  else if (tone && !beside) main = state(text, tone);
  return [main, beside && " ", beside && state(beside, tone), sub && h("small", {}, sub)].filter(Boolean);
}

/** A row of figures, each with its name and a word more. */
export class Stats {
  constructor() {
    this.element = h("dl", { class: "stats" });
    this.figures = new Map();
  }

  show(name, value, more = "") {
    let figure = this.figures.get(name);
    if (!figure) {
      figure = { value: h("span"), more: h("small") };
      this.figures.set(name, figure);
      this.element.append(h("div", {}, h("dt", {}, name), h("dd", {}, figure.value, " ", figure.more)));
    }
    setText(figure.value, value);
    setText(figure.more, more);
  }
}

/**
 * A table whose rows are kept by their keys, so that an update moves neither focus nor selection.
 *
 * A column is `{ name, title, numeric, kind, cell, sort }`: `cell(item)` gives what to show (see `cellContent`), null for
 * nothing; `kind` has classes: `lead` for the column that names the row, `full` for one with long text, `keep` for one that
 * does not break, `one-line`, `wide-only`; `sort` says that the title is a button, for which `onSort(name)` is called.
 */
export class DataTable {
  constructor(title, columns, { key, empty = "none", onSort } = {}) {
    this.columns = columns;
    this.key = key;
    this.empty = empty;
    this.rows = new Map();
    this.heads = new Map();
    const heads = columns.map((column) => {
      const label = column.sort && onSort
        ? h("button", { type: "button", onclick: () => onSort(column.name) }, column.title)
        : column.title;
      const classes = [column.numeric && "num", column.kind?.includes("wide-only") && "wide-only"].filter(Boolean).join(" ");
      const head = h("th", { role: "columnheader", scope: "col", class: classes || null }, label);
      this.heads.set(column.name, head);
      return head;
    });
    this.body = h("tbody", { role: "rowgroup" });
    const table = h(
      "table", { role: "table", "aria-label": title },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ...heads)), this.body,
    );
    this.element = h("div", { class: "scroll" }, table);
  }

  /** Shows by which column the items are sorted. */
  setSort(name, isDescending) {
    for (const [column, head] of this.heads) {
      if (column === name) head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  }

  show(items) {
    const focused = document.activeElement;
    const before = this.rows;
    this.rows = new Map();
    if (items.length === 0) {
      before.clear();
      if (this.body.firstElementChild?.className !== "note" || this.body.textContent !== this.empty) {
        const cell = h("td", { role: "cell", colspan: this.columns.length }, this.empty);
        this.body.replaceChildren(h("tr", { role: "row", class: "note" }, cell));
      }
      return;
    }
    let next = this.body.firstElementChild;
    if (next?.className === "note") {
      next.remove();
      next = null;
    }
    for (const item of items) {
      const key = this.key(item);
      const row = before.get(key) ?? new Row(this.columns);
      before.delete(key);
      this.rows.set(key, row);
      row.show(item);
      if (row.element === next) next = next.nextElementSibling;
      else this.body.insertBefore(row.element, next);
    }
    for (const row of before.values()) row.element.remove();
    // A row that has moved has lost it.
    if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
  }
}

class Row {
  constructor(columns) {
    this.columns = columns;
    this.shown = columns.map(() => undefined);
    this.cells = columns.map((column) => h("td", { role: "cell", "data-label": column.title }));
    this.element = h("tr", { role: "row" }, ...this.cells);
  }

  show(item) {
    this.columns.forEach((column, index) => {
      const value = column.cell(item);
      const shown = value === null || value === undefined || value === "" ? null : value;
      const signature = JSON.stringify(shown);
      if (signature === this.shown[index]) return;
      this.shown[index] = signature;
      const cell = this.cells[index];
      const classes = [column.numeric && "num", column.kind, shown === null && "empty"];
      cell.className = classes.filter(Boolean).join(" ");
      cell.replaceChildren(...cellContent(shown ?? "–"));
    });
  }
}

/** Says something for a while, to eyes and to screen readers. */
export function toast(text) {
  const element = document.getElementById("toast");
  element.textContent = text;
  element.classList.add("shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => element.classList.remove("shown"), 8000);
}

/** Shows these banners, `{ text, bad, action: [label, function] }`, in place of those before. */
export function showBanners(banners) {
  const element = document.getElementById("banners");
  const shown = JSON.stringify(banners);
  if (element.dataset.shown === shown) return;
  element.dataset.shown = shown;
  element.replaceChildren(
    ...banners.map(({ text, bad, action }) => {
      const button = action && h("button", { type: "button", onclick: action[1] }, action[0]);
      return h("div", { class: bad ? "banner bad" : "banner" }, h("p", {}, text), button);
    }),
  );
}

/** The time from one read to the next, and the shortest one when there is news, in milliseconds. */
const INTERVAL = 3000;
const SHORTEST = 1000;

/** Calls `read` at once, and then every few seconds; not while the page is hidden. A read that takes long makes the
 *  pause longer, so that the page uses a tenth of the time at most. `read` does not throw. `soon()` is for news, `now()` for
 *  what the operator has done. */
export function repeatedly(read) {
  let timer;
  let begun = -Infinity;
  let isReading = false;
  let isStopped = false;
  async function run() {
    clearTimeout(timer);
    if (isReading || isStopped || document.hidden) return;
    isReading = true;
    begun = performance.now();
    await read();
    isReading = false;
    if (!isStopped) timer = setTimeout(run, Math.max(INTERVAL, 9 * (performance.now() - begun)));
  }
  document.addEventListener("visibilitychange", run);
  run();
  return {
    now: run,
    soon() {
      if (isReading || isStopped) return;
      clearTimeout(timer);
      timer = setTimeout(run, Math.max(0, begun + SHORTEST - performance.now()));
    },
    stop() {
      isStopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", run);
    },
  };
}
