/* Tables in a narrow window: one that goes on says so and takes the arrow keys; one of words can be read row by row.

What it looks like is site.css's affair. Without this script wide tables scroll, with no sign but their scroll bar. */
(function () {
  "use strict";

  const SIGNS = { left: "← more columns", right: "more columns →" };

  function start() {
    for (const frame of document.querySelectorAll(".table-wrapper")) {
      const table = frame.querySelector("table");
      const heads = [...table.querySelectorAll("thead th")];
      if (isOfWords(heads)) nameCells(table, heads);
      watch(frame);
    }
  }

  /* Numbers stand right and are compared down a column; words are read along a row. */
  function isOfWords(heads) {
    const numbers = heads.filter((head) => head.classList.contains("text-right"));
    return heads.length > 3 && 2 * numbers.length < heads.length;
  }

  /* Each cell carries the head of its column, which a phone shows beside it. */
  function nameCells(table, heads) {
    const names = heads.map((head) => {
      const copy = head.cloneNode(true);
      copy.querySelectorAll(".katex-mathml").forEach((spoken) => spoken.remove());
      return copy.textContent.trim();
    });
    table.classList.add("by-row");
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, at) => (cell.dataset.column = names[at]));
    }
  }

  /* Keep the signs above a frame true, and let the keyboard scroll it as long as there is something to scroll. */
  function watch(frame) {
    const signs = document.createElement("p");
    signs.className = "table-signs";
    signs.setAttribute("aria-hidden", "true");
    for (const [side, words] of Object.entries(SIGNS)) {
      const sign = signs.appendChild(document.createElement("span"));
      sign.dataset.side = side;
      sign.textContent = words;
    }
    frame.before(signs);

    function look() {
      const hidden = frame.scrollWidth - frame.clientWidth;
      const goesOn = hidden > 1;
      frame.dataset.more = [frame.scrollLeft > 1 && "left", frame.scrollLeft < hidden - 1 && "right"].filter(Boolean).join(" ");
      signs.hidden = !goesOn;
      for (const sign of signs.children) sign.classList.toggle("there", frame.dataset.more.includes(sign.dataset.side));
      for (const [name, value] of Object.entries({ tabindex: 0, role: "region", "aria-label": "A wide table, scrolls sideways" })) {
        if (goesOn) frame.setAttribute(name, value);
        else frame.removeAttribute(name);
      }
    }

    frame.addEventListener("scroll", look, { passive: true });
    const sizes = new ResizeObserver(look);
    sizes.observe(frame);
    sizes.observe(frame.querySelector("table"));
  }

  start();
})();
