"""Sphinx extension: what a link to a page shows elsewhere (title, description, image), the site map, the page 404.

An image and the address of a page must be absolute there, so both need `html_baseurl` (`lab site --url`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from docutils import nodes
from sphinx.application import Sphinx

from labstaff.figures import draw_cards
from labstaff.site import FRONT

LONGEST = 200
"""Characters of a description: search engines and messengers cut longer ones."""
LABEL = re.compile(r"^(The question|Objective)\. ")
PLAIN = {r"\times": "×", "^2": "²"}
"""TeX in first paragraphs, and how a description writes it."""
FRONT_FIGURE = "00_front"
"""The image of pages without a figure of their own."""
CARDS = "_static/cards"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("html-page-context", add_card)
    app.connect("html-collect-pages", pages_without_a_source)
    app.connect("build-finished", write_cards_and_map)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def add_card(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Add the page's description and its Open Graph properties (ogp.me) to its head."""
    if not doctree and name != "index":
        return
    doctree = app.env.get_doctree(FRONT if name == "index" else name)  # its images still have their sources' names
    title = unescape(context["title"])
    description = describe(doctree)
    properties = {"og:type": "article", "og:site_name": app.config.project, "og:title": title}
    properties["og:description"] = description
    if base := app.config.html_baseurl:
        properties["og:url"] = urljoin(base, "" if name == "index" else f"{name}.html")
        properties["og:image"] = urljoin(base, f"{CARDS}/{figure_of(doctree)}.png")
    metas = [f'<meta name="description" content="{escape(description)}">']
    metas += [f'<meta property="{key}" content="{escape(value)}">' for key, value in properties.items()]
    if base:
        metas.append('<meta name="twitter:card" content="summary_large_image">')
    context["metatags"] += "\n".join(metas)


def describe(doctree: nodes.document) -> str:
    """The page's first paragraph without its label, cut between words."""
    texts = (LABEL.sub("", paragraph.astext()) for paragraph in doctree.findall(nodes.paragraph))
    text = next(filter(None, texts), "")
    for tex, plain in PLAIN.items():
        text = text.replace(tex, plain)
    return textwrap.shorten(text, LONGEST, placeholder=" …")


def figure_of(doctree: nodes.Element) -> str:
    """The name of the page's first figure that a script draws, but for the front page's, which chapters show too."""
    files = [Path(image["uri"]) for image in doctree.findall(nodes.image)]
    names = [file.stem for file in files if file.parent.name == "figures"]
    return next((name for name in names if name != FRONT_FIGURE), FRONT_FIGURE)


def pages_without_a_source(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The page at the site's root; where the address is known, the one for links that lead nowhere.

    A server shows 404.html at any depth, so that its links begin at the site's address.
    """
    yield "index", {"title": app.config.project, "front": f"{FRONT}.html", "metatags": ""}, "index.html"
    if base := app.config.html_baseurl:
        yield "404", {"title": "Page not found", "base": urljoin(base, "404.html")}, "404.html"


def write_cards_and_map(app: Sphinx, error: Exception | None) -> None:
    """Draw the pages' images, and list the pages for search engines (sitemaps.org)."""
    base = app.config.html_baseurl
    if error or not base:
        return
    draw_cards({figure_of(app.env.get_doctree(name)) for name in app.env.found_docs}, Path(app.outdir, CARDS))
    urls = [f"<url><loc>{escape(urljoin(base, f'{name}.html'))}</loc></url>" for name in sorted(app.env.found_docs)]
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">']
    Path(app.outdir, "sitemap.xml").write_text("\n".join([*lines, *urls, "</urlset>\n"]), encoding="utf-8")
