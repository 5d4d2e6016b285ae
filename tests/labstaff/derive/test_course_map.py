"""docs/course_map.md is derived from the manifests."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from labkit.labs.catalog import ROOT, find_labs
from labkit.labs.manifest import Lab
from labstaff.derive.course_map import BEGIN, END, OUTCOMES, PAGE, refresh_page, table, with_labs
from labstaff.derive.outcomes import as_list, by_lab


def test_the_table_is_fresh() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert text == with_labs(text, find_labs()), "docs/course_map.md is stale; run: uv run lab build"


def test_it_holds_what_the_manifests_say() -> None:
    first, lab, *_ = find_labs()
    row = table([first, lab]).splitlines()[3]
    for part in (lab.title, lab.summary, f"../labs/{lab.folder.name}/README.md", "Lab 01", f"| {lab.hours:g} |"):
        assert part in row
    assert "Lab 01" not in table([lab]), "a course may leave labs out"
    assert lab.title not in table([first, msgspec.structs.replace(lab, draft=True)])
    assert f"{lab.points:g} + {sum(question.points for question in lab.questions):g}" in row


def test_a_stale_table_is_written_again(tmp_path: Path) -> None:
    page = tmp_path / PAGE
    page.parent.mkdir()
    parts = f"# Map\n\n{BEGIN}\n{{}}{END}\n\n{OUTCOMES[0]}\n{{}}{OUTCOMES[1]}\n\nAfter.\n"
    page.write_text(parts.format("| old |\n", ""), encoding="utf-8")
    labs = find_labs()
    assert refresh_page(tmp_path, labs) == [page]
    assert page.read_text(encoding="utf-8") == parts.format(table(labs), by_lab(labs))
    assert refresh_page(tmp_path, labs) == []


def test_a_page_without_its_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected one region"):
        with_labs("# Map\n", find_labs())


@pytest.mark.parametrize("lab", find_labs(), ids=lambda lab: lab.label)
def test_outcomes_are_shown(lab: Lab) -> None:
    pages = [lab.folder / "README.md"] if lab.draft else [lab.folder / "README.md", ROOT / PAGE]
    for page in pages:
        assert as_list(lab) in page.read_text(encoding="utf-8"), f"{page.name} lacks them; run: uv run lab build"
