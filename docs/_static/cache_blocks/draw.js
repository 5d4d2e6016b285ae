/* Draws one position of a paged cache: the pool of blocks, the tables of the sequences, and the bytes. Never decides. */
(function () {
  "use strict";

  const { h } = stepPlayer;
  const COLOURS = 6;
  const ONE_ROW = 6; // blocks, at most, that stand side by side in one row
  const SLOTS_PX = 124; // of a block's places together, where they would be higher
  const TEXT_PX = 11; // the least height of a place with its token in it

  const number = (count) => count.toLocaleString("en-US");
  const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

  /* 2,560 B, with the binary unit from 1 KiB on. */
  function bytes(count) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    const power = Math.max(0, units.findIndex((_, k) => count < 1024 ** (k + 1)));
    const value = count / 1024 ** power;
    return power === 0 ? `${number(count)} B` : `${Number.isInteger(value) ? value : value.toPrecision(3)} ${units[power]}`;
  }

  /* The colour of a sequence: the first six letters have one each. */
  function colour(name) {
    return `var(--cb-${(name.codePointAt(0) - 65 + COLOURS) % COLOURS})`;
  }

  /* The blocks, in rows. */
  function pool({ here, settings }) {
    const { numBlocks, blockSize } = settings;
    const columns = numBlocks <= ONE_ROW ? numBlocks : Math.ceil(numBlocks / 2);
    const slot = Math.min(15, SLOTS_PX / blockSize);
    const touched = touchedBy(here);
    return h(
      "div",
      { class: "cb-blocks", style: `--columns:${columns};--slot:${slot}px`, role: "img", "aria-label": poolInWords(here) },
      here.blocks.map((block, b) => card(block, b, { blockSize, withText: slot >= TEXT_PX, touched })),
    );
  }

  function card({ owners, tokens, findable }, b, { blockSize, withText, touched }) {
    const state = owners.length ? "owned" : findable ? "cached" : "blank";
    const strip = owners.length
      ? owners.map((name) => h("b", { style: `background:${colour(name)}` }, name))
      : h("i", {}, state === "cached" ? "cached" : "free");
    const places = Array.from({ length: blockSize }, (_, k) => {
      const kind = k >= tokens.length ? "cb-empty" : touched.places.has(`${b},${k}`) ? "cb-filled cb-written" : "cb-filled";
      return h("span", { class: kind }, withText && k < tokens.length ? tokens[k] : "");
    });
    const mark = touched.taken.has(b) ? " cb-taken" : touched.found.has(b) ? " cb-found" : "";
    const references = owners.length ? `×${owners.length}` : "";
    return h(
      "div",
      { class: `cb-block cb-${state}${mark}`, "data-block": b, "data-state": state },
      h("div", { class: "cb-head" }, h("span", {}, findable ? `${b}#` : `${b}`), h("span", {}, references)),
      h("div", { class: "cb-owners" }, strip),
      h("div", { class: "cb-places", style: tint(owners) }, places),
    );
  }

  /* Stripes of the owners' colours, side by side. */
  function tint(owners) {
    if (!owners.length) return null;
    const share = 100 / owners.length;
    const stripe = (name, k) => `color-mix(in srgb, ${colour(name)} 20%, transparent) ${k * share}% ${(k + 1) * share}%`;
    return `background-image:linear-gradient(90deg, ${owners.map(stripe).join(", ")})`;
  }

  /* What the last operation did to the pool: blocks taken and found, and the places that it wrote. */
  function touchedBy({ operation, outcome, sequences }) {
    const touched = { taken: new Set(), found: new Set(), places: new Set() };
    if (!operation || outcome.refused) return touched;
    for (const b of outcome.taken || []) touched.taken.add(b);
    for (const b of outcome.found || []) touched.found.add(b);
    if (operation[0] === "fork") for (const b of sequences.find(({ name }) => name === operation[2]).table) touched.found.add(b);
    if (outcome.place) touched.places.add(outcome.place.join(","));
    return touched;
  }

  function poolInWords({ blocks }) {
    const one = ({ owners, tokens, findable }, b) => {
      const whose = owners.length ? `of ${owners.join(" and ")}` : findable ? "cached" : "free";
      return `Block ${b}, ${whose}${tokens.length ? `: ${tokens.join(" ")}` : ""}.`;
    };
    return blocks.map(one).join(" ");
  }

  /* The counts under the pool. */
  function sums({ here }) {
    const { owned, shared, cached, blank, wasted } = here.counts;
    const entry = (name, count, words, key = null) =>
      h("li", {}, key && h("span", { class: `cb-key cb-key-${key}`, "aria-hidden": "true" }), h("b", { "data-out": name }, number(count)), ` ${words}`);
    return [
      entry("owned", owned, "owned", "owned"),
      entry("shared", shared, "of them shared"),
      entry("cached", cached, "free, findable", "cached"),
      entry("blank", blank, "free", "blank"),
      entry("wasted", wasted, wasted === 1 ? "slot wasted" : "slots wasted"),
      entry("copies", here.sums.copies, here.sums.copies === 1 ? "copy so far" : "copies so far"),
    ];
  }

  /* The tables, a row for each sequence. */
  function tables({ here }) {
    const head = ["", "blocks, in order", "tokens", "found"].map((word) => h("th", { scope: "col" }, word));
    const row = ({ name, table, tokens, found }) =>
      h(
        "tr",
        { "data-sequence": name },
        h("th", { scope: "row" }, badge(name)),
        h("td", { "data-table": name }, table.join(", ")),
        h("td", { "data-tokens": name }, number(tokens.length)),
        h("td", { "data-found": name }, number(found)),
      );
    const none = h("tr", {}, h("td", { colspan: 4, class: "cb-note" }, "no sequence"));
    return h(
      "table",
      { class: "cb-tables" },
      h("caption", { class: "pl-hidden" }, "Block tables"),
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, here.sequences.length ? here.sequences.map(row) : none),
    );
  }

  function badge(name) {
    return h("b", { class: "cb-badge", style: `background:${colour(name)}` }, name);
  }

  /* The bytes that are kept and read, in blocks and in runs. */
  function traffic({ here, settings }) {
    const of = cacheBlocks.bytesOf(here, settings);
    const { counts, sequences } = here;
    const { blockSize, longest, numBlocks } = settings;
    const most = Math.max(of.kept, of.keptInRuns, of.read, 1);
    const line = (id, title, value, note) =>
      h(
        "li",
        {},
        h("div", { class: "cb-line" }, h("span", {}, title), h("b", { "data-out": id }, bytes(value))),
        h("div", { class: "cb-track", "aria-hidden": "true" }, h("span", { class: `cb-bar cb-bar-${id}`, style: `width:${(100 * value) / most}%` })),
        h("div", { class: "cb-note" }, note),
      );
    const slots = plural(counts.owned * blockSize, "slot");
    const apart = counts.apart > counts.owned ? `; with nothing shared ${plural(counts.apart, "block")}` : "";
    const alive = plural(sequences.length, "sequence");
    const fit = `The pool's ${number(numBlocks * blockSize)} slots would hold ${of.runsThatFit === 1 ? "one such run" : `${of.runsThatFit} such runs`}`;
    return [
      line("kept", "Kept, in blocks", of.kept, `${plural(counts.owned, "block")}, ${slots}, ${number(counts.wasted)} of them empty${apart}`),
      line("kept-in-runs", `Kept, in runs of ${longest} slots`, of.keptInRuns, `${alive}. ${fit}`),
      line("read", "Read for the next token of each, through the tables", of.read, `${plural(counts.references, "block")} for ${plural(counts.tokens, "token")}: a shared one is read for each of its owners`),
      line("read-in-runs", "The same in runs that are read whole, with a mask", of.readInRuns, `${alive} of ${longest} slots`),
    ];
  }

  globalThis.cacheBlocks = { ...globalThis.cacheBlocks, bytes, number, plural, pool, sums, tables, badge, traffic };
})();
