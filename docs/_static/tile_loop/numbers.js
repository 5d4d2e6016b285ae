/* The numbers of the tile loop's example: Q, K and V from a rule, and one row of the output as the tiles pass by.

Multiples of 1/8 between -2 and 1.875, the same in every language; everything after them is double precision. */
(function () {
  "use strict";

  const ARRAYS = { Q: 0, K: 1, V: 2 };

  /* The element of an array at a row and a column. */
  function element(array, row, column) {
    let bits = Math.imul(ARRAYS[array] + 1, 0x9e3779b1) + Math.imul(row + 1, 0x85ebca77);
    bits = (bits + Math.imul(column + 1, 0xc2b2ae3d)) >>> 0;
    bits = Math.imul(bits ^ (bits >>> 15), 0x2c1b3c6d) >>> 0;
    bits = Math.imul(bits ^ (bits >>> 12), 0x297a2d39) >>> 0;
    bits = (bits ^ (bits >>> 15)) >>> 0;
    return ((bits & 31) - 16) / 8;
  }

  /* One row: tile(j), its state before and after tile j of keys, and whole(), the softmax of all its scores at once. */
  function makeRow(row, { nKeys, d, dV, blockK, causal }) {
    const query = Array.from({ length: d }, (_, c) => element("Q", row, c));
    const visible = causal ? Math.min(row + 1, nKeys) : nKeys;
    const scores = Array.from({ length: nKeys }, (_, key) => (key < visible ? dot(query, key) / Math.sqrt(d) : -Infinity));
    const states = [{ m: -Infinity, l: 0, O: new Array(dV).fill(0) }];

    /* keys [start, stop), scores, P, m, alpha, l, O after the tile, with `before` the state it started from. */
    function tile(j) {
      while (states.length <= j) advance(states.length - 1);
      const before = states[j];
      const [start, stop] = [j * blockK, Math.min((j + 1) * blockK, nKeys)];
      const part = scores.slice(start, stop);
      const m = Math.max(before.m, ...part);
      const alpha = Math.exp(before.m - m);
      const P = part.map((score) => Math.exp(score - m));
      const l = before.l * alpha + P.reduce((sum, p) => sum + p, 0);
      const O = before.O.map((o, c) => o * alpha + P.reduce((sum, p, k) => sum + p * element("V", start + k, c), 0));
      return { start, stop, scores: part, before, m, alpha, P, l, O };
    }

    function advance(j) {
      const { m, l, O } = tile(j);
      states.push({ m, l, O });
    }

    /* The state after the first `count` tiles. */
    function after(count) {
      if (count > 0) tile(count - 1);
      while (states.length <= count) advance(states.length - 1);
      return states[count];
    }

    function whole() {
      const m = Math.max(...scores);
      const weights = scores.map((score) => Math.exp(score - m));
      const l = weights.reduce((sum, p) => sum + p, 0);
      const O = Array.from({ length: dV }, (_, c) => weights.reduce((sum, p, key) => sum + p * element("V", key, c), 0));
      return O.map((o) => o / l);
    }

    return { tile, after, whole };
  }

  function dot(query, key) {
    return query.reduce((sum, q, c) => sum + q * element("K", key, c), 0);
  }

  globalThis.tileLoop = { ...globalThis.tileLoop, element, makeRow };
})();
