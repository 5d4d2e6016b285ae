/* Draws each run as a stack of tensors over steps, and lets the reader walk through it. Nothing is asked of any network. */
"use strict";

const KINDS = ["forward", "kept", "backward"];
const SMALL_PX = 0.75;
const MOST_ROWS = 100;

const h = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

function bytes(count) {
  const units = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
  const [size, unit] = units.find(([each]) => count >= each) ?? [1, "B"];
  const exact = `${count.toLocaleString("en-US")} B`;
  return unit === "B" ? exact : `${(count / size).toFixed(2)} ${unit}, ${exact}`;
}

const plainOp = name => name.replace(/^aten::/, "");

/* A run's data, and what is asked of it again and again: which tensors come and go at each step. */
function index(run) {
  const came = run.steps.map(() => []);
  const went = run.steps.map(() => []);
  run.lives.forEach((life, id) => {
    const inForward = life.born < run.forward_steps;
    const ended = life.died ?? run.steps.length;
    life.kind = !inForward ? 2 : ended >= run.forward_steps ? 1 : 0;
    if (life.born < came.length) came[life.born].push(id);
    if (ended < went.length) went[ended].push(id);
  });
  const born = Int32Array.from(run.lives, life => life.born);
  const died = Int32Array.from(run.lives, life => life.died ?? run.steps.length);
  return { came, went, born, died };
}

/* Calls `visit(step, alive)` for the steps of `wanted`, in order; `alive` are ids, the oldest first. */
function sweep({ came, went }, wanted, visit) {
  const alive = new Set();
  let next = 0;
  for (let step = 0; step < came.length && next < wanted.length; step++) {
    for (const id of went[step]) alive.delete(id);
    for (const id of came[step]) alive.add(id);
    if (step === wanted[next]) {
      visit(step, alive);
      next++;
    }
  }
}

function aliveAt({ born, died }, step) {
  const found = [];
  for (let id = 0; id < born.length && born[id] <= step; id++) if (step < died[id]) found.push(id);
  return found;
}

function makeView(run, top) {
  const events = index(run);
  const last = Math.max(run.steps.length - 1, 0);
  const state = { step: run.peak_step, chosen: null, from: 0, to: run.steps.length };
  let columns = [];

  const base = h("canvas");
  const over = h("canvas", { class: "over" });
  const chart = h("div", { class: "chart", tabindex: "0", role: "application", "aria-label": `Memory of ${run.name}, step by step` }, base, over);
  const told = h("div", { class: "told", "aria-live": "polite" });
  const slider = h("input", { type: "range", min: "0", max: String(last), "aria-label": `Step of ${run.name}` });
  const body = h("tbody");
  const caption = h("caption");
  const list = h("div", { class: "list", tabindex: "0" }, h("table", {}, caption,
    h("thead", {}, h("tr", {}, h("th", {}, "size"), h("th", {}, "tensor"), h("th", {}, "made by"))), body));
  const button = (text, act) => {
    const made = h("button", { type: "button" }, text);
    made.addEventListener("click", act);
    return made;
  };
  const buttons = h("div", { class: "buttons" }, button("Peak", toPeak), slider,
    button("Closer", () => zoom(0.5)), button("Farther", () => zoom(2)));
  const peak = run.steps.length ? `peak ${bytes(run.peak_bytes)}, step ${run.peak_step + 1} of ${run.steps.length}` : "no operator ran";
  const section = h("section", {}, h("header", {}, h("h2", {}, run.name), h("span", { class: "muted" }, peak)),
    h("div", { class: "columns" }, h("div", {}, chart, buttons, told), list));

  /* One column of pixels shows the fullest of the steps that fall into it. */
  function layOut() {
    const width = Math.max(base.clientWidth, 50), height = base.clientHeight || 350;
    const count = state.to - state.from;
    const n = Math.min(width, count);
    const wanted = [];
    for (let column = 0; column < n; column++) {
      const first = state.from + Math.floor((column * count) / n), end = state.from + Math.floor(((column + 1) * count) / n);
      let best = first;
      for (let step = first; step < end; step++) if (run.steps[step].live_bytes > run.steps[best].live_bytes) best = step;
      wanted.push(best);
    }
    columns = [];
    const small = (SMALL_PX / height) * top;
    sweep(events, wanted, (step, alive) => {
      const bands = [];
      let sum = 0;
      for (const id of alive) {
        const begin = sum;
        sum += run.lives[id].nbytes;
        const before = bands.at(-1);
        if (run.lives[id].nbytes >= small) bands.push({ id, begin, end: sum });
        else if (before?.id === -1) before.end = sum;
        else bands.push({ id: -1, kind: run.lives[id].kind, begin, end: sum });
      }
      columns.push({ step, bands, sum });
    });
    return { width, height };
  }

  function prepared(canvas, { width, height }) {
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return Object.fromEntries([...KINDS, "ink", "muted", "mark", "paper", "soft", "line"].map(name => [name, style.getPropertyValue(`--${name}`).trim()]));
  }

  const y = (value, height) => height - (value / top) * (height - 4);

  function draw() {
    if (!run.steps.length) return;
    const size = layOut();
    const context = prepared(base, size), colour = colours();
    const split = (run.forward_steps - state.from) / (state.to - state.from) * size.width;
    context.fillStyle = colour.soft;
    if (split < size.width) context.fillRect(Math.max(split, 0), 0, size.width, size.height);
    columns.forEach(({ bands }, column) => {
      const [x, wide] = place(column, size.width);
      for (const { id, kind, begin, end } of bands) {
        const high = y(begin, size.height) - y(end, size.height);
        context.fillStyle = colour[KINDS[id === -1 ? kind : run.lives[id].kind]];
        context.globalAlpha = id % 2 ? 1 : 0.82;
        context.fillRect(x, y(end, size.height), wide, high);
        context.globalAlpha = 1;
        if (high > 5 && id !== -1) {
          context.fillStyle = colour.paper;
          context.fillRect(x, y(end, size.height), wide, 0.7);
        }
      }
    });
    context.fillStyle = colour.muted;
    context.font = "12px system-ui, sans-serif";
    if (split > 4 && split < size.width) {
      context.fillRect(split, 0, 1, size.height);
      context.fillText("backward →", Math.min(split + 4, size.width - 70), 12);
      context.textAlign = "right";
      if (split > 70) context.fillText("← forward", split - 4, 12);
      context.textAlign = "left";
    }
    drawOver(size);
  }

  /* Where a column begins and how wide it is, in whole pixels: no seams. */
  function place(column, width) {
    const x = Math.round((column * width) / columns.length);
    return [x, Math.round(((column + 1) * width) / columns.length) - x];
  }

  function drawOver(size = { width: base.clientWidth, height: base.clientHeight || 350 }) {
    const context = prepared(over, size), colour = colours();
    const centre = step => (step - state.from + 0.5) / (state.to - state.from) * size.width;
    context.setLineDash([4, 3]);
    context.strokeStyle = colour.mark;
    context.beginPath();
    const peakY = y(run.steps[run.peak_step].live_bytes, size.height);
    context.moveTo(0, peakY); context.lineTo(size.width, peakY);
    context.stroke();
    context.setLineDash([]);
    if (state.chosen !== null) {
      context.fillStyle = colour.mark;
      columns.forEach(({ step, bands }, column) => {
        if (step < events.born[state.chosen] || step >= events.died[state.chosen]) return;
        const band = bands.find(each => each.id === state.chosen);
        if (band) {
          const high = Math.max(y(band.begin, size.height) - y(band.end, size.height), 1.5);
          context.globalAlpha = 0.75;
          const [x, wide] = place(column, size.width);
          context.fillRect(x, y(band.end, size.height), wide, high);
        }
      });
      context.globalAlpha = 1;
    }
    context.strokeStyle = colour.ink;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(centre(state.step), 0); context.lineTo(centre(state.step), size.height);
    context.stroke();
  }

  const lineOf = number => number === null || number === undefined ? null : run.lines[number];

  function codeOf(number) {
    const line = lineOf(number);
    if (!line) return "";
    return h("span", {}, `${line.file}:${line.number} `, h("code", {}, line.text || line.function));
  }

  function tell() {
    const step = run.steps[state.step];
    const where = step.node ? `${step.node} runs ${plainOp(step.op)}` : plainOp(step.op);
    const lines = [h("p", {}, h("strong", {}, `Step ${state.step + 1} of ${run.steps.length}: `), where, ` — ${bytes(step.live_bytes)} alive${state.step === run.peak_step ? ", the peak" : ""}`)];
    if (lineOf(step.line)) lines.push(h("p", {}, step.for_gradient ? "for the gradient of " : "", codeOf(step.line)));
    if (state.chosen !== null) {
      const life = run.lives[state.chosen];
      lines.push(h("p", {}, h("strong", {}, `${life.shape.join(" × ") || "one number"} ${life.dtype.replace("torch.", "")}, ${bytes(life.nbytes)}`), ` made at step ${life.born + 1} by ${plainOp(life.op)}`, life.node ? ` (${life.node})` : ""));
      if (lineOf(life.line)) lines.push(h("p", {}, run.steps[life.born]?.for_gradient ? "for the gradient of " : "", codeOf(life.line)));
      const released = life.died === null ? "never released: it outlives the run" : `released after step ${life.died}`;
      const by = life.died === null ? "" : run.steps[Math.min(life.died, last)];
      lines.push(h("p", { class: "muted" }, released, by && lineOf(by.line) ? h("span", {}, ", before ", codeOf(by.line)) : ""));
    }
    told.replaceChildren(...lines);
    slider.value = String(state.step);
    slider.setAttribute("aria-valuetext", `step ${state.step + 1}, ${bytes(step.live_bytes)}`);
  }

  function show() {
    const ids = aliveAt(events, state.step).sort((a, b) => run.lives[b].nbytes - run.lives[a].nbytes);
    caption.textContent = `${ids.length} alive at step ${state.step + 1}${state.step === run.peak_step ? ", the peak" : ""}`;
    body.replaceChildren(...ids.slice(0, MOST_ROWS).map(id => {
      const life = run.lives[id];
      const row = h("tr", id === state.chosen ? { class: "chosen" } : {},
        h("td", {}, life.nbytes.toLocaleString("en-US")),
        h("td", {}, h("i", { class: KINDS[life.kind] }), life.shape.join(" × ") || "1"),
        h("td", {}, codeOf(life.line) || plainOp(life.op)));
      row.addEventListener("click", () => choose(id));
      return row;
    }));
    if (ids.length > MOST_ROWS) body.append(h("tr", {}, h("td", { colspan: "3" }, `and ${ids.length - MOST_ROWS} smaller ones`)));
    tell();
    drawOver();
  }

  function choose(id) { state.chosen = id; show(); }

  function goTo(step) {
    state.step = Math.min(Math.max(step, 0), last);
    const span = state.to - state.from;
    if (state.step < state.from || state.step >= state.to) {
      state.from = Math.min(Math.max(state.step - Math.floor(span / 2), 0), run.steps.length - span);
      state.to = state.from + span;
      draw();
    }
    if (state.chosen !== null && !(events.born[state.chosen] <= state.step && state.step < events.died[state.chosen])) state.chosen = null;
    show();
  }

  function toPeak() { goTo(run.peak_step); }

  function zoom(factor) {
    const span = Math.min(Math.max(Math.round((state.to - state.from) * factor), Math.min(20, run.steps.length)), run.steps.length);
    state.from = Math.min(Math.max(state.step - Math.floor(span / 2), 0), run.steps.length - span);
    state.to = state.from + span;
    draw();
    show();
  }

  function up(by) {
    const ids = aliveAt(events, state.step);
    if (!ids.length) return;
    const at = ids.indexOf(state.chosen);
    choose(ids[at === -1 ? (by > 0 ? 0 : ids.length - 1) : Math.min(Math.max(at + by, 0), ids.length - 1)]);
  }

  chart.addEventListener("keydown", event => {
    const far = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowRight: () => goTo(state.step + far), ArrowLeft: () => goTo(state.step - far),
      ArrowUp: () => up(1), ArrowDown: () => up(-1), Home: () => goTo(0), End: () => goTo(last),
      p: toPeak, P: toPeak, "+": () => zoom(0.5), "-": () => zoom(2), Escape: () => choose(null),
    };
    if (event.altKey || event.ctrlKey || event.metaKey || !Object.hasOwn(moves, event.key)) return;
    event.preventDefault();
    moves[event.key]();
  });

  function point(event) {
    const box = base.getBoundingClientRect();
    const column = columns[Math.min(Math.max(Math.floor((event.clientX - box.left) / box.width * columns.length), 0), columns.length - 1)];
    if (!column) return;
    const value = (1 - (event.clientY - box.top) / box.height) * top;
    state.step = column.step;
    state.chosen = column.bands.find(band => band.begin <= value && value < band.end && band.id !== -1)?.id ?? null;
    show();
  }
  chart.addEventListener("pointermove", event => { if (event.pointerType === "mouse") point(event); });
  chart.addEventListener("pointerdown", point);
  slider.addEventListener("input", () => goTo(Number(slider.value)));

  return { section, draw, show: () => run.steps.length && show() };
}

const top_ = Math.max(...RUNS.map(run => run.peak_bytes), 1);
const views = RUNS.map(run => makeView(run, top_));
const main = document.getElementById("runs");
if (views.length > 1) main.classList.add("two");
main.append(...views.map(view => view.section));
const drawAll = () => views.forEach(view => { view.draw(); view.show(); });
new ResizeObserver(drawAll).observe(main);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();
