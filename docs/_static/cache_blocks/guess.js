/* One number to predict before each operation: how many blocks will have no owner after it. */
(function () {
  "use strict";

  const { h, button, say } = stepPlayer;
  const { plural } = cacheBlocks;

  /* The question, made once. sync(here, next) asks about the position that follows, null at the end of a story; a
  position that was asked about already keeps its answer. step() goes there. */
  function makeGuess({ step }) {
    let asked = null;
    const question = h("p", { id: "cb-question" });
    const field = h("input", { type: "number", min: 0, step: 1, "aria-labelledby": "cb-question" });
    const answer = h("p", { role: "status", "data-out": "answer" });
    const check = h("form", { class: "cb-guess", novalidate: "" }, field, "blocks", button("Check", compare), button("Take the step", step));
    check.addEventListener("submit", (event) => {
      event.preventDefault();
      compare();
    });
    const element = h("div", { class: "pl-panel cb-question" }, h("h3", {}, "First guess, then see"), question, check, answer);

    function compare() {
      if (field.value === "") return say(answer, "Write a number first.");
      const right = free(asked.next);
      const verdict = Number(field.value) === right ? "Right" : "Not quite";
      say(answer, `${verdict}: ${right}, ${why(asked.here, asked.next)}.`);
    }

    function sync(here, next) {
      element.hidden = next === null;
      if (next === null || next === asked?.next) return;
      asked = { here, next };
      field.value = "";
      say(answer, "");
      say(question, `Now ${plural(free(here), "block")} ${free(here) === 1 ? "has" : "have"} no owner. Next, ${cacheBlocks.operationInWords(next.operation)}. How many will have none then?`);
    }

    return { element, sync };
  }

  function free({ counts }) {
    return counts.cached + counts.blank;
  }

  /* What makes the difference between two positions. */
  function why(here, next) {
    const { outcome } = next;
    if (outcome.refused) return "as before, since the operation is refused or skipped";
    const parts = [];
    if (outcome.taken?.length) parts.push(`${outcome.taken.length} taken`);
    if (outcome.revived?.length) parts.push(`${outcome.revived.length} found among those without an owner`);
    if (outcome.left?.length) parts.push(`${outcome.left.length} released by the last owner`);
    return parts.length ? `${free(here)} before, ${parts.join(", ")}` : "as before";
  }

  globalThis.cacheBlocks = { ...globalThis.cacheBlocks, makeGuess };
})();
