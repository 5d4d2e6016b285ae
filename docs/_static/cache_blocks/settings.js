/* The setting of the page of blocks: its values, what an address says of them, and the controls that change them. */
(function () {
  "use strict";

  const { h, button, say } = stepPlayer;
  const { SCENARIOS } = cacheBlocks;
  const TOKEN_BYTES = 131072; // Llama-3.1-8B: 32 layers, 2 vectors, 8 key heads of 128, 2 bytes
  const RANGES = {
    blocks: { name: "blocks", stops: Array.from({ length: 13 }, (_, k) => k + 4) },
    size: { name: "slots in a block", stops: [1, 2, 3, 4, 6, 8, 12, 16] },
    longest: { name: "slots in a run", stops: [16, 32, 64, 128, 256] },
  };

  /* The state that a scenario begins with. */
  function begin(scenario) {
    const { blocks, size, longest } = SCENARIOS[scenario];
    return { scenario, blocks, size, longest, at: 0 };
  }

  /* The state of an address, as far as it makes sense; the tour's for the rest. */
  function parse(address) {
    const given = new URLSearchParams(address);
    const named = given.get("scenario");
    const state = begin(Object.hasOwn(SCENARIOS, named) ? named : "tour");
    for (const [key, { stops }] of Object.entries(RANGES)) {
      if (stops.includes(Number(given.get(key)))) state[key] = Number(given.get(key));
    }
    const at = Number(given.get("at"));
    if (Number.isInteger(at) && at >= 0) state.at = at;
    return state;
  }

  /* What blocks.js needs of a state; a run is never shorter than the scenario's longest text. */
  function settingsOf({ scenario, blocks, size, longest }) {
    return { numBlocks: blocks, blockSize: size, longest: Math.max(longest, SCENARIOS[scenario].longest), tokenBytes: TOKEN_BYTES };
  }

  /* The controls, made once: change(values) takes over what a reader chose, show(scenario) a whole scenario.
  sync(state) brings them up to date. */
  function makeControls({ change, show }) {
    const scenarios = Object.entries(SCENARIOS).map(([key, { title }]) => ({ key, element: button(title, () => show(key)) }));
    const sliders = Object.entries(RANGES).map(([key, about]) => slider(key, about));
    const element = h(
      "div",
      { class: "pl-panel cb-setting" },
      h("h3", {}, "Another story, another setting"),
      h("div", { class: "pl-buttons", role: "group", "aria-label": "Stories" }, scenarios.map((each) => each.element)),
      h("div", { class: "cb-controls" }, sliders.map((each) => each.element)),
    );

    function sync(state) {
      for (const { key, element } of scenarios) element.setAttribute("aria-pressed", key === state.scenario);
      for (const each of sliders) each.sync(state);
    }

    function slider(key, { name, stops }) {
      const value = h("output", { for: `cb-${key}` });
      const input = h("input", { type: "range", id: `cb-${key}`, min: 0, max: stops.length - 1, step: 1, oninput: () => change({ [key]: stops[input.value] }) });
      const sync = (state) => {
        const now = key === "longest" ? settingsOf(state).longest : state[key];
        input.value = stops.indexOf(now);
        input.setAttribute("aria-valuetext", now);
        say(value, String(now));
      };
      return { sync, element: h("div", { class: "cb-control" }, h("label", { for: `cb-${key}` }, name), value, input) };
    }

    return { element, sync };
  }

  globalThis.cacheBlocks = { ...globalThis.cacheBlocks, begin, parse, settingsOf, makeControls, TOKEN_BYTES };
})();
