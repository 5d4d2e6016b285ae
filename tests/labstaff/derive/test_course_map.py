"""docs/course_map.md is derived from the manifests."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from labkit.labs.catalog import ROOT, find_labs
from labstaff.derive.course_map import BEGIN, END, PAGE, refresh_page, table, with_table


def test_the_table_is_fresh() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert text == with_table(text, find_labs()), "docs/course_map.md is stale; run: uv run lab build"


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
    page.write_text(f"# Map\n\n{BEGIN}\n| old |\n{END}\n\nAfter.\n", encoding="utf-8")
    labs = find_labs()
    assert refresh_page(tmp_path, labs) == [page]
    assert page.read_text(encoding="utf-8") == f"# Map\n\n{BEGIN}\n{table(labs)}{END}\n\nAfter.\n"
    assert refresh_page(tmp_path, labs) == []


def test_a_page_without_its_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected one region"):
        with_table("# Map\n", find_labs())
