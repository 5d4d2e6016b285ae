/* The bytes that layers keep and read, in closed form: labkit/bench/layer_cache.py; and what they mean for a GPU. */
(function () {
  "use strict";

  const STATE_BITS = 32;

  /* Bytes of one sequence: of a further token, fixed, of the whole cache, and read by a decoding step. */
  function summed(layers, tokens, bits) {
    const total = (bytesOf) => layers.reduce((sum, layer) => sum + bytesOf(layer), 0);
    const kept = (n) => total((layer) => keptBytes(layer, n, bits));
    const group = layers.map((layer) => layer.ratio).reduce(leastMultiple, 1);
    return {
      furtherToken: Math.round((kept(tokens + group) - kept(tokens)) / group),
      fixed: total((layer) => fixedBytes(layer, bits)),
      cache: kept(tokens),
      read: total((layer) => readBytes(layer, tokens, bits)),
    };
  }

  /* What a GPU makes of it: sequences that fit next to the weights, and milliseconds of a step that reads the weights
  once and each sequence's cache. Bytes, and bytes per second. */
  function onGpu({ cache, read }, { memory, weights, bandwidth, users }) {
    return {
      fit: cache > 0 ? Math.max(0, Math.floor((memory - weights) / cache)) : null,
      stepMs: (1000 * (weights + users * read)) / bandwidth,
      cacheMs: (1000 * read) / bandwidth,
    };
  }

  function keptBytes(layer, tokens, bits) {
    const recent = inBytes(Math.min(tokens, layer.recent) * layer.numbers, bits);
    return entries(layer, tokens) * inBytes(layer.numbers + layer.index, bits) + recent + fixedBytes(layer, bits);
  }

  function readBytes(layer, tokens, bits) {
    const n = entries(layer, tokens);
    const numbers = (atMost(n, layer.chosen) + Math.min(tokens, layer.recent)) * layer.numbers;
    return inBytes(numbers + n * layer.index, bits) + fixedBytes(layer, bits);
  }

  function fixedBytes(layer, bits) {
    return inBytes(layer.conv, bits) + (layer.state * STATE_BITS) / 8;
  }

  function entries(layer, tokens) {
    return Math.floor(atMost(tokens, layer.reach) / layer.ratio);
  }

  function atMost(count, limit) {
    return limit === null ? count : Math.min(count, limit);
  }

  function inBytes(numbers, bits) {
    return Math.ceil((numbers * bits) / 8);
  }

  function leastMultiple(a, b) {
    let [large, small] = [a, b];
    while (small) [large, small] = [small, large % small];
    return (a / large) * b;
  }

  Object.assign(globalThis.sixNumbers, { summed, onGpu });
})();
