/* Draws one position of the ring: the ranks and what travels between them, the score matrix, and a table. Reads, never decides. */
(function () {
  "use strict";

  const { h, svg: s } = stepPlayer;
  const RADIUS = 112;
  const SIDE = 300;
  const MARGIN = 26;

  const number = (count) => count.toLocaleString("en-US");

  function bytes(count) {
    return count < 1024 ? `${number(count)} B` : `${number(count)} B (${Number((count / 1024).toPrecision(3))} KiB)`;
  }

  /* Ranks in a circle, clockwise from the top, with what each holds; arrows are blocks under way. */
  function circle({ ring, here }) {
    const { ranks } = ring.settings;
    const size = ranks > 5 ? 27 : 32;
    const place = (rank, radius = RADIUS) => {
      const angle = (2 * Math.PI * rank) / ranks - Math.PI / 2;
      return [160 + radius * Math.cos(angle), 160 + radius * Math.sin(angle)];
    };
    const arrows = here.underWay.map(({ from, to, block }) => arrow(place(from), place(to), size, block, ranks));
    const most = Math.max(1, ...here.of.map(({ pairs }) => pairs));
    const nodes = here.of.map(({ rank, holds, pairs, waits }) => {
      const [x, y] = place(rank);
      const idle = waits > 0 && pairs === 0;
      return s(
        "g",
        {},
        s("circle", { class: waits ? "rg-waits" : "rg-rank", cx: x, cy: y, r: size }),
        s("path", { class: "rg-works", d: slice(x, y, size, here.phase === "step" ? pairs / most : 0) }),
        s("circle", { class: idle ? "rg-edge rg-idle" : "rg-edge", cx: x, cy: y, r: size }),
        s("text", { x, y: y - (idle ? 8 : 3), class: "rg-name" }, `rank ${rank}`),
        s("text", { x, y: y + (idle ? 5 : 12), class: "rg-holds" }, here.phase === "end" ? "done" : `K, V of ${holds}`),
        idle ? s("text", { x, y: y + 18, class: "rg-name" }, "idle") : [],
      );
    });
    const label = here.of.map(({ rank, holds, pairs }) => `rank ${rank} holds the block of ${holds}, ${pairs} pairs`).join("; ");
    return s("svg", { viewBox: "0 0 320 320", role: "img", "aria-label": `${ranks} ranks in a ring. ${label}.` }, marker(), arrows, nodes);
  }

  /* A part of a disc, from its bottom up to a share of its height. */
  function slice(x, y, r, share) {
    if (share <= 0) return "";
    if (share >= 1) return `M${x - r} ${y}A${r} ${r} 0 1 1 ${x + r} ${y}A${r} ${r} 0 1 1 ${x - r} ${y}Z`;
    const level = y + r - 2 * r * share;
    const half = Math.sqrt(r * r - (level - y) ** 2);
    return `M${x - half} ${level}A${r} ${r} 0 ${share > 0.5 ? 1 : 0} 0 ${x + half} ${level}Z`;
  }

  function marker() {
    const tip = s("path", { d: "M0 0L7 3.5L0 7z", class: "rg-tip" });
    const arrowhead = s("marker", { id: "rg-arrow", viewBox: "0 0 7 7", refX: 6, refY: 3.5, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, tip);
    const line = s("path", { d: "M0 0V6", class: "rg-hatch" });
    return s("defs", {}, arrowhead, s("pattern", { id: "rg-hatching", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, line));
  }

  function arrow([x0, y0], [x1, y1], size, block, ranks) {
    const [dx, dy] = [x1 - x0, y1 - y0];
    const long = Math.hypot(dx, dy);
    const [ux, uy] = [dx / long, dy / long];
    const aside = ranks === 2 ? 12 : 0; // there and back are one line otherwise
    const [ox, oy] = [-uy * aside, ux * aside];
    const from = [x0 + ux * (size + 3) + ox, y0 + uy * (size + 3) + oy];
    const to = [x1 - ux * (size + 4) + ox, y1 - uy * (size + 4) + oy];
    const middle = [(from[0] + to[0]) / 2, (from[1] + to[1]) / 2];
    const out = ranks === 2 ? [ox * 1.2, oy * 1.2] : [(middle[0] - 160) * 0.14, (middle[1] - 160) * 0.14];
    return s(
      "g",
      {},
      s("path", { class: "rg-way", d: `M${from}L${to}`, "marker-end": "url(#rg-arrow)" }),
      s("text", { class: "rg-block", x: middle[0] + out[0], y: middle[1] + out[1] + 4 }, String(block)),
    );
  }

  /* The score matrix: queries downwards with their ranks, cells computed now, before, later and never. */
  function matrix({ ring, here }) {
    const { nTokens } = ring.settings;
    const unit = SIDE / nTokens;
    const cells = { now: "", done: "", later: "" };
    for (let query = 0; query < nTokens; query++) {
      for (let key = 0; key < nTokens; key++) {
        if (!ring.sees(query, key)) continue;
        const step = ring.stepOf(query, key);
        const name = here.phase === "step" && step === here.step ? "now" : step < (here.phase === "end" ? Infinity : here.step) ? "done" : "later";
        cells[name] += `M${(MARGIN + key * unit).toFixed(2)} ${(query * unit).toFixed(2)}h${unit.toFixed(2)}v${unit.toFixed(2)}h${(-unit).toFixed(2)}z`;
      }
    }
    const digits = Math.max(10, Math.min(13, 0.8 * unit)); // in units of the picture; at 10 they are read on a phone
    const marks = ring.owner.map((rank, query) => s("text", { class: "rg-row", "font-size": digits, x: MARGIN - 5, y: (query + 0.5) * unit + 0.36 * digits }, String(rank)));
    const label = `${nTokens} by ${nTokens} scores. ${here.phase === "step" ? "Marked: what the ranks compute in this step." : ""}`;
    return s(
      "svg",
      { viewBox: `0 0 ${MARGIN + SIDE + 2} ${SIDE + 2}`, role: "img", "aria-label": label },
      ["later", "done", "now"].map((name) => s("path", { class: `rg-${name}`, d: cells[name] })),
      s("rect", { class: "rg-frame", x: MARGIN, y: 0, width: SIDE, height: SIDE }),
      unit >= 9 ? marks : [],
    );
  }

  /* One line a rank. */
  function table({ here }) {
    const head = ["rank", "K, V of", "pairs now", "waits", "pairs so far", "waited"].map((name) => h("th", { scope: "col" }, name));
    const rows = here.of.map(({ rank, holds, pairs, waits, pairsDone, waited }) =>
      h("tr", { "data-rank": rank }, h("th", { scope: "row" }, String(rank)), ...[holds, pairs, waits, pairsDone, waited].map((value) => h("td", {}, number(value)))),
    );
    return h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
  }

  function stepInWords({ ring, here }) {
    const { ranks, causal } = ring.settings;
    if (here.phase === "start") return `Every rank holds its own queries, keys and values: ${number(ring.settings.nTokens / ranks)} tokens each.`;
    if (here.phase === "end") {
      return `Done: every query has met every key. The ring took as long as ${number(here.takes)} pairs, and ranks waited for ${percent(here.waitingShare)} of their time.`;
    }
    const most = ring.slowest[here.step];
    const idle = here.of.filter(({ pairs }) => pairs === 0).map(({ rank }) => rank);
    const first = here.step === 0 ? "its own keys" : `the keys of rank ${here.of[0].holds}`;
    const travels = here.underWay.length ? `Each block travels on: ${bytes(ring.blockBytes)} a rank.` : "Nothing travels any more: the next hop would carry each block home.";
    const several = idle.length > 1;
    const names = `Rank${several ? "s" : ""} ${idle.join(", ")}`;
    const waiting = causal && idle.length ? ` ${names} ${several ? "see" : "sees"} nothing of ${several ? "their blocks and pass them" : "the block and passes it"} on.` : "";
    return `Step ${here.step}: rank 0 meets ${first}. It lasts ${number(most)} pairs, the slowest rank's.${waiting} ${travels}`;
  }

  const percent = (share) => `${(100 * share).toFixed(share && share < 0.1 ? 1 : 0)} %`;

  function totals({ ring, here }) {
    return [
      ["the ring has taken", `${number(here.takes)} pairs`],
      ["ranks have waited for", percent(here.waitingShare)],
      ["each has sent when it is over", bytes(here.of[0].sentBytes)],
      ["in the end", bytes((ring.settings.ranks - 1) * ring.blockBytes)],
    ].map(([name, value]) => h("li", {}, h("span", {}, name), h("b", {}, value)));
  }

  globalThis.ringPage = { ...globalThis.ringPage, bytes, percent, circle, matrix, table, stepInWords, totals };
})();
