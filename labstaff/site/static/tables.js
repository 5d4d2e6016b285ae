/* Wide tables and formulas in a narrow window get a sign that they scroll. On a phone a table of words is read row by
row, and so is one of numbers that is too wide even in small type: a column out of sight is a column lost.

site.css says what that looks like. Without this script they scroll with no sign but the scroll bar. */
(function () {
  "use strict";

  const PHONE = window.matchMedia("(max-width: 40em)");
  const SIGNS = { left: "← more", right: "more →" };

  function start() {
    for (const frame of document.querySelectorAll(".table-wrapper")) {
      const table = frame.querySelector("table");
      const heads = [...table.querySelectorAll("thead th")];
      if (heads.length > 2) nameCells(table, heads);
      if (isOfWords(heads)) table.classList.add("by-row");
      watch(frame, heads.length > 2 ? table : null);
    }
    document.querySelectorAll("div.math").forEach((formula) => watch(formula, null));
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
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, at) => (cell.dataset.column = names[at]));
    }
  }

  /* Update the signs above a frame, and let the keyboard scroll it while there is something to scroll. On a phone the
  table in it, if one is given, turns into rows instead. */
  function watch(frame, table) {
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
      if (table && PHONE.matches && frame.scrollWidth - frame.clientWidth > 1) table.classList.add("by-row");
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
