/* The tile loop's page: puts picture, player and controls together, and keeps them to one state.

Replaces the content of the element #tile-loop, which readers see where no script runs. */
(function () {
  "use strict";

  const { h, say, makePlayer, keepInAddress } = stepPlayer;
  const { DEFAULTS, PRESETS, parse } = tileLoop;
  const OPENING = "at=31"; // the fullest moment, in the last row of tiles: an empty picture says nothing

  function start() {
    const hook = document.getElementById("tile-loop");
    if (!hook) return;
    const address = keepInAddress({ read: (params) => change({ ...DEFAULTS, ...parse(params) }), write: toAddress });
    const { at: first, ...given } = { ...DEFAULTS, ...parse(address.given() || OPENING) };
    let state = given;
    let view = look(state);
    const page = build();
    hook.replaceChildren(page.root);
    hook.classList.add("tile-loop", "pl");
    replaceExamples();
    let started = false;
    page.player.goTo(first);
    started = true; // the address changes only after a reader has changed something

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
    function change({ at, ...values }) {
      const share = page.player.at() / view.loop.last;
      const before = state;
      state = { ...state, ...values };
      if (Object.keys(state).some((key) => key !== "row" && state[key] !== before[key])) {
        view = look(state);
        at ??= Math.round(share * view.loop.last);
        if (state.row !== null) state.row = Math.min(state.row, state.n - 1);
        page.guess.reset();
      }
      page.player.goTo(at ?? page.player.at());
    }

    /* Draw one position; returns it in words. */
    function show(at) {
      const { loop, settings } = view;
      const here = loop.at(at);
      const followed = Math.max(0, loop.rowStart(Math.min(here.i, loop.rowBlocks - 1) + 1) - 1);
      const row = state.row === null ? followed : state.row;
      if (!view.numbersOf || view.numbersOf.row !== row) view.numbersOf = { row, ...tileLoop.makeRow(row, settings) };
      const all = { ...view, here, row };
      const [bar, sums, list] = tileLoop.sram(all);
      page.matrix.replaceChildren(tileLoop.matrix(all));
      page.legend.replaceChildren(...tileLoop.legend(all));
      page.sramBar.replaceChildren(bar, sums);
      page.sramList.replaceChildren(list);
      page.numbers.replaceChildren(tileLoop.numbers(all, tileLoop.progress(all)));
      page.traffic.replaceChildren(...tileLoop.traffic(all));
      say(page.matrixNote, tileLoop.matrixNote(all));
      say(page.fit, tileLoop.fitInWords(all));
      page.fit.classList.toggle("tl-too-small", !loop.fits);
      say(page.setting, tileLoop.settingInWords(settings));
      page.controls.sync(state);
      page.guess.sync(view);
      if (document.activeElement !== page.rowField) page.rowField.value = row;
      page.rowField.max = state.n - 1;
      page.follow.checked = state.row === null;
      if (started) address.save();
      return tileLoop.stepInWords(all);
    }

    function toAddress() {
      const { row, causal, ...rest } = state;
      return { ...rest, at: page.player.at(), causal: causal ? 1 : 0, ...(row === null ? {} : { row }) };
    }

    /* To the end of the next tile, or of the one before. */
    function leap(at, by) {
      const { loop, settings } = view;
      const lastPhase = tileLoop.PHASES[settings.order].at(-1);
      let position = at;
      do position += by;
      while (position > 0 && position < loop.last && loop.at(position).phase !== lastPhase);
      return position;
    }

    /* The page's elements, made once. */
    function build() {
      const setting = h("p", { class: "tl-now-set", "data-out": "setting" });
      const matrix = h("div", { class: "tl-matrix", onclick: pickRow });
      const legend = h("ul", { class: "tl-legend" });
      const matrixNote = h("p", { class: "tl-note tl-under" });
      const [sramBar, sramList, numbers] = [h("div", {}), h("div", {}), h("div", {})];
      const fit = h("p", { class: "tl-fit", role: "status", "data-out": "fit" });
      const rowField = h("input", { type: "number", id: "tl-row", min: 0, step: 1, oninput: () => rowField.validity.valid && rowField.value !== "" && change({ row: Number(rowField.value) }) });
      const follow = h("input", { type: "checkbox", onchange: () => change({ row: follow.checked ? null : view.numbersOf.row }) });
      const pick = h("div", { class: "tl-pick" }, h("label", { for: "tl-row" }, "query", rowField), h("label", { class: "tl-choice" }, follow, "follow the loop"));
      const traffic = h("ul", { class: "tl-traffic" });
      const controls = tileLoop.makeControls({ change, show: showPreset });
      const guess = tileLoop.makeGuess({ change });
      const root = h("section", { "aria-label": "The tile loop of FlashAttention" });
      const player = makePlayer({ show, last: () => view.loop.last, leap, leapName: "tile", picture: matrix, keysIn: root });
      const left = [
        h("div", { class: "pl-panel tl-picture" }, h("h3", {}, "The score matrix, tile by tile"), matrix, legend),
        player.element,
        matrixNote,
      ];
      const right = [
        h("div", { class: "pl-panel tl-sram" }, h("h3", {}, "In SRAM now"), sramBar),
        h("div", { class: "pl-panel tl-sram-list" }, fit, sramList),
        h("div", { class: "pl-panel tl-one-row" }, h("h3", {}, "One row of the output"), numbers, pick),
      ];
      const label = "The tile loop. Left and right arrows step, with shift by tiles; Home and End; space plays.";
      root.append(
        setting,
        h("div", { class: "tl-stage", tabindex: 0, role: "group", "aria-label": label }, h("div", {}, left), h("div", {}, right)),
        controls.element,
        guess.element,
        h("div", { class: "pl-panel" }, h("h3", {}, "Bytes moved between HBM and SRAM"), traffic),
      );
      return { root, setting, matrix, legend, matrixNote, sramBar, sramList, fit, numbers, rowField, follow, traffic, controls, guess, player };
    }

    function pickRow(event) {
      const drawing = event.currentTarget.querySelector("svg");
      const place = drawing.getBoundingClientRect();
      const unit = place.width / drawing.viewBox.baseVal.width;
      const row = Math.floor((((event.clientY - place.top) / unit - tileLoop.TOP) / tileLoop.SIDE) * state.n);
      if (row >= 0 && row < state.n) change({ row });
    }

    function showPreset(key) {
      page.player.pause();
      change({ ...DEFAULTS, ...parse(PRESETS[key][1]) });
    }

    /* Words in the page's text that name a setting become links to it. */
    function replaceExamples() {
      for (const words of document.querySelectorAll(".tile-loop-show")) {
        const key = words.id.replace("show-", "");
        if (!PRESETS[key]) continue;
        const act = (event) => {
          event.preventDefault();
          showPreset(key);
          hook.scrollIntoView();
        };
        words.replaceWith(h("a", { href: `#${PRESETS[key][1]}`, onclick: act }, words.textContent));
      }
    }
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
