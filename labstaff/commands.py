"""The instructor's commands of `lab`, up to grading; `labstaff.course.commands` has those after it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.labs.catalog import ROOT, find_lab, find_labs
from labstaff.course.commands import add_commands as add_commands_after_grading


def add_commands(app: typer.Typer, group: str) -> None:
    """Add the instructor's commands to `lab`, in a group of its help."""
    for command in (course, grade, release, site, mistake, build, new):
        app.command(rich_help_panel=group)(command)
    add_commands_after_grading(app, group)


def build(labs: Annotated[list[str] | None, typer.Argument(metavar="[LAB]...")] = None) -> None:
    """Derive stubs, reports and the review's allowances from solutions/, and the course's map from the manifests."""
    from labkit.suite.review import ALLOWANCES
    from labstaff.derive.allowances import refresh_allowances
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
        allowances = [ALLOWANCES] if refresh_allowances() else []
        for path in [*allowances, *refresh_page(ROOT, find_labs()), *refresh_figure()]:
            typer.echo(f"wrote {path.relative_to(ROOT)}")
    except (MarkerError, ReportError) as error:
        sys.exit(f"lab build: {error}")


def new(
    number: Annotated[str, typer.Argument(metavar="NN", help="its number")],
    name: Annotated[str, typer.Argument(help="its name, like ring_attention")],
) -> None:
    """Make a lab from the template: it passes its own checks, and is rewritten from there."""
    from labstaff.derive.new_lab import NewLabError, new_lab

    try:
        written = new_lab(ROOT, number, name)
    except NewLabError as error:
        sys.exit(f"lab new: {error}")
    for path in written:
        typer.echo(f"wrote {path.relative_to(ROOT)}")
    build(None)
    typer.echo(
        f"next: uv run pytest tests/test_labs.py -k lab{int(number):02d}; CONTRIBUTING.md says what to fill first"
    )


def mistake(
    lab: Annotated[str, typer.Argument(metavar="LAB", help="a lab's number, like 01")],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="one of them; all are listed without")] = None,
    source: Annotated[bool, typer.Option("--source", help="print the whole module with the mistake, no more")] = False,
) -> None:
    """List a lab's mistakes, or show one: what it changes, and what a student reads who makes it."""
    from labstaff.answers.mistakes import MistakeError, UnknownMistake, find_mistake
    from labstaff.answers.show import show_list, show_mistake

    try:
        if name is None:
            show_list(find_lab(lab))
        elif source:
            typer.echo(find_mistake(find_lab(lab), name).source(), nl=False)
        elif not show_mistake(find_mistake(find_lab(lab), name)):
            sys.exit("lab mistake: its tests do not find it, or do not say what they must")
    except (MistakeError, UnknownMistake) as error:
        sys.exit(f"lab mistake: {error}")


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
    instructors: Annotated[
        bool, typer.Option("--instructors", help="add every mistake and what the suite says of it; not for students")
    ] = False,
) -> None:
    """Build the chapters, handouts and figures as a website that opens from disk."""
    from labstaff.answers.mistakes import MistakeError
    from labstaff.site import SiteError, build_site
    from labstaff.site.mistake_runs import judged
    from labstaff.site.mistakes import mistake_pages

    try:
        pages = build_site(ROOT, out, mistake_pages(find_labs(), judged) if instructors else {})
    except (SiteError, MistakeError) as error:
        sys.exit(f"lab site: {error}")
    typer.echo(f"wrote {pages} pages; open {out / 'index.html'}")


def course(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="a folder that is not there yet")],
    labs: Annotated[list[str] | None, typer.Argument(metavar="[LAB]...", help="all when none is named")] = None,
) -> None:
    """Make an nbgrader course: sources, settings, and released assignments in which nothing leaks."""
    from labstaff.course.make import CourseError, make_course

    chosen = [find_lab(name) for name in labs or []] or find_labs()
    try:
        make_course(chosen, out.resolve())
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
    workers: Annotated[int, typer.Option(min=1, help="how many to judge at once on this machine")] = 2,
    scheduler: Annotated[str, typer.Option(help="a Dask scheduler's address: its workers judge")] = "",
    table: Annotated[Path | None, typer.Option("--csv", help="write the points to this file")] = None,
    export: Annotated[
        Path | None, typer.Option(help="write results as Gradescope reads them: a .json of one submission, or a folder")
    ] = None,
    visibility: Annotated[
        str, typer.Option(help="when Gradescope shows them: hidden, after_due_date, after_published, visible")
    ] = "after_published",
    unsafe: Annotated[bool, typer.Option("--unsafe-no-sandbox", help="judge without bubblewrap")] = False,
    force: Annotated[bool, typer.Option("--force", help="judge and record again what was graded before")] = False,
    looked_at: Annotated[
        list[str] | None,
        typer.Option(metavar="STUDENT", help="release what is withheld: you have looked at this student's source"),
    ] = None,
) -> None:
    """Judge submissions, several at once, each in a sandbox; a run that was interrupted goes on where it ended.

    In a course that `lab course` made, nbgrader then records what is not recorded as it is now. Exit status: 0, or 1
    when something was not graded, or 3 when all was, and some submissions hold nothing that can be judged.
    """
    from labkit.commands.app import file_error
    from labstaff.course.grade import grade as grade_folder
    from labstaff.course.gradebook import NoGradebook
    from labstaff.grader.sandbox import SandboxMissing
    from labstaff.grading.gradescope import CannotExport, Export, Visibility
    from labstaff.grading.many import NoScheduler
    from labstaff.grading.run import NothingToGrade

    labs = [find_lab(name) for name in lab or []] or find_labs()
    if visibility not in [*Visibility]:
        sys.exit(f"lab grade: --visibility: expected one of {', '.join(Visibility)}, found {visibility!r}")
    try:
        status = grade_folder(
            submitted.resolve(),
            labs,
            results,
            workers=workers,
            scheduler=scheduler,
            unsafe=unsafe,
            table=table,
            export=Export(export, Visibility(visibility)) if export else None,
            force=force,
            looked_at=looked_at or [],
            say=typer.echo,
        )
    except OSError as error:
        sys.exit(f"lab grade: {file_error(error) or error}")
    except (NothingToGrade, NoGradebook, SandboxMissing, CannotExport, NoScheduler) as error:
        sys.exit(f"lab grade: {error}")
    raise typer.Exit(status)
