"""The instructor's commands after grading: `lab export`, `lab extend` and `lab statistics`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.labs.catalog import find_lab, find_labs

Course = Annotated[Path, typer.Argument(metavar="COURSE", help="the folder that `lab course` made")]
LabNames = Annotated[list[str] | None, typer.Option("--lab", help="a lab's number; all when none is named")]


def add_commands(app: typer.Typer, group: str) -> None:
    """Add these commands to `lab`, in a group of its help."""
    for command in (export, extend, statistics):
        app.command(rich_help_panel=group)(command)


def export(
    course: Course,
    to: Annotated[Path, typer.Argument(metavar="TO", help="the CSV file to write")],
    platform: Annotated[str, typer.Option("--for", help="table, canvas or moodle")] = "table",
    lab: LabNames = None,
) -> None:
    """Write the gradebook as a CSV: a column a task and question, or as a learning platform imports it."""
    from labstaff.course.export import COLUMNS, export_grades
    from labstaff.course.gradebook import NoGradebook

    if platform not in COLUMNS:
        sys.exit(f"lab export: --for: expected one of {', '.join(COLUMNS)}, found {platform!r}")
    try:
        for line in export_grades(course.resolve(), to, platform, [find_lab(name).folder.name for name in lab or []]):
            typer.echo(line)
    except NoGradebook as error:
        sys.exit(f"lab export: {error}")


def extend(
    course: Course,
    students: Annotated[list[str] | None, typer.Argument(metavar="[STUDENT]...", help="whose due date")] = None,
    lab: LabNames = None,
    days: Annotated[
        float | None, typer.Option(help="how many days later it is due for them; 0 takes an extension back")
    ] = None,
    late_days: Annotated[
        int | None, typer.Option(help="cover lateness in whole days, up to so many a student in all labs together")
    ] = None,
) -> None:
    """Move due dates, or spend late days; without either, list who was late or has an extension.

    The next `lab grade` records what it changes.
    """
    from labstaff.course.extensions import CannotExtend, extend_all, extension_lines, spend_late_days
    from labstaff.course.gradebook import NoGradebook

    course, labs = course.resolve(), [find_lab(name) for name in lab or []]
    if days is not None and late_days is not None:
        sys.exit("lab extend: either --days or --late-days")
    if days is not None and not (labs and students):
        sys.exit("lab extend: --days needs a --lab and students")
    if late_days is not None and labs:
        sys.exit("lab extend: --late-days are of all labs together: leave --lab out")
    try:
        if days is not None:
            done = extend_all(course, labs, students or [], days)
        elif late_days is not None:
            done = spend_late_days(course, students or [], late_days)
        else:
            done = extension_lines(course, students or [])
            done = done or ["nobody of these was late, and nobody has an extension"]
    except (CannotExtend, NoGradebook) as error:
        sys.exit(f"lab extend: {error}")
    for line in done:
        typer.echo(line)
    if days is None and late_days is None:
        return
    again = " ".join(f"--lab {each.number}" for each in labs)
    typer.echo(f"lab grade {course / 'submitted'} {again}".rstrip() + " records it" if done else "nothing to change")


def statistics(
    submitted: Annotated[Path, typer.Argument(metavar="SUBMITTED", help="what `lab grade` was given")],
    lab: LabNames = None,
    table: Annotated[Path | None, typer.Option("--csv", help="write it to this file")] = None,
    page: Annotated[Path | None, typer.Option("--page", help="write it as a page, to this HTML file")] = None,
) -> None:
    """Say which tests the class fails most, and with which message: what to teach again. Nobody is named."""
    from labstaff.grading.run import NothingToGrade
    from labstaff.grading.what_fails import class_failures
    from labstaff.grading.what_to_teach import table_lines, write_csv, write_page

    labs = [find_lab(name) for name in lab or []] or find_labs()
    try:
        told = class_failures(submitted.resolve(), labs)
    except NothingToGrade as error:
        sys.exit(f"lab statistics: {error}")
    for each in told:
        for line in table_lines(each):
            typer.echo(line)
    if table:
        write_csv(table, told)
        typer.echo(f"wrote {table}")
    if page:
        write_page(page, told)
        typer.echo(f"wrote {page}")
