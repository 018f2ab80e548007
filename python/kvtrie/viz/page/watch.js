// A watched cache in a notebook: an ES module for anywidget. Draws `state`, says "here" while the page is open, and
// sends what is clicked. Texts of users are only ever set as text; the SVG comes escaped from Python.

const BEAT = 5000; // ms between two signs of life
const ACTIONS = [
  ["branch", "Branch", "Begin a session that stands at the end of this node"],
  ["page_out", "Page out", "Move all branches through this node to host memory; what they share stays on the device"],
  ["page_in", "Page in", "Bring everything up to the end of this node to the device"],
  ["pin", "Pin or unpin", "Keep everything up to the end of this node where it is, or no longer"],
  ["evict", "Evict", "Forget all branches through this node, with what above it nobody else uses"],
];

function make(tag, className, parent, text) {
  const element = document.createElement(tag);
  element.className = className;
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

// The skeleton of one view.
function build(el) {
  const root = make("div", "kvtrie-watch", el);
  const figures = make("div", "kw-figures", root);
  const drawing = make("div", "kw-drawing", root);
  const panel = make("div", "kw-panel", root);
  const chosen = make("div", "kw-chosen", panel);
  const title = make("div", "kw-title", chosen);
  const facts = make("div", "kw-facts", chosen);
  const quote = make("div", "kw-quote", chosen);
  const buttons = make("div", "kw-buttons", chosen);
  const notice = make("div", "kw-notice", chosen);
  notice.setAttribute("role", "status");
  const happened = make("div", "kw-happened", panel);
  make("div", "kw-title", happened, "What happened");
  const events = make("ol", "kw-events", happened);
  const sessions = make("ul", "kw-sessions", happened);
  return { root, figures, drawing, chosen, title, facts, quote, buttons, notice, events, sessions };
}

class View {
  constructor(model, el) {
    this.model = model;
    this.page = Math.random().toString(36).slice(2);
    this.parts = build(el);
    this.selected = null;
    this.svg = null;
    this.ticket = null; // of the command that was sent last, until its picture comes
    this.waiting = false; // a "here" that was not answered: the kernel is busy
    for (const [command, label, hint] of ACTIONS) {
      const button = make("button", "kw-button", this.parts.buttons, label);
      button.type = "button";
      button.title = hint;
      button.dataset.command = command;
      button.addEventListener("click", () => this.act(command, this.selected));
    }
    this.parts.drawing.addEventListener("click", (event) => this.choose(nodeOf(event.target)));
    this.parts.drawing.addEventListener("keydown", (event) => this.key(event));
    this.draw = this.draw.bind(this);
    this.answer = this.answer.bind(this);
    model.on("change:state", this.draw);
    model.on("msg:custom", this.answer);
    this.draw();
    this.here();
    this.timer = setInterval(() => this.here(), BEAT);
  }

  tell(message) {
    try {
      this.model.send({ page: this.page, ...message });
    } catch {
      this.notice("problem", "The kernel cannot be reached.");
    }
  }

  here() {
    if (this.waiting || this.state().over) return;
    this.waiting = true;
    this.tell({ kind: "here" });
  }

  answer(message) {
    if (message && message.kind === "heard") this.waiting = false;
  }

  close() {
    clearInterval(this.timer);
    this.model.off("change:state", this.draw);
    this.model.off("msg:custom", this.answer);
    this.tell({ kind: "bye" });
  }

  state() {
    return this.model.get("state") || {};
  }

  // ---- drawing

  draw() {
    const state = this.state();
    if ((state.svg || "") !== this.svg) this.drawTree(state.svg || "");
    if (state.ticket === this.ticket) this.ticket = null;
    this.drawFigures(state.figures || []);
    this.drawEvents(state.events || []);
    this.drawSessions(state.sessions || []);
    if (state.notice) this.notice(...state.notice);
    if (state.over) this.notice("problem", state.over);
    this.parts.root.classList.toggle("kw-over", Boolean(state.over));
    this.drawChosen();
  }

  drawTree(svg) {
    const focused = nodeOf(document.activeElement);
    this.svg = svg;
    this.parts.drawing.innerHTML = svg;
    for (const group of this.groups()) {
      group.setAttribute("tabindex", "0");
      group.setAttribute("role", "button");
      if (group.dataset.node === focused) group.focus({ preventScroll: true });
    }
  }

  drawFigures(figures) {
    this.parts.figures.replaceChildren();
    for (const [name, value] of figures) {
      const pair = make("div", "kw-figure", this.parts.figures);
      make("span", "kw-name", pair, name);
      make("span", "kw-value", pair, value);
    }
  }

  drawEvents(events) {
    this.parts.events.replaceChildren();
    for (const [kind, text] of [...events].reverse()) make("li", `kw-event kw-${kind}`, this.parts.events, text);
  }

  drawSessions(sessions) {
    this.parts.sessions.replaceChildren();
    for (const [place, text] of sessions) {
      const item = make("li", "kw-session", this.parts.sessions, `${text} `);
      const button = make("button", "kw-button", item, "Close");
      button.type = "button";
      button.disabled = Boolean(this.state().over);
      button.addEventListener("click", () => this.act("close", place));
    }
  }

  drawChosen() {
    const { rows = {}, over } = this.state();
    const row = this.selected === null ? undefined : rows[this.selected];
    if (!row) this.selected = null;
    this.parts.title.textContent = row ? row.title : "Click a node";
    this.parts.facts.textContent = row ? row.facts : "to branch there, to page it out or in, to pin or to evict it.";
    this.parts.quote.textContent = row ? row.text : "";
    for (const button of this.parts.buttons.children) button.disabled = !row || Boolean(over) || this.ticket !== null;
    for (const group of this.groups()) {
      const on = group.dataset.node === this.selected;
      group.classList.toggle("kw-selected", on);
      group.setAttribute("aria-pressed", String(on));
    }
  }

  notice(kind, text) {
    this.parts.notice.className = `kw-notice kw-${kind}`;
    this.parts.notice.textContent = text;
  }

  groups() {
    return [...this.parts.drawing.querySelectorAll("g[data-node]")];
  }

  // ---- what a person does

  choose(name) {
    if (name === null) return;
    this.selected = name;
    this.drawChosen();
  }

  key(event) {
    const groups = this.groups();
    const at = groups.indexOf(event.target);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (at < 0 || !(step || event.key === "Enter" || event.key === " ")) return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has keys of its own
    if (step) groups[Math.min(Math.max(at + step, 0), groups.length - 1)].focus();
    else this.choose(groups[at].dataset.node);
  }

  act(command, node) {
    this.ticket = `${this.page}/${Date.now()}`;
    this.notice("wait", "Waiting for the kernel ...");
    this.drawChosen();
    this.tell({ kind: "do", command, node, ticket: this.ticket });
  }
}

function nodeOf(target) {
  const group = target && target.closest ? target.closest("g[data-node]") : null;
  return group ? group.dataset.node : null;
}

function render({ model, el }) {
  const view = new View(model, el);
  return () => view.close();
}

export default { render };
