/* Renders the formulas with KaTeX. Bad TeX shows in red; a browser test looks for it. */
(function () {
  "use strict";

  for (const formula of document.querySelectorAll("div.math, span.math")) {
    const displayMode = formula.tagName === "DIV";
    katex.render(formula.textContent.trim(), formula, { displayMode, strict: "error", throwOnError: false });
    const next = formula.nextSibling;
    // A word joiner keeps the formula and the punctuation after it on one line.
    if (next?.nodeType === Node.TEXT_NODE && /^[.,;:!?)\]]/.test(next.data)) next.data = `\u2060${next.data}`;
  }
})();
