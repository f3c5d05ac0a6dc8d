"use strict";
// The page's only script: keeps the token, fetches pieces of HTML, puts in what differs, follows a text while it grows.
(() => {
  const TOKEN = "retoma.token";
  const CODE = /^[A-Za-z0-9]{8}$/;
  const PAGE = /^\/(?:|(?:tasks(?:\/resp_[0-9a-f]{32}(?:\/events)?)?|models|clients|store)(?:\?[\w=&.~-]*)?)$/;
  const PAUSES_MS = [300, 700, 1500, 3000, 5000, 10000];
  const LOST = "Connection lost. Trying again…";
  const $ = (id) => document.getElementById(id);
  const view = $("view");
  const channel = new BroadcastChannel("retoma");

  let token = "";
  let visit = 0; // rises with every navigation; what was asked for under an older number is dropped
  let asking = new AbortController();
  let timer = 0;
  let next = null; // how to look again, once it is time or the tab is seen again
  let failures = 0;
  let following = null; // { id, stop, hurry }

  class Refusal extends Error {
    constructor(status, message) {
      super(message);
      this.status = status;
    }
  }

  const pauseMs = (tries) => PAUSES_MS[Math.min(tries, PAUSES_MS.length - 1)];
  const say = (id, text) => {
    if ($(id).textContent !== text) $(id).textContent = text;
  };

  // ---- requests

  async function request(path, options = {}) {
    const headers = { ...options.headers };
    if (token) headers.Authorization = `Bearer ${token}`;
    const reply = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" });
    if (reply.ok) return reply;
    let message = `The service answered with status ${reply.status}.`;
    try {
      message = (await reply.json()).error.message;
    } catch {
      // whatever stands in between has answered, and not the service
    }
    throw new Refusal(reply.status, message);
  }

  // True if the error ends the session: then the form is shown, and nobody else has to say anything.
  function signsOut(error) {
    if (!(error instanceof Refusal) || (error.status !== 401 && error.status !== 403)) return false;
    askToSignIn(
      error.status === 401
        ? "This token is unknown or has been revoked. Sign in again."
        : `This token may not see the operator’s page: ${error.message}.`,
    );
    return true;
  }

  // ---- the token

  function keep(value) {
    token = value;
    sessionStorage.setItem(TOKEN, value);
  }

  function askToSignIn(sentence = "") {
    leave();
    token = "";
    sessionStorage.removeItem(TOKEN);
    view.replaceChildren();
    $("top").hidden = true;
    $("sign-in").hidden = false;
    $("sign-in-error").hidden = !sentence;
    $("sign-in-error").textContent = sentence;
    say("connection", "");
    say("notice", "");
    document.title = "Sign in · Retoma";
    if ($("confirm").open) $("confirm").close();
    $("secret").value = "";
    $("secret").focus();
  }

  async function pair(code) {
    const body = JSON.stringify({ code: code.toUpperCase(), name: "Operator’s page" });
    token = "";
    try {
      const reply = await request("/v1/pairings", { method: "POST", body, headers: { "Content-Type": "application/json" } });
      keep((await reply.json()).token);
      enter();
    } catch (error) {
      askToSignIn(error instanceof Refusal ? `The code was not taken: ${error.message}.` : "The service does not answer. Try again in a moment.");
    }
  }

  // A new tab asks the others of this origin; nobody else hears the question.
  function askOtherTabs() {
    channel.postMessage({ ask: true });
    setTimeout(() => token || askToSignIn(), 150);
  }

  channel.onmessage = ({ data }) => {
    if (data.ask && token) channel.postMessage({ token });
    if (data.token && !token && $("top").hidden) {
      keep(data.token);
      enter();
    }
    if (data.out && token) askToSignIn("Signed out in another tab.");
  };

  // ---- pages

  const place = () => {
    const path = location.hash.slice(1) || "/";
    return PAGE.test(path) ? path : "/";
  };

  function enter() {
    $("sign-in").hidden = true;
    $("top").hidden = false;
    navigate(false);
  }

  function leave() {
    visit += 1;
    asking.abort();
    clearTimeout(timer);
    next = null;
    following?.stop.abort();
    following = null;
    failures = 0;
  }

  function navigate(byHand = true) {
    leave();
    say("notice", "");
    const page = "/" + place().split(/[/?]/)[1];
    for (const link of $("nav").children) {
      if (link.dataset.page === page) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    load({ fresh: true, byHand });
  }

  async function load({ fresh = false, byHand = false } = {}) {
    const mine = visit;
    clearTimeout(timer);
    next = null;
    asking.abort();
    asking = new AbortController();
    const path = place();
    try {
      const reply = await request(`/dashboard${path === "/" ? "/overview" : path}`, { signal: asking.signal });
      const html = await reply.text();
      if (mine !== visit) return;
      if (!reply.headers.get("Content-Type").startsWith("text/html")) throw new Refusal(404, "There is no such page.");
      show(html, fresh, byHand);
      failures = 0;
      say("connection", "");
      following?.hurry();
    } catch (error) {
      if (mine !== visit || error.name === "AbortError") return;
      if (signsOut(error)) return;
      if (error instanceof Refusal && error.status < 500) {
        refuse(error.message);
        return;
      }
      say("connection", error instanceof Refusal ? `${error.message}. Trying again…` : LOST);
      lookAgain(pauseMs(failures++), { fresh, byHand });
      return;
    }
    const everyS = Number(view.firstElementChild?.dataset.every);
    if (everyS) lookAgain(everyS * 1000, {});
  }

  function lookAgain(afterMs, options) {
    next = options;
    if (!document.hidden) timer = setTimeout(load, afterMs, options);
  }

  function refuse(message) {
    const title = document.createElement("h1");
    title.id = "title";
    title.textContent = "Nothing here";
    const text = document.createElement("p");
    text.className = "empty";
    text.textContent = `${message[0].toUpperCase()}${message.slice(1)}. It may have been deleted.`;
    view.replaceChildren(title, text);
    following?.stop.abort();
    following = null;
  }

  function show(html, fresh, byHand) {
    const made = document.createElement("template");
    made.innerHTML = html;
    localise(made.content);
    if (fresh) view.replaceChildren(made.content);
    else {
      const focused = document.activeElement;
      morph(view, made.content);
      if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
    }
    document.title = `${view.firstElementChild.dataset.title} · Retoma`;
    if (fresh && byHand) {
      window.scrollTo(0, 0);
      $("title").focus({ preventScroll: true });
    }
    const output = view.querySelector("[data-stream]");
    if (output && following?.id !== output.dataset.stream) follow(output);
    if (!output) {
      following?.stop.abort();
      following = null;
    }
  }

  function localise(root) {
    for (const element of root.querySelectorAll("time")) {
      const at = new Date(element.dateTime);
      const today = at.toDateString() === new Date().toDateString();
      element.textContent = today ? at.toLocaleTimeString() : at.toLocaleString();
      element.title = at.toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });
    }
  }

  // Makes the children of `old` those of `fresh` and touches only what differs, so that focus, selection and scrolling
  // stay. Elements with an id are found again wherever they are; what is under `data-own` belongs to this script.
  function morph(old, fresh) {
    const wanted = new Set(Array.from(fresh.children, (child) => child.id));
    const kept = new Map();
    for (const child of [...old.children]) {
      if (child.id && !wanted.has(child.id)) child.remove();
      else if (child.id) kept.set(child.id, child);
    }
    let at = old.firstChild;
    for (const node of [...fresh.childNodes]) {
      const same = at && !at.id && at.nodeName === node.nodeName ? at : null;
      const match = node.id ? kept.get(node.id) : same;
      if (!match || match.nodeName !== node.nodeName) old.insertBefore(node, at);
      else {
        if (match === at) at = at.nextSibling;
        else old.insertBefore(match, at);
        update(match, node);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function update(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    if (!fresh.hasAttribute("data-own")) morph(old, fresh);
  }

  // ---- a text while it grows

  async function* eventsOf(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return; // what is left in `rest` is half an event: it is asked for again
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      const lines = blocks.flatMap((block) => block.split("\n").filter((line) => line.startsWith("data: ")));
      if (lines.length) yield lines.map((line) => JSON.parse(line.slice(6)));
    }
  }

  async function follow(output) {
    const id = output.dataset.stream;
    const stop = new AbortController();
    const own = { id, stop, hurry: () => {} };
    following = own;
    const text = document.createTextNode("");
    output.replaceChildren(text);
    let last = -1;
    let tries = 0;
    while (!stop.signal.aborted) {
      try {
        const after = last < 0 ? "" : `&starting_after=${last}`;
        const reply = await request(`/v1/responses/${id}?stream=true${after}`, { signal: stop.signal });
        for await (const events of eventsOf(reply.body)) {
          if (stop.signal.aborted) return;
          tries = 0;
          say("connection", "");
          last = take(events, output, text);
          if (events.some((event) => event.response)) load();
          if (/^response\.(completed|incomplete|failed|cancelled)$/.test(events.at(-1).type)) return;
        }
      } catch (error) {
        if (stop.signal.aborted || signsOut(error)) return;
        if (error instanceof Refusal && error.status < 500) return;
      }
      if (stop.signal.aborted) return;
      say("connection", LOST);
      await new Promise((go) => {
        own.hurry = go;
        setTimeout(go, pauseMs(tries++));
      });
    }
  }

  // Puts what these events say into the text; the number of the last one.
  function take(events, output, text) {
    const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 40;
    let added = "";
    for (const event of events) {
      if (event.type === "response.output_text.delta") added += event.delta;
      if (event.type === "response.queued") {
        added = ""; // a retry begins the text again
        text.data = "";
      }
    }
    if (added) text.appendData(added);
    if (added && atEnd) output.scrollTop = output.scrollHeight;
    return events.at(-1).sequence_number;
  }

  // ---- what the operator does

  function confirmed(title, text, keepIt, doIt) {
    const dialog = $("confirm");
    for (const [id, words] of [["title", title], ["text", text], ["no", keepIt], ["yes", doIt]]) {
      $(`confirm-${id}`).textContent = words;
    }
    return new Promise((settle) => {
      const answer = (yes) => {
        dialog.onclose = null;
        dialog.close();
        settle(yes);
      };
      $("confirm-yes").onclick = () => answer(true);
      $("confirm-no").onclick = () => answer(false);
      dialog.onclose = () => settle(false);
      dialog.showModal();
      $("confirm-no").focus();
    });
  }

  const ACTIONS = {
    async cancel({ id, version }) {
      if (!(await confirmed("Cancel this task?", "What it has written so far is kept; it will not go on.", "Let it run", "Cancel the task"))) return "";
      const reply = await request(`/v1/responses/${id}/cancel`, { method: "POST", headers: { "If-Match": `"${version}"` } });
      const { status } = await reply.json();
      if (status === "cancelled") return "The task is cancelled.";
      return status === "in_progress" ? "The task is being cancelled." : `The task had ended before: it is ${status}.`;
    },
    async revoke({ id, name }) {
      if (!(await confirmed("Revoke this client?", `The token of “${name}” will not work any more, and its open streams end.`, "Keep it", "Revoke"))) return "";
      await request(`/v1/clients/${id}`, { method: "DELETE" });
      return `The client “${name}” is revoked.`;
    },
  };

  async function act(button) {
    let said;
    try {
      said = await ACTIONS[button.dataset.action](button.dataset);
    } catch (error) {
      if (signsOut(error)) return;
      if (!(error instanceof Refusal)) said = "The service does not answer; nothing is known to have changed. Try again.";
      else if (error.status === 412) said = "The task has changed since you looked, so nothing was done. Look again, then decide.";
      else said = `Not done: ${error.message}.`;
    }
    if (!said) return;
    say("notice", said);
    load();
  }

  async function open(details) {
    const inside = details.querySelector("[data-own]");
    if (!details.open || inside.childElementCount) return;
    try {
      const made = document.createElement("template");
      made.innerHTML = await (await request(details.dataset.load)).text();
      inside.replaceChildren(made.content);
    } catch (error) {
      details.open = false;
      if (!signsOut(error)) say("notice", `Not shown: ${error.message}.`);
    }
  }

  view.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-action]");
    if (button) act(button);
  });
  view.addEventListener("toggle", (event) => event.target.dataset.load && open(event.target), true);
  $("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the fragment of the address is the page's name
    $("main").focus();
  });
  $("sign-out").addEventListener("click", () => {
    channel.postMessage({ out: true });
    askToSignIn();
  });
  $("sign-in-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const secret = $("secret").value.trim();
    const code = secret.replace(/[\s-]/g, "");
    if (CODE.test(code)) pair(code);
    else if (/^[\x21-\x7e]+$/.test(secret)) {
      keep(secret);
      enter();
    } else askToSignIn("That is neither a pairing code nor a token. Copy it again, without spaces.");
  });
  document.addEventListener("visibilitychange", () => {
    if (next && !document.hidden) load(next);
  });
  window.addEventListener("hashchange", () => pairFromAddress() || (token && navigate()));

  function pairFromAddress() {
    const found = /^#pair=([A-Za-z0-9-]{8,9})$/.exec(location.hash);
    if (!found) return false;
    history.replaceState(null, "", location.pathname); // the code must not stay in the address or the history
    pair(found[1].replace("-", ""));
    return true;
  }

  token = sessionStorage.getItem(TOKEN) ?? "";
  if (!pairFromAddress()) token ? enter() : askOtherTabs();
})();
