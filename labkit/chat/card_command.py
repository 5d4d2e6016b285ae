"""`lab card`: one picture of a finished lab, 1,200 × 630, as PNG and as SVG."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from labkit.chat.cards import Card
    from labkit.labs.manifest import Lab

FOLDER = Path("plots/cards")
PAPER, INK, MUTED, GRID, BLUE, ORANGE = "#10151c", "#e6eaef", "#a3adb8", "#323b46", "#5db7ee", "#ff9a4d"
STYLE: dict[Any, Any] = {
    **{"figure.facecolor": PAPER, "axes.facecolor": PAPER, "axes.edgecolor": MUTED, "axes.labelcolor": MUTED},
    **{"axes.spines.top": False, "axes.spines.right": False, "text.color": INK, "font.size": 11},
    **{"xtick.color": MUTED, "ytick.color": MUTED, "svg.hashsalt": "card"},
}
UNITS = ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "bytes"))


def card(
    lab: Annotated[str, typer.Argument(metavar="LAB", help="a finished lab's number, like 05")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="where the files go")] = FOLDER,
    model: Annotated[bool, typer.Option(help="with the model's sentence, which takes a while")] = True,
) -> None:
    """Draw a finished lab as one picture to show around: your bytes, your tiles, and what a model says through them."""
    from labkit.chat.mistakes import explained
    from labkit.labs.catalog import find_lab
    from labkit.notebook import student_module
    from labkit.suite.results import load, next_task

    found = find_lab(lab)
    if left := next_task(found, load(found)):
        sys.exit(f"lab card: {found.label} is not finished: {left.name} is next; uv run lab check {found.number}")
    from labkit.chat import cards

    make = getattr(cards, found.folder.name.split("_", 1)[1], None)
    if make is None:
        sys.exit(f"lab card: {found.label} has no card")
    with explained(found):
        content = make(student_module(found.number))
    from labkit.chat.whole import spoken
    from labkit.review.stored import load_review

    reviewed = load_review(found)
    n_found = sum(reviewed.n_found.values())
    review = f"My own tests find {n_found} of {reviewed.n_wrong} wrong versions" if n_found else ""
    for file in write_card(found, content, spoken() if model else "", review, out):
        typer.echo(f"written: {file}")


def write_card(lab: Lab, content: Card, sentence: str, review: str, folder: Path) -> list[Path]:
    """Write the PNG and the SVG into `folder`; returns their paths."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{lab.label}.{form}" for form in ("png", "svg")]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, 6.3), dpi=100)
        FigureCanvasAgg(figure)
        low = 0.26 if sentence else 0.13
        ratio, at = max(
            (theirs / max(mine, 1), i) for i, (theirs, mine) in enumerate(zip(*content.curves, strict=True))
        )
        times = f"{ratio:,.{int(ratio < 10)}f} × {content.headline}"
        what = f"{content.what}; {content.xlabel} = {content.x[at]:,}"
        figure.text(0.05, 0.905, f"Attention Labs · Lab {lab.number}", size=13, color=MUTED)
        figure.text(0.05, 0.82, lab.title, size=27, weight="bold")
        figure.text(0.05, 0.735, times, size=22, color=BLUE, weight="bold")
        figure.text(0.05, 0.69, what, size=11.5, color=MUTED)
        has_picture = content.picture is not None
        _curves(figure.add_axes((0.11, low + 0.03, 0.36 if has_picture else 0.84, 0.6 - low)), content)
        if has_picture:
            axes = figure.add_axes((0.54, low + 0.04, 0.41, 0.88 - low), anchor="W")
            colours = mpl.colormaps[content.cmap].with_extremes(bad=(*mpl.colors.to_rgb(GRID), 0.35))
            aspect: Any = "equal" if len(set(content.picture.shape)) == 1 else "auto"
            axes.imshow(content.picture, cmap=colours, aspect=aspect, interpolation="nearest")
            axes.set_axis_off()
            figure.text(0.54, low - 0.01, content.caption, size=11.5, color=MUTED)
        lines = textwrap.wrap(f"“{sentence}”", 92, max_lines=2, placeholder=" …”") if sentence else []
        figure.text(0.05, 0.155, "\n".join(lines), size=14, style="italic", va="top", linespacing=1.35)
        speaker = "SmolLM2 says it, through my labs" if sentence else ""
        figure.text(0.05, 0.03, " · ".join(filter(None, (speaker, review))), size=11, color=MUTED)
        for file in files:
            figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files


def bytes_text(n_bytes: float) -> str:
    """A number of bytes in the largest unit that it reaches."""
    power, unit = next((each for each in UNITS if n_bytes >= 2 ** each[0]), UNITS[-1])
    return f"{n_bytes / 2**power:.4g} {unit}"


def _curves(axes: Any, content: Card) -> None:
    """The two curves; both axes logarithmic where x grows by factors."""
    mark = "o" if len(content.x) < 10 else ""
    for name, values, colour in zip(content.names, content.curves, (ORANGE, BLUE), strict=True):
        axes.plot(content.x, values, marker=mark, color=colour, linewidth=2.5, label=name)
    if mark:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(content.x, [f"{x:,}" for x in content.x])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda y, _place: bytes_text(y))
    axes.yaxis.get_major_locator().set_params(**({"numticks": 6} if mark else {"nbins": 5}))
    axes.set_xlabel(content.xlabel)
    axes.grid(color=GRID, linewidth=0.7)
    axes.legend(frameon=False, loc="upper left", labelcolor=INK)
    axes.set_ylim(top=max(content.curves[0]) * (6 if mark else 1.45))
