/* Draws one position of the tile loop: the score matrix, SRAM, a row's numbers and the bytes moved. Reads, never decides. */
(function () {
  "use strict";

  const { h, svg: s } = stepPlayer;
  const SIDE = 280; // of the matrix, in units of the drawing
  const LEFT = 40;
  const TOP = 44;
  const COLUMNS = ["m", "l", "α", "new m", "row maxima", "row sums"];
  const SHOWN = 4; // numbers of a list; of a longer one a number less, and how many are left

  /* 2,560 B, with the binary unit from 1 KiB on. */
  function bytes(count) {
    const exact = `${count.toLocaleString("en-US")} B`;
    return count < 1024 ? exact : `${exact} (${binary(count)})`;
  }

  function binary(count) {
    const unit = ["B", "KiB", "MiB", "GiB", "TiB"].find((_, k) => count < 1024 ** (k + 1)) || "TiB";
    const value = count / 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].indexOf(unit);
    return `${value < 100 && !Number.isInteger(value) ? value.toPrecision(3) : Math.round(value)} ${unit}`;
  }

  function decimal(value) {
    if (!Number.isFinite(value)) return value < 0 ? "−∞" : "∞";
    return value.toFixed(4).replace("-", "−");
  }

  function list(values) {
    if (values.length <= SHOWN) return values.map(decimal).join(", ");
    const shown = values.slice(0, SHOWN - 1).map(decimal).join(", ");
    return `${shown}, … ${values.length - SHOWN + 1} more`;
  }

  function range(start, stop) {
    return stop - start === 1 ? `${start}` : `${start}–${stop - 1}`;
  }

  const rowsOf = (loop, i) => range(loop.rowStart(i), loop.rowStart(i + 1));
  const columnsOf = (loop, j) => range(loop.columnStart(j), loop.columnStart(j + 1));

  /* The score matrix between the arrays in HBM. */
  function matrix(view) {
    const { loop, here, settings, row } = view;
    const n = settings.nQueries;
    const unit = SIDE / n;
    const x = (column) => LEFT + column * unit;
    const y = (line) => TOP + line * unit;
    const box = (c0, r0, c1, r1) => `M${x(c0)} ${y(r0)}H${x(c1)}V${y(r1)}H${x(c0)}Z`;
    const regions = tilesByState(view);
    const draw = (name) => s("path", { class: `tl-${name}`, d: regions[name].map((r) => box(...r)).join("") });
    const current = here.tile ? [loop.columnStart(here.j), loop.rowStart(here.i), loop.columnStart(here.j + 1), loop.rowStart(here.i + 1)] : null;
    const middle = y(row + 0.5);
    return s(
      "svg",
      { viewBox: `0 0 ${LEFT + SIDE + 28} ${TOP + SIDE + 22}`, role: "img", "aria-label": matrixInWords(view) },
      s("defs", {}, hatch("tl-hatch-skipped", 7), hatch("tl-hatch-state", 4)),
      s("rect", { class: "tl-paper", x: LEFT, y: TOP, width: SIDE, height: SIDE }),
      draw("visited"),
      draw("skipped"),
      s("path", { class: "tl-grid", d: gridLines(view, x, y) }),
      settings.causal ? s("path", { class: "tl-diagonal", d: diagonal(n, x, y) }) : null,
      current ? s("path", { class: "tl-now", d: box(...current) }) : null,
      s("path", { class: "tl-row", d: `M${LEFT} ${middle}H${LEFT + SIDE}` }),
      s("path", { class: "tl-row-mark", d: `M${LEFT - 1} ${middle}l-7 -4v8z` }),
      s("rect", { class: "tl-frame", x: LEFT, y: TOP, width: SIDE, height: SIDE }),
      strips(view, x, y),
    );
  }

  function hatch(id, step) {
    const line = s("path", { d: `M0 ${step}L${step} 0`, class: "tl-hatch" });
    return s("pattern", { id, width: step, height: step, patternUnits: "userSpaceOnUse" }, line);
  }

  /* Rectangles [column, row, column, row] of the tiles that are done, and of those a causal mask leaves out. */
  function tilesByState({ loop, here, settings }) {
    const n = settings.nKeys;
    const [visited, skipped] = [[], []];
    const seen = (i) => loop.columnStart(loop.tilesInRow(i));
    for (let i = 0; i < loop.rowBlocks; i++) {
      if (seen(i) < n) skipped.push([seen(i), loop.rowStart(i), n, loop.rowStart(i + 1)]);
    }
    if (here.phase === "start") return { visited, skipped };
    if (settings.order === "queries") {
      for (let i = 0; i < here.i; i++) visited.push([0, loop.rowStart(i), seen(i), loop.rowStart(i + 1)]);
      if (here.phase !== "begin") visited.push([0, loop.rowStart(here.i), loop.columnStart(here.j), loop.rowStart(here.i + 1)]);
    } else {
      const from = (j) => loop.rowStart(loop.firstRow(j));
      for (let j = 0; j < here.j; j++) visited.push([loop.columnStart(j), from(j), loop.columnStart(j + 1), n]);
      visited.push([loop.columnStart(here.j), from(here.j), loop.columnStart(here.j + 1), loop.rowStart(here.i)]);
    }
    return { visited, skipped };
  }

  function gridLines({ loop, settings }, x, y) {
    const n = settings.nQueries;
    const every = (block, count, line) => ((block * SIDE) / n < 3 ? "" : Array.from({ length: count }, (_, k) => line(k)).join(""));
    return (
      every(settings.blockQ, loop.rowBlocks, (i) => `M${x(0)} ${y(loop.rowStart(i))}H${x(n)}`) +
      every(settings.blockK, loop.columnBlocks, (j) => `M${x(loop.columnStart(j))} ${y(0)}V${y(n)}`)
    );
  }

  function diagonal(n, x, y) {
    if (n > 64) return `M${x(0)} ${y(0)}L${x(n)} ${y(n)}`;
    return `M${x(0)} ${y(0)}` + Array.from({ length: n }, (_, k) => `H${x(k + 1)}V${y(k + 1)}`).join("");
  }

  /* Q on the left, K and V above, O on the right, with the block that is in SRAM. */
  function strips({ loop, here, settings }, x, y) {
    const n = settings.nQueries;
    const alive = here.alive;
    const rows = [loop.rowStart(here.i), loop.rowStart(here.i + 1)];
    const columns = [loop.columnStart(here.j), loop.columnStart(here.j + 1)];
    const upright = (left, [from, to], name) => s("rect", { class: name, x: left, y: y(from), width: 9, height: y(to) - y(from) });
    const level = (top, [from, to], name) => s("rect", { class: name, x: x(from), y: top, width: x(to) - x(from), height: 9 });
    const label = (at, line, text) => s("text", { x: at, y: line, "text-anchor": "middle", "aria-hidden": "true" }, text);
    const [left, right, above, under] = [LEFT - 19, LEFT + SIDE + 7, 14, 28];
    const finished = here.moved.O / (settings.dV * tileLoop.ELEMENT_BYTES);
    const begun = here.j > 0 ? n : rows[here.phase === "store" ? 1 : 0];
    const waiting = settings.order === "keys" && here.moved.stateOut > 0 ? [finished, Math.max(begun, finished)] : [0, 0];
    return s(
      "g",
      {},
      upright(left, [0, n], "tl-array"),
      alive.Q ? upright(left, rows, "tl-lit tl-given") : null,
      level(above, [0, n], "tl-array"),
      alive.K ? level(above, columns, "tl-lit tl-given") : null,
      level(under, [0, n], "tl-array"),
      alive.V ? level(under, columns, "tl-lit tl-given") : null,
      upright(right, [0, finished], "tl-finished"),
      upright(right, waiting, "tl-waiting"),
      upright(right, [0, n], "tl-array"),
      alive.O ? upright(right, rows, "tl-lit tl-state") : null,
      label(LEFT - 14, 23, "K"),
      label(LEFT - 14, 37, "V"),
      label(left + 4.5, TOP + SIDE + 16, "Q"),
      label(right + 4.5, TOP + SIDE + 16, "O"),
    );
  }

  function matrixInWords({ loop, here, settings }) {
    const now = here.tile ? 1 : 0;
    const skipped = loop.rowBlocks * loop.columnBlocks - loop.tiles;
    const counts = `${here.tilesDone} visited, ${now} now, ${loop.tiles - here.tilesDone - now} to come, ${skipped} skipped`;
    return `${settings.nQueries} × ${settings.nKeys} scores in tiles of ${settings.blockQ} × ${settings.blockK}: ${counts}.`;
  }

  function legend({ loop, here }) {
    const now = here.tile ? 1 : 0;
    const all = loop.rowBlocks * loop.columnBlocks;
    const entry = (name, count, word) =>
      h("li", {}, h("span", { class: `tl-key tl-key-${name}`, "aria-hidden": "true" }), h("b", { "data-count": name }, count.toLocaleString("en-US")), ` ${word}`);
    return [
      entry("visited", here.tilesDone, "visited"),
      entry("now", now, "now"),
      entry("to-come", loop.tiles - here.tilesDone - now, "to come"),
      entry("skipped", all - loop.tiles, "skipped"),
    ];
  }

  /* The content of SRAM: a bar of its capacity, and a list with the same places at every step. */
  function sram({ loop, here, settings }) {
    const slots = slotsOf(here.alive);
    const scale = Math.max(settings.sramBytes, loop.needs);
    const share = (count) => `${((100 * count) / scale).toFixed(3)}%`;
    const filled = slots.filter((slot) => slot.bytes > 0);
    const piece = (slot) =>
      h("span", { class: `tl-piece tl-${slot.kind}`, style: `width:${share(slot.bytes)}` }, slot.bytes / scale > 0.07 ? slot.short : "");
    const asked = here.overflow
      ? h("span", { class: "tl-piece tl-asked", style: `width:${share(Math.min(here.overflow.asked, scale - here.inUse))}` }, "?")
      : null;
    const bar = h(
      "div",
      { class: "tl-bar", "aria-hidden": "true" },
      filled.map(piece),
      asked,
      h("span", { class: "tl-water", style: `left:${share(here.highWater)}` }),
      loop.fits ? null : h("span", { class: "tl-capacity", style: `left:${share(settings.sramBytes)}` }),
    );
    const line = (slot) =>
      h(
        "tr",
        { class: slot.bytes ? null : "tl-absent" },
        h("th", { scope: "row" }, h("span", { class: `tl-swatch tl-${slot.kind}`, "aria-hidden": "true" }), slot.name),
        h("td", {}, slot.bytes ? slot.size : "–"),
        h("td", { "data-sram": slot.id }, slot.bytes ? `${slot.bytes.toLocaleString("en-US")} B` : ""),
      );
    const sum = (word, count, name) => h("span", {}, `${word} `, h("b", { "data-out": name }, bytes(count)));
    return [
      bar,
      h("p", { class: "tl-sums" }, sum("in use", here.inUse, "in-use"), sum("high water", here.highWater, "high-water"), sum("capacity", settings.sramBytes, "capacity")),
      h("table", { class: "tl-slots" }, h("caption", { class: "pl-hidden" }, "Arrays in SRAM"), h("tbody", {}, slots.map(line))),
    ];
  }

  function slotsOf(alive) {
    const one = (id, kind, name, part, short = name) => ({
      id, kind, name, short, bytes: part ? part.bytes : 0, size: part ? `${part.rows} × ${part.columns}` : "",
    });
    const columns = COLUMNS.filter((name) => alive[name]);
    const each = columns.length ? alive[columns[0]] : null;
    const together = each && { bytes: each.bytes * columns.length, rows: each.rows, columns: columns.length };
    return [
      one("Q", "given", "Q", alive.Q),
      one("K", "given", "K", alive.K),
      one("V", "given", "V", alive.V),
      one("S", "made", alive.P ? "P, in the place of S" : "S", alive.S || alive.P, alive.P ? "P" : "S"),
      one("PV", "made", "P V", alive["P V"], "PV"),
      one("O", "state", "O", alive.O),
      one("columns", "state", columns.length ? columns.join(", ") : "m, l", together, "m, l"),
    ];
  }

  /* The numbers of one row; `progress` says where the loop stands with it. */
  function numbers({ settings, row, numbersOf }, progress) {
    const { phase, count, current } = progress;
    const step = current === null ? null : numbersOf.tile(current);
    const before = numbersOf.after(count);
    const weighed = step && phase !== "scores";
    const summed = step && (phase === "output" || phase === "store");
    const state = { ...before, ...(weighed ? { m: step.m, l: step.l } : {}), ...(summed ? { O: step.O } : {}) };
    const answer = summed ? step : before;
    const begun = progress.where !== "not begun";
    const line = (name, id, value, changed) =>
      h("tr", { class: changed ? "tl-changed" : null }, h("th", { scope: "row" }, name), h("td", { "data-row": id }, value));
    const keys = step ? `s, keys ${range(step.start, step.stop)}` : "s";
    return h(
      "table",
      { class: "tl-numbers" },
      h("caption", {}, `Query ${row}: `, h("span", { "data-out": "where" }, progress.words)),
      h(
        "tbody",
        {},
        line(keys, "s", step ? list(step.scores) : "–", phase === "scores"),
        line("P", "P", weighed ? list(step.P) : "–", phase === "softmax"),
        line("m", "m", begun ? decimal(state.m) : "–", phase === "softmax" && step.m !== step.before.m),
        line("α", "alpha", weighed ? decimal(step.alpha) : "–", phase === "softmax"),
        line("l", "l", begun ? decimal(state.l) : "–", phase === "softmax"),
        line("O", "O", begun ? list(state.O) : "–", phase === "output"),
        line("O / l so far", "answer", answer.l > 0 ? list(answer.O.map((o) => o / answer.l)) : "–", progress.where === "finished"),
        line("all at once", "whole", list(numbersOf.whole()), false),
      ),
    );
  }

  /* Bytes moved: so far, at the end, and what others move with the same blocks. */
  function traffic({ loop, here, settings, other, standard }) {
    const most = Math.max(loop.total.total, other.total.total, standard.total);
    const ratio = (count) => `${(count / loop.total.total).toPrecision(3)} × this loop`;
    const unfit = (needs) => (needs <= settings.sramBytes ? "" : `. Does not fit: needs ${bytes(needs)}`);
    const names = { queries: "queries outside (FlashAttention-2)", keys: "keys outside (FlashAttention)" };
    const line = (id, title, moved, note) =>
      h(
        "li",
        {},
        h("div", { class: "tl-line" }, h("span", {}, title), h("b", { "data-out": `${id}-total` }, bytes(moved.total))),
        h("div", { class: "tl-track", "aria-hidden": "true" }, h("span", { class: `tl-moved tl-moved-${id}`, style: `width:${(100 * moved.total) / most}%` })),
        h(
          "div",
          { class: "tl-note" },
          h("span", { "data-out": `${id}-loaded` }, `${moved.loaded.toLocaleString("en-US")} B loaded`),
          " + ",
          h("span", { "data-out": `${id}-stored` }, `${moved.stored.toLocaleString("en-US")} B stored`),
          note ? `. ${note}` : "",
        ),
      );
    const total = loop.total;
    const state = total.stateIn + total.stateOut;
    const parts = [`Q ${bytes(total.Q)}`, `K and V ${bytes(total.K + total.V)}`, ...(state ? [`state of the rows ${bytes(state)}`] : []), `O ${bytes(total.O)}`];
    const spared = settings.causal ? ". A causal mask spares it nothing: all scores are computed, then half are hidden" : "";
    const matrices = `. Its S and P, N × N, take ${bytes(standard.matrixBytes)} each in HBM${spared}`;
    const otherName = names[settings.order === "queries" ? "keys" : "queries"];
    return [
      line("now", "This loop, so far", here.moved, ""),
      line("end", loop.fits ? "This loop, at the end" : "This loop, if it fitted", total, parts.join(", ")),
      line("other", `The other order, ${otherName}`, other.total, ratio(other.total.total) + unfit(other.needs)),
      line("standard", "Standard attention, same blocks", standard, ratio(standard.total) + unfit(standard.needs) + matrices),
    ];
  }

  globalThis.tileLoop = { ...globalThis.tileLoop, bytes, range, rowsOf, columnsOf, matrix, legend, sram, numbers, traffic, LEFT, TOP, SIDE };
})();
