/* The words of the page of blocks: each operation and its outcome, the setting, and the text of a sequence. */
(function () {
  "use strict";

  const { plural } = cacheBlocks;

  function stepInWords({ operation, outcome }, { blockSize }) {
    if (!operation) return "Before the first operation: all blocks are free. Press Play, or step with the right arrow.";
    const [what, name, given] = operation;
    switch (what) {
      case "allocate":
        return promptInWords(name, given, outcome, blockSize);
      case "append":
        return tokenInWords(name, given, outcome);
      case "fork":
        if (outcome.refused === "unknown") return `${given} should continue ${name}, which is not there: skipped.`;
        if (outcome.refused) return `${given} is there already: skipped.`;
        return `${given} begins as a copy of ${name}: it shares all of its blocks, the last one too. Nothing is copied yet.`;
      default:
        return endInWords(name, outcome);
    }
  }

  /* A operation before it is done. */
  function operationInWords([what, name, given]) {
    switch (what) {
      case "allocate":
        return `${name} comes with ${plural(given.length, "token")}, “${given.join(" ")}”`;
      case "append":
        return `${name} gets “${given}”`;
      case "fork":
        return `${given} begins as a copy of ${name}`;
      default:
        return `${name} goes`;
    }
  }

  function promptInWords(name, tokens, outcome, blockSize) {
    if (outcome.refused === "there already") return `${name} is there already: its prompt is skipped.`;
    const comes = `${name} comes with ${plural(tokens.length, "token")}. `;
    const shared = outcome.found.length;
    if (outcome.refused) {
      const needs = shared ? `${plural(outcome.more, "block")} besides the ${shared} found` : plural(outcome.more, "block");
      return `${comes}Refused: it needs ${needs}, and ${outcome.missing} ${outcome.missing === 1 ? "is" : "are"} missing. Nothing changes.`;
    }
    const again = outcome.revived.length ? ` (${outcome.revived.join(", ")} without an owner until now)` : "";
    const finds = shared ? `Its first ${plural(shared * blockSize, "token")} ${shared * blockSize === 1 ? "is" : "are"} there: it shares ${blocks(outcome.found)}${again}. ` : "Nothing of it is there. ";
    return `${comes}${finds}It takes ${blocks(outcome.taken)}.${lost(outcome.forgotten)}`;
  }

  function tokenInWords(name, token, outcome) {
    if (outcome.refused === "unknown") return `${name} is not there: its token “${token}” is skipped.`;
    if (outcome.refused) {
      const why = outcome.copies ? "its last block has another owner too, and no block is free for a copy" : "its last block is full, and no block is free";
      return `${name} should get “${token}”. Refused: ${why}. Nothing changes.`;
    }
    const [block, place] = outcome.place;
    const where = `${name} gets “${token}” in block ${block}, slot ${place}`;
    const full = outcome.full ? " The block is full now." : "";
    if (outcome.copied) return `Block ${outcome.copied[0]} has another owner too, so it is copied to block ${block} first. ${where}.${full}${lost(outcome.forgotten)}`;
    if (outcome.taken.length) return `The blocks of ${name} are full: it takes block ${block}. ${where}.${full}${lost(outcome.forgotten)}`;
    return `${where}.${full}`;
  }

  function endInWords(name, { refused, left, kept }) {
    if (refused) return `${name} is not there: nothing to free.`;
    if (!left.length) return `${name} ends. All of its blocks have other owners.`;
    const findable = kept.length ? `; ${blocks(kept)} can still be found` : "";
    return `${name} ends. Free now, in this order: ${blocks(left)}${findable}.`;
  }

  function lost(forgotten) {
    return forgotten.length ? ` What was in ${blocks(forgotten)} can no longer be found.` : "";
  }

  function blocks(list) {
    return `${list.length === 1 ? "block" : "blocks"} ${list.join(", ")}`;
  }

  function settingInWords({ numBlocks, blockSize, longest }) {
    return `${plural(numBlocks, "block")} of ${plural(blockSize, "slot")}, compared with runs of ${longest} slots, 128 KiB a token`;
  }

  /* The scene that a position belongs to; its title, and its place among the scenes. */
  function sceneInWords(scenes, at) {
    const k = scenes.findLastIndex(({ first }) => first <= Math.max(at, 1));
    return `${k + 1} of ${scenes.length}: ${scenes[k].title}`;
  }

  globalThis.cacheBlocks = { ...globalThis.cacheBlocks, stepInWords, operationInWords, settingInWords, sceneInWords };
})();
