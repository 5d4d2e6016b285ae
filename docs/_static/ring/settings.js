/* The ring's setting: its values, what an address says of them, and the controls that change them. */
(function () {
  "use strict";

  const { h, button } = stepPlayer;
  const { LAYOUTS } = ringPage;
  const DEFAULTS = { ranks: 4, each: 4, layout: "contiguous", causal: true, at: 1 };
  const NUMBERS = { ranks: { name: "ranks", least: 2, most: 8, step: 1 }, each: { name: "tokens a rank", least: 2, most: 12, step: 2 } };
  const PRESETS = {
    contiguous: ["Contiguous, causal", "ranks=4&each=4&layout=contiguous&causal=1&at=2"],
    zigzag: ["Zigzag, causal", "ranks=4&each=4&layout=zigzag&causal=1&at=2"],
    striped: ["Striped, causal", "ranks=4&each=4&layout=striped&causal=1&at=2"],
    full: ["No mask", "ranks=4&each=4&layout=contiguous&causal=0&at=2"],
    eight: ["Eight ranks", "ranks=8&each=4&layout=contiguous&causal=1&at=3"],
  };

  /* The values of an address, as far as they make sense. */
  function parse(address) {
    const given = new URLSearchParams(address);
    const values = {};
    for (const [key, { least, most, step }] of Object.entries(NUMBERS)) {
      const value = Number(given.get(key));
      if (given.has(key) && Number.isInteger(value)) values[key] = Math.max(least, Math.min(value - ((value - least) % step), most));
    }
    if (LAYOUTS.includes(given.get("layout"))) values.layout = given.get("layout");
    if (given.has("causal")) values.causal = given.get("causal") === "1";
    const at = Number(given.get("at"));
    if (given.has("at") && Number.isInteger(at) && at >= 0) values.at = at;
    return values;
  }

  /* The controls, made once: change(values) takes over what a reader chose, show(preset) a whole setting. */
  function makeControls({ change, show }) {
    const presets = Object.entries(PRESETS).map(([key, [name]]) => button(name, () => show(key)));
    const layouts = LAYOUTS.map((layout) => {
      const input = h("input", { type: "radio", name: "rg-layout", value: layout, onchange: () => change({ layout }) });
      return { layout, input, label: h("label", { class: "rg-choice" }, input, layout) };
    });
    const causal = h("input", { type: "checkbox", id: "rg-causal", onchange: () => change({ causal: causal.checked }) });
    const numbers = Object.entries(NUMBERS).map(([key, { name, least, most, step }]) => {
      const input = h("input", { type: "range", id: `rg-${key}`, min: least, max: most, step, oninput: () => change({ [key]: Number(input.value) }) });
      const value = h("output", { for: `rg-${key}` });
      return { key, input, value, element: h("div", { class: "rg-control" }, h("label", { for: `rg-${key}` }, name), value, input) };
    });
    const element = h(
      "div",
      { class: "pl-panel" },
      h("h3", {}, "Another setting"),
      h("div", { class: "pl-buttons", role: "group", "aria-label": "Settings to start from" }, presets),
      h("fieldset", { class: "rg-choices" }, h("legend", { class: "pl-hidden" }, "Layout and mask"), layouts.map((each) => each.label), h("label", { class: "rg-choice" }, causal, "causal mask")),
      h("div", { class: "rg-controls" }, numbers.map((each) => each.element)),
    );

    function sync(state) {
      for (const { layout, input } of layouts) input.checked = state.layout === layout;
      causal.checked = state.causal;
      for (const { key, input, value } of numbers) {
        input.value = state[key];
        value.textContent = state[key];
      }
    }

    return { element, sync };
  }

  globalThis.ringPage = { ...globalThis.ringPage, DEFAULTS, PRESETS, parse, makeControls };
})();
