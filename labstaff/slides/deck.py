"""Sphinx extension: turns a chapter's document into its slides.

A slide shows what the chapter has: its question and its answer; for each section the first sentences, a figure, a table
or a formula, and the takeaway; pencil examples and checks; what to try and to use. Rank chooses where that is too much.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

from labstaff.slides import lab_of
from labstaff.slides.excerpts import WEIGHT, WORDS, digest, first, is_figure, joined, lead, sentences, weight

MOST = 20
SKIPPED = ("Conventions", "Sources", "What to try", "What to use")
PENCIL = re.compile(r"pencil|by hand", re.IGNORECASE)
LIST, LONG = 185, 80
"""The most words of a list; from how many words on a slide's letters are smaller."""


@dataclass
class Slide:
    """A slide: its title, its body, a picture to the left of both, and its rank: those of rank 1 are chosen first."""

    title: str
    body: Sequence[nodes.Node]
    picture: list[nodes.Node] = field(default_factory=list)
    rank: int = 0


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("doctree-read", make_deck, priority=100)  # before Sphinx collects images, downloads and titles
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def make_deck(app: Sphinx, document: nodes.document) -> None:
    """Replace a chapter's document by a section for each slide, inside one for the first."""
    name, chapter = app.env.docname, document[0]
    if not name[0].isdigit():
        return
    for link in list(chapter.findall(_is_link)):
        link.parent.replace(link, link.children)
    root, *others = [_section(slide, f"{name}-{at}") for at, slide in enumerate(deck(name, chapter))]
    root += others
    document.children = []
    document += root


def deck(name: str, chapter: nodes.section) -> list[Slide]:
    """The slides of a chapter, at most `MOST`, in its order."""
    lab, paragraphs = lab_of(name), _own(chapter, nodes.paragraph)
    course = "Attention Labs" + (f" · before Lab {lab.number}, about {lab.hours:g} hours" if lab else "")
    opening = [
        Slide(f"{int(name[:2])}. {chapter[0].astext()}", [nodes.paragraph("", course)]),
        Slide("The question", [_list([joined([each]) for each in sentences(paragraphs[0])])]),
        Slide("The answer", [_list([joined([each]) for each in sentences(paragraphs[1])])]),
    ]
    takeaways = _takeaways(chapter.findall(nodes.important))
    closing = [Slide("Takeaways", [_list(part)]) for part in _in_parts(takeaways)]
    for section in _own(chapter, nodes.section):
        if section[0].astext() in ("What to try", "What to use"):
            for items in _own(section, nodes.enumerated_list):
                part = next(_in_parts([item[0].deepcopy() for item in items]))
                closing.append(Slide(section[0].astext(), [_list(part, nodes.enumerated_list)]))
    if lab:
        outcomes = [nodes.paragraph("", f"{outcome}.") for outcome in lab.outcomes]
        closing.append(Slide(f"Lab {lab.number}: after it you can", [_list(outcomes)]))
    middle = [slide for section in _sections(chapter) for slide in _of_section(section)]
    room = MOST - len(opening) - len(closing)
    chosen = sorted(range(len(middle)), key=lambda at: (middle[at].rank, at))[:room]
    return [*opening, *(middle[at] for at in sorted(chosen)), *closing]


def _of_section(section: nodes.section) -> Iterator[Slide]:
    """The slides of what stands directly below a heading."""
    heading, blocks = section[0].astext(), [block for block in section[1:] if not isinstance(block, nodes.section)]
    is_part = isinstance(section.parent.parent, nodes.section)
    title = f"{section.parent[0].astext()} · {heading}" if is_part else heading
    later = bool(blocks) and blocks[0].astext().startswith("Later")
    blocks, delay = blocks[later:], 2 * later
    takeaways = [nodes.container("", each, classes=["takeaway"]) for each in _takeaways(_own(section, nodes.important))]
    is_pencil = bool(PENCIL.search(heading))
    figures = [at for at, block in enumerate(blocks) if is_figure(block)]
    tables = [at for at, block in enumerate(blocks) if isinstance(block, nodes.table) and _n_rows(block) > 2]
    if not figures or is_pencil:
        room = WEIGHT + (WORDS if is_pencil else 0) - sum(map(weight, takeaways))
        body = digest(blocks, room, is_pencil)
        if takeaways or any(isinstance(each, nodes.paragraph | nodes.table) for each in body):
            yield Slide(title, [*body, *takeaways], rank=delay + (1 if is_pencil or takeaways else 4))
        tables = tables[1:]
    for at in tables:
        if weight(blocks[at]) < WEIGHT - WORDS:
            yield Slide(title, digest(blocks[max(at - 1, 0) : at + 1], WEIGHT, False), rank=delay + 3)
    for at in figures:
        is_first = at == figures[0] and not is_pencil
        more = [*lead(blocks[:at]), *takeaways] if is_first else []
        caption = first(sentences(blocks[at + 1][0]))
        yield Slide(title, [caption, *more], [blocks[at].deepcopy()], delay + (1 if at == figures[0] else 2))
    yield from _check(heading, blocks, delay + 3)


def _check(heading: str, blocks: Sequence[nodes.Element], rank: int) -> Iterator[Slide]:
    """The first question of a section that fits; the next key shows its answer."""
    for at, block in enumerate(blocks):
        if block.astext().startswith("Check."):
            end = next(i for i in range(at + 2, len(blocks)) if isinstance(blocks[i], nodes.raw))
            answer = nodes.container("", *(each.deepcopy() for each in blocks[at + 2 : end]), classes=["fragment"])
            if weight(block) + weight(answer) < WEIGHT:
                yield Slide(f"{heading} · Check", [joined(sentences(block)), answer], rank=rank)
                return


def _n_rows(table: nodes.table) -> int:
    return len(list(table.findall(nodes.row)))


def _takeaways(boxes: Any) -> list[nodes.paragraph]:
    return [joined(sentences(box[0])) for box in boxes]


def _list(items: Sequence[nodes.Node], kind: type[nodes.Element] = nodes.bullet_list) -> nodes.Element:
    return kind("", *(nodes.list_item("", item) for item in items))


def _in_parts(items: Sequence[nodes.Node]) -> Iterator[list[nodes.Node]]:
    """The items in runs that fit a slide."""
    part: list[nodes.Node] = []
    for item in items:
        if part and sum(map(weight, [*part, item])) > LIST:
            yield part
            part = []
        part.append(item)
    yield part


def _sections(chapter: nodes.section) -> Iterator[nodes.section]:
    """The sections of all levels in order, without those of every chapter."""
    for part in _own(chapter, nodes.section):
        if part[0].astext() not in SKIPPED:
            yield part
            yield from _sections(part)


def _own(section: nodes.Element, kind: type[nodes.Element]) -> list[Any]:
    return [child for child in section.children if isinstance(child, kind)]


def _is_link(node: nodes.Node) -> bool:
    return isinstance(node, nodes.reference | addnodes.pending_xref | addnodes.download_reference)


def _section(slide: Slide, name: str) -> nodes.section:
    body = nodes.container("", *slide.body, classes=["words"])
    if weight(body) > LONG:
        body["classes"].append("long")
    for code in body.findall(nodes.literal_block):
        code.attributes.pop("language", None)  # with one, sphinx-revealjs leaves colours to a script
    picture = [nodes.container("", *slide.picture, classes=["picture"])] if slide.picture else []
    return nodes.section("", nodes.title("", slide.title), *picture, body, ids=[name])
