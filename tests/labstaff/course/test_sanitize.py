"""Which of a student's texts are rendered, and that what is shown can do nothing."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser

import pytest

from labkit.labs.catalog import find_labs
from labstaff.course.sanitize import ATTRIBUTES, TAGS, as_html

HARMLESS = [
    ("**bold**, `a<b`, $a < b$", "<strong>bold</strong>"),
    ("| a | b |\n|---|:-:|\n| 1 | 2 |\n", "<table>"),
    ("```python\nif a < b: pass\n```", '<span class="k">if</span>'),
    ("[text](https://example.org 'title') <https://example.org>", 'href="https://example.org"'),
    ("<details><summary>x</summary>y</details> x<sup>2</sup>", "<sup>2</sup>"),
]
HOSTILE = [
    "![](/logout) ![](https://example.org/seen.png) ![x](attachment:nothing.png)",
    '<img alt="x" src="data:image/svg+xml;base64,PHN2Zz4=">',
    "[x](/logout) [x](files/javascript:alert(1))",  # nbconvert takes `files/` out of links
    "<script>alert(1)</script><style>body { display: none }</style>",
    '<p style="position: fixed; top: 0" id="standard_attention" name="score">x</p>',
    '<form action="/logout"><button>x</button></form><input type="text" class="score">',
    '<meta http-equiv="refresh" content="0; url=/logout"><link rel="prefetch" href="/logout">',
    '<video src="/logout" autoplay><svg><image href="/logout"/></svg>',
    '<math><mtext><img src="/logout"></mtext></math><table background="/logout"><tr><td>x</table>',
    "<img src=x onerror=alert(1)",
    "a\n<p onclick=alert(1)\n\nb>",  # no tag for the renderer, one for a browser
    '`<a title="`<img src=x onerror=alert(1)>`">`',
    "[x](javascript:alert(1)) [x](java&Tab;script:alert(1)) [x](data:text/html,evil)",
    '<a href="JaVaScRiPt:alert(1)">x</a><div class="nbgrader_cell">',
    "<!-- --!><script>",
    "$\\href{javascript:alert(1)}{x}$ $\\mmlToken{mi}[href=javascript:alert(1)]{x}$",
    "```mermaid\n<img src=x onerror=alert(1)>\n```",
    ">" * 5_000,
    "x" * 60_000,
]


@pytest.mark.parametrize(("text", "shown"), HARMLESS)
def test_harmless_text_is_rendered(text, shown):
    assert shown in as_html(text)


@pytest.mark.parametrize("text", [*HOSTILE, *(text for text, _ in HARMLESS)])
def test_what_is_shown_can_do_nothing(text):
    seen = Seen()
    seen.feed(as_html(text))
    seen.close()
    assert seen.tags <= TAGS
    assert seen.attributes <= set().union(*ATTRIBUTES.values()) | {"rel"}
    assert all(re.match("https?://|mailto:|#", link) for link in seen.links)
    assert all(picture.startswith(("data:image/png", "data:image/jpeg")) for picture in seen.pictures)
    assert not {"nbgrader_cell", "score"} & set(seen.classes)


@pytest.mark.parametrize("text", ["$\\href{x}{y}$", "&#36;&bsol;href{x}{y}&#36;"])
def test_mathematics_that_links_is_shown_as_typed(text):
    assert as_html(text) == f"<pre>{html.escape(text)}</pre>"


class Seen(HTMLParser):
    """The parts of a page."""

    def __init__(self):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.pictures: list[str] = []
        self.classes: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name == "href"]
        self.pictures += [value or "" for name, value in attrs if name == "src"]
        self.classes += [word for name, value in attrs if name == "class" for word in (value or "").split()]


def test_the_courses_own_texts_are_rendered():
    for lab in find_labs():
        for cell in json.loads((lab.folder / "report.ipynb").read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                assert not as_html("".join(cell["source"])).startswith("<pre>")
