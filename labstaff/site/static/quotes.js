/* Lets the search page quote what it found: answers its requests for pages from the texts that it has loaded.

Sphinx's script asks for a page by `fetch`, and looks in it for role="main" and the section found; see search.py. */
(function () {
  "use strict";

  const pathOf = (address) => new URL(address, window.location).pathname;

  window.fetch = async function (address) {
    const page = Object.keys(globalThis.searchTexts).find((name) => pathOf(`${name}.html`) === pathOf(address));
    const main = document.createElement("div");
    main.setAttribute("role", "main");
    for (const [anchor, text] of globalThis.searchTexts[page] || []) {
      const section = main.appendChild(document.createElement("section"));
      section.id = anchor;
      section.textContent = `${text} `;
    }
    return { text: async () => main.outerHTML };
  };
})();
