"""`lab card`: the bytes of each lab's card, its picture, and the files."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.chat import cards
from labkit.chat.card_command import bytes_text, card, write_card
from labkit.labs.catalog import find_lab, find_labs
from tests.labkit.chat.test_whole import solution

pytestmark = pytest.mark.slow
LABS = [lab for lab in find_labs() if hasattr(cards, lab.folder.name.split("_", 1)[1])]


def content_of(lab):
    """The card's content from the solution."""
    return getattr(cards, lab.folder.name.split("_", 1)[1])(solution(lab.number))


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.label)
def test_every_card_has_fewer_bytes_and_a_caption_for_its_picture(lab):
    content = content_of(lab)
    theirs, mine = content.curves
    assert len(content.x) == len(theirs) == len(mine)
    assert theirs[-1] > 2 * mine[-1] > 0
    assert (content.picture is not None) == bool(content.caption)


def test_all_labs_that_run_here_have_a_card():
    assert {lab.number for lab in LABS} == {f"{n:02}" for n in range(1, 15)} - {"10"}


def test_tiles_are_those_that_are_computed():
    content = content_of(find_lab("05"))
    n = len(content.picture)
    assert np.array_equal(~np.isnan(content.picture), np.tri(n, dtype=bool))
    assert np.nanmax(content.picture) == n * (n + 1) / 2
    window = content_of(find_lab("08")).picture
    assert 2 * n < (~np.isnan(window)).sum() < 4 * n


def test_the_files_have_the_size_of_a_shared_picture_and_no_points(tmp_path):
    import matplotlib.image

    lab, content = find_lab("09"), content_of(find_lab("09"))
    png, svg = write_card(lab, content, "The sky is blue.", "My own tests find 3 of 4 wrong versions", tmp_path)
    assert matplotlib.image.imread(png).shape[:2] == (630, 1200)
    text = svg.read_text(encoding="utf-8")
    for part in ("Decoding", "3.0 × fewer bytes", "“The sky is blue.”", "3 of 4 wrong versions", content.caption):
        assert f"<!-- {part}" in text or part in text, part
    assert "points" not in text


def test_an_unfinished_lab_has_no_card():
    with pytest.raises(SystemExit, match="lab01 is not finished: standard_attention is next"):
        card("01")


def test_bytes_are_written_in_the_largest_unit():
    assert [bytes_text(n) for n in (0, 1000, 3 << 20, 5 << 30)] == ["0 bytes", "1000 bytes", "3 MiB", "5 GiB"]
