"""What of a student's text reaches the grader's browser: one allow-list, and the listing of the graded file.

Formgrader's pages and the feedback show Markdown as HTML. That HTML goes through nh3, which parses as browsers do and
writes only the tags and attributes listed here: no scripts, no styles, links that wait for a click, and pictures that
are part of the page itself. Code is shown as plain text: a highlighter needs hours for some texts.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from jinja2 import pass_context

from labkit.suite.finder import MAX_BYTES
from labstaff.grader.bounded import TooMuch, bounded
from labstaff.grader.submission import read_regular

MAX_RENDERED = 100_000
"""Characters of a page's Markdown that are rendered; the rest is shown as typed."""
TEXT_TAGS = "a b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img li ol p pre s small span"
TAGS = {*f"{TEXT_TAGS} strong sub summary sup table tbody td th thead tr u ul".split()}
VALUES = {
    "class": re.compile(r"language-[\w+#.-]*"),
    "href": re.compile(r"(?:https?://|mailto:|#)\S*", re.IGNORECASE),
    "src": re.compile(r"data:image/(?:png|jpeg);base64,[A-Za-z0-9+/=\s]*"),
    "style": re.compile(r"\s*text-align:\s*(?:left|right|center);?\s*"),
    "title": re.compile(r".*", re.DOTALL),
    "alt": re.compile(r".*", re.DOTALL),
}
ATTRIBUTES = {
    "a": {"href", "title"},
    "img": {"alt", "src", "title"},
    "code": {"class"},
    **{tag: {"style"} for tag in ("td", "th")},
}
"""No `id` and no `name`: the page's own scripts find its fields by them."""

LEFT = "attention_labs_left"
"""The entry of a page's resources that says how many more characters are rendered."""

MATH_WITH_LINKS = re.compile(r"\\(?:href|mmlToken|require|cssId|class|style|unicode|bbox|data|includegraphics)\b")


@pass_context
def markdown2html(context: Any, source: str) -> str:
    """The filter with which nbconvert's templates show a Markdown cell (see `labstaff.course.settings`).

    At most `MAX_RENDERED` characters of a page are rendered, and none after a text that takes too long.
    """
    resources = context.get("resources", {})
    left = resources.get(LEFT, MAX_RENDERED) - len(source)
    resources[LEFT] = left
    try:
        if left < 0:
            return _as_typed(source)
        return bounded(as_html, source, dict((context.get("cell") or {}).get("attachments") or {}))
    except TooMuch:
        resources[LEFT] = 0
        return _as_typed(source)


def code2html(source: str, **_: object) -> str:
    """The filter with which they show a code cell."""
    return f'<div class="highlight">{_as_typed(source)}</div>'


def as_html(source: str, attachments: dict[str, dict[str, str]] | None = None) -> str:
    """`source` as HTML of the allow-list; as it was typed where it cannot be rendered, or its mathematics links.

    Some texts take hours, or all memory: call it with `bounded`.
    """
    import nh3
    from mistune import HTMLRenderer
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        block_code = HTMLRenderer.block_code  # plain

    try:
        renderer = Renderer(escape=False, attachments=attachments or {}, exclude_anchor_links=True)
        rendered = MarkdownWithMath(renderer=renderer).render(source)
        if MATH_WITH_LINKS.search(html.unescape(rendered)):
            raise ValueError("mathematics that links or styles")
        return nh3.clean(
            rendered,
            tags=TAGS,
            attributes=ATTRIBUTES,
            attribute_filter=lambda _tag, name, value: value if VALUES[name].fullmatch(value) else None,
            url_schemes={"http", "https", "mailto", "data"},
            link_rel="noopener noreferrer nofollow",
        )
    except Exception:  # a text can make the renderer raise anything
        return _as_typed(source)


def listing(path: Path) -> Any:
    """A cell with the graded file as its output, with line numbers: formgrader shows notebooks and nothing else."""
    from nbformat.v4 import new_code_cell, new_output

    text = (read_regular(path, MAX_BYTES) or b"").decode("utf-8", "replace")
    lines = text.split("\n") if text else [f"there is no {path.name}"]
    numbered = "".join(f"{number:5}  {line}\n" for number, line in enumerate(lines, 1))
    shown = {"text/plain": path.name, "text/html": _as_typed(numbered)}
    return new_code_cell(f"# {path.name}, as submitted", outputs=[new_output("display_data", shown)])


def _as_typed(source: str) -> str:
    return f"<pre>{html.escape(source)}</pre>"
