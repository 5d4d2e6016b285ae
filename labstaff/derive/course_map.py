"""Keeps docs/course_map.md and its figure in step with the labs' manifests."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from labkit.labs.manifest import Lab
from labkit.suite.messages import points_text
from labstaff import figures
from labstaff.derive import outcomes
from labstaff.derive.regions import with_region

PAGE = Path("docs", "course_map.md")
FIGURE = "00_course_map"
BEGIN, END = "<!-- from the manifests, by `lab build`: begin -->", "<!-- from the manifests: end -->"
OUTCOMES = "<!-- outcomes from the manifests, by `lab build`: begin -->", "<!-- outcomes from the manifests: end -->"


def refresh_page(house: Path, labs: Iterable[Lab]) -> list[Path]:
    """Derive the page's table and outcomes again; returns the page if it changed."""
    page = house / PAGE
    text = page.read_text(encoding="utf-8")
    fresh = with_labs(text, labs)
    if text == fresh:
        return []
    page.write_text(fresh, encoding="utf-8")
    return [page]


def refresh_figure() -> list[Path]:
    """Draw the figure again if its data is stale; returns the file if so."""
    return figures.build([FIGURE]) if figures.stale([FIGURE]) else []


def with_labs(text: str, labs: Iterable[Lab]) -> str:
    """Return the page's `text` with its table and its outcomes, each between two comments, derived from `labs`.

    Raises:
        ValueError: the comments are not there, once each.
    """
    labs = list(labs)
    text = with_region(text, BEGIN, END, table(labs), str(PAGE))
    return with_region(text, *OUTCOMES, outcomes.by_lab(labs), str(PAGE))


def table(labs: Iterable[Lab]) -> str:
    """Return the labs that are no drafts as a Markdown table with sums; links are relative to docs/."""
    labs = [lab for lab in labs if not lab.draft]
    lines = [
        "| lab | what you do | read | needs | hours | points |",
        "|---|---|---|---|---:|---:|",
        *(_row(lab, {each.label for each in labs}) for lab in labs),
    ]
    suites, reports = sum(lab.points for lab in labs), sum(lab.report_points for lab in labs)
    lines.append(
        f"| **all** | | | | **{sum(lab.hours for lab in labs):g}** "
        f"| **{points_text(suites)} + {points_text(reports)}** |"
    )
    return "\n".join(lines) + "\n"


def _row(lab: Lab, labels: Collection[str]) -> str:
    read = ", ".join(f"[{_spoken(path)}]({Path(path).name})" for path in lab.read)
    needs = ", ".join(f"Lab {label.removeprefix('lab')}" for label in lab.requires if label in labels)
    return (
        f"| [{lab.number} {lab.title}](../labs/{lab.folder.name}/README.md) | {lab.summary} | {read or '–'} "
        f"| {needs or '–'} | {lab.hours:g} | {points_text(lab.points)} + {points_text(lab.report_points)} |"
    )


def _spoken(path: str) -> str:
    """`chapter 4` for docs/04_tiling.md, and a page without a number by its name."""
    number, _, name = Path(path).stem.partition("_")
    return f"chapter {int(number)}" if number.isdigit() else f"{number} {name}".replace("_", " ").strip()
