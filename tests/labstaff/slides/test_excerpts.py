"""What of a chapter's blocks comes onto a slide."""

from __future__ import annotations

import pytest
from docutils import nodes

from labstaff.slides.excerpts import digest, first, joined, lead, sentences, text


def paragraph(*parts: str | nodes.Node) -> nodes.paragraph:
    """A paragraph of text and other nodes; a code block, a table or a formula has one word here."""
    return nodes.paragraph("", "", *(nodes.Text(part) if isinstance(part, str) else part for part in parts))


def words(blocks: list[nodes.Node]) -> list[str]:
    return [" ".join(block.astext().split()) for block in blocks]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["One block. Two", "\n", "blocks? Three."], ["One block.", "Two blocks?", "Three."]),
        (["As Dao et al. Report, e.g. Here. Then"], ["As Dao et al. Report, e.g. Here.", "Then"]),
        (
            ["In ", nodes.math("", "N^2"), " bytes. Never ", nodes.emphasis("", "more"), "."],
            ["In N^2 bytes.", "Never more."],
        ),
        ([nodes.strong("", "Takeaway."), " Keep one number."], ["Keep one number."]),
        (["Figure 3. A peak. (data, script)"], ["A peak."]),
        (["(Skip this. It is short.) Begin here."], ["Begin here."]),
        (["At 30 tokens. 12 are read."], ["At 30 tokens.", "12 are read."]),
    ],
)
def test_sentences(parts: list[str | nodes.Node], expected: list[str]) -> None:
    assert words([joined([each]) for each in sentences(paragraph(*parts))]) == expected


def test_a_first_sentence_is_never_cut() -> None:
    found = sentences(paragraph("One two three four. Five six. Seven."))
    assert text(first(found, 2).children) == "One two three four."
    assert text(first(found, 6).children) == "One two three four. Five six."


def test_a_digest_has_two_paragraphs_up_to_the_check() -> None:
    code = nodes.literal_block("", "x = 1")
    blocks = [paragraph("One."), paragraph("and so on."), code, paragraph("It prints 1."), paragraph("Two.")]
    blocks += [paragraph("Three."), paragraph("Check. Why?"), paragraph("Answer.")]
    assert words(digest(blocks, 100, is_pencil=False)) == ["One.", "x = 1", "Two."]
    assert words(digest(blocks, 100, is_pencil=True)) == ["One.", "x = 1", "Two.", "Three."]
    assert words(digest(blocks, 3, is_pencil=False)) == ["One.", "Two."], "the code has no room"


def test_a_sentence_that_announces_something_needs_it() -> None:
    announced, formula = paragraph("With two keys:"), nodes.math_block("", "x")
    assert words(digest([announced, formula], 100, is_pencil=False)) == ["With two keys:", "x"]
    assert digest([announced, paragraph("it does.")], 100, is_pencil=False) == []
    assert words(lead([paragraph("Keep it. With two keys:")])) == ["Keep it."]
    assert lead([announced]) == []
