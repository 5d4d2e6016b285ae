"""What of a student's text reaches the grader's browser: one allow-list, and the listing of the graded file.

Formgrader's pages and the feedback show Markdown as HTML. That HTML goes through nh3, which parses as browsers do and
writes only the tags and attributes listed here: no scripts, no styles, links that wait for a click, and pictures that
are part of the page itself.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from jinja2 import pass_context

from labkit.suite.finder import MAX_BYTES
from labkit.suite.limits import TookTooLong, time_limit
from labstaff.grader.submission import read_regular

LONGEST = 50_000
RENDER_SECONDS = 5.0
TEXT_TAGS = "a b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img li ol p pre s small span"
TAGS = {*f"{TEXT_TAGS} strong sub summary sup table tbody td th thead tr u ul".split()}
VALUES = {
    "class": re.compile(r"(?:highlight|[a-z0-9]{1,3}|language-[\w+#.-]*)(?: [a-z0-9]{1,3})*"),
    "href": re.compile(r"(?:https?://|mailto:|#)\S*", re.IGNORECASE),
    "src": re.compile(r"data:image/(?:png|jpeg);base64,[A-Za-z0-9+/=\s]*"),
    "style": re.compile(r"\s*text-align:\s*(?:left|right|center);?\s*"),
    "title": re.compile(r".*", re.DOTALL),
    "alt": re.compile(r".*", re.DOTALL),
}
ATTRIBUTES = {
    "a": {"href", "title"},
    "img": {"alt", "src", "title"},
    **{tag: {"class"} for tag in ("code", "div", "pre", "span")},
    **{tag: {"style"} for tag in ("td", "th")},
}
"""No `id` and no `name`: the page's own scripts find its fields by them."""

MATH_WITH_LINKS = re.compile(r"\\(?:href|mmlToken|require|cssId|class|style|unicode|bbox|data|includegraphics)\b")


@pass_context
def markdown2html(context: Any, source: str) -> str:
    """The filter with which nbconvert's templates show a Markdown cell (see `labstaff.course.settings`)."""
    return as_html(source, (context.get("cell") or {}).get("attachments"))


def as_html(source: str, attachments: dict[str, dict[str, str]] | None = None) -> str:
    """`source` as HTML of the allow-list; as it was typed where it cannot be rendered, or its mathematics links."""
    import nh3
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    try:
        if len(source) > LONGEST:
            raise ValueError("too long to be rendered")
        renderer = IPythonRenderer(escape=False, attachments=attachments or {}, exclude_anchor_links=True)
        with time_limit(RENDER_SECONDS):
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
    except (Exception, TookTooLong):  # a text can make the renderer raise anything
        return f"<pre>{html.escape(source)}</pre>"


def listing(path: Path) -> Any:
    """A cell with the graded file as its output, with line numbers: formgrader shows notebooks and nothing else."""
    from nbformat.v4 import new_code_cell, new_output
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    text = (read_regular(path, MAX_BYTES) or b"").decode("utf-8", "replace")
    formatter = HtmlFormatter(linenos="inline", noclasses=True, style="default")
    shown = highlight(text, PythonLexer(stripnl=False), formatter)
    output = new_output("display_data", {"text/plain": text or f"there is no {path.name}", "text/html": shown})
    return new_code_cell(f"# {path.name}, as submitted", outputs=[output])
