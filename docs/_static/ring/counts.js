/* The ring's counts: who holds which tokens, the pairs of each rank and step, and what has been sent. Draws nothing. */
(function () {
  "use strict";

  const LAYOUTS = ["contiguous", "zigzag", "striped"];

  /* The rank that holds a token. */
  function ownerOf(token, { nTokens, ranks, layout }) {
    if (layout === "striped") return token % ranks;
    if (layout === "contiguous") return Math.floor(token / (nTokens / ranks));
    const run = Math.floor(token / (nTokens / (2 * ranks)));
    return Math.min(run, 2 * ranks - 1 - run);
  }

  /* A ring of a setting {nTokens, ranks, layout, causal, tokenBytes}: nTokens is a multiple of 2 · ranks, and a token's
  key and value weigh tokenBytes. Position 0 is the start, position t + 1 step t, and the last one the end. */
  function makeRing(settings) {
    const { nTokens, ranks, causal, tokenBytes } = settings;
    const owner = Array.from({ length: nTokens }, (_, token) => ownerOf(token, settings));
    const tokens = Array.from({ length: ranks }, (_, rank) => owner.flatMap((of, token) => (of === rank ? [token] : [])));
    const blockBytes = (nTokens / ranks) * tokenBytes;
    const sourceOf = (rank, step) => (((rank - step) % ranks) + ranks) % ranks;
    const sees = (query, key) => !causal || key <= query;
    const pairsOf = (rank, source) => tokens[rank].reduce((sum, query) => sum + tokens[source].filter((key) => sees(query, key)).length, 0);
    const work = tokens.map((_, rank) => tokens.map((_, step) => pairsOf(rank, sourceOf(rank, step))));
    const slowest = tokens.map((_, step) => Math.max(...work.map((row) => row[step])));
    const last = ranks + 1;

    /* Everything at a position: of each rank what it holds, its pairs and its waiting in this step, and so far. */
    function at(position) {
      const step = Math.min(position, last) - 1;
      const phase = step < 0 ? "start" : step >= ranks ? "end" : "step";
      const before = phase === "start" ? 0 : Math.min(step, ranks);
      const travels = phase === "step" && step < ranks - 1;
      const sum = (row, stop) => row.slice(0, stop).reduce((total, pairs) => total + pairs, 0);
      const done = phase === "step" ? before + 1 : before;
      const hops = Math.min(done, ranks - 1);
      const of = tokens.map((_, rank) => {
        const pairs = phase === "step" ? work[rank][step] : 0;
        return {
          rank,
          holds: phase === "step" ? sourceOf(rank, step) : phase === "start" ? rank : sourceOf(rank, ranks - 1),
          pairs,
          waits: phase === "step" ? slowest[step] - pairs : 0,
          pairsDone: sum(work[rank], done),
          waited: sum(slowest, done) - sum(work[rank], done),
          sentBytes: hops * blockBytes,
        };
      });
      const underWay = travels ? tokens.map((_, rank) => ({ from: rank, to: (rank + 1) % ranks, block: sourceOf(rank, step) })) : [];
      const takes = sum(slowest, done);
      const needed = of.reduce((total, { pairsDone }) => total + pairsDone, 0);
      return { position: Math.min(position, last), step, phase, of, underWay, takes, waitingShare: takes ? 1 - needed / (ranks * takes) : 0 };
    }

    /* In which step a rank meets a key: its query is computed then, if it sees the key. */
    const stepOf = (query, key) => (((owner[query] - owner[key]) % ranks) + ranks) % ranks;

    return { settings, owner, tokens, work, slowest, blockBytes, last, at, sees, stepOf };
  }

  globalThis.ringPage = { LAYOUTS, ownerOf, makeRing };
})();
