"""Writes traces as an offline page, as JSON, or as a picture."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.labs.catalog import ROOT
from labkit.meters.tracing import Trace
from labkit.trace.thin import thinned
from labkit.trace.totals import differences

FOLDER = Path(__file__).parent
VIEWER = ("page.css", "page.js")
GUIDE = ROOT / "docs" / "trace.md"


def as_data(name: str, trace: Trace) -> dict[str, Any]:
    """A trace as plain data: the fields and peaks of `Trace`, and the run's name."""
    return {
        "name": name,
        "peak_bytes": trace.peak_bytes,
        "peak_step": trace.peak_step,
        "before_bytes": trace.before_bytes,
        "notes": trace.notes,
        **{part: [vars(each) for each in getattr(trace, part)] for part in ("passes", "lines", "stacks", "steps")},
        "lives": [vars(each) for each in trace.lives_by_birth()],
    }


def page(runs: Sequence[tuple[str, Trace]], *, viewer: str = "", back: tuple[str, str] | None = None) -> str:
    """One HTML document for one run, or for several to be compared.

    Args:
        viewer: address of the folder with the files `VIEWER`, which the page loads; without it they are in the page.
        back: address and text of a link to the course.
    """
    title = " and ".join(name for name, _ in runs)
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in VIEWER)
    parts = {
        "title": html.escape(f"Memory of {title}"),
        "sources": "'self' file:" if viewer else "",
        "style": f'<link rel="stylesheet" href="{viewer}{VIEWER[0]}">' if viewer else f"<style>\n{style}</style>",
        "script": f'<script src="{viewer}{VIEWER[1]}"></script>' if viewer else f"<script>\n{script}</script>",
        "back": f'<a href="{html.escape(back[0])}">{html.escape(back[1])}</a>' if back else "",
        "data": script_text([as_data(name, trace) for name, trace in runs]),
        "differences": script_text(differences(runs[0][1], runs[1][1]) if len(runs) == 2 else {}),
    }
    template = (FOLDER / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{ (\w+) \}\}", lambda mark: parts[mark[1]], template)


def script_text(data: Any) -> str:
    """JSON that cannot end the script element around it."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def write(path: Path, runs: Sequence[tuple[str, Trace]]) -> None:
    """Write runs in the format of the file's suffix: .html, .json, .svg or .png.

    Raises:
        ValueError: the ending is not one of these.
    """
    if path.suffix not in (".html", ".json", ".svg", ".png"):
        raise ValueError(f"{path.name}: traces are written as .html, .json, .svg or .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = [(name, thinned(trace)) for name, trace in runs] if path.suffix != ".json" else runs
    if path.suffix == ".html":
        path.write_text(page(shown, back=_guide_from(path)), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps([as_data(name, trace) for name, trace in runs], indent=1), encoding="utf-8")
    else:
        from labkit.trace.picture import save_picture

        save_picture(path, shown)


def _guide_from(path: Path) -> tuple[str, str] | None:
    """Address and text of a link to the guide, if `path` is inside the course's folder."""
    folder = path.resolve().parent
    if not folder.is_relative_to(ROOT) or not GUIDE.is_file():
        return None
    return os.path.relpath(GUIDE, folder), "Attention Labs: how to read this page"
