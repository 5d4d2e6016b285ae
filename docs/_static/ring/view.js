/* The ring's page: puts pictures, player and controls together, and keeps them to one state.

Replaces the content of the element #ring, which readers see where no script runs. */
(function () {
  "use strict";

  const { h, say, makePlayer, keepInAddress } = stepPlayer;
  const { DEFAULTS, PRESETS, parse } = ringPage;
  const TOKEN_BYTES = 512; // one head of width 64, a key and a value, float32

  function start() {
    const hook = document.getElementById("ring");
    if (!hook) return;
    const address = keepInAddress({ read: (params) => change({ ...DEFAULTS, ...parse(params) }), write: toAddress });
    const { at: first, ...given } = { ...DEFAULTS, ...parse(address.given() || "") };
    let state = given;
    let ring = look(state);
    const page = build();
    hook.replaceChildren(page.root);
    hook.classList.add("ring", "pl");
    let started = false;
    page.player.goTo(first);
    started = true; // the address changes only after a reader has changed something

    function look({ ranks, each, layout, causal }) {
      return ringPage.makeRing({ ranks, nTokens: ranks * each, layout, causal, tokenBytes: TOKEN_BYTES });
    }

    /* Take over some values; a changed setting keeps the step, as far as there is one. */
    function change({ at, ...values }) {
      state = { ...state, ...values };
      ring = look(state);
      page.player.goTo(at ?? page.player.at());
    }

    /* Draw one position; returns it in words. */
    function show(at) {
      const view = { ring, here: ring.at(at) };
      page.circle.replaceChildren(ringPage.circle(view));
      page.matrix.replaceChildren(ringPage.matrix(view));
      page.table.replaceChildren(ringPage.table(view));
      page.totals.replaceChildren(...ringPage.totals(view));
      say(page.setting, `${state.ranks} ranks, ${ring.settings.nTokens} tokens, ${state.layout}, ${state.causal ? "causal" : "no mask"}; a token's key and value are ${TOKEN_BYTES} B`);
      page.controls.sync(state);
      if (started) address.save();
      return ringPage.stepInWords(view);
    }

    function toAddress() {
      const { causal, ...rest } = state;
      return { ...rest, causal: causal ? 1 : 0, at: page.player.at() };
    }

    /* The page's elements, made once. */
    function build() {
      const setting = h("p", { class: "rg-setting", "data-out": "setting" });
      const [circle, matrix, table] = [h("div", { class: "rg-picture" }), h("div", { class: "rg-picture" }), h("div", { class: "rg-table" })];
      const totals = h("ul", { class: "rg-totals" });
      const legend = (keys) => h("ul", { class: "rg-legend" }, keys.map(([name, words]) => h("li", {}, h("span", { class: `rg-key rg-key-${name}` }), words)));
      const ofRanks = legend([["works", "computes in this step"], ["waits", "waits for the slowest"]]);
      const ofMatrix = legend([["now", "computed in this step"], ["done", "before"], ["later", "to come"]]);
      const controls = ringPage.makeControls({
        change,
        show: (key) => {
          page.player.pause();
          change({ ...DEFAULTS, ...parse(PRESETS[key][1]) });
        },
      });
      const root = h("section", { "aria-label": "Ring attention, step by step" });
      const leap = (at, by) => (by > 0 ? ring.last : 0);
      const player = makePlayer({ show, last: () => ring.last, leap, leapName: "round", picture: circle, keysIn: root });
      const label = "The ring. Left and right arrows step, Home and End go to the ends, space plays.";
      const left = h("div", {}, h("div", { class: "pl-panel" }, h("h3", {}, "What each rank holds and sends"), circle, ofRanks));
      const right = h("div", {}, h("div", { class: "pl-panel" }, h("h3", {}, "Queries downwards, with their ranks; keys to the right"), matrix, ofMatrix));
      root.append(
        setting,
        h("div", { class: "rg-stage", tabindex: 0, role: "group", "aria-label": label }, left, right, player.element),
        h("div", { class: "pl-panel" }, h("h3", {}, "Rank by rank"), table, totals),
        controls.element,
      );
      return { root, setting, circle, matrix, table, totals, controls, player };
    }
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
