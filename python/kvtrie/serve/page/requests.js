// The last requests, newest first, and how long their first tokens took.
//
// A row is a <details>: opened, it has the explanation that was made before the request began. Rows are kept by the
// request's number, so one that is open stays open when its figures change.

import { byId, clock, count, draw, make, plural, say, seconds, set, share } from "./words.js";

const KEPT = 100; // rows
const DOTS = 60; // requests in the picture of first tokens
const OUTCOMES = { running: "running", stop: "finished", length: "at its limit", tool_calls: "calls a tool", cancelled: "cancelled", failed: "failed", refused: "refused" };

export class Requests {
  constructor() {
    this.entries = new Map();
    this.rows = new Map();
    new ResizeObserver(() => this.drawFirst()).observe(byId("first"));
  }

  clear(hello) {
    this.entries.clear();
    this.rows.clear();
    byId("requests").replaceChildren();
    say(byId("example"), example(hello));
    this.words();
  }

  show(entry) {
    if (!this.rows.has(entry.number)) this.insert(entry.number);
    this.entries.set(entry.number, entry);
    fill(this.rows.get(entry.number), entry);
    while (this.entries.size > KEPT) this.forget(Math.min(...this.entries.keys()));
    this.words();
    this.drawFirst();
  }

  insert(number) {
    const row = makeRow(number);
    const next = [...this.rows.keys()].filter((each) => each < number).sort((a, b) => b - a)[0];
    byId("requests").insertBefore(row.item, next === undefined ? null : this.rows.get(next).item);
    this.rows.set(number, row);
  }

  forget(number) {
    this.rows.get(number).item.remove();
    this.rows.delete(number);
    this.entries.delete(number);
  }

  words() {
    byId("requests-empty").hidden = this.entries.size > 0;
    document.querySelector(".requests .columns").hidden = this.entries.size === 0;
    say(byId("requests-words"), this.entries.size === 0 ? "" : `the last ${plural(this.entries.size, "request")}`.replace("last 1 request", "only one"));
    byId("first-words").textContent = "";
    const times = this.timed().map((entry) => entry.seconds_to_first).sort((a, b) => a - b);
    if (times.length) say(byId("first-words"), `median ${seconds(times[Math.floor((times.length - 1) / 2)])}`);
  }

  timed() {
    const known = [...this.entries.values()].filter((entry) => entry.seconds_to_first !== null);
    return known.sort((a, b) => a.number - b.number).slice(-DOTS);
  }

  drawFirst() {
    const svg = byId("first");
    const timed = this.timed();
    const width = svg.clientWidth;
    const height = svg.clientHeight;
    if (!width) return;
    const axis = makeAxis(timed.map((entry) => entry.seconds_to_first));
    const most = axis.most;
    const left = 58;
    const parts = [draw("path", { class: "grid", d: `M${left} 7.5H${width}M${left} ${height - 7.5}H${width}` })];
    if (timed.length) {
      for (const [words, y] of [[seconds(axis.most), 11], [seconds(axis.least), height - 4]]) parts.push(draw("text", { class: "figure soft", x: left - 8, y }, words));
    }
    const gap = (width - left - 16) / Math.max(timed.length - 1, 15);
    timed.forEach((entry, index) => {
      const y = height - 7.5 - axis.share(entry.seconds_to_first) * (height - 15);
      const running = entry.outcome === "running"; // what was reused is told at the end
      const kind = running ? "running" : share(entry.reused, entry.prompt_tokens) >= 0.5 ? "filled" : "hollow";
      const what = running ? "running" : `${count(entry.reused)} of ${plural(entry.prompt_tokens, "token")} reused`;
      const words = `${seconds(entry.seconds_to_first)}, ${what}`;
      parts.push(draw("circle", { class: kind, cx: left + 8 + index * gap, cy: y, r: 4 }, draw("title", {}, words)));
    });
    svg.replaceChildren(...parts);
    set(svg, "aria-label", timed.length ? `The last ${timed.length} requests: ${byId("first-words").textContent}, at most ${seconds(most)}` : "No request has had its first token yet");
  }
}

/** The vertical axis: logarithmic, so that one slow request does not flatten all others. Ends are 1, 2 or 5 by ten. */
export function makeAxis(times) {
  const known = times.filter((time) => time > 0);
  const least = known.length ? round(Math.min(...known), Math.floor) : 0;
  const most = known.length ? Math.max(round(Math.max(...known), Math.ceil), 2 * least) : 0;
  const share = (time) => (time > least && most > least ? Math.min(Math.log(time / least) / Math.log(most / least), 1) : 0);
  return { least, most, share };
}

/** The next of 1, 2, 5, 10, ... milliseconds or seconds below or above. */
function round(time, toward) {
  const steps = [1, 2, 5, 10];
  const ten = 10 ** Math.floor(Math.log10(time));
  const fits = (step) => (toward === Math.floor ? step * ten <= time * 1.000001 : step * ten >= time * 0.999999);
  const found = toward === Math.floor ? steps.filter(fits).pop() : steps.find(fits);
  return (found ?? 1) * ten;
}

function makeRow(number) {
  const cell = (name, ...children) => make("span", { class: name }, ...children);
  const row = {
    began: cell("began"), api: cell("api"), space: cell("soft space"), words: cell("words"), first: cell("first-token end"), outcome: cell("outcome end"),
    reused: make("i", { class: "fill reused" }), why: make("pre", { class: "why" }), facts: make("p", { class: "soft facts" }),
  };
  row.bar = make("span", { class: "bar", "aria-hidden": "true" }, row.reused);
  const summary = make("summary", {}, row.began, cell("for", row.api, row.space), cell("prompt", row.bar, row.words), row.first, row.outcome);
  row.item = make("li", { "data-number": number }, make("details", {}, summary, row.facts, row.why));
  return row;
}

function fill(row, entry) {
  const running = entry.outcome === "running";
  row.item.className = entry.outcome;
  say(row.began, clock(entry.began));
  say(row.api, entry.api);
  say(row.space, entry.namespace);
  row.reused.style.width = `${100 * share(entry.reused, entry.prompt_tokens)}%`;
  const total = plural(entry.prompt_tokens, "token");
  const computed = entry.prompt_tokens - entry.reused;
  const refused = entry.outcome === "refused";
  say(row.words, refused ? entry.why : running ? total : `${count(entry.reused)} reused, ${count(computed)} computed`);
  say(row.first, entry.seconds_to_first === null ? (running ? "…" : "–") : seconds(entry.seconds_to_first));
  say(row.outcome, OUTCOMES[entry.outcome] ?? entry.outcome);
  const facts = [`request ${entry.number}`, refused ? "no answer began" : `prompt of ${total}`];
  if (!running && !refused) facts.push(`${plural(entry.generated, "token")} generated in ${seconds(entry.seconds)}`);
  say(row.facts, facts.join(" · "));
  say(row.why, entry.why || (running ? "Nobody was watching when it began. What the cache had of it is told at its end." : "It ended before its computation began."));
  row.why.classList.toggle("none", entry.why === "");
}

/** What somebody can type to see something here. */
function example(hello) {
  const key = hello.keys ? " -H 'Authorization: Bearer KEY'" : "";
  const [path, body] = hello.chat
    ? ["chat/completions", { model: hello.name, messages: [{ role: "user", content: "What is a cache?" }] }]
    : ["completions", { model: hello.name, prompt: "A cache is", max_tokens: 40 }];
  const data = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl ${new URL(`v1/${path}`, location.href).href.split("?")[0]}${key} \\\n  -H 'content-type: application/json' \\\n  -d '${data}'`;
}
