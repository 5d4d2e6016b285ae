"""The instructor's commands: `lab build` and `lab release`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.catalog import HOUSE, find_lab, find_labs


def add_commands(app: typer.Typer) -> None:
    """Add the instructor's commands to `lab`."""
    app.command(rich_help_panel="instructors")(build)
    app.command(rich_help_panel="instructors")(release)


def build(labs: Annotated[list[str] | None, typer.Argument(metavar="[LAB]...")] = None) -> None:
    """Derive stubs and reports again from solutions/."""
    from labkit.instructor.build import build as build_lab
    from labkit.instructor.markers import MarkerError
    from labkit.instructor.notebooks import ReportError

    try:
        for lab in [find_lab(name) for name in labs or []] or find_labs():
            changed = build_lab(lab)
            for path in changed:
                typer.echo(f"wrote {path.relative_to(HOUSE)}")
            if not changed:
                typer.echo(f"{lab.label}: up to date")
    except (MarkerError, ReportError) as error:
        sys.exit(f"lab build: {error}")


def release(out: Annotated[Path, typer.Argument(metavar="OUT", help="a folder that is not there yet")]) -> None:
    """Write the students' tree: no solutions, no course tests, nothing that leaks."""
    from labkit.instructor.release import ReleaseError
    from labkit.instructor.release import release as release_tree

    try:
        written = release_tree(HOUSE, out)
    except ReleaseError as error:
        sys.exit(f"lab release: {error}")
    typer.echo(f"released {len(written)} files to {out}")
