/* The page of blocks: puts pool, tables, player and controls together, and keeps them to one state.

Replaces the content of the element #cache-blocks, which readers see where no script runs. */
(function () {
  "use strict";

  const { h, say, makePlayer, keepInAddress } = stepPlayer;
  const { SCENARIOS, begin, parse, settingsOf } = cacheBlocks;
  const SHOWN = 6; // words of a block in a sequence's text
  const OPENING = "at=8"; // three sequences, a shared block and a copy: an empty pool says nothing
  const KEY = "# a prompt that begins alike finds it. Outlines: orange, taken by this operation; green, found there.";

  function start() {
    const hook = document.getElementById("cache-blocks");
    if (!hook) return;
    const address = keepInAddress({ read: (params) => take(parse(params)), write: toAddress });
    const { at: first, ...given } = parse(address.given() || OPENING);
    let state = given;
    let view = look(state);
    const page = build();
    hook.replaceChildren(page.root);
    hook.classList.add("cache-blocks", "pl");
    let started = false;
    page.player.goTo(first);
    started = true; // the address changes only after a reader has changed something

    /* Everything that one state means. */
    function look(of) {
      const settings = settingsOf(of);
      const { operations, scenes } = SCENARIOS[of.scenario];
      return { settings, scenes, positions: cacheBlocks.run(operations, settings) };
    }

    /* Take over a whole state, and the place in it. */
    function take({ at, ...values }) {
      state = values;
      view = look(state);
      page.player.goTo(at);
    }

    /* Another setting: the same operation, in another pool. */
    function change(values) {
      take({ ...state, ...values, at: page.player.at() });
    }

    function step() {
      page.player.pause();
      page.player.goTo(page.player.at() + 1);
    }

    function showScenario(scenario) {
      page.player.pause();
      take(begin(scenario));
    }

    /* Draw one position; returns it in words. */
    function show(at) {
      const { settings, scenes, positions } = view;
      const here = positions[at];
      const all = { here, settings };
      page.pool.replaceChildren(cacheBlocks.pool(all));
      page.sums.replaceChildren(...cacheBlocks.sums(all));
      page.tables.replaceChildren(cacheBlocks.tables(all));
      page.text.replaceChildren(...textOf(here, settings));
      page.traffic.replaceChildren(...cacheBlocks.traffic(all));
      say(page.scene, `${SCENARIOS[state.scenario].title}, ${cacheBlocks.sceneInWords(scenes, at)}`);
      say(page.setting, cacheBlocks.settingInWords(settings));
      page.controls.sync(state);
      page.guess.sync(here, positions[at + 1] ?? null);
      if (started) address.save();
      return cacheBlocks.stepInWords(here, settings);
    }

    /* The sequence of the operation at hand, read through its table. */
    function textOf({ operation, sequences, blocks }, { blockSize }) {
      const name = operation && (operation[0] === "fork" ? operation[2] : operation[1]);
      const sequence = sequences.find((each) => each.name === name);
      if (!sequence) return [];
      const { table, tokens } = sequence;
      const inBlock = (b, k) => abridged(blocks[b].tokens.slice(0, tokens.length - k * blockSize));
      return [cacheBlocks.badge(name), ...table.map((b, k) => h("span", { class: "cb-piece" }, h("sub", {}, b), inBlock(b, k)))];
    }

    function abridged(words) {
      return words.length <= SHOWN ? words.join(" ") : [...words.slice(0, 2), "…", words.at(-1)].join(" ");
    }

    function toAddress() {
      return { ...state, at: page.player.at() };
    }

    /* To the last operation of the next scene that is not done, or to the end of the one before. */
    function leap(at, by) {
      const last = view.positions.length - 1;
      const ends = [0, ...view.scenes.slice(1).map(({ first }) => first - 1), last];
      return by > 0 ? ends.find((end) => end > at) ?? last : ends.findLast((end) => end < at) ?? 0;
    }

    /* The page's elements, made once. */
    function build() {
      const setting = h("p", { class: "cb-note", "data-out": "setting" });
      const scene = h("h3", { "data-out": "scene" });
      const [pool, tables] = [h("div", { class: "cb-pool" }), h("div", {})];
      const sums = h("ul", { class: "cb-sums" });
      const text = h("p", { class: "cb-text", "data-out": "text" });
      const traffic = h("ul", { class: "cb-traffic" });
      const controls = cacheBlocks.makeControls({ change, show: showScenario });
      const guess = cacheBlocks.makeGuess({ step });
      const root = h("section", { "aria-label": "A paged cache, step by step" });
      const last = () => view.positions.length - 1;
      const player = makePlayer({ show, last, leap, leapName: "scene", picture: pool, keysIn: root });
      const label = "A paged cache. Left and right arrows step, with shift by scenes; Home and End; space plays.";
      root.append(
        h(
          "div",
          { class: "cb-stage", tabindex: 0, role: "group", "aria-label": label },
          h("div", { class: "pl-panel cb-picture" }, scene, pool, sums, h("p", { class: "cb-note" }, KEY)),
          player.element,
          h("div", { class: "pl-panel cb-of-sequences" }, h("h3", {}, "Block tables"), tables, text),
        ),
        h("div", { class: "pl-panel" }, h("h3", {}, "Bytes, in Llama-3.1-8B"), setting, traffic),
        guess.element,
        controls.element,
      );
      return { root, setting, scene, pool, sums, tables, text, traffic, controls, guess, player };
    }
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
