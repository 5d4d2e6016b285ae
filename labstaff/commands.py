"""The commands of `lab` for instructors and for authors of labs."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer

from labkit.commands.group import AUTHORS, INSTRUCTORS
from labkit.labs.catalog import ROOT, find_lab, find_labs, review_assignment
from labkit.labs.manifest import Lab
from labkit.review import versions as available

LabArguments = Annotated[list[str] | None, typer.Argument(metavar="[LAB]...", help="a lab's number; default: all")]
LabOptions = Annotated[list[str] | None, typer.Option("--lab", metavar="NN", help="a lab's number; default: all")]
NewFolder = Annotated[Path, typer.Argument(metavar="OUT", help="a folder that does not exist yet")]
Reviews = Annotated[
    list[str] | None, typer.Option("--review", metavar="NN", help="the review of this lab, as an assignment of its own")
]
Course = Annotated[Path, typer.Argument(metavar="COURSE", help="the folder that `lab course` made")]

STOPPED = 130
"""The exit status after Ctrl-C."""


def add_commands(app: typer.Typer) -> None:
    """Add these commands to `lab`: those for instructors in one panel of its help, those for authors in another."""
    groups: dict[str, tuple[Callable[..., None], ...]] = {
        INSTRUCTORS: (release, course, grade, answers, extend, export, exam, site, slides),
        AUTHORS: (new, build, mistake),
    }
    for panel, commands in groups.items():
        for command in commands:
            app.command(rich_help_panel=panel)(command)
    available.source = _versions_of


def release(
    out: NewFolder,
    labs: LabArguments = None,
    assistants: Annotated[
        Literal["tutor", "open", "none"], typer.Option(help="the rules for coding assistants, in AGENTS.md")
    ] = "tutor",
    review: Annotated[
        Literal["none", "after", "open"],
        typer.Option(help="when the versions of `lab review` open: never, after a lab's tasks, at once"),
    ] = "after",
) -> None:
    """Write the students' files, for all labs or some: no solutions, searched for leaks."""
    from labstaff.release.tree import Assistants, ReleaseError, Reviews
    from labstaff.release.tree import release as release_tree

    typer.echo("copying the files, then searching each for passages of the solutions: up to a minute")
    try:
        chosen = [find_lab(name) for name in labs or []]
        written = release_tree(ROOT, out, chosen, Assistants(assistants), Reviews(review))
    except ReleaseError as error:
        sys.exit(f"lab release: {error}")
    typer.echo(f"released {len(written)} files to {out}")


def course(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="a new folder; with --update or --roster, it may be a course")
    ],
    labs: LabArguments = None,
    review: Reviews = None,
    update: Annotated[
        bool, typer.Option("--update", help="make a course's assignments again, and keep grades")
    ] = False,
    roster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="a CSV file of students: id, name, email, extra time")
    ] = None,
    lab_days: Annotated[
        float | None, typer.Option(min=0, help="days that a lab takes, for extra time such as +50 %")
    ] = None,
) -> None:
    """Make an nbgrader course: sources, settings, and released assignments, searched for leaks.

    With --roster, students are added to the course, or to one that is there already. With --update, a course's
    assignments are made again where its labs have changed, and labs that are named are added;
    gradebook, secret, settings and grades by hand stay. What changes is printed first.
    """
    from labstaff.course.grade import only_one
    from labstaff.course.make import CourseError, make_course
    from labstaff.course.nbgrader import NoGradebook, opened_gradebook
    from labstaff.course.roster import RosterError, apply_roster, read_roster
    from labstaff.course.update import update_course

    reviews = [review_assignment(find_lab(name)) for name in review or []]
    try:
        students = read_roster(roster, lab_days) if roster else []
        if update:
            with opened_gradebook(out.resolve()), only_one(out.resolve(), typer.echo):
                update_course([*map(find_lab, labs or []), *reviews], out.resolve(), typer.echo)
        if students and out.exists():
            with opened_gradebook(out.resolve()), only_one(out.resolve(), typer.echo):
                apply_roster(out.resolve(), students, typer.echo)
    except (CourseError, NoGradebook, RosterError) as error:
        sys.exit(f"lab course: {error}")
    if update or (students and out.exists()):
        return
    chosen = [*(_chosen(labs) if labs or not reviews else []), *reviews]
    typer.echo("nbgrader makes each assignment, which is then searched for passages of the solutions: ten seconds each")
    try:
        make_course(chosen, out.resolve())
    except CourseError as error:
        sys.exit(f"lab course: {error}")
    for lab in chosen:
        report = lab.report_points
        typer.echo(f"{lab.folder.name}: {lab.title}, {lab.points:g} points by tests and {report:g} by hand")
    if students:
        apply_roster(out.resolve(), students, typer.echo)
    typer.echo(f"released to {out / 'release'}; docs/instructors.md explains the next steps")


def grade(
    submitted: Annotated[Path, typer.Argument(metavar="SUBMITTED", help="a folder of STUDENT/LAB folders")],
    lab: LabOptions = None,
    review: Annotated[bool, typer.Option("--review", help="grade their reviews, LAB: lab05_review")] = False,
    workers: Annotated[int, typer.Option(min=1, help="how many to grade at once on this machine")] = 2,
    scheduler: Annotated[str, typer.Option(help="a Dask scheduler's address: grade on its workers")] = "",
    table: Annotated[Path | None, typer.Option("--csv", help="write the points to this file")] = None,
    gradescope: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write the only submission's result for Gradescope")
    ] = None,
    classroom50: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write the only submission's result for Classroom 50")
    ] = None,
    visibility: Annotated[
        str, typer.Option(help="when Gradescope shows them: hidden, after_due_date, after_published, visible")
    ] = "after_published",
    unsafe: Annotated[bool, typer.Option("--unsafe-no-sandbox", help="grade without bubblewrap")] = False,
    force: Annotated[bool, typer.Option("--force", help="grade and record everything again")] = False,
) -> None:
    """Grade submissions in parallel, each in a sandbox, and print what the class fails most.

    A run that was interrupted continues where it ended. In a course that `lab course` made, nbgrader then records the
    results. Exit status: 0; 1 when a submission was not graded or not recorded; 3 when all were, and some hold no code
    that can be graded.
    """
    from labkit.commands.app import file_error
    from labstaff.course.grade import grade as grade_folder
    from labstaff.course.nbgrader import NoGradebook
    from labstaff.course.update import OutOfDate
    from labstaff.grader.course_state import DamagedState
    from labstaff.grader.sandbox import SandboxMissing
    from labstaff.grading.classroom50 import REQUIRED
    from labstaff.grading.gradescope import VISIBILITIES
    from labstaff.grading.parallel import NoScheduler
    from labstaff.grading.run import NothingToGrade

    if visibility not in VISIBILITIES:
        sys.exit(f"lab grade: --visibility: expected one of {', '.join(VISIBILITIES)}, found {visibility!r}")
    if classroom50 and (unset := [name for name in REQUIRED if not os.environ.get(name)]):
        sys.exit(f"lab grade: --classroom50 needs what its runner sets: {', '.join(unset)}")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop_grading)
    try:
        status = grade_folder(
            submitted.resolve(),
            [review_assignment(each) if review else each for each in _chosen(lab)],
            workers=workers,
            scheduler=scheduler,
            unsafe=unsafe,
            table=table,
            gradescope=gradescope,
            classroom50=classroom50,
            visibility=visibility,
            force=force,
            say=typer.echo,
        )
    except OSError as error:
        sys.exit(f"lab grade: {file_error(error) or error}")
    except (NothingToGrade, SandboxMissing, NoScheduler, DamagedState, NoGradebook, OutOfDate) as error:
        sys.exit(f"lab grade: {error}")
    raise typer.Exit(status)


def _stop_grading(_signum: int, _frame: FrameType | None) -> None:
    """End at once, as if killed: results are whole files and nbgrader's gradebook has transactions.

    Copies of submissions are removed.
    """
    from multiprocessing.util import get_temp_dir

    from rich import get_console

    from labstaff.grader.sandbox import TEMPORARY

    get_console().show_cursor()  # the progress bar hides it
    typer.echo("\nlab grade: stopped. What was graded is kept; the same command goes on from there.")
    for folder in [*Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"), Path(str(get_temp_dir()))]:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(STOPPED)


def answers(
    course: Course,
    lab: Annotated[str, typer.Option("--lab", metavar="NN", help="a lab's number")],
    question: Annotated[
        list[str] | None,
        typer.Option(metavar="N", help="its number in the report, or its id; default: all written ones"),
    ] = None,
    read: Annotated[Path | None, typer.Option(metavar="FILE", help="a file with scores that were typed")] = None,
    name: Annotated[str, typer.Option(help="who gave these scores, for regrades.csv; default: your login")] = "",
    why: Annotated[str, typer.Option(help="the reason, for regrades.csv; default: the file's name")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="with --read: write without asking")] = False,
) -> None:
    """Write all answers to a question as a CSV file; with --read, put the scores typed there into the gradebook.

    What would change is shown first. Exit status: 0; 1 when a row was refused, since the answer, the score or the
    comment has changed since the file was written, or the score cannot be used.
    """
    from labstaff.course.answers import AnswersError, write_answers
    from labstaff.course.nbgrader import NoGradebook
    from labstaff.course.scores import TRAIL, read_scores, write_scores
    from labstaff.course.update import OutOfDate

    course, chosen = course.resolve(), find_lab(lab)
    try:
        if read is None:
            for file in write_answers(course, chosen, question or []):
                typer.echo(f"wrote {file}")
            return
        shown = read_scores(course, chosen, read)
        for line in [*map(str, shown.changes), *shown.refused]:
            typer.echo(line)
        if not shown.changes:
            typer.echo("nothing to write")
        elif yes or typer.confirm(f"write {len(shown.changes)} changes into the gradebook?"):
            done = write_scores(course, chosen, read, shown, who=name or _login(), why=why or read.name, say=typer.echo)
            for line in done.refused:
                if line not in shown.refused:
                    typer.echo(line)
            shown = done
            typer.echo(f"wrote {len(done.changes)} changes, and who made them to {course / TRAIL}")
    except (AnswersError, NoGradebook, OutOfDate) as error:
        sys.exit(f"lab answers: {error}")
    if shown.refused:
        sys.exit(f"lab answers: {len(shown.refused)} rows were refused: see REFUSED above")


def _login() -> str:
    """The user's name; the number where the system has no name for it, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def extend(
    course: Course,
    students: Annotated[list[str] | None, typer.Argument(metavar="[STUDENT]...", help="whose due date")] = None,
    lab: LabOptions = None,
    days: Annotated[
        float | None, typer.Option(min=0, max=3650, help="days after the lab's due date; 0 removes an extension")
    ] = None,
) -> None:
    """Grant extensions; without --days, list late submissions and extensions.

    Penalties change at once.
    """
    from labstaff.course.extensions import CannotExtend, extend_all, extension_lines
    from labstaff.course.nbgrader import NoGradebook

    course, labs = course.resolve(), [find_lab(name) for name in lab or []]
    if days is not None and not (labs and students):
        sys.exit("lab extend: --days needs a --lab and students")
    try:
        if days is None:
            lines = extension_lines(course) or ["no late submissions, no extensions"]
        else:
            lines = extend_all(course, labs, students or [], days)
    except (CannotExtend, NoGradebook) as error:
        sys.exit(f"lab extend: {error}")
    for line in lines:
        typer.echo(line)


def export(
    course: Course,
    to: Annotated[Path, typer.Argument(metavar="TO", help="the CSV file to write")],
    platform: Annotated[str, typer.Option("--for", help="table, canvas or moodle")] = "table",
) -> None:
    """Write the gradebook as a CSV file: a table, or as Canvas or Moodle imports it.

    Exit status: 0; 1 when a submission is not recorded as it is now, which a line says.
    """
    from labstaff.course.export import COLUMNS, export_grades
    from labstaff.course.nbgrader import NoGradebook
    from labstaff.course.update import OutOfDate

    if platform not in COLUMNS:
        sys.exit(f"lab export: --for: expected one of {', '.join(COLUMNS)}, found {platform!r}")
    try:
        is_complete = export_grades(course.resolve(), to, platform, typer.echo)
    except (NoGradebook, OutOfDate) as error:
        sys.exit(f"lab export: {error}")
    if not is_complete:
        sys.exit("lab export: some submissions are not recorded: see NOT RECORDED above")


def exam(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="the folder of all papers of a year")],
    seed: Annotated[int, typer.Option(min=0, help="chooses the questions, and names the paper")],
    labs: Annotated[str, typer.Option(help="labs that the paper is about, like 03,05; default: all")] = "",
    questions: Annotated[int, typer.Option(min=1, max=40, help="how many questions")] = 8,
) -> None:
    """Write an exam and its key: which line is wrong, which input shows it, what comes out.

    The questions are known mistakes. OUT/asked.json remembers them: no question is in two papers of a folder.
    """
    from labstaff.authoring.exam import ExamError
    from labstaff.authoring.exam_paper import write_exam
    from labstaff.authoring.mistakes import MistakeError

    chosen = _chosen([name.strip() for name in labs.split(",") if name.strip()])
    try:
        files, no_pdf = write_exam(chosen, out, seed, questions)
    except (ExamError, MistakeError) as error:
        sys.exit(f"lab exam: {error}")
    for file in files:
        typer.echo(f"wrote {file}")
    if no_pdf:
        typer.echo(f"no PDF: {no_pdf}")


def site(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="a new folder, or a site to replace")],
    labs: LabArguments = None,
    instructors: Annotated[
        bool, typer.Option("--instructors", help="add the guide for instructors, and every mistake with its message")
    ] = False,
    url: Annotated[
        str, typer.Option(help="where it will be published, https://…: adds a site map, a page 404, images for links")
    ] = "",
) -> None:
    """Build the chapters and handouts, of all labs or some, as a website that opens from disk."""
    from labstaff.authoring.mistakes import MistakeError
    from labstaff.site import SiteError, build_site
    from labstaff.site.mistakes import mistake_pages

    chosen = _chosen(labs)
    try:
        pages = build_site(ROOT, out, mistake_pages(chosen) if instructors else {}, chosen, url)
    except (SiteError, MistakeError) as error:
        sys.exit(f"lab site: {error}")
    typer.echo(f"wrote {pages} pages; open {out / 'index.html'}")


def slides(out: Annotated[Path, typer.Argument(metavar="OUT", help="a new folder, or slides to replace")]) -> None:
    """Derive slides from each chapter, which open from disk and print: add ?print-pdf to a deck's address."""
    from labstaff.site import SiteError
    from labstaff.slides import build_slides

    try:
        names = build_slides(ROOT, out)
    except SiteError as error:
        sys.exit(f"lab slides: {error}")
    typer.echo(f"wrote slides of {len(names)} chapters; open {out / 'index.html'}")


def new(
    number: Annotated[str, typer.Argument(metavar="NN", help="its number")],
    name: Annotated[str, typer.Argument(help="its name, like ring_attention")],
) -> None:
    """Make a new lab from the template: it passes its own checks, and is rewritten from there."""
    from labstaff.derive.new_lab import NewLabError, new_lab

    try:
        written = new_lab(ROOT, number, name)
    except NewLabError as error:
        sys.exit(f"lab new: {error}")
    for path in written:
        typer.echo(f"wrote {path.relative_to(ROOT)}")
    build(None)
    typer.echo(f"next: uv run pytest tests/test_labs.py -k lab{int(number):02d}; then see CONTRIBUTING.md")


def build(labs: LabArguments = None) -> None:
    """Derive stubs, reports, the course map, and from the models that `lab model` ships a table and a script."""
    from labstaff.derive import calculator, hybrids
    from labstaff.derive.build import build as build_lab
    from labstaff.derive.course_map import refresh_figure, refresh_page
    from labstaff.derive.markers import MarkerError
    from labstaff.derive.notebooks import ReportError

    try:
        for lab in _chosen(labs):
            changed = build_lab(lab)
            for path in changed:
                typer.echo(f"wrote {path.relative_to(ROOT)}")
            if not changed:
                typer.echo(f"{lab.label}: up to date")
        of_models = [*hybrids.refresh_page(ROOT), *calculator.refresh_script(ROOT)]
        for path in [*refresh_page(ROOT, find_labs()), *refresh_figure(), *of_models]:
            typer.echo(f"wrote {path.relative_to(ROOT)}")
    except (MarkerError, ReportError) as error:
        sys.exit(f"lab build: {error}")


def mistake(
    lab: Annotated[str, typer.Argument(metavar="LAB", help="a lab's number, like 01")],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="one of them; default: list all")] = None,
) -> None:
    """List a lab's mistakes, or show one: its diff, and the message that a student reads."""
    from labstaff.authoring.mistakes import MistakeError, UnknownMistake, find_mistake
    from labstaff.authoring.show import show_list, show_mistake

    try:
        if name is None:
            show_list(find_lab(lab))
        else:
            show_mistake(find_mistake(find_lab(lab), name))
    except (MistakeError, UnknownMistake) as error:
        sys.exit(f"lab mistake: {error}")


def _versions_of(lab: Lab) -> tuple[available.Version, ...]:
    """The versions of `lab review`, from `solutions/`."""
    from labstaff.authoring.mistakes import MistakeError
    from labstaff.review.versions import versions_of

    try:
        return versions_of(lab)
    except MistakeError as error:
        sys.exit(f"lab review: {error}")


def _chosen(names: list[str] | None) -> list[Lab]:
    return [find_lab(name) for name in names or []] or find_labs()
