"""The instructor's commands: `lab build`, `lab release`, `lab site`, `lab course` and `lab grade`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.labs.catalog import ROOT, find_lab, find_labs


def add_commands(app: typer.Typer) -> None:
    """Add the instructor's commands to `lab`."""
    app.command(rich_help_panel="instructors")(build)
    app.command(rich_help_panel="instructors")(new)
    app.command(rich_help_panel="instructors")(release)
    app.command(rich_help_panel="instructors")(site)
    app.command(rich_help_panel="instructors")(course)
    app.command(rich_help_panel="instructors")(grade)


def build(labs: Annotated[list[str] | None, typer.Argument(metavar="[LAB]...")] = None) -> None:
    """Derive stubs and reports again from solutions/, and the course's map from the manifests."""
    from labstaff.derive.build import build as build_lab
    from labstaff.derive.course_map import refresh_figure, refresh_page
    from labstaff.derive.markers import MarkerError
    from labstaff.derive.notebooks import ReportError

    try:
        for lab in [find_lab(name) for name in labs or []] or find_labs():
            changed = build_lab(lab)
            for path in changed:
                typer.echo(f"wrote {path.relative_to(ROOT)}")
            if not changed:
                typer.echo(f"{lab.label}: up to date")
        for path in [*refresh_page(ROOT, find_labs()), *refresh_figure()]:
            typer.echo(f"wrote {path.relative_to(ROOT)}")
    except (MarkerError, ReportError) as error:
        sys.exit(f"lab build: {error}")


def new(
    number: Annotated[str, typer.Argument(metavar="NN", help="its number")],
    name: Annotated[str, typer.Argument(help="its name, like ring_attention")],
    tasks: Annotated[str, typer.Option(help="what a student writes: names with commas between")],
) -> None:
    """Make a lab that passes its own two-sided check, to be filled from there."""
    from labstaff.derive.new_lab import NewLabError, new_lab

    try:
        written = new_lab(ROOT, number, name, [task.strip() for task in tasks.split(",") if task.strip()])
    except NewLabError as error:
        sys.exit(f"lab new: {error}")
    for path in written:
        typer.echo(f"wrote {path.relative_to(ROOT)}")
    build(None)
    typer.echo(
        f"next: uv run pytest tests/test_labs.py -k lab{int(number):02d}; CONTRIBUTING.md says what to fill first"
    )


def release(out: Annotated[Path, typer.Argument(metavar="OUT", help="a folder that is not there yet")]) -> None:
    """Write the students' tree: no solutions, no course tests, nothing that leaks."""
    from labstaff.release.tree import ReleaseError
    from labstaff.release.tree import release as release_tree

    try:
        written = release_tree(ROOT, out)
    except ReleaseError as error:
        sys.exit(f"lab release: {error}")
    typer.echo(f"released {len(written)} files to {out}")


def site(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="a folder; a site that lies there is replaced")],
) -> None:
    """Build the chapters, handouts and figures as a website that opens from disk."""
    from labstaff.site import SiteError, build_site

    try:
        pages = build_site(ROOT, out)
    except SiteError as error:
        sys.exit(f"lab site: {error}")
    typer.echo(f"wrote {pages} pages; open {out / 'index.html'}")


def course(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="a folder that is not there yet")],
    labs: Annotated[list[str] | None, typer.Argument(metavar="[LAB]...", help="all when none is named")] = None,
) -> None:
    """Make an nbgrader course: sources, settings, and released assignments in which nothing leaks."""
    from labstaff.course.make import CourseError, make_course
    from labstaff.course.nbgrader_process import Nbgrader

    chosen = [find_lab(name) for name in labs or []] or find_labs()
    try:
        with Nbgrader() as nbgrader:
            make_course(chosen, out.resolve(), nbgrader)
    except CourseError as error:
        sys.exit(f"lab course: {error}")
    for lab in chosen:
        report = sum(question.points for question in lab.questions)
        typer.echo(f"{lab.folder.name}: {lab.title}, {lab.points:g} points by the suite and {report:g} by hand")
    typer.echo(f"released to {out / 'release'}; docs/instructors.md says what comes next")


def grade(
    submitted: Annotated[Path, typer.Argument(metavar="SUBMITTED", help="a folder of STUDENT/LAB folders")],
    lab: Annotated[list[str] | None, typer.Option("--lab", help="a lab's number; all when none is named")] = None,
    results: Annotated[Path | None, typer.Option(help="where results are kept; `judged` beside SUBMITTED")] = None,
    workers: Annotated[int, typer.Option(help="how many to judge at once on this machine")] = 2,
    scheduler: Annotated[str, typer.Option(help="a Dask scheduler's address: its workers judge")] = "",
    table: Annotated[Path | None, typer.Option("--csv", help="write the points to this file")] = None,
    unsafe: Annotated[bool, typer.Option("--unsafe-no-sandbox", help="judge without bubblewrap")] = False,
    force: Annotated[bool, typer.Option("--force", help="have nbgrader record again what it recorded before")] = False,
) -> None:
    """Judge submissions, several at once, each in a sandbox; a run that was interrupted goes on where it ended.

    In a course that `lab course` made, nbgrader then records the points.
    """
    from labstaff.grading.run import NothingToGrade, grade_submitted
    from labstaff.judge.sandbox import SandboxMissing

    labs = [find_lab(name) for name in lab or []] or find_labs()
    try:
        outcomes = grade_submitted(
            submitted.resolve(), labs, results, workers=workers, scheduler=scheduler, unsafe=unsafe, table=table
        )
    except (NothingToGrade, SandboxMissing) as error:
        sys.exit(f"lab grade: {error}")
    if any(outcome.judged is None for outcome in outcomes):
        sys.exit("lab grade: some were not judged (FAILED above), and nothing was recorded: run it again")
    course = submitted.resolve().parent
    if (course / "nbgrader_config.py").exists():
        from labstaff.course.nbgrader_process import Nbgrader
        from labstaff.course.record import RecordError, record

        try:
            with Nbgrader() as nbgrader:
                for each in dict.fromkeys(outcome.handed_in.lab for outcome in outcomes):
                    record(course, each, nbgrader, force=force, say=typer.echo)
        except RecordError as error:
            sys.exit(f"lab grade: {error}")
        typer.echo("recorded in gradebook.db")
