"""What handouts and chapters say of a tolerance is what the suites allow."""

from __future__ import annotations

import re

import pytest

from labkit.labs.catalog import ROOT
from labkit.testing.compare import TOLERANCE

TIMES = {"twice": 2, "three times": 3, "four times": 4, "five times": 5, "eight times": 8}
PAGES = [*sorted(ROOT.glob("labs/*/README.md")), *sorted(ROOT.glob("docs/0*.md")), *sorted(ROOT.glob("docs/1*.md"))]
CLAIM = re.compile(
    rf"error may be (?P<handout>.+?) that of plain attention(?P<exceptions>[^.]*)"
    rf"|allow twice that error; the lab's, .*?, (?P<chapter>{'|'.join(TIMES)})",
    re.DOTALL,
)


def claims(text: str) -> list[re.Match[str]]:
    """The sentences of a page that say how often the error of plain attention is allowed."""
    return list(CLAIM.finditer(" ".join(text.split())))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_the_slack_of_handouts_and_chapters_is_that_of_the_suites(page):
    for claim in claims(page.read_text(encoding="utf-8")):
        assert TIMES[claim["handout"] or claim["chapter"]] == TOLERANCE.slack, claim[0]
        assert not re.search("|".join(TIMES), claim["exceptions"] or ""), claim[0]


def test_handouts_and_a_chapter_say_it():
    assert sum(len(claims(page.read_text(encoding="utf-8"))) for page in PAGES) >= 4
