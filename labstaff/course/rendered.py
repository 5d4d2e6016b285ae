"""Decides whether a student's Markdown may be shown rendered: it is opened in a browser that may change grades."""

from __future__ import annotations

import html
import re

from labkit.suite.limits import TookTooLong, time_limit

LONGEST = 50_000
RENDER_SECONDS = 5.0
TEXT_TAGS = "a b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img input li ol p pre s small"
TAGS = frozenset(f"{TEXT_TAGS} span strong sub summary sup table tbody td th thead tr u ul".split())
ATTRIBUTES = {
    "align": r"left|right|center",
    "alt": r".*",
    "checked": r"",
    "class": r"|anchor-link|highlight|task-list-item|task-list-item-checkbox|language-[\w+#.-]*|[a-z0-9]{1,3}",
    "colspan": r"\d+",
    "disabled": r"",
    "height": r"\d+%?",
    "href": r"(?:https?:|mailto:|#)\S*|[^:\s]*",
    "id": r".*",
    "open": r"",
    "rowspan": r"\d+",
    "src": r"https?:\S*|data:image/(?:png|jpeg|gif|svg\+xml);base64,[A-Za-z0-9+/=]*|[^:\s]*",
    "start": r"\d+",
    "style": r"\s*text-align:\s*(?:left|right|center);?\s*",
    "title": r".*",
    "type": r"checkbox",
    "width": r"\d+%?",
}
ATTRIBUTE = re.compile(r'\s+([a-z]+)(?:="([^"<>]*)")?')
TAG = re.compile(rf"</?([a-z][a-z0-9]*)((?:{ATTRIBUTE.pattern})*)\s*/?>")
MATH_WITH_LINKS = re.compile(r"\\(?:href|require|cssId|class|style|unicode|bbox|data)\b")


def shown_safely(source: str, attachments: dict[str, dict[str, str]] | None = None) -> str:
    """`source` itself when what it renders to is plain text with plain markup; else the same text as a code block.

    What is looked at is the HTML that formgrader and the feedback will show, not the Markdown: a tag, an attribute or
    an address outside of short lists, or anything that is not well formed, and the whole cell is shown as it was typed.
    """
    return source if is_plain(source, attachments) else as_typed(source)


def is_plain(source: str, attachments: dict[str, dict[str, str]] | None = None) -> bool:
    """Whether `source` renders to markup that can do nothing."""
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    if len(source) > LONGEST:
        return False
    try:
        with time_limit(RENDER_SECONDS):
            rendered = MarkdownWithMath(renderer=IPythonRenderer(escape=False, attachments=attachments)).render(source)
            text = TAG.sub(lambda tag: "" if _harmless(tag) else "<", rendered)
    except (Exception, TookTooLong):  # whatever a text can make the renderer do, it is not to be rendered
        return False
    return "<" not in text and not MATH_WITH_LINKS.search(html.unescape(text))


def as_typed(source: str) -> str:
    """`source` in a fence that nothing in it can close."""
    longest = max((len(run) for run in re.findall(r"`+", source)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{source}\n{fence}"


def _harmless(tag: re.Match[str]) -> bool:
    name, attributes = tag[1], tag[2]
    if name not in TAGS or (name == "input" and " disabled" not in attributes):
        return False
    return all(_allowed(name, html.unescape(value)) for name, value in ATTRIBUTE.findall(attributes))


def _allowed(name: str, value: str) -> bool:
    wanted = ATTRIBUTES.get(name)
    if wanted is None:
        return False
    values = value.split() or [""] if name == "class" else [value]
    return all(re.fullmatch(wanted, each, re.DOTALL) for each in values)
