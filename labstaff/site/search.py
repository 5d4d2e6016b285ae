"""Gives the search page the texts it quotes and keeps found words' marks within the text: both work from disk too.

Sphinx's search fetches each page that it found, which browsers refuse to a page opened from disk. So the texts lie in a
script, `_static/search_texts.js`, which only the search page loads, and `quotes.js` hands them out in fetch's place.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from sphinx.application import Sphinx

from labstaff.site.mathematics import TexError, render

TEXTS = "search_texts.js"
MATHML = re.compile(r"<math\b.*?</math>", re.DOTALL)
JOINED = {
    "mfrac": "{}/{}",
    "msup": "{}^{}",
    "msub": "{}_{}",
    "msubsup": "{}_{}^{}",
    "mover": "{}^{}",
    "munder": "{}_{}",
    "munderover": "{}_{}^{}",
}
"""How an element of MathML joins its parts on one line."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Have the texts written beside the pages, and the scripts named where they are needed."""
    app.connect("html-page-context", _prepare)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": False}


def sections(page: nodes.document) -> list[tuple[str, str]]:
    """The anchor and the text of each section of a page, without the text of the sections in it."""
    found = []
    for section in page.findall(nodes.section):
        parts = [_text(child) for child in section.children if not isinstance(child, nodes.section)]
        found.append((str(section["ids"][0]), " ".join(" ".join(parts).split())))
    return found


def on_one_line(tex: str) -> str:
    """A formula on one line, in letters and signs; bad TeX stays as it is, and is reported where it is rendered."""
    try:
        mathml = MATHML.search(render(tex.strip(), display=False))
    except TexError:
        return tex
    return _line(ElementTree.fromstring(mathml[0])) if mathml else tex


def _text(node: nodes.Node) -> str:
    if isinstance(node, nodes.math | nodes.math_block):
        return on_one_line(node.astext())
    if isinstance(node, nodes.raw | nodes.comment):
        return ""
    if isinstance(node, nodes.Text):
        return node.astext()
    between = "" if isinstance(node, nodes.TextElement) else " "
    return between.join(_text(child) for child in node.children)


def _line(element: ElementTree.Element) -> str:
    name = element.tag.rpartition("}")[2]
    if name == "annotation":
        return ""
    parts = [_line(child) for child in element]
    if name in JOINED:
        return JOINED[name].format(*map(_closed, parts))
    inside = (element.text or "").strip() + "".join(parts)
    return {"msqrt": f"√{_closed(inside)}", "mtr": f"{inside} "}.get(name, inside)


def _closed(part: str) -> str:
    return part if len(part) < 2 or part.isdecimal() else f"({part})"


def _prepare(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    if page == "search":
        app.add_js_file(TEXTS)
        app.add_js_file("quotes.js")
    elif "body" in context:
        # Sphinx marks found words in div.body. Where a theme has none it marks the whole page with its menus and
        # icons, and stops at the first word in an icon's title, which has no place on the screen.
        context["body"] = f'<div class="body">{context["body"]}</div>'


def _write(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        texts = {page: sections(app.env.get_doctree(page)) for page in sorted(app.env.found_docs)}
        script = f"globalThis.searchTexts = {json.dumps(texts, ensure_ascii=False, separators=(',', ':'))};\n"
        Path(app.outdir, "_static", TEXTS).write_text(script, encoding="utf-8")
