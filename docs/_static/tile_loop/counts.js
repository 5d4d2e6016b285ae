/* What the tile loop of FlashAttention moves between HBM and SRAM, and what is in SRAM, at each of its steps.

The loop is the one that labkit.simulated_memory.Machine counts: every array that is alive between a load and a store is
charged, temporaries too, and the first byte above the capacity ends the run. tests/docs/test_tile_loop.py holds each count
here to that machine. Nothing in this file knows of a document.

Settings: order ("queries" or "keys" in the outer loop), nQueries, nKeys, d, dV, blockQ, blockK, sramBytes, causal.
Elements are float32, 4 bytes. Position 0 is before the loop; position k is its k-th step. */
(function () {
  "use strict";

  const ELEMENT_BYTES = 4;
  const PHASES = { queries: ["scores", "softmax", "output"], keys: ["scores", "softmax", "output", "store"] };
  const NOTHING = { Q: 0, K: 0, V: 0, stateIn: 0, O: 0, stateOut: 0 };

  /* The loop of one setting:
  steps, and last <= steps, the last position that can be reached; tiles, rowBlocks, columnBlocks;
  needs, the bytes of SRAM it needs, and fits; total, the bytes it moves, as if it fitted;
  tilesInRow(i), firstRow(j); at(position), see below. */
  function makeLoop(settings) {
    const shape = makeShape(settings);
    const whole = { ...settings, sramBytes: Infinity };
    const first = Array.from({ length: 1 + PHASES[settings.order].length }, (_, k) => k + 1); // later ones need no more
    const peaks = first.map((k) => runStep(shape, whole, shape.locate(k)).inUse);
    const stop = first.find((k) => runStep(shape, settings, shape.locate(k)).overflow);
    const last = stop === undefined ? shape.steps : stop;

    /* One position: phase, tile (or false) at block row i and block column j, tilesDone, alive (what lies in SRAM at
    the fullest moment of the step: name -> rows, columns, bytes), inUse, highWater, moved (bytes by array up to the end
    of the step) with loaded, stored and total, moments (inUse and bytes moved after each load, store and new array of
    the step), and overflow: null, or the array that did not fit with the bytes it asked for. */
    function at(position) {
      if (position <= 0) {
        const empty = { phase: "start", tile: false, i: 0, j: 0, tilesDone: 0, alive: {}, inUse: 0, highWater: 0 };
        return { ...empty, moved: inBytes(NOTHING), moments: [], overflow: null };
      }
      const place = shape.locate(Math.min(position, last));
      const step = runStep(shape, settings, place);
      const before = peaks.slice(0, Math.min(position, last) - (step.overflow ? 1 : 0));
      const reached = step.moments.map((moment) => moment.inUse);
      return { ...place, ...step, moved: inBytes(step.moved), highWater: Math.max(0, ...before, ...reached) };
    }

    const needs = Math.max(...peaks);
    const total = inBytes(runStep(shape, whole, shape.locate(shape.steps)).moved);
    return { ...shape, last, needs, fits: needs <= settings.sramBytes, total, at };
  }

  /* How blocks, tiles and steps of a setting follow each other. */
  function makeShape({ order, nQueries, nKeys, d, dV, blockQ, blockK, causal }) {
    const byQueries = order === "queries";
    const phases = PHASES[order];
    const rowBlocks = Math.ceil(nQueries / blockQ);
    const columnBlocks = Math.ceil(nKeys / blockK);
    const rowStart = (i) => Math.min(i * blockQ, nQueries);
    const columnStart = (j) => Math.min(j * blockK, nKeys);
    const tilesInRow = (i) => Math.ceil((causal ? Math.min(rowStart(i + 1), nKeys) : nKeys) / blockK);
    const firstRow = (j) => (causal ? Math.min(Math.floor((j * blockK) / blockQ), rowBlocks) : 0);

    // Outer rounds: how many tiles, and how many rows of the inner arrays, the rounds before each of them visit.
    const rounds = byQueries ? rowBlocks : tilesInRow(rowBlocks - 1);
    const tilesBefore = [0];
    const lengthBefore = [0];
    for (let r = 0; r < rounds; r++) {
      tilesBefore.push(tilesBefore[r] + (byQueries ? tilesInRow(r) : rowBlocks - firstRow(r)));
      lengthBefore.push(lengthBefore[r] + (byQueries ? columnStart(tilesInRow(r)) : nQueries - rowStart(firstRow(r))));
    }
    const around = byQueries ? 2 : 1; // steps of a round besides those of its tiles
    const stepsBefore = (round) => tilesBefore[round] * phases.length + round * around;

    function locate(position) {
      let round = 0;
      for (let high = rounds; high - round > 1; ) {
        const middle = (round + high) >> 1;
        if (stepsBefore(middle) < position) round = middle;
        else high = middle;
      }
      const within = position - stepsBefore(round) - 1;
      const inRound = tilesBefore[round + 1] - tilesBefore[round];
      const inner = within === 0 ? 0 : Math.min(Math.floor((within - 1) / phases.length), inRound);
      const tile = within > 0 && inner < inRound;
      const phase = tile ? phases[(within - 1) % phases.length] : within === 0 ? "begin" : "end";
      const place = byQueries ? { i: round, j: inner } : { i: firstRow(round) + inner, j: round };
      return { ...place, phase, tile, tilesDone: tilesBefore[round] + inner };
    }

    /* Elements moved by the rounds before this place and by the tiles before it in its own round. */
    function movedBefore(i, j) {
      if (byQueries) {
        const keys = lengthBefore[i] + columnStart(j);
        return { ...NOTHING, Q: rowStart(i) * d, K: keys * d, V: keys * dV, O: rowStart(i) * dV };
      }
      const here = rowStart(i) - rowStart(firstRow(j));
      const visits = lengthBefore[j] + here;
      const begun = j === 0 ? here : lengthBefore[1]; // visits that started a state instead of loading it
      const finished = rowStart(j + 1 < rounds ? Math.min(i, firstRow(j + 1)) : i);
      return {
        Q: visits * d,
        K: columnStart(j) * d,
        V: columnStart(j) * dV,
        stateIn: (visits - begun) * (dV + 2),
        O: finished * dV,
        stateOut: (visits - finished) * (dV + 2),
      };
    }

    const steps = stepsBefore(rounds);
    const names = { rowStart, columnStart, tilesInRow, firstRow, locate, movedBefore };
    return { ...names, rowBlocks, columnBlocks, rounds, tiles: tilesBefore[rounds], steps };
  }

  /* Run one step on top of what is in SRAM before it. */
  function runStep(shape, settings, place) {
    const alive = new Map();
    const moved = shape.movedBefore(place.i, place.j);
    const inUse = () => [...alive.values()].reduce((sum, part) => sum + part.bytes, 0);
    const phases = PHASES[settings.order];
    const earlier = place.phase === "begin" ? [] : ["begin"];
    if (place.tile) earlier.push(...phases.slice(0, phases.indexOf(place.phase)));
    for (const phase of earlier) {
      for (const action of actionsOf(shape, settings, place, phase)) act(alive, moved, action);
    }
    const moments = [];
    let fullest = { alive: Object.fromEntries(alive), inUse: 0 };
    for (const action of actionsOf(shape, settings, place, place.phase)) {
      const [how, name, rows, columns] = action;
      const asked = ["load", "new", "make"].includes(how) ? rows * columns * ELEMENT_BYTES : 0;
      if (inUse() + asked > settings.sramBytes) {
        const overflow = { how, name, rows, columns, asked, inUse: inUse() };
        return { alive: Object.fromEntries(alive), inUse: inUse(), moved, moments, overflow };
      }
      act(alive, moved, action);
      if (asked || how === "store") {
        moments.push({ how, inUse: inUse(), ...inBytes(moved) });
        if (inUse() >= fullest.inUse) fullest = { alive: Object.fromEntries(alive), inUse: inUse() };
      }
    }
    return { ...fullest, moved, moments, overflow: null };
  }

  function act(alive, moved, [how, name, rows, columns, array]) {
    if (array) moved[array] += rows * columns;
    if (how === "drop") alive.delete(name);
    if (how === "load" || how === "new" || how === "make") {
      alive.set(name, { rows, columns, bytes: rows * columns * ELEMENT_BYTES });
    }
    if (how === "rename") {
      alive.set(rows, alive.get(name)); // the new name stands where the rows do
      alive.delete(name);
    }
  }

  /* What a step does, in order: [load|new|make|store, name in SRAM, rows, columns, array in HBM that it counts for],
  [drop, name], [rename, old, new] for what is computed in place. */
  function actionsOf(shape, settings, { i, j }, phase) {
    const { d, dV } = settings;
    const rows = shape.rowStart(i + 1) - shape.rowStart(i);
    const columns = shape.columnStart(j + 1) - shape.columnStart(j);
    const state = (how, array) => [[how, "m", rows, 1, array], [how, "l", rows, 1, array], [how, "O", rows, dV, array]];
    const drop = (...names) => names.map((name) => ["drop", name]);
    const finished = j === shape.tilesInRow(i) - 1;
    const roundEnds = i === shape.rowBlocks - 1;
    switch (`${phase}, ${settings.order} outside`) {
      case "begin, queries outside":
        return [["load", "Q", rows, d, "Q"], ...state("new")];
      case "begin, keys outside":
        return [["load", "K", columns, d, "K"], ["load", "V", columns, dV, "V"]];
      case "scores, queries outside":
        return [["load", "K", columns, d, "K"], ["make", "S", rows, columns], ...drop("K")];
      case "scores, keys outside": {
        const get = j === 0 ? state("new") : state("load", "stateIn");
        return [["load", "Q", rows, d, "Q"], ...get, ["make", "S", rows, columns]];
      }
      case "softmax, queries outside":
      case "softmax, keys outside":
        return [
          ["make", "row maxima", rows, 1], ["make", "new m", rows, 1], ...drop("row maxima"),
          ["rename", "m", "α"], ["rename", "S", "P"],
          ["make", "row sums", rows, 1], ...drop("row sums"),
        ];
      case "output, queries outside":
        return [
          ["load", "V", columns, dV, "V"], ["make", "P V", rows, dV],
          ...drop("V", "P V", "P", "α"), ["rename", "new m", "m"],
        ];
      case "output, keys outside":
        return [["make", "P V", rows, dV], ...drop("P V")];
      case "store, keys outside": {
        const put = finished ? [["store", "O", rows, dV, "O"]] : state("store", "stateOut");
        const gone = drop("Q", "P", "α", "m", "l", "O", ...(roundEnds ? ["K", "V"] : []));
        return [["rename", "new m", "m"], ...put, ...gone];
      }
      case "end, queries outside":
        return [...drop("Q", "m", "l"), ["store", "O", rows, dV, "O"], ...drop("O")];
    }
    throw new Error(`no phase ${phase} with ${settings.order} outside`);
  }

  function inBytes(moved) {
    const bytes = Object.fromEntries(Object.entries(moved).map(([array, n]) => [array, n * ELEMENT_BYTES]));
    const loaded = bytes.Q + bytes.K + bytes.V + bytes.stateIn;
    const stored = bytes.O + bytes.stateOut;
    return { ...bytes, loaded, stored, total: loaded + stored };
  }

  /* The closed forms of labkit.testing.tiles.io_formulas, without a causal mask, in bytes. */
  const forms = {
    queries({ nQueries, nKeys, d, dV, blockQ }) {
      return traffic(nQueries * d + Math.ceil(nQueries / blockQ) * nKeys * (d + dV), nQueries * dV);
    },
    keys({ nQueries, nKeys, d, dV, blockK }) {
      const rounds = Math.ceil(nKeys / blockK);
      const state = (rounds - 1) * nQueries * (dV + 2);
      return traffic(nKeys * (d + dV) + rounds * nQueries * d + state, nQueries * dV + state);
    },
    naive({ nQueries, nKeys, d, dV, blockQ }) {
      const matrix = nQueries * nKeys;
      const products = nQueries * d + Math.ceil(nQueries / blockQ) * nKeys * (d + dV);
      return traffic(products + 2 * matrix, 2 * matrix + nQueries * dV);
    },
  };

  function traffic(loaded, stored) {
    const [inward, outward] = [loaded * ELEMENT_BYTES, stored * ELEMENT_BYTES];
    return { loaded: inward, stored: outward, total: inward + outward };
  }

  /* Standard attention with both products in tiles: its traffic, the bytes of one N x N array, and the SRAM it needs
  for a tile of either product or a row of scores. A causal mask changes nothing: all is computed, then masked. */
  function standard(settings) {
    const { nQueries, nKeys, d, dV } = settings;
    const rows = Math.min(settings.blockQ, nQueries);
    const columns = Math.min(settings.blockK, nKeys);
    const scores = rows * d + columns * d + rows * columns;
    const output = 2 * rows * dV + columns * dV + rows * columns;
    const needs = Math.max(scores, nKeys + 1, output) * ELEMENT_BYTES;
    return { ...forms.naive(settings), needs, matrixBytes: nQueries * nKeys * ELEMENT_BYTES };
  }

  /* The blocks that fill an SRAM, d_v = d: [blockQ, blockK], or null when not even 1 x 1. */
  function blocksThatFit(order, sramBytes, d) {
    const capacity = Math.floor(sramBytes / ELEMENT_BYTES);
    const few = (perRow) => Math.min(Math.max(1, Math.floor(capacity / (8 * perRow))), 16);
    if (order === "queries") {
      const blockK = few(d);
      const blockQ = Math.floor((capacity - blockK * d) / (3 * d + blockK + 3));
      return blockQ >= 1 ? [blockQ, blockK] : null;
    }
    const blockQ = few(3 * d);
    const blockK = Math.floor((capacity - blockQ * (3 * d + 3)) / (2 * d + blockQ));
    return blockK >= 1 ? [blockQ, blockK] : null;
  }

  globalThis.tileLoop = { ...globalThis.tileLoop, makeLoop, standard, forms, blocksThatFit, PHASES, ELEMENT_BYTES };
})();
