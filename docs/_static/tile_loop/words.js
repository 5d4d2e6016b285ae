/* The words of the tile loop's page: each step, the setting, whether it fits, and the state of a row. */
(function () {
  "use strict";

  const { bytes, rowsOf, columnsOf } = tileLoop;

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
    if (phase === "start") return "Before the loop. Q, K and V are in HBM, SRAM is empty. Press Play, or step with the right arrow.";
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
        return `${tile}New maximum m. P = exp(S − m), written over S, α = exp(old m − m); l = α l + row sums of P.`;
      case "output queries":
        return `${tile}Load V. O = α O + P V. Then V, P and α are gone.`;
      case "output keys":
        return `${tile}O = α O + P V.`;
      case "store keys":
        return j === loop.tilesInRow(i) - 1
          ? `${tile}The last keys of these rows: O = O / l, store O.`
          : `${tile}Store m, l and O: SRAM cannot keep them for all rows.`;
      default:
        return `Block ${i}, ${rows}, is done: O = O / l, store O. m and l are gone${loop.rowBlocks - 1 === i ? ". The output is complete." : "."}`;
    }
  }

  function matrixNote({ settings }) {
    const waiting = settings.order === "keys" ? " Hatched on the right: rows whose m, l and O wait in HBM." : "";
    return `Coloured bars next to the matrix: blocks of Q, K, V and O in SRAM. Click a row to follow it.${waiting}`;
  }

  const words = { progress, settingInWords, fitInWords, stepInWords, matrixNote };
  globalThis.tileLoop = { ...globalThis.tileLoop, ...words };
})();
