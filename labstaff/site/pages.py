"""Sphinx extension: the navigation, chapter numbers, and the scripts of the interactive pages."""

from __future__ import annotations

import fnmatch
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from labstaff.site import FRONT

NAVIGATION: dict[str, tuple[str, ...]] = {
    "The course": ("docs/six_numbers", "docs/course_map", "docs/how_labs_work", "docs/reviewing", "docs/self_study"),
    "Chapters": ("docs/[0-9]*",),
    "To play with": ("docs/tile_loop", "docs/cache_blocks", "docs/ring", "docs/trace"),
    "Labs": ("labs/*/README",),
    "Look up": ("docs/glossary", "docs/references", "docs/stability"),
    "Instructors": (
        *("docs/instructors", "docs/syllabi", "docs/policies", "docs/evidence"),
        *("what_goes_wrong", "what_goes_wrong/*"),
    ),
}
"""Captions, and the pages below them as far as they are there. Sphinx warns of a page that none names."""
CHAPTER = re.compile(r"docs/(\d\d)_\w+")
ASIDE = re.compile(
    r'<details class="on-this-page">.*?</details>|<a class="headerlink".*?</a>|<(script|style)\b.*?</\1>', re.DOTALL
)
"""What of a page no search is to quote."""
SECTION = re.compile(r'<section id="([^"]+)">')
TAGS = re.compile(r"<[^>]*>")
LONG = 8
"""Sections from which on a page begins with its contents where the window has no room for them at the side."""
TAG = re.compile(r'<(?:script src|link rel="stylesheet" href)="[^"]+">(?:</script>)?')


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("source-read", edit_source)
    app.connect("html-page-context", edit_page)
    app.connect("build-finished", write_search_texts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def edit_source(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the navigation to the front page, since a code host would show it as code, and a chapter's number."""
    if name == FRONT:
        for caption, patterns in NAVIGATION.items():
            pages = [page for pattern in patterns for page in sorted(fnmatch.filter(app.env.found_docs, pattern))]
            entries = "\n".join(f"/{page}" for page in pages)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n" if pages else ""
    if chapter := CHAPTER.fullmatch(name):
        source[0] = re.sub("^# ", f"# {int(chapter[1])}. ", source[0], count=1, flags=re.MULTILINE)


def edit_page(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Add the interactive pages' scripts, and let long names in the contents break."""
    if "body" not in context:
        return
    context["toc"] = re.sub(r"_(?=[^<>]*</span>)", "_<wbr>", context["toc"])
    # Search marks the words it found in div.body; in a theme without one it marks the menus too.
    context["body"] = f'<div class="body">{_with_contents(context["body"], context["toc"])}</div>'
    folder = Path("docs", "_static", Path(name).name)
    alone = Path(app.srcdir, folder, "index.html")
    if alone.is_file():  # the page without the site names its scripts, in order
        tags = "".join(TAG.findall(alone.read_text(encoding="utf-8")))
        context["body"] += re.sub(r'(src|href)="', rf'\1="_static/{folder.name}/', tags)


def write_search_texts(app: Sphinx, error: Exception | None) -> None:
    """Write every section's text where the search page finds it: a browser fetches no other page from disk."""
    if error:
        return
    sections = []
    for page in sorted(app.env.found_docs, key=_in_the_navigation):
        html = Path(app.outdir, f"{page}.html").read_text(encoding="utf-8")
        article = html.partition('<div class="body">')[2].partition("</article>")[0]
        sections += sections_of(f"{page}.html", article)
    script = f"globalThis.SEARCH_SECTIONS = {json.dumps(sections, ensure_ascii=False)};\n"
    Path(app.outdir, "_static", "search_texts.js").write_text(script, encoding="utf-8")


def sections_of(page: str, article: str) -> list[tuple[str, str, str, str, str]]:
    """Each section of the HTML `article`: page, anchor, heading, the page's title, text up to the next section."""
    _, *parts = SECTION.split(ASIDE.sub("", article))
    title, sections = "", []
    for anchor, part in zip(parts[::2], parts[1::2], strict=True):
        heading, text = (
            _plain(each) for each in (part.partition("</h")[0], part.partition("</h")[2].partition(">")[2])
        )
        title = title or heading
        sections.append((page, anchor, heading, title, text))
    return sections


def _plain(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(TAGS.sub(" ", html))).strip()


def _in_the_navigation(page: str) -> tuple[int, str]:
    """Where results that are equally good stand: chapters, then other pages, then labs."""
    if CHAPTER.fullmatch(page):
        return 0, page
    return (1 if page.startswith("docs/") else 2), page


def _with_contents(body: str, contents: str) -> str:
    """The page's `body` with its contents, folded, below the title, if it is long; a wide window hides them."""
    if contents.count("<li>") < LONG:
        return body
    folded = f'<details class="on-this-page"><summary>On this page</summary>{contents}</details>'
    return body.replace("</h1>", f"</h1>{folded}", 1)
