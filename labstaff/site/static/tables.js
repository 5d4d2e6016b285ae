/* Wide tables and formulas in a narrow window get a sign that they scroll, and a table of words is read row by row.

site.css says what that looks like. Without this script they scroll with no sign but the scroll bar. */
(function () {
  "use strict";

  const SIGNS = { left: "← more", right: "more →" };

  function start() {
    for (const frame of document.querySelectorAll(".table-wrapper")) {
      const table = frame.querySelector("table");
      const heads = [...table.querySelectorAll("thead th")];
      if (isOfWords(heads)) nameCells(table, heads);
      watch(frame);
    }
    document.querySelectorAll("div.math").forEach(watch);
  }

  /* Numbers stand right and are compared down a column; words are read along a row. */
  function isOfWords(heads) {
    const numbers = heads.filter((head) => head.classList.contains("text-right"));
    return heads.length > 3 && 2 * numbers.length < heads.length;
  }

  /* Each cell gets the head of its column, which a phone shows before the value. */
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

  /* Update the signs above a frame, and let the keyboard scroll it while there is something to scroll. */
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
      for (const [name, value] of Object.entries({ tabindex: 0, role: "region", "aria-label": "Scrolls sideways" })) {
        if (goesOn) frame.setAttribute(name, value);
        else frame.removeAttribute(name);
      }
    }

    frame.addEventListener("scroll", look, { passive: true });
    const sizes = new ResizeObserver(look);
    sizes.observe(frame);
    sizes.observe(frame.firstElementChild);
  }

  start();
})();
