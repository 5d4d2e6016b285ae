"""Makes the figures of the docs: one style, one registry and one command for all.

A script `docs/figures/make/*.py` holds `FIGURES: dict[str, Recipe]`. `python -m labstaff.figures [NAME ...]` computes
each recipe's data, draws it, and writes `docs/figures/NAME.svg` and `NAME.json`; `--redraw` draws the data that were
kept; `--check` recomputes the data only and exits with status 1 when a JSON file no longer matches, or when the drawing
code has changed since. Data must be the same on every run: counted bytes,
operations and closed forms, never a time that was measured.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import json
import re
import runpy
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES_DIR = Path(__file__).resolve().parents[1] / "docs" / "figures"

# Role -> (light, dark). The hues follow Okabe and Ito's palette, made darker or lighter until lines and small text
# stand out from the paper. No figure may rely on colour alone: use a marker, a dash or a label as well.
COLOURS = {
    "paper": ("#fefefe", "#10151c"),
    "ink": ("#1c2128", "#e6eaef"),
    "muted": ("#57606a", "#a3adb8"),
    "grid": ("#d5dae0", "#323b46"),
    "blue": ("#0067a8", "#5db7ee"),
    "orange": ("#c24e00", "#ff9a4d"),
    "green": ("#007a5a", "#35cfa0"),
    "pink": ("#a8447f", "#eb9dcb"),
}
INK, MUTED, GRID, PAPER = (COLOURS[role][0] for role in ("ink", "muted", "grid", "paper"))
CARD = (1200, 630)
"""Width and height of a figure that a link shows elsewhere."""
BLUE, ORANGE, GREEN, PINK = (COLOURS[role][0] for role in ("blue", "orange", "green", "pink"))


@dataclass(frozen=True)
class Recipe:
    """How one figure is made: `data()` returns plain data, `draw(data)` a matplotlib Figure.

    `takes_minutes`: the data are measured on the real model, or take long; tests compare the drawing with the data that
    were kept.
    """

    data: Callable[[], dict[str, Any]]
    draw: Callable[[dict[str, Any]], Figure]
    takes_minutes: bool = False


def recipes(names: Iterable[str] = (), directory: Path = FIGURES_DIR) -> dict[str, Recipe]:
    """Return the recipes of all scripts in `directory/make`, or those named.

    Raises ValueError for a name that no script makes.
    """
    found: dict[str, Recipe] = {}
    for script in sorted((directory / "make").glob("*.py")):
        found |= runpy.run_path(str(script))["FIGURES"]
    wanted = list(names) or list(found)
    if unknown := [name for name in wanted if name not in found]:
        raise ValueError(f"no script in docs/figures/make makes {unknown[0]!r}; there are: {', '.join(found)}")
    return {name: found[name] for name in wanted}


def build(names: Iterable[str] = (), directory: Path = FIGURES_DIR, *, redraw: bool = False) -> list[Path]:
    """Compute, draw and write the named figures (all when none is named); return the SVG files.

    With `redraw` the data are those that were kept; OSError where there are none.
    """
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("Agg")
    written = []
    for name, recipe in recipes(names, directory).items():
        kept = directory / f"{name}.json"
        data = json.loads(kept.read_text(encoding="utf-8") if redraw else as_json(recipe.data()))
        with style():
            figure = recipe.draw(data)
            written.append(save_figure(figure, directory / f"{name}.svg", data, recipe.draw))
        plt.close(figure)
    return written


def draw_cards(names: Iterable[str], out: Path) -> None:
    """Draw the named figures again from the data that were kept, as `out/NAME.png` of CARD pixels with paper around."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from PIL import Image, ImageOps

    mpl.use("Agg")
    out.mkdir(parents=True, exist_ok=True)
    for name, recipe in recipes(names).items():
        image = io.BytesIO()
        with style():
            figure = recipe.draw(json.loads((FIGURES_DIR / f"{name}.json").read_text(encoding="utf-8")))
            figure.savefig(image, format="png", dpi=200)
        plt.close(figure)
        ImageOps.pad(Image.open(image).convert("RGB"), CARD, color=PAPER).save(out / f"{name}.png", optimize=True)


def stale(names: Iterable[str] = (), directory: Path = FIGURES_DIR) -> list[str]:
    """Return one line for each figure whose files are missing, or differ from recomputed data.

    Data that take minutes are recomputed only for figures that are named.
    """
    made = recipes(names, directory)
    made = {name: replace(each, takes_minutes=each.takes_minutes and not names) for name, each in made.items()}
    problems = [problem(name, recipe, directory) for name, recipe in made.items()]
    return [each for each in problems if each]


def problem(name: str, recipe: Recipe, directory: Path = FIGURES_DIR) -> str:
    """Return why a figure's files are not what its recipe gives, in one line; "" where they are."""
    image, data_file = directory / f"{name}.svg", directory / f"{name}.json"
    if missing := [file.name for file in (image, data_file) if not file.is_file()]:
        return f"{missing[0]}: missing; run: python -m labstaff.figures {name}"
    kept = data_file.read_text(encoding="utf-8")
    now = kept if recipe.takes_minutes else as_json(recipe.data())
    if kept != now:
        where = _first_difference(json.loads(kept), json.loads(now))
        return f"{data_file.name}: {where}; run: python -m labstaff.figures {name}"
    drawn = image.read_text(encoding="utf-8")
    if _stamp(kept) not in drawn:
        return f"{image.name}: drawn from other data than {data_file.name}; run: python -m labstaff.figures {name}"
    if _code_stamp(recipe.draw) not in drawn or _dark_rules() not in drawn:
        return f"{image.name}: drawn by other code; run: python -m labstaff.figures {name} --redraw"
    return ""


def style() -> AbstractContextManager[None]:
    """Return the matplotlib context for drawing figures."""
    import matplotlib as mpl

    settings: Any = {
        "figure.facecolor": PAPER,
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.h_pad": 0.1,  # inches: a title touches neither the edge nor the panel above it
        "figure.figsize": (5.0, 4.2),
        "font.size": 10,
        "text.color": INK,
        "axes.facecolor": PAPER,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.titlesize": 10.5,
        "axes.titlelocation": "left",
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": mpl.cycler(color=[BLUE, ORANGE, GREEN, PINK], linestyle=["-", "--", "-.", ":"]),  # type: ignore[attr-defined]
        "grid.color": GRID,
        "grid.linewidth": 0.7,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "lines.linewidth": 1.8,
        "lines.markersize": 6,
        "legend.facecolor": PAPER,
        "legend.edgecolor": "none",
        "legend.framealpha": 1,
        "svg.fonttype": "none",
        "svg.hashsalt": "attention-labs",
    }
    return mpl.rc_context(settings)


def save_figure(figure: Figure, path: Path, data: dict[str, Any], draw: Callable[..., Figure]) -> Path:
    """Write `figure` as an SVG for light and dark mode, and `data` as JSON next to it; return the SVG's path.

    The same figure and data give the same bytes: no date, no version, fixed ids. Comments in the SVG hold the digests
    of the JSON that it was drawn from and of the code that drew it.
    """
    text = as_json(data)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    svg = "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    start = svg.index(">", svg.index("<svg")) + 1
    stamps = f"\n <!-- {_stamp(text)} -->\n <!-- {_code_stamp(draw)} -->"
    head = f"{stamps}\n <title>{escape(path.stem)}</title>\n <style>{_dark_rules()}</style>"
    path.with_suffix(".svg").write_text(svg[:start] + head + svg[start:], encoding="utf-8")
    path.with_suffix(".json").write_text(text, encoding="utf-8")
    return path.with_suffix(".svg")


def canvas(ax: Axes, width: float, height: float) -> None:
    """Set up `ax` for a drawing of `width` × `height` units, with y downwards and no axes."""
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.axis("off")


def box(
    ax: Axes,
    place: tuple[float, float, float, float],
    text: str = "",
    colour: str = MUTED,
    fill: float = 0.16,
    **words: Any,
) -> None:
    """Draw a rectangle at (left, top, width, height), filled with opacity `fill`, and `text` in its middle."""
    from matplotlib.patches import Rectangle

    left, top, width, height = place
    ax.add_patch(Rectangle((left, top), width, height, facecolor=colour, alpha=fill, linewidth=0))
    ax.add_patch(Rectangle((left, top), width, height, facecolor="none", edgecolor=colour, linewidth=1.2))
    say(ax, left + width / 2, top + height / 2, text, **words)


def say(ax: Axes, x: float, y: float, text: str, **words: Any) -> None:
    """Write `text` at (x, y), centred and small unless `words` says otherwise."""
    ax.text(x, y, text, **{"ha": "center", "va": "center", "size": 8.5, "color": INK, **words})


def arrow(
    ax: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str = MUTED,
    dash: str = "-",
    bend: float = 0,
) -> None:
    """Draw an arrow; `bend` is its curvature, positive to the left of its direction on paper."""
    looks = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.3, "linestyle": dash, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops={**looks, "connectionstyle": f"arc3,rad={bend}"})


def as_json(data: Any) -> str:
    """Return `data` as JSON text with floats rounded to six significant digits; integers stay exact."""
    return json.dumps(_rounded(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="figures; default: all")] = None,
    check: Annotated[bool, typer.Option("--check", help="write nothing; fail when a figure is out of date")] = False,
    redraw: Annotated[bool, typer.Option("--redraw", help="draw the data that were kept")] = False,
) -> None:
    """Rebuild or check the figures of the docs."""
    try:
        if not check:
            for path in build(names or [], redraw=redraw):
                typer.echo(f"wrote {path.name} and {path.stem}.json")
        elif problems := stale(names or []):
            sys.exit("\n".join(problems))
        else:
            typer.echo("every figure's data is up to date")
    except (ValueError, OSError) as error:
        sys.exit(str(error))


def _first_difference(kept: Any, now: Any, place: str = "data") -> str:
    if isinstance(kept, dict) and isinstance(now, dict) and kept.keys() == now.keys():
        pairs = [(kept[key], now[key], f"{place}.{key}") for key in kept]
    elif isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        pairs = [(old, new, f"{place}[{index}]") for index, (old, new) in enumerate(zip(kept, now, strict=True))]
    else:
        return f"{place} is {str(kept)[:60]}, recomputed {str(now)[:60]}"
    different = [pair for pair in pairs if pair[0] != pair[1]]
    return _first_difference(*different[0]) if different else f"{place} differs in form only"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _stamp(text: str) -> str:
    return f"data sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _code_stamp(draw: Callable[..., Figure]) -> str:
    return f"code sha256:{hashlib.sha256(_drawing_code(draw).encode()).hexdigest()}"


def _drawing_code(draw: Callable[..., Figure]) -> str:
    """The source of a drawing function, and of the functions and constants of scripts and of this module that it uses.

    What is imported from elsewhere is not followed.
    """
    folder, found = Path(draw.__code__.co_filename).parent, {}
    left: dict[str, Any] = {"draw": draw, "style": style}
    while left:
        name, value = left.popitem()
        value = inspect.unwrap(value) if callable(value) else value
        code = getattr(value, "__code__", None)
        if code is None:
            with contextlib.suppress(TypeError, ValueError):  # a module, a class
                found[name] = json.dumps(value)
        elif Path(code.co_filename).parent == folder or code.co_filename == __file__:
            found[name] = inspect.getsource(value)
            used = {each: value.__globals__[each] for each in _names(code) if each in value.__globals__}
            left |= {each: value for each, value in used.items() if each not in found}
    return "\n".join(f"{name} {found[name]}" for name in sorted(found))


def _names(code: CodeType) -> set[str]:
    """The global names that a function's code uses, in the functions inside it too."""
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)


def _dark_rules() -> str:
    """CSS that replaces each light colour, so that a viewer without media queries shows the light form."""
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
        for light, dark in COLOURS.values()
        for part in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark){{{rules}}}"


if __name__ == "__main__":
    typer.run(main)
