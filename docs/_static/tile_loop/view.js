/* The tile loop's page: its controls, its state in the address, its keys, and the words for each step.

Replaces what stands in the element #tile-loop, which is what a reader sees where no script runs. */
(function () {
  "use strict";

  const { h, bytes, rowsOf, columnsOf } = tileLoop;
  const DEFAULTS = { n: 16, d: 4, bq: 4, bk: 4, sram: 512, order: "queries", causal: true, row: null, at: 0 };
  const HALVES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096];
  const KIB = [0.125, 0.25, 0.375, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 164, 228, 512, 1024, 4096];
  const NUMBERS = {
    n: { name: "N, length", most: 4096, stops: HALVES },
    d: { name: "d, width", most: 256, stops: HALVES.filter((stop) => stop <= 256) },
    bq: { name: "block_q", most: 4096, stops: HALVES },
    bk: { name: "block_k", most: 4096, stops: HALVES },
    sram: { name: "SRAM, bytes", most: 4 * 1024 * 1024, stops: KIB.map((kib) => kib * 1024) },
  };
  const PRESETS = {
    small: ["Small, causal", "n=16&d=4&bq=4&bk=4&sram=512&causal=1"],
    wide: ["Tiles of 8 × 3", "n=24&d=4&bq=8&bk=3&sram=1024&causal=1"],
    real: ["A real head", "n=4096&d=64&bq=72&bk=16&sram=65536&causal=0"],
    unfit: ["Does not fit", "n=16&d=4&bq=8&bk=8&sram=512&causal=1&at=2"],
    loses: ["Tiling loses", "n=8&d=4&bq=4&bk=2&sram=512&causal=0&order=keys"],
  };
  const ORDERS = { queries: "queries outside", keys: "keys outside" };
  const TICK_MS = 450;
  const CALM_TICK_MS = 1500;
  const TICKS = 80; // at most, for a whole run

  function start() {
    const hook = document.getElementById("tile-loop");
    if (!hook) return;
    let state = fromAddress() || { ...DEFAULTS };
    let view = look(state);
    state.at = Math.min(state.at, view.loop.last);
    let timer = 0;
    let saving = 0;
    const page = build();
    hook.replaceChildren(page.root);
    hook.classList.add("tile-loop");
    replaceExamples();
    window.addEventListener("hashchange", () => {
      const wanted = fromAddress();
      if (wanted) change(wanted, false);
    });
    render(false);

    /* Everything that one state means. */
    function look(of) {
      const settings = {
        order: of.order, nQueries: of.n, nKeys: of.n, d: of.d, dV: of.d,
        blockQ: of.bq, blockK: of.bk, sramBytes: of.sram, causal: of.causal,
      };
      const loop = tileLoop.makeLoop(settings);
      const other = tileLoop.makeLoop({ ...settings, order: of.order === "queries" ? "keys" : "queries" });
      return { settings, loop, other, standard: tileLoop.standard(settings) };
    }

    /* Take over some values. A changed setting keeps the share of the run that is done. */
    function change(values, save = true) {
      const share = state.at / view.loop.last;
      const before = state;
      state = { ...state, ...values };
      if (["n", "d", "bq", "bk", "sram", "order", "causal"].some((key) => state[key] !== before[key])) {
        view = look(state);
        if (!("at" in values)) state.at = Math.round(share * view.loop.last);
        if (state.row !== null) state.row = Math.min(state.row, state.n - 1);
        page.guess.reset();
      }
      state.at = Math.max(0, Math.min(state.at, view.loop.last));
      render(save);
    }

    function render(save = true) {
      const { loop, settings } = view;
      const here = loop.at(state.at);
      const followed = Math.max(0, loop.rowStart(Math.min(here.i, loop.rowBlocks - 1) + 1) - 1);
      const row = state.row === null ? followed : state.row;
      if (!view.numbersOf || view.numbersOf.row !== row) view.numbersOf = { row, ...tileLoop.makeRow(row, settings) };
      const all = { ...view, here, row };
      page.matrix.replaceChildren(tileLoop.matrix(all));
      page.legend.replaceChildren(...tileLoop.legend(all));
      page.sram.replaceChildren(...tileLoop.sram(all));
      page.numbers.replaceChildren(tileLoop.numbers(all, progress(all)));
      page.traffic.replaceChildren(...tileLoop.traffic(all));
      page.matrixNote.textContent = matrixNote(all);
      say(page.fit, fitInWords(all));
      page.fit.classList.toggle("tl-too-small", !loop.fits);
      say(page.said, stepInWords(all));
      page.summary.textContent = settingInWords(settings);
      page.sync(row);
      if (save && !saving) saving = setTimeout(toAddress, 300);
    }

    function toAddress() {
      saving = 0;
      const { row, causal, ...rest } = state;
      const parts = { ...rest, causal: causal ? 1 : 0, ...(row === null ? {} : { row }) };
      history.replaceState(null, "", `#${new URLSearchParams(parts)}`);
    }

    function go(position) {
      change({ at: position });
    }

    /* To the end of the next tile, or of the one before. */
    function goTile(direction) {
      const { loop, settings } = view;
      const lastPhase = tileLoop.PHASES[settings.order].at(-1);
      let position = state.at;
      do position += direction;
      while (position > 0 && position < loop.last && loop.at(position).phase !== lastPhase);
      go(position);
    }

    /* Where the window is low the player lies over the matrix, and what moves would not be seen. */
    function uncover() {
      const matrix = page.matrix.getBoundingClientRect();
      const covered = matrix.bottom - page.bar.getBoundingClientRect().top;
      if (covered > 0) window.scrollBy(0, Math.max(0, Math.min(covered + 8, matrix.top - 8)));
    }

    function play() {
      if (timer) return pause();
      uncover();
      if (state.at >= view.loop.last) go(0);
      const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
      const stride = Math.ceil((view.loop.last - state.at) / TICKS);
      page.said.setAttribute("aria-live", "off"); // a voice cannot keep up; the last step is read when it stops
      timer = setInterval(() => {
        go(state.at + stride);
        if (state.at >= view.loop.last) pause();
      }, calm ? CALM_TICK_MS : TICK_MS);
      page.sync();
    }

    function pause() {
      clearInterval(timer);
      timer = 0;
      page.said.setAttribute("aria-live", "polite");
      page.said.replaceChildren();
      render();
    }

    function onKey(event) {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const onField = event.target.matches("input, select, textarea");
      const onButton = event.target.matches("button, summary, a");
      const keys = {
        ArrowRight: () => (event.shiftKey ? goTile(1) : go(state.at + 1)),
        ArrowLeft: () => (event.shiftKey ? goTile(-1) : go(state.at - 1)),
        Home: () => go(0),
        End: () => go(view.loop.last),
        " ": play,
      };
      if (onField || (event.key === " " && onButton) || !keys[event.key]) return;
      event.preventDefault();
      if (event.key !== " " && timer) pause();
      keys[event.key]();
    }

    /* The page's elements, made once; sync() brings controls up to date. */
    function build() {
      const summary = h("span", {});
      const controls = Object.entries(NUMBERS).map(([key, about]) => numberControl(key, about));
      const orders = Object.entries(ORDERS).map(([order, words]) => {
        const input = h("input", { type: "radio", name: "tl-order", value: order, onchange: () => change({ order }) });
        return { input, label: h("label", { class: "tl-choice" }, input, words), sync: () => (input.checked = state.order === order) };
      });
      const causal = h("input", { type: "checkbox", id: "tl-causal", onchange: () => change({ causal: causal.checked }) });
      const fill = button("Largest blocks that fit", () => {
        const [bq, bk] = tileLoop.blocksThatFit(state.order, state.sram, state.d);
        change({ bq: Math.min(bq, state.n), bk: Math.min(bk, state.n) });
      });
      const presets = Object.entries(PRESETS).map(([key, [name]]) => button(name, () => show(key)));
      const setting = h(
        "details",
        { class: "tl-panel tl-setting", open: window.matchMedia("(min-width: 48em)").matches ? "" : null },
        h("summary", {}, summary),
        h("div", { class: "tl-controls" }, controls.map((control) => control.element), h("div", { class: "tl-buttons" }, fill)),
        h("fieldset", { class: "tl-choices" }, h("legend", { class: "tl-hidden" }, "Loops and mask"), orders.map((o) => o.label), h("label", { class: "tl-choice" }, causal, "causal mask")),
      );
      const fit = h("p", { class: "tl-fit", role: "status", "data-out": "fit" });

      const matrix = h("div", { class: "tl-matrix", onclick: pickRow });
      const legend = h("ul", { class: "tl-legend" });
      const matrixNote = h("p", { class: "tl-note" });
      const sram = h("div", {});
      const numbers = h("div", {});
      const rowField = h("input", { type: "number", id: "tl-row", min: 0, step: 1, oninput: () => rowField.validity.valid && rowField.value !== "" && change({ row: Number(rowField.value) }) });
      const follow = h("input", { type: "checkbox", onchange: () => change({ row: follow.checked ? null : view.numbersOf.row }) });
      const stage = h(
        "div",
        { class: "tl-stage", tabindex: 0, role: "group", "aria-label": "The tile loop. Left and right arrows step, with shift by tiles; Home and End; space plays." },
        h("div", { class: "tl-panel" }, h("h3", {}, "The score matrix, tile by tile"), matrix, legend, matrixNote),
        h(
          "div",
          {},
          h("div", { class: "tl-panel" }, h("h3", {}, "In SRAM now"), sram),
          h(
            "div",
            { class: "tl-panel" },
            h("h3", {}, "One row of the output"),
            numbers,
            h("div", { class: "tl-pick" }, h("label", { for: "tl-row" }, "query", rowField), h("label", { class: "tl-choice" }, follow, "follow the loop")),
          ),
        ),
      );

      const said = h("p", { class: "tl-said", "aria-live": "polite", "data-out": "said" });
      const place = h("span", { class: "tl-place", "data-out": "place" });
      const scrub = h("input", { type: "range", min: 0, step: 1, "aria-label": "Step", oninput: () => { if (timer) pause(); go(Number(scrub.value)); } });
      const stop = (action) => () => { if (timer) pause(); uncover(); action(); };
      const player = {
        first: button(icon("first"), stop(() => go(0)), "Reset: back to the start"),
        tileBack: button(icon("tile", true), stop(() => goTile(-1)), "A tile back"),
        back: button(icon("step", true), stop(() => go(state.at - 1)), "A step back"),
        play: button("Play", play),
        next: button(icon("step"), stop(() => go(state.at + 1)), "A step on"),
        tileOn: button(icon("tile"), stop(() => goTile(1)), "A tile on"),
        last: button(icon("first", true), stop(() => go(view.loop.last)), "To the end"),
      };
      player.play.classList.add("tl-main");
      const guess = buildGuess();
      const traffic = h("ul", { class: "tl-traffic" });
      const bar = h(
        "div",
        { class: "tl-player", role: "group", "aria-label": "Player" },
        said,
        h("div", { class: "tl-scrub" }, player.first, scrub, player.last),
        h("div", { class: "tl-buttons" }, player.tileBack, player.back, player.play, player.next, player.tileOn, place),
      );
      const root = h(
        "section",
        { "aria-label": "The tile loop of FlashAttention", onkeydown: onKey },
        h("div", { class: "tl-buttons tl-presets", role: "group", "aria-label": "Settings to start from" }, presets),
        setting,
        fit,
        stage,
        bar,
        guess.element,
        h("div", { class: "tl-panel" }, h("h3", {}, "Bytes moved between HBM and SRAM"), traffic),
      );

      function sync(row) {
        controls.forEach((control) => control.sync());
        orders.forEach((order) => order.sync());
        causal.checked = state.causal;
        fill.disabled = tileLoop.blocksThatFit(state.order, state.sram, state.d) === null;
        if (row !== undefined && document.activeElement !== rowField) rowField.value = row;
        rowField.max = state.n - 1;
        follow.checked = state.row === null;
        const { last } = view.loop;
        scrub.max = last;
        scrub.value = state.at;
        scrub.setAttribute("aria-valuetext", `step ${state.at} of ${last}`);
        place.textContent = `${state.at.toLocaleString("en-US")} / ${last.toLocaleString("en-US")}`;
        for (const name of ["first", "tileBack", "back"]) player[name].disabled = state.at <= 0;
        for (const name of ["next", "tileOn", "last"]) player[name].disabled = state.at >= last;
        player.play.textContent = timer ? "Pause" : "Play";
        guess.sync();
      }

      return { root, bar, summary, fit, matrix, legend, matrixNote, sram, numbers, said, traffic, guess, sync };
    }

    function button(text, action, label) {
      return h("button", { type: "button", onclick: action, "aria-label": label, title: label }, text);
    }

    /* Drawn, since not every font has these signs; `turned` points it the other way. */
    function icon(name, turned = false) {
      const paths = { step: "M4 2.5L12 8l-8 5.5z", tile: "M2 3l6 5-6 5zM8 3l6 5-6 5z", first: "M3 3h2v10H3zM13 3v10L6 8z" };
      const drawing = tileLoop.svg("svg", { viewBox: "0 0 16 16", class: "tl-icon", "aria-hidden": "true" });
      drawing.append(tileLoop.svg("path", { d: paths[name], transform: turned ? "translate(16 0) scale(-1 1)" : null }));
      return drawing;
    }

    /* A slider over useful values, and a field for any. */
    function numberControl(key, { name, most, stops }) {
      const least = key === "sram" ? 4 : 1;
      const field = h("input", { type: "number", id: `tl-${key}`, min: least, max: most, step: 1, required: "" });
      const slider = h("input", { type: "range", min: 0, max: stops.length - 1, step: 1, "aria-label": `${name}, slider` });
      field.addEventListener("input", () => field.validity.valid && change({ [key]: Number(field.value) }));
      field.addEventListener("change", () => {
        if (!field.validity.valid) field.value = state[key];
      });
      slider.addEventListener("input", () => change({ [key]: stops[slider.value] }));
      const sync = () => {
        if (document.activeElement !== field || field.validity.valid) field.value = state[key];
        const nearest = stops.reduce((best, stop, k) => (Math.abs(Math.log(stop / state[key])) < Math.abs(Math.log(stops[best] / state[key])) ? k : best), 0);
        if (document.activeElement !== slider || stops[slider.value] !== state[key]) slider.value = nearest;
        slider.setAttribute("aria-valuetext", key === "sram" ? bytes(state[key]) : state[key]);
      };
      return { sync, element: h("div", { class: "tl-control" }, h("label", { for: `tl-${key}` }, name), field, slider) };
    }

    /* One number to predict: what the outer loop's block, doubled, does to the bytes. */
    function buildGuess() {
      const question = h("p", { id: "tl-question" });
      const field = h("input", { type: "number", min: 0, step: 1, "aria-labelledby": "tl-question" });
      const answer = h("p", { role: "status", "data-out": "answer" });
      const again = button("", () => change({ [doubled().key]: doubled().size }));
      const check = h("form", { class: "tl-guess", novalidate: "" }, field, "bytes", button("Check", () => judge()), again);
      check.addEventListener("submit", (event) => {
        event.preventDefault();
        judge();
      });
      function judge() {
        if (field.value === "" || !(Number(field.value) >= 0)) return say(answer, "Write a number first. A rough one will do.");
        const { loop, sizes } = doubled();
        const right = loop.total.total;
        const off = Math.abs(Number(field.value) - right) / right;
        const verdict = off <= 0.01 ? "Right." : `Your number is ${(Number(field.value) / right).toPrecision(2)} times that.`;
        const unfit = loop.fits ? "" : ` But it does not fit: it needs ${bytes(loop.needs)}.`;
        say(answer, `${bytes(right)}. ${verdict} ${sizes}${unfit}`);
        again.hidden = false;
      }
      function reset() {
        field.value = "";
        again.hidden = true;
        say(answer, "");
      }
      function sync() {
        const { name, size } = doubled();
        question.textContent = `In all, this loop moves ${bytes(view.loop.total.total)} with ${name} = ${size / 2}. How many will it be with ${name} = ${size}?`;
        again.textContent = `Set ${name} = ${size}`;
        again.disabled = size > NUMBERS[doubled().key].most;
      }
      again.hidden = true;
      return { element: h("div", { class: "tl-panel" }, h("h3", {}, "First guess, then see"), question, check, answer), reset, sync };
    }

    function doubled() {
      const { settings } = view;
      const byQueries = state.order === "queries";
      const size = 2 * (byQueries ? state.bq : state.bk);
      const loop = tileLoop.makeLoop({ ...settings, [byQueries ? "blockQ" : "blockK"]: size });
      const rounds = `${view.loop.rounds.toLocaleString("en-US")} before, ${loop.rounds.toLocaleString("en-US")} then`;
      const sizes = byQueries
        ? `K and V are loaded once for each block of queries${state.causal ? ", as far as the diagonal" : ""}: ${rounds}.`
        : `Q and the state of the rows are loaded once for each block of keys${state.causal ? ", from the diagonal on" : ""}: ${rounds}.`;
      return { key: byQueries ? "bq" : "bk", name: byQueries ? "block_q" : "block_k", size, loop, sizes };
    }

    function pickRow(event) {
      const drawing = event.currentTarget.querySelector("svg");
      const place = drawing.getBoundingClientRect();
      const unit = place.width / drawing.viewBox.baseVal.width;
      const row = Math.floor((((event.clientY - place.top) / unit - tileLoop.TOP) / tileLoop.SIDE) * state.n);
      if (row >= 0 && row < state.n) change({ row });
    }

    function show(key) {
      if (timer) pause();
      change({ ...DEFAULTS, ...parse(PRESETS[key][1]) });
    }

    /* Words in the page's text that name a setting become links to it. */
    function replaceExamples() {
      for (const words of document.querySelectorAll(".tile-loop-show")) {
        const key = words.id.replace("show-", "");
        if (!PRESETS[key]) continue;
        const act = (event) => {
          event.preventDefault();
          show(key);
          hook.scrollIntoView();
        };
        words.replaceWith(h("a", { href: `#${PRESETS[key][1]}`, onclick: act }, words.textContent));
      }
    }
  }

  function say(element, words) {
    if (element.textContent !== words) element.textContent = words;
  }

  function fromAddress() {
    const text = window.location.hash.slice(1);
    return text.includes("=") ? { ...DEFAULTS, ...parse(text) } : null;
  }

  /* The values of an address, as far as they make sense. */
  function parse(text) {
    const given = new URLSearchParams(text);
    const values = {};
    for (const [key, { most }] of Object.entries(NUMBERS)) {
      const value = Number(given.get(key));
      if (given.has(key) && Number.isInteger(value)) values[key] = Math.max(key === "sram" ? 4 : 1, Math.min(value, most));
    }
    if (given.get("order") in ORDERS) values.order = given.get("order");
    if (given.has("causal")) values.causal = given.get("causal") === "1";
    for (const key of ["row", "at"]) {
      const value = Number(given.get(key));
      if (given.has(key) && Number.isInteger(value) && value >= 0) values[key] = value;
    }
    if ("row" in values) values.row = Math.min(values.row, (values.n || DEFAULTS.n) - 1);
    return values;
  }

  /* Where the loop stands with the chosen row: tiles of keys behind it, and the one that it is in. */
  function progress({ loop, here, settings, row }) {
    const mine = Math.floor(row / settings.blockQ);
    const tiles = loop.tilesInRow(mine);
    const at = (where, words, count, current = null) => ({ where, words, count, current, phase: current === null ? "" : here.phase });
    if (here.phase === "start") return at("not begun", "not begun", 0);
    if (here.overflow) return at("not begun", "the run ended before a tile was done", 0); // the first tile needs the most
    if (settings.order === "queries") {
      if (here.i < mine) return at("not begun", "not begun", 0);
      if (here.i > mine || here.phase === "end") return at("finished", "finished, O in HBM", tiles);
      if (here.tile) return at("in SRAM", "m, l and O in SRAM", here.j, here.j);
      return at("in SRAM", "m, l and O in SRAM", 0);
    }
    const storing = here.phase === "store" && here.i === mine;
    const done = Math.min(here.j + (here.tile && (here.i > mine || storing) ? 1 : 0), tiles);
    if (here.tile && here.i === mine) {
      const words = !storing ? "m, l and O in SRAM" : done === tiles ? "finished, O in HBM" : "m, l and O stored to HBM";
      return at(storing && done === tiles ? "finished" : "in SRAM", words, here.j, here.j);
    }
    if (done === tiles) return at("finished", "finished, O in HBM", tiles);
    return done === 0 ? at("not begun", "not begun", 0) : at("in HBM", "m, l and O wait in HBM", done);
  }

  function settingInWords({ nQueries, d, blockQ, blockK, sramBytes, causal, order }) {
    return `N = ${nQueries}, d = ${d}, tiles of ${blockQ} × ${blockK}, SRAM ${bytes(sramBytes)}, ${causal ? "causal, " : ""}${order} outside`;
  }

  function fitInWords({ loop, settings, standard }) {
    const matrix = `One N × N array is ${bytes(standard.matrixBytes)}`;
    if (loop.fits) {
      const whole = standard.matrixBytes > settings.sramBytes ? "more than SRAM holds" : "which SRAM could hold here";
      return `Fits: the loop needs ${bytes(loop.needs)} of SRAM at once and has ${bytes(settings.sramBytes)}. ${matrix}, ${whole}.`;
    }
    const none = tileLoop.blocksThatFit(settings.order, settings.sramBytes, settings.d) === null;
    const advice = none ? "Not even tiles of 1 × 1 fit." : "Smaller blocks would fit.";
    return `Does not fit: needs ${bytes(loop.needs)}, has ${bytes(settings.sramBytes)}. ${advice}`;
  }

  function stepInWords({ loop, here, settings }) {
    const { i, j, phase } = here;
    if (phase === "start") return "Before the loop. Q, K and V lie in HBM, SRAM is empty. Press Play, or step with the right arrow.";
    const rows = `queries ${rowsOf(loop, i)}`;
    const keys = `keys ${columnsOf(loop, j)}`;
    if (here.overflow) {
      const { how, name, rows: height, columns, asked, inUse } = here.overflow;
      const what = how === "load" ? `loading ${name}` : `making ${name}`;
      const has = `${bytes(inUse)} of ${bytes(settings.sramBytes)} are in use`;
      return `SRAM overflows: ${what}, ${height} × ${columns}, asks for ${bytes(asked)} while ${has}. The run ends here.`;
    }
    const tile = `Tile (${i}, ${j}), ${rows}, ${keys}. `;
    switch (`${phase} ${settings.order}`) {
      case "begin queries":
        return `Block ${i}, ${rows}: load Q. Start m at −∞, l and O at 0, in SRAM.`;
      case "begin keys":
        return `Block ${j}, ${keys}: load K and V. They stay while all queries pass by.`;
      case "scores queries":
        return `${tile}Load K. S = Q Kᵀ / √d; K is not needed any more.`;
      case "scores keys":
        return `${tile}Load Q; ${j === 0 ? "start m at −∞, l and O at 0" : "load m, l and O as the last block of keys left them"}. S = Q Kᵀ / √d.`;
      case "softmax queries":
      case "softmax keys":
        return `${tile}New maximum m. P = exp(S − m) in the place of S, α = exp(old m − m); l = α l + row sums of P.`;
      case "output queries":
        return `${tile}Load V. O = α O + P V. Then V, P and α are gone.`;
      case "output keys":
        return `${tile}O = α O + P V.`;
      case "store keys":
        return j === loop.tilesInRow(i) - 1
          ? `${tile}The last keys of these rows: O = O / l, store O.`
          : `${tile}Store m, l and O: there is no room to keep them for all rows.`;
      default:
        return `Block ${i}, ${rows}, is done: O = O / l, store O. m and l are gone${loop.rowBlocks - 1 === i ? ". The output is complete." : "."}`;
    }
  }

  function matrixNote({ settings }) {
    const waiting = settings.order === "keys" ? " Hatched on the right: rows whose m, l and O wait in HBM." : "";
    return `Coloured bars beside it: blocks of Q, K, V and O in SRAM. Click a row to follow it.${waiting}`;
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
