"""Figures of the docs: their data is up to date, and each has an alternative text and a caption."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT
from labstaff import figures

pytestmark = pytest.mark.slow

RECIPES = figures.recipes()
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE)
INLINE_CODE = re.compile(r"`[^`\n]+`")
IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<target>[^)\s]+)[^)]*\)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")

SCRIPT = """
from labstaff.figures import Recipe

COLOUR = 0

def draw(data):
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots()
    plot(axes, data["bytes"])
    return figure

def plot(axes, sizes):
    axes.plot(sizes, color=f"C{COLOUR}")

FIGURES = {"sizes": Recipe(lambda: {"bytes": [1, 2, VALUE], "ratio": 1 / 3}, draw)}
"""


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if not recipe.takes_minutes])
def test_data_is_up_to_date(name: str) -> None:
    """Data measured on the real model take minutes: `python -m labstaff.figures --check NAME` computes them."""
    assert figures.problem(name, RECIPES[name]) == ""


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.takes_minutes])
def test_a_figure_of_the_real_model_shows_the_data_that_were_kept(name: str) -> None:
    recipe = figures.recipes()[name]
    assert figures.problem(name, recipe) == ""


def test_every_file_in_the_figures_folder_is_made_by_a_script() -> None:
    files = [*figures.FIGURES_DIR.glob("*.svg"), *figures.FIGURES_DIR.glob("*.json")]
    assert {file.stem for file in files} == set(RECIPES)


def test_measured_points_of_chapter_01_follow_the_formulas() -> None:
    data = json.loads((figures.FIGURES_DIR / "01_memory_over_n.json").read_text(encoding="utf-8"))
    assert [point["N"] for point in data["points"]] == [256, 512, 1024, 2048, 4096]
    for point in data["points"]:
        n, d = point["N"], data["d"]
        assert point["inputs_bytes"] == 3 * n * d * 4
        assert point["named_peak_kib"] * 1024 == (4 * n * n + n * d) * 4
        assert point["in_place_peak_kib"] * 1024 == (n * n + n * d) * 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_image_has_an_alternative_text_and_a_caption(page: Path) -> None:
    assert _image_problems(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_is_dropped_as_a_comment(page: Path) -> None:
    prose = _prose(page.read_text(encoding="utf-8"))
    assert re.findall(r"^\s*(?:> )?%.*", prose, re.MULTILINE) == [], "MyST drops a line that begins with %"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_a_page_refers_to_exists(page: Path) -> None:
    text = _prose(page.read_text(encoding="utf-8"))
    targets = [match["target"] for match in (*IMAGE.finditer(text), *LINK.finditer(text))]
    paths = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:", target)]
    assert [path for path in paths if path and not (page.parent / path).exists()] == []


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_figure_is_shown_on_some_page(name: str) -> None:
    shown = {Path(match["target"]).name for page in PAGES for match in IMAGE.finditer(page.read_text(encoding="utf-8"))}
    assert f"{name}.svg" in shown


def write_script(folder: Path, value: str) -> None:
    (folder / "make" / "one.py").write_text(SCRIPT.replace("VALUE", value), encoding="utf-8")


def of_other_data(folder: Path) -> None:
    svg = folder / "sizes.svg"
    svg.write_text(re.sub("sha256:..", "sha256:zz", svg.read_text(encoding="utf-8")), encoding="utf-8")


def drawn_otherwise(folder: Path) -> None:
    script = folder / "make" / "one.py"
    script.write_text(script.read_text(encoding="utf-8").replace("COLOUR = 0", "COLOUR = 1"), encoding="utf-8")


def dark_in_other_colours(folder: Path) -> None:
    svg = folder / "sizes.svg"
    text = svg.read_text(encoding="utf-8")
    svg.write_text(text.replace(next(iter(figures.COLOURS.values()))[1], "#123456"), encoding="utf-8")


STALE: dict[str, Callable[[Path], object]] = {
    "sizes.json: data.bytes[2] is 3, recomputed 4": lambda folder: write_script(folder, "4"),
    "sizes.svg: missing": lambda folder: (folder / "sizes.svg").unlink(),
    "sizes.svg: drawn from other data": of_other_data,
    "sizes.svg: drawn by other code; run: python -m labstaff.figures sizes --redraw": drawn_otherwise,
    "sizes.svg: drawn by other code": dark_in_other_colours,
}
"""What is reported → what was done to a folder of figures."""


def test_stale_figures_are_reported(tmp_path: Path) -> None:
    (tmp_path / "make").mkdir()
    write_script(tmp_path, "3")
    figures.build(directory=tmp_path)
    assert figures.stale(directory=tmp_path) == []
    made = {file.name: file.read_bytes() for file in tmp_path.glob("sizes.*")}
    assert set(made) == {"sizes.svg", "sizes.json"}
    for report, damage in STALE.items():
        damage(tmp_path)
        (problem,) = figures.stale(directory=tmp_path)
        assert report in problem
        write_script(tmp_path, "3")
        figures.build(directory=tmp_path)
        assert {file.name: file.read_bytes() for file in tmp_path.glob("sizes.*")} == made, "the same bytes again"
    drawn_otherwise(tmp_path)
    write = tmp_path / "make" / "one.py"
    write.write_text(write.read_text(encoding="utf-8").replace("2, 3]", "2, 4]"), encoding="utf-8")
    figures.build(directory=tmp_path, redraw=True)
    assert (tmp_path / "sizes.json").read_bytes() == made["sizes.json"], "the data are those that were kept"
    assert (tmp_path / "sizes.svg").read_bytes() != made["sizes.svg"]
    with pytest.raises(ValueError, match=r"makes 'size'; there are: sizes"):
        figures.stale(["size"], directory=tmp_path)


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_colour_of_a_figure_has_a_dark_form(name: str) -> None:
    svg = (figures.FIGURES_DIR / f"{name}.svg").read_text(encoding="utf-8")
    drawn = svg.partition("</style>")[2]
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawn))
    assert used
    assert used <= {light for light, _ in figures.COLOURS.values()}


def _prose(markdown: str) -> str:
    """Return the text without code, so that an example of an image or a link does not count as one."""
    return INLINE_CODE.sub("", FENCE.sub("", markdown))


def _image_problems(markdown: str) -> list[str]:
    text, problems = FENCE.sub("", markdown), []
    for image in IMAGE.finditer(text):
        name = Path(image["target"]).name
        if len(image["alt"].split()) < 3:
            problems.append(f"{name}: the alternative text says too little: {image['alt']!r}")
        below = text[image.end() :].lstrip("\n")
        while stacked := IMAGE.match(below):  # images on consecutive lines share a caption
            below = below[stacked.end() :].lstrip("\n")
        caption = below.partition("\n\n")[0].strip()
        if not (caption.startswith("*") and caption.endswith("*") and len(caption.split()) >= 6):
            problems.append(f"{name}: no caption in italics under it, found: {caption[:60]!r}")
    return problems
