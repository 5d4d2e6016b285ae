"""Which of a student's texts are rendered, and that what is shown can do nothing."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser

import pytest

from labkit.labs.catalog import find_labs
from labstaff.course.sanitize import ATTRIBUTES, MAX_RENDERED, TAGS, as_html, code2html, listing, markdown2html

HARMLESS = [
    ("**bold**, `a<b`, $a < b$", "<strong>bold</strong>"),
    ("| a | b |\n|---|:-:|\n| 1 | 2 |\n", "<table>"),
    ("```python\nif a < b: pass\n```", '<code class="language-python">if a &lt; b: pass'),
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


class Attributes(HTMLParser):
    """Each tag of a page with each of its attributes, and with none."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag, attrs):
        self.found += [(tag, "", ""), *((tag, name, value or "") for name, value in attrs)]


@pytest.mark.parametrize("text", [*HOSTILE, *(text for text, _ in HARMLESS)])
def test_what_is_shown_can_do_nothing(text):
    page = Attributes()
    page.feed(as_html(text))
    page.close()
    for tag, name, value in page.found:
        assert tag in TAGS
        assert name in {"", "rel", *ATTRIBUTES.get(tag, ())}
        assert name != "href" or re.match("https?://|mailto:|#", value)
        assert name != "src" or value.startswith(("data:image/png", "data:image/jpeg"))
        assert name != "class" or not {"nbgrader_cell", "score"} & set(value.split())


@pytest.mark.parametrize("text", ["$\\href{x}{y}$", "&#36;&bsol;href{x}{y}&#36;"])
def test_mathematics_that_links_is_shown_as_typed(text):
    assert as_html(text) == f"<pre>{html.escape(text)}</pre>"


SLOW = "<div>" * 4_000
"""The allow-list's parser takes time that grows with the square of the depth."""


def test_after_a_text_that_takes_too_long_a_page_is_shown_as_typed(monkeypatch):
    monkeypatch.setattr("labstaff.grader.bounded.CPU_SECONDS", 0.1)  # some machines need less than 0.5 s
    page = {"resources": {}}
    assert markdown2html(page, SLOW) == f"<pre>{html.escape(SLOW)}</pre>"
    assert markdown2html(page, "**b**") == "<pre>**b**</pre>"


def test_so_much_of_a_page_is_rendered():
    page = {"resources": {}}
    assert "<strong>" in markdown2html(page, "**b**")
    assert markdown2html(page, "x" * MAX_RENDERED).startswith("<pre>")
    assert markdown2html(page, "**b**") == "<pre>**b**</pre>"


def test_code_is_shown_as_plain_text():
    """A highlighter takes hours for lines of one space."""
    text = "if a < b:\n" + " \n" * 300_000
    assert code2html(text) == f'<div class="highlight"><pre>{html.escape(text)}</pre></div>'


def test_the_graded_file_has_numbered_lines(tmp_path):
    (tmp_path / "a.py").write_text("if a < b:\n" + " \n" * 300_000)
    (output,) = listing(tmp_path / "a.py").outputs
    shown = output.data["text/html"]
    assert shown.startswith("<pre>    1  if a &lt; b:\n    2   \n") and "\n300001   \n" in shown
    (missing,) = listing(tmp_path / "none.py").outputs
    assert "there is no none.py" in missing.data["text/html"]


def test_the_courses_own_texts_are_rendered():
    for lab in find_labs():
        for cell in json.loads((lab.folder / "report.ipynb").read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                assert not as_html("".join(cell["source"])).startswith("<pre>")
