"""What of a student's text a page shows: it is opened in a browser that may change grades.

Formgrader's pages and the feedback show Markdown as HTML. Whatever that HTML is, it goes through nh3 (the Rust library
ammonia, which parses as browsers do) and what comes out is nh3's own writing: tags and attributes of short lists, links
that wait for a click, pictures that lie in the page itself.
"""

from __future__ import annotations

import functools
import html
import re
from pathlib import Path
from typing import Any

from jinja2 import pass_context

from labkit.suite.limits import TookTooLong, time_limit
from labstaff.course.cells import code_cell, displayed

LONGEST = 50_000
LONGEST_LISTING = 200_000
RENDER_SECONDS = 5.0
TEXT_TAGS = "a b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img input li ol p pre s small"
TAGS = {*f"{TEXT_TAGS} span strong sub summary sup table tbody td th thead tr u ul".split()}
ATTRIBUTES = {
    "*": {"align"},
    "a": {"href", "title"},
    "code": {"class"},
    "details": {"open"},
    "div": {"class"},
    "img": {"alt", "height", "src", "title", "width"},
    "input": {"checked", "class", "disabled", "type"},
    "li": {"class"},
    "ol": {"start"},
    "pre": {"class"},
    "span": {"class"},
    "td": {"colspan", "rowspan", "style"},
    "th": {"colspan", "rowspan", "style"},
}
"""No `id` and no `name`: a page's own scripts find its fields by them."""

VALUES = {
    "class": re.compile(r"highlight|[a-z0-9]{1,3}|task-list-item(-checkbox)?|language-[\w+#.-]*"),
    "href": re.compile(r"(?:https?://|mailto:|#)\S*", re.IGNORECASE),
    "src": re.compile(r"data:image/(?:png|jpeg|gif);base64,[A-Za-z0-9+/=\s]*"),
    "style": re.compile(r"\s*text-align:\s*(?:left|right|center);?\s*"),
    "type": re.compile("checkbox"),
}
MATH_WITH_LINKS = re.compile(r"\\(?:href|require|cssId|class|style|unicode|bbox|data|includegraphics)\b")


@pass_context
def markdown2html(context: Any, source: str) -> str:
    """The filter of nbconvert's templates that turns a cell's Markdown into HTML, harmless HTML here.

    It is set for formgrader and for the feedback alike (`labstaff.course.settings`).
    """
    cell = context.get("cell") or {}
    return as_html(source, cell.get("attachments"))


def as_html(source: str, attachments: dict[str, dict[str, str]] | None = None) -> str:
    """`source` as HTML that can do nothing; as it was typed when it cannot be rendered."""
    try:
        return _cleaned(_rendered(source, attachments))
    except (Exception, TookTooLong):  # whatever a text can make the renderer do, it is not to be rendered
        return f"<pre>{html.escape(source)}</pre>"


def shown_safely(source: str, attachments: dict[str, dict[str, str]] | None = None) -> str:
    """`source` itself when all of it will be shown; else the same text as a code block, so that a grader sees it."""
    return source if is_plain(source, attachments) else as_typed(source)


def is_plain(source: str, attachments: dict[str, dict[str, str]] | None = None) -> bool:
    """Whether `source` renders to markup of which nothing is taken out."""
    try:
        return _comes_out_whole(source, attachments) if attachments else _text_comes_out_whole(source)
    except (Exception, TookTooLong):
        return False


def as_typed(source: str) -> str:
    """`source` in a fence that nothing in it can close."""
    longest = max((len(run) for run in re.findall(r"`+", source)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{source}\n{fence}"


def listing(path: Path) -> Any:
    """A cell whose output is the file with line numbers, in colours where a browser shows it. It cannot be run.

    Formgrader shows notebooks and nothing else: so whoever grades sees the file that was judged.
    """
    text, problem = _read(path)
    data = {"text/plain": problem or text}
    if not problem:
        data["text/html"] = _in_colours(text)
    return code_cell(f"# {path.name}, as it was handed in", "handed-in", [displayed(data)])


def _comes_out_whole(source: str, attachments: dict[str, dict[str, str]] | None) -> bool:
    rendered = _rendered(source, attachments)
    return _parts(rendered) == _parts(_cleaned(rendered))


@functools.lru_cache(maxsize=200)
def _text_comes_out_whole(source: str) -> bool:
    """The texts of the report itself stand in every submission."""
    return _comes_out_whole(source, None)


def _rendered(source: str, attachments: dict[str, dict[str, str]] | None) -> str:
    """What nbconvert makes of a Markdown cell, without the anchors that it adds to headings."""
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    if len(source) > LONGEST:
        raise ValueError("too long to be rendered")
    renderer = IPythonRenderer(escape=False, attachments=attachments or {}, exclude_anchor_links=True)
    with time_limit(RENDER_SECONDS):
        return MarkdownWithMath(renderer=renderer).render(source)


def _cleaned(rendered: str) -> str:
    import nh3

    if MATH_WITH_LINKS.search(html.unescape(rendered)):
        raise ValueError("mathematics that links or styles")
    return nh3.clean(
        rendered,
        tags=TAGS,
        attributes=ATTRIBUTES,
        attribute_filter=_allowed,
        url_schemes={"http", "https", "mailto", "data"},
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"input": {"disabled": ""}},
    )


def _allowed(_tag: str, name: str, value: str) -> str | None:
    wanted = VALUES.get(name)
    if wanted is None:
        return value
    words = value.split() if name == "class" else [value]
    return value if all(wanted.fullmatch(word) for word in words) else None


def _parts(rendered: str) -> list[str]:
    """The names of tags and attributes in HTML, sorted: only to tell whether something was taken out."""
    names = re.findall(r"</?([a-zA-Z!?][^\s/>]*)", rendered) + re.findall(r"""\s([a-zA-Z-]+)\s*=\s*["']""", rendered)
    gone = {"rel", "disabled", "checked", "open", "id", "tbody", "/tbody"}
    return sorted(name.lower() for name in names if name.lower() not in gone)


def _read(path: Path) -> tuple[str, str]:
    if path.is_symlink() or not path.is_file():
        return "", f"there is no file {path.parent.name}/{path.name}"
    with path.open("rb") as file:
        content = file.read(LONGEST_LISTING + 1)
    text = content[:LONGEST_LISTING].decode("utf-8-sig", "replace")
    if len(content) > LONGEST_LISTING:
        text += f"\n# … cut at {LONGEST_LISTING:,} bytes"
    return text, "" if text.strip() else f"{path.name} is empty"


def _in_colours(text: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    formatter = HtmlFormatter(linenos="inline", noclasses=True, style="default")
    return highlight(text, PythonLexer(stripnl=False), formatter)
