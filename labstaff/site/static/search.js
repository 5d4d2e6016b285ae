/* Search by section, for whole words. The sections are in search_texts.js, as [page, anchor, heading, page's title, text]
(labstaff/site/pages.py): a browser fetches no other page from disk. */
(function () {
  "use strict";

  const MOST = 40; // results
  const BEFORE = 80; // characters before a match, and AFTER of them
  const AFTER = 180;
  const NO_LETTER_BEFORE = "(?<![\\p{L}\\p{N}])";
  const NO_LETTER_AFTER = "(?:s|es)?(?![\\p{L}\\p{N}])";

  function start() {
    const place = document.getElementById("search-results");
    const query = (new URLSearchParams(location.search).get("q") || "").trim();
    for (const input of document.querySelectorAll('input[name="q"]')) input.value = query;
    if (!place || !query) return;
    const found = search(query, SEARCH_SECTIONS);
    const heading = made("h2", found.length ? "Results" : "Nothing found");
    const counted = `${found.length} ${found.length === 1 ? "section has" : "sections have"} all of these words`;
    const shown = found.length > MOST ? `${counted}; the best ${MOST}:` : `${counted}.`;
    const list = made("ul", "");
    list.className = "search";
    list.append(...found.slice(0, MOST).map(result));
    place.replaceChildren(heading, made("p", shown), list);
  }

  /* The sections that have all words of the query, or the query as one word ("flash attention" as "FlashAttention"): the
  best first, then in the order of the site. */
  function search(query, sections) {
    const words = query.toLowerCase().match(/[\p{L}\p{N}](?:[\p{L}\p{N}.]*[\p{L}\p{N}])?/gu) || [];
    if (!words.length) return [];
    const stems = words.map((word) => escaped(word.length > 3 ? word.replace(/(?<!s)s$/, "") : word));
    const phrase = pattern(stems.join("(?:s|es)?[\\s-]?"));
    const each = stems.map(pattern);
    const hasAll = (text) => matches(text, phrase) > 0 || each.every((word) => matches(text, word) > 0);
    const found = [];
    for (const section of sections) {
      const [page, , heading, title, text] = section;
      if (!hasAll(`${heading} ${text}`)) continue;
      const isPage = heading === title;
      let score = Math.min(10, matches(text, phrase)) + Math.min(5, ...each.map((word) => matches(text, word)));
      if (hasAll(heading)) score += matches(heading, phrase) ? 40 : 20;
      if (isPage && hasAll(title)) score += 40;
      if (/^docs\/\d/.test(page)) score += 10;
      found.push({ section, score, phrase, each });
    }
    return found.sort((a, b) => b.score - a.score);
  }

  function pattern(source) {
    return new RegExp(NO_LETTER_BEFORE + source + NO_LETTER_AFTER, "giu");
  }

  function matches(text, regex) {
    return (text.match(regex) || []).length;
  }

  function result({ section: [page, anchor, heading, title, text], phrase, each }) {
    const link = made("a", heading === title ? title : `${title} › ${heading}`);
    link.href = `${document.documentElement.dataset.content_root || ""}${page}${heading === title ? "" : `#${anchor}`}`;
    const at = [phrase, ...each].map((regex) => text.search(regex)).find((place) => place >= 0) ?? 0;
    const from = at > BEFORE ? text.indexOf(" ", at - BEFORE) + 1 : 0;
    const quoted = text.slice(from, at + AFTER).replace(/\s\S*$/, "");
    const item = document.createElement("li");
    item.append(link, made("p", `${from ? "… " : ""}${quoted} …`));
    item.lastChild.className = "context";
    return item;
  }

  function escaped(word) {
    return word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  }

  function made(tag, text) {
    const element = document.createElement(tag);
    element.textContent = text;
    return element;
  }

  globalThis.searchSections = search;
  if (typeof document === "undefined") return; // in a test
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
