"""Which of a student's texts are rendered, and that what is shown can do nothing."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from labkit.labs.catalog import find_labs
from labstaff.course.shown import TAGS, as_html, as_typed, is_plain

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("**bold**, `a<b`, $a < b$, a table:\n\n| a | b |\n|---|:-:|\n| 1 | 2 |\n", True),
        ("```python\nif a < b: pass\n```\n\n- [ ] x\n\n<https://example.org> <br> x<sup>2</sup>", True),
        ("# A heading\n\n[text](https://example.org 'title') and [up](#A-heading)", True),
        ("<details open><summary>x</summary>y</details>", True),
        ("![figure](figure.png)", False),
        ("![](/logout)", False),
        ("![](https://example.org/seen.png)", False),
        ('<img alt="x" src="data:image/svg+xml;base64,PHN2Zz4=">', False),
        ("[x](/logout)", False),
        ("[x](files/javascript:alert(1))", False),  # nbconvert takes `files/` out of links
        ("<script>alert(1)</script>", False),
        ("<style>body { display: none }</style>", False),
        ('<p style="position: fixed; top: 0">x</p>', False),
        ('<form action="/logout"><button>x</button></form>', False),
        ('<meta http-equiv="refresh" content="0; url=/logout">', False),
        ('<link rel="prefetch" href="/logout">', False),
        ('<video src="/logout" autoplay>', False),
        ('<svg><image href="/logout"/></svg>', False),
        ('<math><mtext><img src="/logout"></mtext></math>', False),
        ('<table background="/logout"><tr><td>x</table>', False),
        ('<b id="standard_attention" name="score">x</b>', False),
        ("<img src=x onerror=alert(1)", True),  # not a tag: the renderer escapes it
        ("a\n<p onclick=alert(1)\n\nb>", False),  # not a tag for the renderer, one for a browser
        ('`<a title="`<img src=x onerror=alert(1)>`">`', False),
        ("[x](javascript:alert(1))", False),
        ("[x](java&Tab;script:alert(1))", False),
        ("[x](data:text/html,evil)", False),
        ('<a href="JaVaScRiPt:alert(1)">x</a>', False),
        ('<div class="nbgrader_cell">', False),
        ("<!-- --!><script>", False),
        ("$\\href{javascript:alert(1)}{x}$", False),
        ("```mermaid\n<img src=x onerror=alert(1)>\n```", False),
        ('<input type="text" class="score">', False),
        ("![x](attachment:nothing.png)", False),
        ("x" * 60_000, False),
        (">" * 5_000, False),
        ("Tensor<float> of [a](b)", False),
    ],
)
def test_what_may_be_rendered(text, plain):
    """What is taken out makes the whole text be shown as typed; and what is shown can do nothing, whatever it was."""
    if len(text) != 5_000:  # as deep as a renderer goes differs from one to the next
        assert is_plain(text) is plain
    seen = Seen()
    for shown in (as_html(text), as_html(as_typed(text))):
        seen.feed(shown)
    seen.close()
    assert seen.tags <= TAGS
    assert (
        not seen.attributes
        - {"align", "alt", "checked", "class", "colspan", "disabled", "height", "href"}
        - {*("open", "rel", "rowspan", "src", "start", "style", "title", "type", "width")}
    )
    assert all(re.match("https?://|mailto:|#", link) for link in seen.links)
    assert all(picture.startswith("data:image/p") for picture in seen.pictures)


class Seen(HTMLParser):
    """What a page is made of."""

    def __init__(self):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.pictures: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name == "href"]
        self.pictures += [value or "" for name, value in attrs if name == "src"]


def test_the_courses_own_texts_are_plain():
    """Reports and handouts are shown by the same rules."""
    for lab in find_labs():
        for held in json.loads((lab.folder / "report.ipynb").read_text(encoding="utf-8"))["cells"]:
            if held["cell_type"] == "markdown":
                text = "".join(held["source"])
                assert is_plain(text), text
