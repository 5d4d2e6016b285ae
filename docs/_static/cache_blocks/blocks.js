/* The blocks of a paged cache: who owns each, what it holds, which a prompt can find; and a script of operations run on them.

It is the manager that Lab 09 asks for, written again for this page: tests/docs/test_cache_blocks.py holds each step here to
the course's BlockManager. Nothing in this file knows of a document.

A operation is ["allocate", sequence, tokens], ["append", sequence, token], ["fork", parent, child] or ["free", sequence]. */
(function () {
  "use strict";

  /* Run a script of operations on numBlocks blocks of blockSize places. Position 0 is before the first operation, position k after
  the k-th. Each has:
  operation, and outcome: {refused: null, ...} or {refused: why, ...} with nothing changed, see the operations below, and in either
  forgotten: the blocks whose content a prompt could find before the operation, and cannot after it;
  blocks: of each its owners (names of sequences), tokens, and whether a prompt can find it;
  sequences: of each its name, table, tokens, and found, how many of them were there when it came;
  free: the blocks without an owner, the next to be taken first; counts, of this position; sums, of all up to it. */
  function run(operations, { numBlocks, blockSize }) {
    const manager = makeManager(numBlocks, blockSize);
    const sums = { copies: 0, forgotten: 0, asked: 0, found: 0, refused: 0 };
    const positions = [{ operation: null, outcome: null, ...manager.state(), sums: { ...sums } }];
    for (const operation of operations) {
      const [name, ...given] = operation;
      const outcome = manager[name](...given);
      const state = manager.state();
      const gone = ({ findable }, b) => findable && (outcome.taken?.includes(b) || !state.blocks[b].findable);
      outcome.forgotten = positions.at(-1).blocks.flatMap((block, b) => (gone(block, b) ? [b] : []));
      sums.refused += outcome.refused ? 1 : 0;
      sums.copies += outcome.copied ? 1 : 0;
      sums.forgotten += outcome.forgotten.length;
      if (name === "allocate" && !outcome.refused) {
        sums.asked += given[1].length;
        sums.found += outcome.found.length * blockSize;
      }
      positions.push({ operation, outcome, ...state, sums: { ...sums } });
    }
    return positions;
  }

  function makeManager(numBlocks, blockSize) {
    const blocks = Array.from({ length: numBlocks }, () => ({ owners: 0, tokens: [], name: null }));
    const free = blocks.map((_, b) => b);
    const sequences = new Map();
    const named = new Map(); // the key of a full block's content -> the block
    let numbers = 0;

    /* A prompt of a new sequence. Outcome: found, the blocks that it shares, of which revived had no owner; taken.
    Refused: "full", with missing, found and more, the blocks that it would take; or "there already". */
    function allocate(name, tokens) {
      if (sequences.has(name)) return { refused: "there already" };
      const found = find(tokens);
      const revived = found.filter((b) => blocks[b].owners === 0);
      const more = Math.ceil(tokens.length / blockSize) - found.length;
      const missing = more - (free.length - revived.length);
      if (missing > 0) return { refused: "full", missing, found, more };
      found.forEach(share);
      const taken = Array.from({ length: more }, take);
      const table = [...found, ...taken];
      taken.forEach((b, k) => {
        const start = (found.length + k) * blockSize;
        blocks[b].tokens = tokens.slice(start, start + blockSize);
      });
      sequences.set(name, { table, tokens: [...tokens], found: found.length * blockSize });
      giveNames(sequences.get(name));
      return { refused: null, found, revived, taken };
    }

    /* A token for a sequence. Outcome: place, [block, place in it]; taken; copied, [old, new] or null; full, whether
    its block is full now. Refused: "unknown", or "full" where a block is needed and none is free. */
    function append(name, token) {
      const sequence = sequences.get(name);
      if (!sequence) return { refused: "unknown" };
      const { table, tokens } = sequence;
      const place = tokens.length % blockSize;
      const old = table.at(-1);
      const copies = place > 0 && blocks[old].owners > 1;
      if ((place === 0 || copies) && free.length === 0) return { refused: "full", missing: 1, copies };
      const taken = place === 0 || copies ? [take()] : [];
      if (place === 0) table.push(taken[0]);
      if (copies) {
        blocks[taken[0]].tokens = [...blocks[old].tokens];
        giveUp(old);
        table[table.length - 1] = taken[0];
      }
      tokens.push(token);
      blocks[table.at(-1)].tokens.push(token);
      const full = place === blockSize - 1;
      if (full) giveNames(sequence);
      return { refused: null, place: [table.at(-1), place], taken, copied: copies ? [old, taken[0]] : null, full };
    }

    /* A second sequence that shares all blocks of the first. Refused: "unknown" or "there already". */
    function fork(parent, child) {
      const sequence = sequences.get(parent);
      if (!sequence) return { refused: "unknown" };
      if (sequences.has(child)) return { refused: "there already" };
      const { table, tokens } = sequence;
      table.forEach(share);
      sequences.set(child, { table: [...table], tokens: [...tokens], found: tokens.length });
      return { refused: null };
    }

    /* A sequence goes. Outcome: left, the blocks that have no owner now, in the order in which they became free, and
    kept, those of them that can still be found. Refused: "unknown". */
    function goes(name) {
      const sequence = sequences.get(name);
      if (!sequence) return { refused: "unknown" };
      sequences.delete(name);
      const left = [...sequence.table].reverse().filter((b) => giveUp(b));
      return { refused: null, left, kept: left.filter((b) => findable(b)) };
    }

    /* The blocks that hold the beginning of these tokens; the last token is left to be computed. */
    function find(tokens) {
      const found = [];
      for (let before = 0, end = blockSize; end < tokens.length; end += blockSize) {
        const block = named.get(keyOf(before, tokens.slice(end - blockSize, end)));
        if (block === undefined) break;
        found.push(block);
        before = blocks[block].name.number;
      }
      return found;
    }

    function share(b) {
      if (blocks[b].owners === 0) free.splice(free.indexOf(b), 1);
      blocks[b].owners += 1;
    }

    /* The free block whose turn it is; what it held is forgotten. */
    function take() {
      const b = free.shift();
      loseName(b);
      blocks[b].tokens = [];
      blocks[b].owners = 1;
      return b;
    }

    /* One owner less; whether it was the last one. */
    function giveUp(b) {
      blocks[b].owners -= 1;
      if (blocks[b].owners > 0) return false;
      free.push(b);
      return true;
    }

    /* Make the full blocks of a sequence findable; a block whose twin is findable already stays without a name. The key
    is the content of the block and the number of the text before it, and no number is given twice: so equal keys
    mean equal prefixes. */
    function giveNames({ table, tokens }) {
      let before = 0;
      for (let k = 0; (k + 1) * blockSize <= tokens.length; k++) {
        const key = keyOf(before, tokens.slice(k * blockSize, (k + 1) * blockSize));
        if (!named.has(key)) {
          loseName(table[k]);
          numbers += 1;
          named.set(key, table[k]);
          blocks[table[k]].name = { key, before, number: numbers };
        }
        before = blocks[named.get(key)].name.number;
      }
    }

    function loseName(b) {
      if (blocks[b].name) named.delete(blocks[b].name.key);
      blocks[b].name = null;
    }

    /* Whether a prompt could find a block: it has a name, and so has what stands before it. */
    function findable(b) {
      const name = blocks[b].name;
      if (!name || name.before === 0) return Boolean(name);
      const parent = blocks.findIndex((block) => block.name && block.name.number === name.before);
      return parent >= 0 && findable(parent);
    }

    function state() {
      const all = [...sequences].map(([name, { table, tokens, found }]) => ({ name, table: [...table], tokens: [...tokens], found }));
      const each = blocks.map((block, b) => {
        const owners = all.filter(({ table }) => table.includes(b)).map(({ name }) => name);
        const canBeFound = findable(b);
        return { owners, findable: canBeFound, tokens: owners.length || canBeFound ? [...block.tokens] : [] };
      });
      return { blocks: each, sequences: all, free: [...free], counts: count(each, all, blockSize) };
    }

    return { allocate, append, fork, free: goes, state };
  }

  function keyOf(before, tokens) {
    return JSON.stringify([before, ...tokens]);
  }

  /* Blocks: owned, shared (those of several), cached (without an owner, but findable), blank. references, entries of all
  tables; apart, the blocks that as many sequences would need if nothing were shared. Places of owned blocks: filled and
  wasted. tokens, of all sequences together. */
  function count(blocks, sequences, blockSize) {
    const owned = blocks.filter(({ owners }) => owners.length > 0);
    const sum = (all, value) => all.reduce((total, one) => total + value(one), 0);
    const filled = sum(owned, ({ tokens }) => tokens.length);
    const cached = blocks.filter(({ owners, findable }) => owners.length === 0 && findable).length;
    return {
      owned: owned.length,
      shared: owned.filter(({ owners }) => owners.length > 1).length,
      cached,
      blank: blocks.length - owned.length - cached,
      references: sum(sequences, ({ table }) => table.length),
      apart: sum(sequences, ({ tokens }) => Math.ceil(tokens.length / blockSize)),
      filled,
      wasted: owned.length * blockSize - filled,
      tokens: sum(sequences, ({ tokens }) => tokens.length),
    };
  }

  /* Bytes of one position, in blocks and in runs of `longest` places, one for each sequence: kept, and read when each
  sequence makes its next token. Blocks are read whole, a shared one for each of its owners; runs are read whole too, as
  a cache of fixed length with a mask is. runsThatFit: how many the places of the whole pool would hold. */
  function bytesOf({ counts, sequences }, { numBlocks, blockSize, longest, tokenBytes }) {
    const run = longest * tokenBytes;
    return {
      kept: counts.owned * blockSize * tokenBytes,
      keptInRuns: sequences.length * run,
      read: counts.references * blockSize * tokenBytes,
      readInRuns: sequences.length * run,
      runsThatFit: Math.floor((numBlocks * blockSize) / longest),
    };
  }

  globalThis.cacheBlocks = { ...globalThis.cacheBlocks, run, bytesOf };
})();
