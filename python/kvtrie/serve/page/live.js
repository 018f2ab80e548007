// The connection, and what is said above the tree: who is served, figures, tiers.
//
// The server sends `hello`, `state`, `request` and `beat` (see live.py). A stream that ends, or says nothing for three
// beats, is opened again; what was shown stays, marked as old, until the next `hello` clears it.

import { Requests } from "./requests.js";
import { Tree } from "./tree.js";
import { byId, bytes, count, make, plural, say, set, share } from "./words.js";

const SILENCE = 30_000; // milliseconds without a word
const RETRIES = [500, 1000, 2000, 4000, 8000]; // milliseconds before one more try

const tree = new Tree();
const requests = new Requests();
let source = null;
let tries = 0;
let heard = 0;
let goneSince = null;

function connect() {
  const key = new URLSearchParams(location.search).get("key");
  source = new EventSource(key === null ? "events" : `events?key=${encodeURIComponent(key)}`);
  heard = performance.now();
  source.onerror = lost;
  listen("hello", (hello) => {
    tries = 0;
    linked();
    requests.clear(hello);
    tree.clear();
    introduce(hello);
  });
  listen("state", (state) => {
    figures(state);
    tiers(state.tiers);
    tree.show(state);
  });
  listen("request", (entry) => requests.show(entry));
  listen("beat", () => {});
}

function listen(name, act) {
  source.addEventListener(name, (event) => {
    heard = performance.now();
    act(JSON.parse(event.data));
  });
}

function linked() {
  goneSince = null;
  document.body.dataset.link = "live";
  say(byId("link-words"), "live");
  byId("gone").hidden = true;
}

function lost() {
  source.close();
  goneSince = goneSince ?? new Date();
  const first = document.body.dataset.link === "connecting";
  document.body.dataset.link = "gone";
  say(byId("link-words"), "gone");
  const since = goneSince.toLocaleTimeString("en-GB");
  const what = first ? "The server does not answer" : `The server is gone since ${since}. This is what it was like then`;
  say(byId("gone"), `${what}; trying again.`);
  byId("gone").hidden = false;
  setTimeout(connect, RETRIES[Math.min(tries++, RETRIES.length - 1)]);
}

setInterval(() => {
  if (source.readyState !== EventSource.CLOSED && performance.now() - heard > SILENCE) lost();
}, 1000);

function introduce(hello) {
  document.title = `${hello.name} · kvtrie`;
  say(byId("name"), hello.name);
  say(byId("served"), `${hello.device} · context of ${count(hello.context)} tokens`);
}

function figures(state) {
  say(byId("tokens"), count(state.tokens));
  say(byId("tokens-more"), `in ${plural(state.nodes.length + state.hidden_nodes, "node")}, ${plural(state.sessions, "live session")}`);
  const { prompt_tokens: prompts, reused_tokens: reused } = state.totals;
  say(byId("reused"), prompts ? `${Math.round(100 * share(reused, prompts))} %` : "–");
  say(byId("reused-more"), prompts ? `${count(reused)} of ${count(prompts)} prompt tokens` : "no prompt has ended yet");
  say(byId("active"), count(state.batcher.active));
  say(byId("active-more"), `${count(state.batcher.waiting)} waiting, ${count(state.batcher.finished)} finished`);
}

function tiers(all) {
  const rows = all.filter((tier) => tier.cap > 0 || tier.bytes > 0).map((tier) => {
    const part = share(tier.bytes, tier.cap);
    const fill = make("i", { class: `fill ${tier.name}` });
    fill.style.width = `${tier.bytes ? Math.max(100 * part, 1) : 0}%`;
    const words = `${bytes(tier.bytes)} of ${bytes(tier.cap)}`;
    const bar = make("span", { class: "bar", role: "meter", "aria-label": `${tier.name}: ${words}` }, fill);
    set(bar, "aria-valuenow", Math.round(100 * part));
    return make("div", { class: "tier" }, make("span", {}, tier.name), bar, make("span", { class: "soft end" }, words));
  });
  byId("tiers").replaceChildren(...rows);
}

connect();
