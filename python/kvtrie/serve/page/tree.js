// The tree: a row for each node, a bar on an axis of token positions. A child's bar begins where its parent's ends, and
// a line leads down to it. What comes fades in, what goes fades out, what moves slides.
//
// Rows are groups in one SVG, kept by the node's id. Siblings stand in the order in which they were first seen. The
// picture is drawn anew when a state comes or the width changes; only attributes that differ are set.

import { at, makeScale, ticks } from "./scale.js";
import { age, byId, bytes, count, draw, make, plural, say, set } from "./words.js";

const BAR = 13;
const LETTER = 6.7; // pixels of a letter, a little more than most take
const LEAVING = 700; // milliseconds; the style sheet has the same
const HINT = "Point at a node, or go through them with the arrow keys, to see what it is.";
const PLACES = { device: "on the device", host: "in host memory", disk: "on disk", store: "in the store", none: "nowhere" };
const POINTS = { spaced: "at a distance", end: "a conversation's end", branch: "where prompts diverge", user: "a user's" };

export class Tree {
  constructor() {
    this.rows = new Map(); // id -> what is drawn of a node
    this.seen = new Map(); // id -> a number that grows
    this.nodes = [];
    this.order = [];
    this.chosen = null;
    this.fresh = true; // the first state is not news
    this.links = draw("path", { class: "links" });
    this.grid = draw("path", { class: "grid" });
    this.spaces = draw("g", {});
    byId("nodes").append(this.grid, this.links, this.spaces);
    byId("nodes").addEventListener("keydown", (event) => this.key(event));
    byId("nodes").addEventListener("pointerleave", () => this.point(this.chosen));
    new ResizeObserver(() => this.layOut()).observe(byId("tree"));
    setInterval(() => this.grow(), 1000);
    this.point(null);
  }

  clear() {
    this.fresh = true;
  }

  show(state) {
    this.received = performance.now();
    this.nodes = state.nodes;
    this.partial = state.hidden_nodes > 0;
    for (const node of this.nodes) if (!this.seen.has(node.id)) this.seen.set(node.id, this.seen.size);
    this.byId = new Map(this.nodes.map((node) => [node.id, node]));
    this.order = ordered(this.nodes, this.seen);
    this.enterAndLeave();
    this.layOut();
    this.words(state);
    this.fresh = false;
  }

  enterAndLeave() {
    for (const node of this.nodes) {
      if (!this.rows.has(node.id)) this.rows.set(node.id, this.makeRow(node.id));
    }
    for (const [id, row] of this.rows) {
      if (this.byId.has(id)) continue;
      row.group.classList.add("leaving");
      row.group.removeAttribute("tabindex");
      this.rows.delete(id);
      this.seen.delete(id);
      setTimeout(() => row.group.remove(), LEAVING);
      if (this.chosen === id) this.choose(null);
    }
  }

  makeRow(id) {
    const row = {
      hit: draw("rect", { class: "hit", rx: 4 }),
      bar: draw("rect", { class: "tokens", rx: 3, height: BAR }),
      cuts: draw("path", { class: "cuts" }),
      marks: draw("g", { class: "marks" }),
      label: draw("text", { class: "label" }),
      figures: [0, 1, 2].map((index) => draw("text", { class: index === 2 ? "figure soft" : "figure" })),
    };
    row.group = draw("g", { class: this.fresh ? "node" : "node new", role: "treeitem", tabindex: -1, "data-id": id });
    row.group.append(row.hit, row.bar, row.cuts, row.marks, row.label, ...row.figures);
    row.group.addEventListener("click", () => this.choose(id, true));
    row.group.addEventListener("focus", () => this.choose(id));
    row.group.addEventListener("pointerenter", () => this.point(id));
    byId("nodes").append(row.group);
    return row;
  }

  // --- places ---------------------------------------------------------------------------------------------------------

  layOut() {
    const width = byId("tree").clientWidth;
    byId("tree-empty").hidden = this.nodes.length > 0 || this.fresh;
    byId("axis").style.display = this.nodes.length ? "" : "none";
    if (width === 0 || !this.received) return;
    const form = formOf(width);
    const scale = makeScale(this.nodes, form.left, form.right - form.left);
    let y = 0;
    let space = null;
    const names = [];
    for (const node of this.order) {
      if (node.namespace !== space) {
        space = node.namespace;
        names.push([space, y]);
        y += form.head;
      }
      this.place(node, this.rows.get(node.id), y, scale, form);
      y += form.row;
    }
    set(byId("nodes"), "width", width);
    set(byId("nodes"), "height", y + (y ? 6 : 0));
    this.drawSpaces(names, form);
    this.drawLinks(scale, form);
    this.drawAxis(scale, form, width, y);
    this.rove();
  }

  place(node, row, y, scale, form) {
    row.y = y;
    row.group.style.transform = `translate(0px, ${y}px)`;
    const begin = at(scale, node.start) + 2;
    const end = Math.max(at(scale, node.start + node.length) - 1, begin + 3);
    row.begin = begin;
    row.end = end;
    for (const [name, value] of [["x", 1], ["y", 1], ["width", form.width - 2], ["height", form.row - 2]]) set(row.hit, name, value);
    for (const [name, value] of [["x", begin], ["y", form.bar - BAR / 2], ["width", end - begin]]) set(row.bar, name, value);
    set(row.bar, "class", `tokens ${node.tier}`);
    row.group.classList.toggle("live", node.live > 0);
    set(row.group, "aria-level", node.depth + 1);
    set(row.group, "aria-label", words(node, this.ageOf(node)));
    set(row.cuts, "d", cuts(node, scale, form));
    this.placeWords(node, row, form, marks(row.marks, node, form.narrow ? form.left + 2 : end + 9, form.text - 4));
  }

  placeWords(node, row, form, x) {
    set(row.label, "x", x);
    set(row.label, "y", form.text);
    row.label.classList.toggle("soft", node.turns.length === 0);
    sayTurns(row.label, node, (form.columns[0] - 50 - x) / LETTER);
    const figures = [count(node.length), bytes(node.bytes), age(this.ageOf(node))];
    row.figures.forEach((figure, index) => {
      const shown = index < form.columns.length;
      set(figure, "x", shown ? form.columns[index] : 0);
      set(figure, "y", form.text);
      say(figure, shown ? figures[index] : "");
    });
  }

  drawSpaces(names, form) {
    const many = names.map(([name, y]) => {
      const own = this.nodes.filter((node) => node.namespace === name);
      const live = own.reduce((sum, node) => sum + node.live, 0);
      const tokens = own.reduce((sum, node) => sum + node.length, 0);
      const facts = [`${plural(tokens, "token")}${this.partial ? " drawn" : ""}`, ...(live ? [`${count(live)} live`] : [])].join(", ");
      const text = draw("text", { class: "space", x: form.left - 8, y: y + form.head - 8 }, clipped(name, form.width / 14));
      text.append(draw("tspan", { class: "soft", dx: 8 }, facts));
      return text;
    });
    this.spaces.replaceChildren(...many);
  }

  drawLinks(scale, form) {
    const below = new Map();
    for (const node of this.order) {
      if (!below.has(node.parent)) below.set(node.parent, []);
      if (node.parent !== null) below.get(node.parent).push(this.rows.get(node.id).y + form.bar);
    }
    const parts = [];
    for (const [id, middles] of below) {
      const row = id === null ? null : this.rows.get(id);
      if (!row || !middles.length) continue;
      const x = (at(scale, this.byId.get(id).start + this.byId.get(id).length) - 2).toFixed(1);
      parts.push(`M${x} ${row.y + form.bar + BAR / 2 - 3}V${middles[middles.length - 1]}`, ...middles.map((y) => `M${x} ${y}h4`));
    }
    set(this.links, "d", parts.join(""));
  }

  drawAxis(scale, form, width, height) {
    const offsets = this.nodes.length ? ticks(scale) : [];
    const places = offsets.map((offset) => at(scale, offset));
    set(this.grid, "d", places.map((x) => `M${x.toFixed(1)} 0V${height}`).join(""));
    const labels = offsets.map((offset, index) => draw("text", { x: Math.min(places[index], width - 18), y: 13, "text-anchor": "middle" }, count(offset)));
    const heads = ["tokens", "bytes", "last used"].slice(0, form.columns.length);
    if (!form.narrow) labels.push(...heads.map((head, index) => draw("text", { x: form.columns[index], y: 13, class: "figure" }, head)));
    set(byId("axis"), "width", width);
    byId("axis").replaceChildren(...labels);
  }

  // --- words ----------------------------------------------------------------------------------------------------------

  words(state) {
    const spaces = new Set(this.nodes.map((node) => node.namespace)).size;
    const facts = [plural(this.nodes.length + state.hidden_nodes, "node")];
    if (spaces > 1) facts.push(plural(spaces, "namespace"));
    if (state.evicted_tokens) facts.push(`${count(state.evicted_tokens)} tokens evicted so far`);
    say(byId("tree-words"), facts.join(" · "));
    byId("hidden").hidden = state.hidden_nodes === 0;
    const left = `${count(state.hidden_nodes)} more, with ${plural(state.hidden_tokens, "token")}, are known`;
    say(byId("hidden"), `Drawn are the nodes that were used last; ${left}.`);
    this.legend();
    this.point(this.pointed);
  }

  legend() {
    const tiers = Object.keys(PLACES).filter((tier) => this.nodes.some((node) => node.tier === tier));
    const keys = tiers.flatMap((tier) => [make("span", { class: `key ${tier}` }), PLACES[tier] + " "]);
    if (this.nodes.some((node) => node.live)) keys.push(make("span", { class: "key session" }), "live session ");
    if (this.nodes.some((node) => node.pinned)) keys.push(make("span", { class: "key pin" }), "pinned ");
    byId("legend").replaceChildren(...keys);
  }

  ageOf(node) {
    return node.live ? 0 : node.age + (performance.now() - this.received) / 1000;
  }

  /** Ages, which need no news from the server. */
  grow() {
    for (const node of this.nodes) {
      const row = this.rows.get(node.id);
      if (row.figures[2].textContent !== "") say(row.figures[2], age(this.ageOf(node)));
    }
    const pointed = this.pointed === null ? undefined : this.byId.get(this.pointed);
    if (pointed) say(byId("details").firstChild, words(pointed, this.ageOf(pointed)));
  }

  // --- one node -------------------------------------------------------------------------------------------------------

  choose(id, focus = false) {
    this.chosen = id;
    this.rove();
    this.point(id);
    if (focus && id !== null) this.rows.get(id).group.focus();
  }

  rove() {
    const entry = this.chosen ?? this.order[0]?.id;
    for (const [id, row] of this.rows) set(row.group, "tabindex", id === entry ? 0 : -1);
  }

  point(id) {
    const node = id === null || id === undefined ? undefined : this.byId?.get(id);
    this.pointed = node ? id : null;
    const path = new Set();
    for (let above = node; above; above = this.byId.get(above.parent)) path.add(above.id);
    for (const [each, row] of this.rows) row.group.classList.toggle("path", path.has(each));
    const box = byId("details");
    box.hidden = this.nodes.length === 0;
    if (!node) return box.replaceChildren(make("p", { class: "soft" }, HINT));
    box.replaceChildren(make("p", {}, words(node, this.ageOf(node))), quote(node));
  }

  key(event) {
    const place = this.order.findIndex((node) => node.id === this.chosen);
    const node = this.order[place];
    if (!node) return;
    const goal = {
      ArrowDown: this.order[place + 1],
      ArrowUp: this.order[place - 1],
      ArrowLeft: this.byId.get(node.parent),
      ArrowRight: this.order[place + 1]?.parent === node.id ? this.order[place + 1] : undefined,
      Home: this.order[0],
      End: this.order[this.order.length - 1],
    };
    if (!(event.key in goal)) return;
    event.preventDefault();
    if (goal[event.key]) this.choose(goal[event.key].id, true);
  }
}

/** Where things are in a row. On a narrow page a node has two lines, its words above its bar. */
function formOf(width) {
  const narrow = width < 620;
  const columns = narrow ? [width - 8] : [width - 150, width - 70, width - 8];
  const room = Math.min(400, Math.max(190, 0.3 * width)); // for labels, right of the axis
  const right = narrow ? width - 12 : columns[0] - 50 - room;
  const form = { width, narrow, columns, left: 14, right, head: 28 };
  return narrow ? { ...form, row: 43, text: 16, bar: 29 } : { ...form, row: 26, text: 17, bar: 13 };
}

/** Parents above their children, namespaces in the order of their names; `depth` is set. */
function ordered(nodes, seen) {
  const below = new Map();
  for (const node of nodes) {
    if (!below.has(node.parent)) below.set(node.parent, []);
    below.get(node.parent).push(node);
  }
  for (const siblings of below.values()) siblings.sort((a, b) => seen.get(b.id) - seen.get(a.id));
  const tops = below.get(null) ?? [];
  const order = [];
  const stack = tops.sort((a, b) => (a.namespace < b.namespace ? 1 : a.namespace > b.namespace ? -1 : seen.get(b.id) - seen.get(a.id)));
  for (const top of tops) top.depth = 0;
  while (stack.length) {
    const node = stack.pop();
    order.push(node);
    for (const child of below.get(node.id) ?? []) {
      child.depth = node.depth + 1;
      stack.push(child);
    }
  }
  return order;
}

/** What a node says, in so many letters: each turn's role as a mark before its text. Only what differs is set. */
function sayTurns(label, node, room) {
  const shown = node.turns.length ? node.turns : [{ role: "", text: `${count(node.start)} to ${count(node.start + node.length)}` }];
  const key = JSON.stringify([shown, Math.floor(room)]);
  if (label.dataset.said === key) return;
  label.dataset.said = key;
  const parts = [];
  for (const turn of shown) {
    const mark = turn.role && room > turn.role.length ? turn.role : "";
    if (mark) parts.push(draw("tspan", { class: "role", dx: parts.length ? 7 : 0 }, mark));
    room -= mark ? mark.length + 2 : 0;
    const text = clipped(turn.text, room);
    if (text) parts.push(draw("tspan", { dx: parts.length ? 5 : 0 }, text));
    room -= text.length + 1;
    if (room < 4) break;
  }
  label.replaceChildren(...parts);
}

/** The same below the tree, where it may be as long as the line. */
function quote(node) {
  const line = make("p", { class: "quote" });
  for (const turn of node.turns) {
    if (turn.role) line.append(make("b", { class: "role" }, turn.role), " ");
    line.append(turn.text, " ");
  }
  if (!node.turns.length) line.append("no text");
  return line;
}

/** Live sessions and pins, from `x` on; returns where words may begin. */
function marks(group, node, x, y) {
  const dots = Math.min(node.live, 3);
  const parts = [];
  for (let dot = 0; dot < dots; dot += 1, x += 11) parts.push(draw("circle", { class: "session", cx: x + 1, cy: y, r: 3.8 }));
  if (node.live > dots) {
    parts.push(draw("text", { class: "more", x: x - 2, y: y + 4 }, `+${node.live - dots}`));
    x += 20;
  }
  if (node.pinned) {
    parts.push(draw("path", { class: "pin", d: `M${x - 3} ${y - 5}h6l-1 4l2 2h-3.3v4.5h-1.4v-4.5h-3.3l2 -2z` }));
    x += 13;
  }
  group.replaceChildren(...parts);
  return x - 3;
}

/** Where a bar is shorter than its tokens would be. */
function cuts(node, scale, form) {
  const top = form.bar - BAR / 2;
  const own = scale.breaks.filter(([first, last]) => node.start <= first && last <= node.start + node.length);
  return own.map(([first, last]) => {
    const x = at(scale, first) + 0.7 * (at(scale, last) - at(scale, first));
    return `M${(x - 5).toFixed(1)} ${top + BAR + 1}l4 ${-BAR - 2}m4 0l-4 ${BAR + 2}`;
  }).join("");
}

function words(node, since) {
  const facts = [
    `${count(node.start)} to ${count(node.start + node.length)}: ${plural(node.length, "token")}, ${bytes(node.bytes)} ${PLACES[node.tier] ?? node.tier}`,
    node.live ? plural(node.live, "live session") : `last used ${age(since)} ago`,
  ];
  if (node.pinned) facts.push("pinned");
  if (node.user) facts.push("marked by a checkpoint");
  if (node.point) facts.push(`restore point, ${POINTS[node.point] ?? node.point}`);
  return facts.join(" · ");
}

function clipped(text, columns) {
  const letters = [...text];
  if (letters.length <= columns) return text;
  return columns < 4 ? "" : letters.slice(0, Math.floor(columns) - 1).join("").trimEnd() + "…";
}
