"""Writes traces down: a page to walk through that opens offline, data for a script, a picture for a report."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.meters.tracing import Trace

FOLDER = Path(__file__).parent


def as_data(name: str, trace: Trace) -> dict[str, Any]:
    """A trace as plain data: the fields of `Trace`, its steps, lives and lines, and the run's name."""
    return {
        "name": name,
        "peak_bytes": trace.peak_bytes,
        "peak_step": trace.peak_step,
        "forward_steps": trace.forward_steps,
        **{part: [vars(each) for each in getattr(trace, part)] for part in ("steps", "lives", "lines")},
    }


def page(runs: Sequence[tuple[str, Trace]]) -> str:
    """One HTML document with all that it needs: one run, or two to be compared."""
    title = " and ".join(name for name, _ in runs)
    parts = {
        "title": html.escape(f"Memory of {title}"),
        "style": (FOLDER / "page.css").read_text(encoding="utf-8"),
        "data": script_text([as_data(name, trace) for name, trace in runs]),
        "script": (FOLDER / "page.js").read_text(encoding="utf-8"),
    }
    template = (FOLDER / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{ (\w+) \}\}", lambda mark: parts[mark[1]], template)


def script_text(data: Any) -> str:
    """JSON that nothing in it can end the script element it stands in."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def write(path: Path, runs: Sequence[tuple[str, Trace]]) -> None:
    """Write runs as what the file's ending says: .html, .json, .svg or .png.

    Raises:
        ValueError: the ending is none of these.
    """
    if path.suffix not in (".html", ".json", ".svg", ".png"):
        raise ValueError(f"{path.name}: traces are written as .html, .json, .svg or .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        path.write_text(page(runs), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps([as_data(name, trace) for name, trace in runs], indent=1), encoding="utf-8")
    else:
        from labkit.trace.picture import save_picture

        save_picture(path, runs)
