/* One number to predict: what the outer loop's block, doubled, does to the bytes that the tile loop moves. */
(function () {
  "use strict";

  const { h, button, say } = stepPlayer;
  const { bytes, NUMBERS } = tileLoop;

  /* The question, made once. change(values) takes over the doubled block; sync(view) asks about another setting, and
  reset() forgets the answer to the last. */
  function makeGuess({ change }) {
    let asked = null;
    const question = h("p", { id: "tl-question" });
    const field = h("input", { type: "number", min: 0, step: 1, "aria-labelledby": "tl-question" });
    const answer = h("p", { role: "status", "data-out": "answer" });
    const again = button("", () => change({ [asked.key]: asked.size }));
    const check = h("form", { class: "tl-guess", novalidate: "" }, field, "bytes", button("Check", compare), again);
    check.addEventListener("submit", (event) => {
      event.preventDefault();
      compare();
    });
    again.hidden = true;

    function compare() {
      if (field.value === "" || !(Number(field.value) >= 0)) return say(answer, "Write a number first. A rough one will do.");
      const { loop, sizes } = asked;
      const right = loop.total.total;
      const off = Math.abs(Number(field.value) - right) / right;
      const verdict = off <= 0.01 ? "Right." : `Your number is ${(Number(field.value) / right).toPrecision(2)} times that.`;
      const unfit = loop.fits ? "" : ` But it does not fit: it needs ${bytes(loop.needs)}.`;
      say(answer, `${bytes(right)}. ${verdict} ${sizes}${unfit}`);
      again.hidden = false;
    }

    function reset() {
      field.value = "";
      again.hidden = true;
      say(answer, "");
    }

    function sync(view) {
      asked = doubled(view);
      const { name, size } = asked;
      say(question, `In all, this loop moves ${bytes(view.loop.total.total)} with ${name} = ${size / 2}. How many will it be with ${name} = ${size}?`);
      say(again, `Set ${name} = ${size}`);
      again.disabled = size > NUMBERS[asked.key].most;
    }

    const element = h("div", { class: "pl-panel tl-question" }, h("h3", {}, "First guess, then see"), question, check, answer);
    return { element, reset, sync };
  }

  function doubled({ loop: now, settings }) {
    const byQueries = settings.order === "queries";
    const block = byQueries ? "blockQ" : "blockK";
    const size = 2 * settings[block];
    const loop = tileLoop.makeLoop({ ...settings, [block]: size });
    const rounds = `${now.rounds.toLocaleString("en-US")} before, ${loop.rounds.toLocaleString("en-US")} then`;
    const sizes = byQueries
      ? `K and V are loaded once for each block of queries${settings.causal ? ", as far as the diagonal" : ""}: ${rounds}.`
      : `Q and the state of the rows are loaded once for each block of keys${settings.causal ? ", from the diagonal on" : ""}: ${rounds}.`;
    return { key: byQueries ? "bq" : "bk", name: byQueries ? "block_q" : "block_k", size, loop, sizes };
  }

  globalThis.tileLoop = { ...globalThis.tileLoop, makeGuess };
})();
