"""Boxes, arrows and cells for the drawings in the docs that show how data moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labstaff.figures import INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
