"""Chooses what of a chapter's blocks fits a slide: first sentences, tables, formulas, code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise, takewhile

from docutils import nodes

LABEL = re.compile(r"(The question|The answer in \w+ lines|Takeaway|Check|Figure \d+)\.")
REFERS = re.compile(r"Figure \d+\.|It prints")
"""Begins what is said of the figure or the code above."""
BREAK = re.compile(r"(?<!al\.)(?<!e\.g\.)(?<!i\.e\.)(?:(?<=[.?!])|(?<=[.?!][)”’]))\s+(?=[^a-z]|$)")
"""Between two sentences."""
ENDS = re.compile(r"[.?!][)”’]?$")
WORDS, WEIGHT = 40, 120
"""The most words of a paragraph, and what fits on a slide, in words."""


def sentences(paragraph: nodes.Element) -> list[list[nodes.Node]]:
    """The paragraph's sentences as lists of nodes, without its label and what is in brackets."""
    found: list[list[nodes.Node]] = [[]]
    for is_text, children in groupby(paragraph.children, lambda child: isinstance(child, nodes.Text)):
        if is_text:
            here, *more = BREAK.split("".join(map(str, children)).replace("\n", " "))
            found[-1].append(nodes.Text(here))
            found += [[nodes.Text(part)] for part in more]
        else:
            found[-1] += [child.deepcopy() for child in children if not _is_aside(child)]
    kept, depth = [], 0
    for sentence in found:
        words = text(sentence)
        if depth or words.startswith("("):
            depth += words.count("(") - words.count(")")
        elif words and not LABEL.fullmatch(words):
            kept.append(sentence)
    return kept


def first(of: Sequence[list[nodes.Node]], n_words: int = WORDS) -> nodes.paragraph:
    """The first sentence and those after it that have room."""
    chosen = list(of[:1])
    for sentence in of[1:]:
        if weight(joined([*chosen, sentence])) > n_words:
            break
        chosen.append(sentence)
    return joined(chosen)


def joined(of: Iterable[list[nodes.Node]]) -> nodes.paragraph:
    """A paragraph of these sentences."""
    return nodes.paragraph("", "", *(node for sentence in of for node in (*sentence, nodes.Text(" "))))


def digest(blocks: Sequence[nodes.Element], room: int, is_pencil: bool) -> list[nodes.Node]:
    """What of `blocks` has room, up to the first check.

    Two paragraphs and one of each other kind; of a pencil example all, since a step needs those before it.
    """
    kept: list[nodes.Element] = []
    for block in takewhile(lambda each: not each.astext().startswith("Check."), blocks):
        if isinstance(block, nodes.paragraph) and not REFERS.match(block.astext()) and not is_figure(block):
            most, block = 2, first(sentences(block), 3 * WORDS if is_pencil else WORDS)
            fits = bool(block.children) and not block.astext()[0].islower()
        else:
            most, fits = 1, isinstance(block, nodes.table | nodes.math_block | nodes.literal_block)
        more = is_pencil or sum(isinstance(each, type(block)) for each in kept) < most
        if fits and more and weight(block) <= room:
            kept.append(block.deepcopy())
            room -= weight(block)
    for block, after in reversed(list(pairwise([*kept, None]))):
        is_open = isinstance(block, nodes.paragraph) and not ENDS.search(block.astext().strip())
        if is_open and (after is None or isinstance(after, nodes.paragraph)):
            kept.remove(block)
    return list(kept)


def lead(blocks: Sequence[nodes.Element]) -> list[nodes.Node]:
    """The first sentences of the first paragraph, as far as they need nothing after them."""
    paragraphs = [sentences(block) for block in blocks if isinstance(block, nodes.paragraph)]
    whole = [each for each in paragraphs[0] if ENDS.search(text(each))] if paragraphs else []
    return [first(whole)] if whole else []


def weight(block: nodes.Node) -> int:
    """What a block takes of a slide, in words."""
    if isinstance(block, nodes.table):
        return 7 * len(list(block.findall(nodes.row))) + len(block.astext().split()) // 2
    if isinstance(block, nodes.literal_block | nodes.math_block):
        return 8 * (1 + block.astext().count("\n"))
    return len(block.astext().split())


def text(children: Sequence[nodes.Node]) -> str:
    """Their text without markup."""
    return "".join(node.astext() for node in children).strip()


def is_figure(block: nodes.Node) -> bool:
    """Whether a paragraph is one or more pictures; the next one is their caption."""
    return isinstance(block, nodes.paragraph) and isinstance(block[0], nodes.image)


def _is_aside(node: nodes.Node) -> bool:
    return isinstance(node, nodes.raw) or bool(LABEL.fullmatch(node.astext()))
