// The page of a server's admin listener. It has no data of its own: all of it comes from the admin API.
//
//   address (#/, #/runtimes/LABEL) ─▶ a view ─▶ read every few seconds, not while hidden
//   events of the server ──────────▶ kept here, shown in the view of their runtime

import { ApiError, follow, token } from "/page/api.js";
import { repeatedly, setText, showBanners, state } from "/page/dom.js";
import { moment, since } from "/page/format.js";
import { askToken } from "/page/dialogs.js";
import { Overview } from "/page/overview.js";
import { RuntimePage } from "/page/runtime.js";

/** Events that are kept. */
const EVENTS = 500;

const element = (id) => document.getElementById(id);

let overview = null;
let view = null;
let reading = null;
let unanswered = [];
let failure = null;
let eventsRead = 0;

const context = {
  events: [],
  overviewLink: "#/",
  askToken,
  readNow: () => reading?.now(),
  setUnanswered: (nodes) => { unanswered = nodes; },
  showServer(server) {
    const isRunning = server.state === "running";
    if (element("server-state").textContent !== server.state) {
      element("server-state").replaceChildren(state(server.state, isRunning ? "good" : "warn"));
    }
    setText(element("server-facts"), `version ${server.version}, for ${since(server.started)}`);
    element("server-facts").title = `since ${moment(server.started)}`;
  },
};

async function read() {
  try {
    await view.read();
    failure = null;
    setText(element("updated"), `Updated ${new Date().toLocaleTimeString("sv")}`);
  } catch (error) {
    failure = error;
  }
  showState();
}

function showState() {
  const banners = [];
  if (failure instanceof ApiError && failure.wantsToken) {
    const why = token.isGiven() ? `The server refuses the token: ${failure.message}.` : "The server wants the admin token.";
    banners.push({ text: why, action: ["Enter the token…", () => askToken(why)] });
  } else if (failure instanceof ApiError && failure.status > 0) {
    banners.push({ bad: true, text: `The server refuses: ${failure.message} (${failure.status} ${failure.reason})` });
  } else if (failure instanceof ApiError) {
    banners.push({ bad: true, text: "The server does not answer. What is shown is from before; trying again." });
  } else if (failure) {
    banners.push({ bad: true, text: `This page failed: ${failure.message}` });
  }
  if (unanswered.length > 0) {
    banners.push({ text: `${unanswered.join(", ")} did not answer: what is known there alone is missing.` });
  }
  showBanners(banners);
  element("token").textContent = token.isGiven() ? "Forget the token" : "Admin token…";
}

function show(isFirst) {
  const hash = location.hash || "#/";
  if (!hash.startsWith("#/")) return;
  const [path, query] = hash.slice(1).split("?");
  const label = path.match(/^\/runtimes\/([^/]+)$/)?.[1];
  reading?.stop();
  const before = view;
  if (label === undefined) {
    // Kept, with what it has read and where it was scrolled to.
    overview ??= new Overview(context);
    overview.useQuery(new URLSearchParams(query));
    context.overviewLink = hash;
    view = overview;
  } else {
    view = new RuntimePage(context, decode(label));
  }
  if (view !== before) {
    before?.close();
    element("view").replaceChildren(...view.elements);
    document.title = `${view.title} – tunnel-server`;
    view.open?.();
    window.scrollTo(0, view.scrolled ?? 0);
    if (!isFirst) (view.name ?? element("view")).focus({ preventScroll: true });
  }
  unanswered = [];
  reading = repeatedly(read);
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Reads the events while the page is seen. What happens meanwhile is read afterwards. */
function readEvents() {
  let abort = new AbortController();
  let isScheduled = false;
  const position = {};
  const showSoon = () => {
    if (isScheduled) return;
    isScheduled = true;
    requestAnimationFrame(() => {
      isScheduled = false;
      view.showEvents?.();
    });
  };
  const open = () => {
    abort.abort();
    abort = new AbortController();
    follow("/api/v1/events", abort.signal, {
      event(name, data) {
        if (!data) return;
        eventsRead += 1;
        context.events.unshift({ ...data, key: eventsRead });
        context.events.length = Math.min(context.events.length, EVENTS);
        showSoon();
        if (data.label === undefined || data.label === view.label) reading.soon();
      },
      // Without a token there are no events; the reads say so.
      closed: (error) => error.status === 0 || error.status >= 500,
    }, position);
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? abort.abort() : open()));
  window.addEventListener("token-changed", open);
  if (!document.hidden) open();
}

element("token").addEventListener("click", () => {
  if (token.isGiven()) {
    token.forget();
    window.dispatchEvent(new Event("token-changed"));
  } else {
    askToken("Changes need it, and reading where the listener can be reached from other machines.");
  }
});
window.addEventListener("hashchange", () => show(false));
window.addEventListener("token-changed", () => {
  showState();
  reading?.now();
});
show(true);
showState();
readEvents();
