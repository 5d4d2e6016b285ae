/* Wide tables and formulas in a narrow window get a sign that they scroll. On a phone a table with text in its cells is
read row by row. One of numbers stays a table, since numbers are compared down a column; its first column stays in view.

site.css says what that looks like. Without this script they scroll with no sign but the scroll bar. */
(function () {
  "use strict";

  const PHONE = window.matchMedia("(max-width: 40em)");
  const WORDS = 5; // a cell with more of them is text
  const SIGNS = { left: "← more", right: "more →" };

  function start() {
    for (const frame of document.querySelectorAll(".table-wrapper")) {
      const table = frame.querySelector("table");
      const heads = [...table.querySelectorAll("thead th")];
      if (heads.length > 2) nameCells(table, heads);
      const isText = heads.length > 2 && holdsText(table);
      if (isText && heads.length > 3) table.classList.add("by-row");
      watch(frame, isText ? table : null);
    }
    document.querySelectorAll("div.math").forEach((formula) => watch(formula, null));
  }

  /* Whether some cell, besides those that name the rows, holds text that a narrow column would break into many lines. */
  function holdsText(table) {
    const cells = [...table.tBodies[0].rows].flatMap((row) => [...row.cells].slice(1));
    return cells.some((cell) => (cell.textContent.match(/\p{L}{2,}/gu) || []).length > WORDS);
  }

  /* Each cell gets the head of its column, which a phone shows before the value. */
  function nameCells(table, heads) {
    const names = heads.map((head) => {
      const copy = head.cloneNode(true);
      copy.querySelectorAll(".katex-mathml").forEach((spoken) => spoken.remove());
      return copy.textContent.trim();
    });
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, at) => {
        cell.dataset.column = names[at];
        cell.classList.toggle("empty", cell.textContent.trim() === "");
      });
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
