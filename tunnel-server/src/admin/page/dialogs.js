// Questions to the operator: the admin token, and whether a change is meant.

import { ApiError, post, token } from "/page/api.js";
import { h, toast } from "/page/dom.js";
import { plural } from "/page/format.js";

/** Counts the dialogs, so that each has a title with an id of its own. */
let dialogs = 0;

/** Shows a dialog until it is closed. `submit()` is called for the main button; what it throws is shown, and the dialog stays.
 *  Gives what `submit` has returned, or null if the dialog was cancelled. */
function ask(title, content, { label, danger = false, submit }) {
  return new Promise((resolve) => {
    let result = null;
    dialogs += 1;
    const id = `dialog-title-${dialogs}`;
    const error = h("p", { class: "error", role: "alert" });
    const main = h("button", { type: "submit", class: danger ? "main danger" : "main" }, label);
    const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    const form = h("form", { method: "dialog" }, h("h2", { id }, title), ...content, error,
      h("div", { class: "actions" }, cancel, main));
    const dialog = h("dialog", { "aria-labelledby": id }, form);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      main.disabled = true;
      error.textContent = "";
      try {
        result = await submit();
        dialog.close();
      } catch (failure) {
        error.textContent = failure.message;
      }
      main.disabled = false;
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
    // Enter shall not do at once what is to be thought about.
    if (danger) cancel.focus();
  });
}

/** Asks for the admin token, and gives whether there is one now. */
export async function askToken(why) {
  const input = h("input", { type: "password", name: "token", autocomplete: "off", required: true, "aria-label": "Admin token" });
  const content = [
    h("p", {}, why),
    h("p", { class: "soft" }, "It is the line in the file of --admin-token-file. This page keeps it in memory until it is closed or loaded anew."),
    input,
  ];
  const submit = async () => {
    const value = input.value.trim();
    // Anything else could not stand in a header field.
    if (!/^[\x21-\x7e]+$/.test(value)) throw new Error("A token has letters, digits and signs, without spaces.");
    token.set(value);
    return true;
  };
  const isGiven = (await ask("Admin token", content, { label: "Use this token", submit })) === true;
  if (isGiven) window.dispatchEvent(new Event("token-changed"));
  return isGiven;
}

/** Sends a change, and asks for the token as often as the API wants one. */
async function change(path, body) {
  for (;;) {
    try {
      return await post(path, body);
    } catch (error) {
      if (!(error instanceof ApiError && error.wantsToken)) throw error;
      const why = token.isGiven() ? `The server refused the token: ${error.message}.` : "The server wants the admin token for this.";
      token.forget();
      if (!(await askToken(why))) {
        throw new Error("Nothing was changed: the admin token is needed.", { cause: error });
      }
    }
  }
}

const pathOf = (view, operation) => `/api/v1/runtimes/${encodeURIComponent(view.label)}/${operation}`;

function report(verb, view, result) {
  const missing = result.unanswered?.length > 0 ? ` ${result.unanswered.join(", ")} did not answer: it may not be done there.` : "";
  toast(`${verb} ${view.label}: ${plural(result.sessions, "session")}.${missing}`);
}

export async function drain(view) {
  const content = [
    h("p", {}, `Its client opens new sessions, and leaves the ${plural(view.sessions.length, "session")} that it has now once what is open in them `
      + `has finished (${plural(view.open_exchanges, "exchange")}): nothing is lost.`),
  ];
  const submit = () => change(pathOf(view, "drain"));
  const result = await ask(`Drain ${view.label}?`, content, { label: "Drain", submit });
  if (result) report("Drained", view, result);
  return result;
}

export async function disconnect(view) {
  const content = [
    h("p", {}, `This ends its ${plural(view.sessions.length, "session")} now, and cuts what is open in them `
      + `(${plural(view.open_exchanges, "exchange")}). Its client dials again within seconds, with the credential that it has.`),
    h("p", { class: "soft" }, "To have it leave without loss, drain it instead."),
  ];
  const submit = () => change(pathOf(view, "disconnect"));
  const result = await ask(`Disconnect ${view.label}?`, content, { label: "Disconnect", danger: true, submit });
  if (result) report("Disconnected", view, result);
  return result;
}

export async function revoke(view) {
  const known = new Map();
  for (const [credential, where] of [[view.credential, "in use"], [view.last_refusal?.credential, "refused last"]]) {
    if (credential && !known.has(credential.id)) known.set(credential.id, `${credential.kind} ${credential.id}, ${where}`);
  }
  const choice = (value, text, isChecked) => h("label", {}, h("input", { type: "radio", name: "what", value, checked: isChecked }), h("span", {}, text));
  const other = h("input", { autocomplete: "off", spellcheck: "false", "aria-label": "Id of the other credential", placeholder: "the credential's id" });
  const choices = [...known].map(([id, text], index) => choice(`id:${id}`, `The ${text}`, index === 0));
  choices.push(choice("other", "Another credential, by its id", known.size === 0));
  choices.push(choice("all", "All that were issued before now"));
  const fieldset = h("fieldset", {}, h("legend", { class: "visually-hidden" }, "What is revoked"), ...choices);
  const showOther = () => { other.hidden = chosen() !== "other"; };
  const chosen = () => fieldset.querySelector("input:checked").value;
  fieldset.addEventListener("change", showOther);
  const content = [
    h("p", {}, "What is revoked is refused from now on, and sessions that use it are cut with what is open in them. "
      + "Its client comes back only with another credential."),
    h("p", { class: "soft" }, "The server forgets this when it restarts: to make it last, put it into the file of --revocations."),
    fieldset, other,
  ];
  showOther();
  const submit = () => {
    const value = chosen();
    if (value === "all") return change(pathOf(view, "revoke"), { all: true });
    return change(pathOf(view, "revoke"), { id: value === "other" ? other.value.trim() : value.slice(3) });
  };
  const result = await ask(`Revoke credentials of ${view.label}?`, content, { label: "Revoke", danger: true, submit });
  if (result) report("Revoked credentials of", view, result);
  return result;
}
