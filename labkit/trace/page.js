/* Draws each run as a stack of tensors over steps, and lets the reader walk through it. Nothing is loaded from elsewhere. */
"use strict";

const KINDS = { /* of tensors: the colour, and what the legend says */
  parameter: ["parameter", "parameter or buffer: there before the run"],
  input: ["input", "input: there before the run"],
  before: ["parameter", "there before the recording"],
  "optimizer state": ["optimizer", "optimizer state"],
  gradient: ["gradient", "gradient of a parameter or input"],
  activation: ["activation", "activation: a forward pass leaves it for the backward pass, or as its result"],
  temporary: ["temporary", "temporary: a gradient on its way in the backward pass, or gone when its pass ends"],
  workspace: ["workspace", "workspace inside one operator"],
  allocated: ["temporary", "allocated"],
  rest: ["input", "smaller blocks together: the page is thinned"],
};
const KIND_NAMES = Object.keys(KINDS);
const COLOURS = [...new Set(Object.values(KINDS).map(([colour]) => colour))];
const THERE_BEFORE = ["parameter", "input", "before"];
const UNITS = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
const SHORT = { forward: "fwd", backward: "bwd", optimizer: "opt" };
const OUTSIDE = "outside of modules", BEFORE = "there before the run";
const VIEWS = { tensors: "Tensors", modules: "Modules", lines: "Lines", kinds: "Kinds" };
const SMALL_PX = 0.75, LEFT = 62, TOP = 24, BOTTOM = 22, FEWEST_STEPS = 12, MORE_ROWS = 200;

const h = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

const exactBytes = count => `${count.toLocaleString("en-US")} B`;

function bytes(count) {
  const [size, unit] = UNITS.find(([each]) => Math.abs(count) >= each) ?? [1, "B"];
  return unit === "B" ? exactBytes(count) : `${(count / size).toFixed(2)} ${unit}, ${exactBytes(count)}`;
}

const plainOp = name => name.replace(/^aten::/, "");
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/* Round numbers from `low` to `high`, about `count` of them. */
function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(each => each * power).find(each => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

/* Which tensors come and go at each step. Lives are ordered by birth. */
function index(run) {
  const came = run.steps.map(() => []), went = run.steps.map(() => []);
  const born = Int32Array.from(run.lives, life => life.born);
  const died = Int32Array.from(run.lives, life => life.died ?? run.steps.length);
  run.lives.forEach((_, id) => {
    if (born[id] < came.length) came[born[id]].push(id);
    if (died[id] < went.length) went[died[id]].push(id);
  });
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

const bytesAt = (run, step) => run.before_bytes + run.steps[step].live_bytes + run.steps[step].workspace_bytes;

function makeView(run, top) {
  const events = index(run);
  const last = Math.max(run.steps.length - 1, 0);
  const shortList = matchMedia("(max-width: 600px)").matches ? 12 : 60;
  const state = { step: run.peak_step, chosen: null, held: false, from: 0, to: run.steps.length, base: 0, rows: shortList, open: false,
    by: "tensors", unfolded: new Set(), filter: null, group: null };
  let columns = [], groups = [], order = [];

  const button = (text, label, act) => {
    const made = h("button", { type: "button", "aria-label": label, title: label }, text);
    made.addEventListener("click", () => act(made));
    return made;
  };
  const base = h("canvas"), over = h("canvas", { class: "over" });
  const chart = h("div", { class: "chart", tabindex: "0", role: "application", "aria-label": `Memory of ${run.name}, step by step` }, base, over);
  const detail = h("div", { class: "detail", "aria-live": "polite" });
  const slider = h("input", { type: "range", min: "0", max: String(last), "aria-label": `Step of ${run.name}` });
  const body = h("tbody"), caption = h("caption");
  const head = h("thead"), clear = button("", "Show all tensors again", () => { state.filter = null; redraw(); });
  const choices = Object.entries(VIEWS).map(([by, text]) => {
    const made = button(text, `Totals by: ${text}`, () => { state.by = by; state.filter = null; redraw(); });
    made.dataset.by = by;
    made.hidden = by === "modules" && run.lives.every(life => !life.module);
    return made;
  });
  const list = h("div", { class: "list", tabindex: "0" }, h("div", { class: "buttons choices" }, ...choices, clear), h("table", {}, caption, head, body));
  const buttons = h("div", { class: "buttons" }, button("Peak", "Go to the peak", toPeak), slider,
    button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)), button("All", "Show all steps", () => zoom(Infinity)));
  if (run.before_bytes) buttons.append(button("Only the run's own", "Leave out what was there before", toggleBase));
  const peak = run.steps.length
    ? `peak at step ${run.peak_step + 1} of ${run.steps.length}: ${bytes(run.peak_bytes)}`
      + (run.before_bytes ? ` made by the run, over ${bytes(run.before_bytes)} that were there before` : "")
    : "no operator ran";
  const section = h("section", {}, h("header", {}, h("h2", {}, run.name), h("span", { class: "muted" }, peak)),
    h("ul", { class: "notes" }, ...run.notes.map(note => h("li", {}, note))),
    h("div", { class: "columns" }, h("div", { class: "picture" }, chart, buttons, detail), list));

  const size = () => ({ width: Math.max(base.clientWidth, 120), height: base.clientHeight || 350 });
  const plotWidth = ({ width }) => width - LEFT;
  const y = (value, { height }) => height - BOTTOM - (value - state.base) / (top - state.base) * (height - BOTTOM - TOP);
  const x = (step, area) => LEFT + (step - state.from) / (state.to - state.from) * plotWidth(area);

  /* One column of pixels shows the fullest of the steps that fall into it. */
  function layOut(area) {
    const count = state.to - state.from, n = Math.min(Math.floor(plotWidth(area)), count);
    const wanted = [];
    for (let column = 0; column < n; column++) {
      const first = state.from + Math.floor(column * count / n), end = state.from + Math.floor((column + 1) * count / n);
      let best = first;
      for (let step = first; step < end; step++) if (bytesAt(run, step) > bytesAt(run, best)) best = step;
      wanted.push(best);
    }
    columns = [];
    const small = SMALL_PX / (area.height - TOP - BOTTOM) * (top - state.base);
    sweep(events, wanted, (step, alive) => {
      if (state.by !== "tensors") {
        columns.push({ step, bands: groupBands(alive) });
        return;
      }
      const bands = [];
      let sum = 0;
      for (const id of alive) {
        const { nbytes, kind } = run.lives[id], begin = sum, before = bands.at(-1);
        sum += nbytes;
        if (nbytes >= small) bands.push({ id, kind, begin, end: sum });
        else if (before?.id === -1 && before.kind === kind) before.end = sum;
        else bands.push({ id: -1, kind, begin, end: sum });
      }
      columns.push({ step, bands });
    });
  }

  /* The bands of a column, one for each kind in each group, in the groups' order. */
  function groupBands(alive) {
    const sums = new Map(order.map(group => [group, new Map()]));
    for (const id of alive) {
      const { nbytes, kind } = run.lives[id], of = sums.get(groups[id]);
      of.set(kind, (of.get(kind) ?? 0) + nbytes);
    }
    const bands = [];
    let sum = 0;
    for (const [group, of] of sums) for (const kind of KIND_NAMES) {
      if (!of.has(kind)) continue;
      bands.push({ id: -1, group, kind, begin: sum, end: sum += of.get(kind) });
    }
    return bands;
  }

  /* The group of each tensor, and the groups in order: modules as they are called, all others the largest first. */
  function setGroups() {
    const totals = new Map();
    groups = run.lives.map(groupOf);
    groups.forEach((group, id) => {
      const atPeak = events.born[id] <= run.peak_step && run.peak_step < events.died[id];
      totals.set(group, (totals.get(group) ?? 0) + (atPeak ? run.lives[id].nbytes : 0));
    });
    order = [...totals.keys()];
    if (state.by === "modules") order.sort((a, b) => rankOf(a) - rankOf(b));
    else order.sort((a, b) => totals.get(b) - totals.get(a));
  }

  /* Modules stand in the order of the tree. */
  const nodes = new Map(); /* path to { rank, parent, children } */
  function addNode(path, parent) {
    if (!nodes.has(path)) nodes.set(path, { parent, children: [] }), nodes.get(parent)?.children.push(path);
  }
  for (const life of run.lives) {
    const parts = life.module ? life.module.split(".") : [OUTSIDE];
    parts.forEach((_, i) => addNode(parts.slice(0, i + 1).join("."), parts.slice(0, i).join(".")));
  }
  const ranks = new Map();
  const rankOf = path => ranks.get(path);
  (function walk(paths) { for (const path of paths) { ranks.set(path, ranks.size); walk(nodes.get(path).children); } })([...nodes.keys()].filter(path => nodes.get(path).parent === ""));
  for (const [path, node] of nodes) if (node.parent === "") state.unfolded.add(path);

  /* The module of a tensor, or the outermost module around it that is folded. */
  function moduleShown(module) {
    if (!module) return OUTSIDE;
    const parts = module.split(".");
    let path = parts[0];
    for (let i = 1; i < parts.length && state.unfolded.has(path); i++) path += `.${parts[i]}`;
    return path;
  }

  function lineKey(life) {
    if (!life.op) return BEFORE;
    const lines = stackOf(life.stack)?.lines ?? [];
    if (!lines.length) return { backward: "the backward call", optimizer: "the optimizer's step" }[passAt(life.born)] ?? plainOp(life.op);
    const line = run.lines[lines[0]];
    return `${line.function}: ${line.text || `${line.file}:${line.number}`}`;
  }

  function groupOf(life) {
    if (state.by === "modules") return moduleShown(life.module);
    if (state.by === "lines") return lineKey(life);
    return life.kind;
  }

  const matches = life => !state.filter || state.filter.test(life);

  /* Shows the tensors of one group alone. */
  function openGroup(by, key) {
    const tests = {
      modules: life => (life.module || OUTSIDE) === key || life.module.startsWith(`${key}.`),
      module: life => (life.module || OUTSIDE) === key,
      lines: life => lineKey(life) === key,
      kinds: life => life.kind === key,
    };
    state.filter = { key, test: tests[by] };
    state.by = "tensors";
    state.group = null;
    redraw();
  }

  function redraw() {
    setGroups();
    for (const each of choices) each.setAttribute("aria-pressed", String(each.dataset.by === state.by));
    clear.textContent = state.filter ? `× ${state.filter.key}` : "";
    clear.hidden = !state.filter;
    draw();
    show();
  }

  function prepared(canvas, { width, height }) {
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    return context;
  }

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return Object.fromEntries([...COLOURS, "ink", "muted", "mark", "paper", "soft", "line"].map(name => [name, style.getPropertyValue(`--${name}`).trim()]));
  }

  /* Where a column begins and how wide it is, in whole pixels: no seams. */
  function place(column, area) {
    const begin = Math.round(column * plotWidth(area) / columns.length), end = Math.round((column + 1) * plotWidth(area) / columns.length);
    return [LEFT + begin, end - begin];
  }

  function draw() {
    if (!run.steps.length) return;
    const area = size(), context = prepared(base, area), colour = colours();
    layOut(area);
    drawAxes(context, area, colour);
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP, plotWidth(area), area.height - TOP - BOTTOM);
    context.clip();
    columns.forEach(({ bands }, column) => {
      const [left, wide] = place(column, area);
      for (const [number, { id, group, kind, begin, end }] of bands.entries()) {
        const high = y(begin, area) - y(end, area);
        context.fillStyle = colour[KINDS[kind][0]];
        context.globalAlpha = id % 2 ? 1 : 0.84;
        if (state.filter && !(id !== -1 && matches(run.lives[id]))) context.globalAlpha = 0.15;
        context.fillRect(left, y(end, area), wide, high);
        context.globalAlpha = 1;
        if (high > 5 && (group === undefined ? id !== -1 : bands[number + 1]?.group !== group)) {
          context.fillStyle = colour.paper;
          context.fillRect(left, y(end, area), wide, 0.7);
        }
      }
    });
    context.restore();
    drawOver();
  }

  /* MiB on the left, steps below, and the passes in a strip of their own above the picture. */
  function drawAxes(context, area, colour) {
    const [unit, name] = UNITS.find(([each]) => top - state.base >= each) ?? [1, "B"];
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const tick of ticks(state.base / unit, top / unit, Math.max(area.height / 60, 3))) {
      const at = y(tick * unit, area);
      context.fillStyle = colour.line;
      context.fillRect(LEFT - 4, at, area.width - LEFT + 4, 1);
      context.fillStyle = colour.muted;
      if (at < area.height - BOTTOM + 1) context.fillText(`${tick} ${name}`, LEFT - 8, at);
    }
    context.fillText("step", LEFT - 8, area.height - 9);
    context.textAlign = "center";
    for (const tick of ticks(state.from + 1, state.to, Math.max(area.width / 110, 2))) {
      if (tick % 1 === 0) context.fillText(tick.toLocaleString("en-US"), clamp(x(tick - 0.5, area), LEFT + 12, area.width - 18), area.height - 9);
    }
    run.passes.forEach((each, number) => {
      const end = run.passes[number + 1]?.first ?? run.steps.length;
      const left = x(clamp(each.first, state.from, state.to), area), right = x(clamp(end, state.from, state.to), area);
      if (right <= left) return;
      context.fillStyle = each.name === "forward" ? colour.soft : colour.line;
      context.fillRect(left, 0, right - left, TOP - 4);
      if (each.name !== "forward") {
        context.globalAlpha = 0.25;
        context.fillRect(left, TOP, right - left, area.height - TOP - BOTTOM);
        context.globalAlpha = 1;
      }
      context.fillStyle = colour.ink;
      const label = [each.name, SHORT[each.name]].find(text => context.measureText(text).width + 8 < right - left);
      if (label) context.fillText(label, (left + right) / 2, (TOP - 4) / 2 + 1);
    });
  }

  function drawOver() {
    const area = size(), context = prepared(over, area), colour = colours();
    const line = (fromX, fromY, toX, toY) => {
      context.beginPath();
      context.moveTo(fromX, fromY);
      context.lineTo(toX, toY);
      context.stroke();
    };
    context.setLineDash([4, 3]);
    context.strokeStyle = colour.mark;
    const peakY = y(bytesAt(run, run.peak_step), area);
    line(LEFT, peakY, area.width, peakY);
    context.setLineDash([]);
    if (state.chosen !== null) {
      context.fillStyle = colour.mark;
      context.globalAlpha = 0.55;
      columns.forEach(({ step, bands }, column) => {
        if (step < events.born[state.chosen] || step >= events.died[state.chosen]) return;
        const band = bands.find(each => each.id === state.chosen);
        if (!band || y(band.begin, area) > area.height - BOTTOM + 1) return;
        const [left, wide] = place(column, area);
        context.fillRect(left, y(band.end, area), wide, Math.max(y(band.begin, area) - y(band.end, area), 1.5));
      });
      context.globalAlpha = 1;
    }
    if (state.group !== null) {
      context.fillStyle = colour.mark;
      context.globalAlpha = 0.55;
      columns.forEach(({ bands }, column) => {
        const own = bands.filter(band => band.group === state.group);
        if (!own.length) return;
        const [left, wide] = place(column, area);
        context.fillRect(left, y(own.at(-1).end, area), wide, y(own[0].begin, area) - y(own.at(-1).end, area));
      });
      context.globalAlpha = 1;
    }
    context.strokeStyle = colour.ink;
    context.lineWidth = 1.5;
    const at = x(state.step + 0.5, area);
    line(at, TOP, at, area.height - BOTTOM + 4);
  }

  const stackOf = number => number === null || number === undefined ? null : run.stacks[number];

  function codeOf(number) {
    const line = run.lines[number];
    return h("span", {}, `${line.file}:${line.number} `, h("code", {}, line.text || line.function));
  }

  const passAt = step => run.passes.findLast(each => each.first <= step)?.name ?? "";

  /* The innermost line, or who called where none of the traced code did. */
  function callerOf(stack, step, op) {
    if (stack?.lines.length) return codeOf(stack.lines[0]);
    return { backward: "the backward call", optimizer: "the optimizer's step" }[passAt(step)] ?? plainOp(op);
  }

  function wholeStack(stack) {
    if (!stack || stack.lines.length < 2) return "";
    const made = h("details", state.open ? { open: "" } : {}, h("summary", {}, `whole stack, ${stack.lines.length} calls`),
      h("ol", {}, ...stack.lines.map(number => h("li", {}, codeOf(number)))));
    made.addEventListener("toggle", () => { state.open = made.open; });
    return made;
  }

  /* "activation: layers.0.mlp"; a name that says the kind already stands alone. */
  function titleOf(life) {
    const module = stackOf(life.stack)?.module ?? "";
    const name = life.name || module.slice(module.indexOf(".") + 1);
    return name.startsWith(life.kind) ? name : [life.kind, name].filter(Boolean).join(": ");
  }

  const sizes = life => life.shape.join("\u202f×\u202f");
  const shapeOf = life => life.dtype ? `${sizes(life) || "one number"} ${life.dtype.replace("torch.", "")}` : "";

  function describe() {
    const step = run.steps[state.step], stack = stackOf(step.stack);
    const what = step.node ? `${step.node} runs ${plainOp(step.op)}` : plainOp(step.op);
    const lines = [h("p", {}, h("strong", {}, `Step ${state.step + 1} of ${run.steps.length}: `),
      [passAt(state.step), what].filter(Boolean).join(", "), ` — ${bytes(bytesAt(run, state.step))} alive${state.step === run.peak_step ? ", the peak" : ""}`)];
    const by = step.for_gradient ? "for the gradient of " : "";
    const caller = callerOf(stack, state.step, step.op);
    if (caller !== plainOp(step.op)) lines.push(h("p", {}, by, caller, stack?.module ? ` in ${stack.module}` : ""));
    if (state.group !== null) {
      const total = totalsAt(state.step).get(state.group)?.all ?? 0;
      lines.push(h("p", {}, h("strong", {}, state.group), `: ${bytes(total)}`));
    } else if (state.chosen === null) lines.push(wholeStack(stack));
    else lines.push(...describeChosen(run.lives[state.chosen]));
    detail.replaceChildren(...lines);
    slider.value = String(state.step);
    slider.setAttribute("aria-valuetext", `step ${state.step + 1}, ${bytes(bytesAt(run, state.step))}`);
  }

  function describeChosen(life) {
    const stack = stackOf(life.stack);
    const lines = [h("p", {}, h("i", { style: colourOf(life) }), h("strong", {}, titleOf(life)), ` ${[shapeOf(life), bytes(life.nbytes)].filter(Boolean).join(", ")}`)];
    if (THERE_BEFORE.includes(life.kind)) return [...lines, h("p", { class: "muted" }, "there before the run")];
    lines.push(h("p", {}, `made at step ${life.born + 1} by ${plainOp(life.op)}`, life.node ? ` (${life.node})` : "", run.steps[life.born].for_gradient ? ", for the gradient of " : ": ", callerOf(stack, life.born, life.op)));
    const after = life.died === null ? null : run.steps[Math.min(life.died, last)];
    lines.push(h("p", { class: "muted" }, after ? `released after step ${life.died}, before ` : "never released: it outlives the run", after ? callerOf(stackOf(after.stack), Math.min(life.died, last), after.op) : ""));
    lines.push(wholeStack(stack));
    return lines;
  }

  const colourOf = life => `background: var(--${KINDS[life.kind][0]})`;

  /* Bytes of every group at a step, by kind; of modules with all that is in them. */
  function totalsAt(step) {
    const found = new Map();
    for (const id of aliveAt(events, step)) {
      for (let group = groups[id]; group; group = state.by === "modules" ? nodes.get(group).parent : "") {
        if (!found.has(group)) found.set(group, { all: 0, kinds: new Map() });
        const total = found.get(group), { nbytes, kind } = run.lives[id];
        total.all += nbytes;
        total.kinds.set(kind, (total.kinds.get(kind) ?? 0) + nbytes);
      }
    }
    return found;
  }

  function bar(total, most) {
    return h("span", { class: "bar" }, ...KIND_NAMES.filter(kind => total.kinds.has(kind)).map(kind =>
      h("b", { title: `${kind}: ${bytes(total.kinds.get(kind))}`, style: `width: ${100 * total.kinds.get(kind) / most}%; background: var(--${KINDS[kind][0]})` })));
  }

  function fold(path) {
    const open = state.unfolded.has(path), name = `${open ? "Fold" : "Unfold"} ${path}`;
    const made = h("button", { type: "button", class: "fold", "aria-label": name, title: name, "aria-expanded": String(open) }, open ? "▾" : "▸");
    made.addEventListener("click", event => {
      event.stopPropagation();
      state.unfolded[open ? "delete" : "add"](path);
      redraw();
    });
    return made;
  }

  function showTotals() {
    const now = totalsAt(state.step), peak = totalsAt(run.peak_step), none = { all: 0, kinds: new Map() };
    const shown = state.by === "modules" ? [...new Set([...now.keys(), ...peak.keys()])].sort((a, b) => rankOf(a) - rankOf(b))
      : order.filter(group => now.has(group) || peak.has(group)).sort((a, b) => (now.get(b)?.all ?? 0) - (now.get(a)?.all ?? 0));
    const most = Math.max(...[...now.values()].map(total => total.all), 1);
    caption.textContent = `${VIEWS[state.by]} at step ${state.step + 1}${state.step === run.peak_step ? ", the peak" : ""}; a click shows the tensors`;
    head.replaceChildren(h("tr", {}, h("th", {}, "bytes"), h("th", {}, state.by.slice(0, -1)), h("th", {}, "at the peak")));
    body.replaceChildren(...shown.slice(0, state.rows).map(group => {
      const total = now.get(group) ?? none, node = state.by === "modules" ? nodes.get(group) : null;
      const indent = node ? `padding-left: ${0.5 + 0.9 * (group === OUTSIDE ? 0 : group.split(".").length - 1)}rem` : "";
      const name = node && node.parent ? group.slice(node.parent.length + 1) : group;
      const row = h("tr", group === state.group ? { class: "chosen" } : {}, h("td", {}, total.all.toLocaleString("en-US")),
        h("td", { style: indent }, node?.children.length ? fold(group) : "", node ? name : h("code", {}, name), bar(total, most)),
        h("td", { "data-label": "at the peak " }, (peak.get(group)?.all ?? 0).toLocaleString("en-US")));
      row.addEventListener("click", () => openGroup(state.by, group));
      return row;
    }));
    if (shown.length > state.rows) {
      body.append(h("tr", {}, h("td", { colspan: "3" }, button(`and ${shown.length - state.rows} more`, "Show more", () => { state.rows += MORE_ROWS; show(); }))));
    }
  }

  function show() {
    if (state.by === "tensors") showTensors();
    else showTotals();
    describe();
    drawOver();
  }

  function showTensors() {
    head.replaceChildren(h("tr", {}, h("th", {}, "bytes"), h("th", {}, "tensor"), h("th", {}, "made by")));
    const ids = aliveAt(events, state.step).filter(id => matches(run.lives[id])).sort((a, b) => run.lives[b].nbytes - run.lives[a].nbytes);
    caption.textContent = `${ids.length} alive at step ${state.step + 1}${state.step === run.peak_step ? ", the peak" : ""}`;
    body.replaceChildren(...ids.slice(0, state.rows).map(id => {
      const life = run.lives[id];
      const row = h("tr", id === state.chosen ? { class: "chosen" } : {},
        h("td", {}, life.nbytes.toLocaleString("en-US")),
        h("td", {}, h("i", { style: colourOf(life), title: life.kind }), titleOf(life), " ", h("span", { class: "shape" }, sizes(life))),
        h("td", {}, THERE_BEFORE.includes(life.kind) ? "" : callerOf(stackOf(life.stack), life.born, life.op)));
      row.addEventListener("click", () => { state.held = true; choose(id); });
      return row;
    }));
    const rest = ids.slice(state.rows);
    if (rest.length) {
      const more = button(`and ${rest.length} more, ${bytes(rest.reduce((sum, id) => sum + run.lives[id].nbytes, 0))}`, "Show more", () => { state.rows += MORE_ROWS; show(); });
      body.append(h("tr", {}, h("td", { colspan: "3" }, more)));
    }
  }

  function choose(id) { state.chosen = id; show(); }

  function goTo(step) {
    state.step = clamp(step, 0, last);
    if (state.step < state.from || state.step >= state.to) window_(state.to - state.from, state.step, 0.5);
    if (state.chosen !== null && !(events.born[state.chosen] <= state.step && state.step < events.died[state.chosen])) state.chosen = null;
    show();
  }

  function toPeak() { goTo(run.peak_step); }

  /* Shows `span` steps; `step` stands at `share` of the width. */
  function window_(span, step, share) {
    span = clamp(Math.round(span), Math.min(FEWEST_STEPS, run.steps.length), run.steps.length);
    state.from = clamp(Math.round(step - share * span), 0, run.steps.length - span);
    state.to = state.from + span;
    draw();
  }

  function zoom(factor, step = state.step, share = 0.5) {
    window_(Math.min((state.to - state.from) * factor, run.steps.length), step, share);
    show();
  }

  function toggleBase(pressed) {
    state.base = state.base ? 0 : run.before_bytes;
    pressed.setAttribute("aria-pressed", String(state.base > 0));
    draw();
  }

  function up(by) {
    const ids = state.by === "tensors" ? aliveAt(events, state.step).filter(id => matches(run.lives[id])) : [];
    if (!ids.length) return;
    const at = ids.indexOf(state.chosen);
    choose(ids[at === -1 ? (by > 0 ? 0 : ids.length - 1) : clamp(at + by, 0, ids.length - 1)]);
  }

  function letGo() { state.held = false; state.group = null; choose(null); }

  chart.addEventListener("keydown", event => {
    const far = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowRight: () => goTo(state.step + far), ArrowLeft: () => goTo(state.step - far),
      ArrowUp: () => up(1), ArrowDown: () => up(-1), Home: () => goTo(0), End: () => goTo(last),
      p: toPeak, P: toPeak, "+": () => zoom(0.5), "-": () => zoom(2), 0: () => zoom(Infinity), Escape: letGo,
    };
    if (event.altKey || event.ctrlKey || event.metaKey || !Object.hasOwn(moves, event.key)) return;
    event.preventDefault();
    moves[event.key]();
  });

  const shareAt = (clientX, box) => clamp((clientX - box.left - LEFT) / (box.width - LEFT), 0, 0.9999);

  function point({ clientX, clientY }) {
    const box = base.getBoundingClientRect(), area = size();
    const column = columns[Math.floor(shareAt(clientX, box) * columns.length)];
    if (!column) return;
    const value = state.base + (area.height - BOTTOM - (clientY - box.top)) / (area.height - BOTTOM - TOP) * (top - state.base);
    state.step = column.step;
    state.group = column.bands.find(band => band.begin <= value && value < band.end)?.group ?? null;
    state.chosen = column.bands.find(band => band.begin <= value && value < band.end && band.id !== -1)?.id ?? null;
    show();
  }

  let pending = null; /* the last event of the mouse or wheel, drawn once a frame */
  function soon(act) {
    if (!pending) requestAnimationFrame(() => { const latest = pending; pending = null; latest(); });
    pending = act;
  }
  chart.addEventListener("pointermove", event => { if (event.pointerType === "mouse" && !state.held) soon(() => point(event)); });
  chart.addEventListener("pointerdown", event => {
    const was = state.chosen;
    point(event);
    if (state.group !== null) {
      openGroup(state.by, state.group);
      return;
    }
    state.held = event.pointerType === "mouse" && state.chosen !== null && !(state.held && was === state.chosen);
  });
  chart.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const share = shareAt(event.clientX, base.getBoundingClientRect());
    soon(() => zoom(event.deltaY < 0 ? 0.8 : 1.25, state.from + share * (state.to - state.from), share));
  }, { passive: false });
  slider.addEventListener("input", () => goTo(Number(slider.value)));

  return { section, draw, openGroup, show: () => run.steps.length && redraw() };
}

/* Where two runs differ at their peaks: rows of name, bytes of the first, bytes of the second. */
function differenceTable(by, rows) {
  const body = h("tbody"), number = count => count.toLocaleString("en-US");
  const fill = most => {
    body.replaceChildren(...rows.slice(0, most).map(([name, first, second]) => {
      const row = h("tr", {}, h("td", {}, `${second > first ? "+" : "−"}${number(Math.abs(second - first))}`),
        h("td", {}, by === "line" ? h("code", {}, name) : name), 
        ...[first, second].map((count, i) => h("td", { "data-label": `${RUNS[i].name} ` }, number(count))));
      row.addEventListener("click", () => {
        views.forEach(view => view.openGroup(by === "line" ? "lines" : "module", name));
        main.scrollIntoView();
      });
      return row;
    }));
    if (rows.length > most) {
      const more = h("button", { type: "button" }, `and ${rows.length - most} more`);
      more.addEventListener("click", () => fill(rows.length));
      body.append(h("tr", {}, h("td", { colspan: "4" }, more)));
    }
  };
  fill(10);
  return h("table", {}, h("caption", {}, `By ${by}`), h("thead", {}, h("tr", {}, h("th", {}, "difference"), h("th", {}, by), ...RUNS.map(run => h("th", {}, run.name)))), body);
}

const highest = 1.05 * Math.max(...RUNS.map(run => run.before_bytes + run.peak_bytes), 1);
const views = RUNS.map(run => makeView(run, highest));
const main = document.getElementById("runs");
const used = new Set(RUNS.flatMap(run => run.lives.map(life => life.kind)));
document.getElementById("legend").append(...Object.entries(KINDS).filter(([kind]) => used.has(kind)).map(([, [colour, text]]) =>
  h("li", {}, h("i", { style: `background: var(--${colour})` }), text)));
if (views.length > 1) main.classList.add("several");
main.append(...views.map(view => view.section));
const differing = Object.entries(DIFFERENCES).filter(([, rows]) => rows.length);
if (differing.length) {
  main.after(h("section", { class: "differences" }, h("h2", {}, "Where they differ at their peaks"),
    h("p", { class: "muted" }, "Bytes of the second less those of the first. A click shows the tensors in both."),
    h("div", {}, ...differing.map(([by, rows]) => differenceTable(by, rows)))));
}
const drawAll = () => views.forEach(view => { view.draw(); view.show(); });
new ResizeObserver(drawAll).observe(main);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();
