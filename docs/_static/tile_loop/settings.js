/* The tile loop's setting: its values, what an address or a preset says of them, and the controls that change them. */
(function () {
  "use strict";

  const { h, button } = stepPlayer;
  const { bytes } = tileLoop;
  const DEFAULTS = { n: 16, d: 4, bq: 4, bk: 4, sram: 512, order: "queries", causal: true, row: null, at: 0 };
  const HALVES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096];
  const KIB = [0.125, 0.25, 0.375, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 164, 228, 512, 1024, 4096];
  const NUMBERS = {
    n: { name: "N, length", least: 1, most: 4096, stops: HALVES },
    d: { name: "d, width", least: 1, most: 256, stops: HALVES.filter((stop) => stop <= 256) },
    bq: { name: "block_q", least: 1, most: 4096, stops: HALVES },
    bk: { name: "block_k", least: 1, most: 4096, stops: HALVES },
    sram: { name: "SRAM, bytes", least: 4, most: 4 * 1024 * 1024, stops: KIB.map((kib) => kib * 1024) },
  };
  const PRESETS = {
    small: ["Small, causal", "n=16&d=4&bq=4&bk=4&sram=512&causal=1"],
    wide: ["Tiles of 8 × 3", "n=24&d=4&bq=8&bk=3&sram=1024&causal=1"],
    real: ["A real head", "n=4096&d=64&bq=72&bk=16&sram=65536&causal=0"],
    unfit: ["Does not fit", "n=16&d=4&bq=8&bk=8&sram=512&causal=1&at=2"],
    loses: ["Tiling loses", "n=8&d=4&bq=4&bk=2&sram=512&causal=0&order=keys"],
  };
  const ORDERS = { queries: "queries outside", keys: "keys outside" };

  /* The values of an address, as far as they make sense. */
  function parse(address) {
    const given = new URLSearchParams(address);
    const values = {};
    for (const [key, { least, most }] of Object.entries(NUMBERS)) {
      const value = Number(given.get(key));
      if (given.has(key) && Number.isInteger(value)) values[key] = Math.max(least, Math.min(value, most));
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

  /* The controls, made once: change(values) takes over what a reader chose, show(preset) a whole setting.
  sync(state) brings them up to date. */
  function makeControls({ change, show }) {
    let state = DEFAULTS;
    const numbers = Object.entries(NUMBERS).map(([key, about]) => numberControl(key, about));
    const orders = Object.entries(ORDERS).map(([order, words]) => {
      const input = h("input", { type: "radio", name: "tl-order", value: order, onchange: () => change({ order }) });
      return { order, input, label: h("label", { class: "tl-choice" }, input, words) };
    });
    const causal = h("input", { type: "checkbox", id: "tl-causal", onchange: () => change({ causal: causal.checked }) });
    const fill = button("Largest blocks that fit", () => {
      const [bq, bk] = blocks();
      change({ bq: Math.min(bq, state.n), bk: Math.min(bk, state.n) });
    });
    const presets = Object.entries(PRESETS).map(([key, [name]]) => button(name, () => show(key)));
    const element = h(
      "div",
      { class: "pl-panel tl-setting" },
      h("h3", {}, "Another setting"),
      h("div", { class: "pl-buttons tl-presets", role: "group", "aria-label": "Settings to start from" }, presets),
      h(
        "details",
        { open: window.matchMedia("(min-width: 48em)").matches ? "" : null },
        h("summary", {}, "Each value"),
        h("div", { class: "tl-controls" }, numbers.map((number) => number.element), h("div", { class: "pl-buttons" }, fill)),
        h("fieldset", { class: "tl-choices" }, h("legend", { class: "pl-hidden" }, "Loops and mask"), orders.map((o) => o.label), h("label", { class: "tl-choice" }, causal, "causal mask")),
      ),
    );

    function blocks() {
      return tileLoop.blocksThatFit(state.order, state.sram, state.d);
    }

    function sync(now) {
      state = now;
      for (const number of numbers) number.sync();
      for (const { order, input } of orders) input.checked = state.order === order;
      causal.checked = state.causal;
      fill.disabled = blocks() === null;
    }

    /* A slider over useful values, and a field for any. */
    function numberControl(key, { name, least, most, stops }) {
      const field = h("input", { type: "number", id: `tl-${key}`, min: least, max: most, step: 1, required: "" });
      const slider = h("input", { type: "range", min: 0, max: stops.length - 1, step: 1, "aria-label": `${name}, slider` });
      field.addEventListener("input", () => field.validity.valid && change({ [key]: Number(field.value) }));
      field.addEventListener("change", () => {
        if (!field.validity.valid) field.value = state[key];
      });
      slider.addEventListener("input", () => change({ [key]: stops[slider.value] }));
      const syncThis = () => {
        if (document.activeElement !== field || field.validity.valid) field.value = state[key];
        if (document.activeElement !== slider || stops[slider.value] !== state[key]) slider.value = nearest(stops, state[key]);
        slider.setAttribute("aria-valuetext", key === "sram" ? bytes(state[key]) : state[key]);
      };
      return { sync: syncThis, element: h("div", { class: "tl-control" }, h("label", { for: `tl-${key}` }, name), field, slider) };
    }

    return { element, sync };
  }

  /* The index of the stop whose ratio to a value is closest to 1. */
  function nearest(stops, value) {
    const off = (k) => Math.abs(Math.log(stops[k] / value));
    return stops.reduce((best, _, k) => (off(k) < off(best) ? k : best), 0);
  }

  globalThis.tileLoop = { ...globalThis.tileLoop, DEFAULTS, NUMBERS, PRESETS, parse, makeControls };
})();
