"""`lab review`: runs the student's own tests on their module, on right versions and on wrong ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import track
from rich.text import Text

from labkit.commands import INTERRUPTED
from labkit.commands.check import finding_lines, new_console, print_lines
from labkit.labs.catalog import review_assignment
from labkit.labs.manifest import Lab, Task
from labkit.review import versions as available
from labkit.review.file import PREFIX, Review, ReviewProblem, read_review
from labkit.review.lines import TaskReview, read_lines, review_lines
from labkit.review.runs import Job, Runs
from labkit.review.stored import StoredReview, load_review, store_review
from labkit.review.versions import NoVersions, Version
from labkit.suite.finder import file_problem, platform_problem
from labkit.suite.messages import Line
from labkit.suite.source_check import check_source


def review_lab(lab: Lab, tasks: Sequence[Task] = (), *, read: bool = False, everything: bool = False) -> int:
    """Run the tests of `review.py`, print what they say, and return the exit status.

    Args:
        tasks: of these only; of all that have tests when empty.
        read: print one wrong version that is not found instead.
        everything: show everything that is found, with its diff.

    Returns:
        0 when the tests accept every right version and no wrong one, otherwise 1; 130 after Ctrl-C.
    """
    console = new_console()
    problem = platform_problem(lab)
    try:
        review = read_review(lab)
    except ReviewProblem as error:
        problem = problem or str(error)
    if problem:
        console.print(Text(f"{lab.label} · {problem}", style="red"))
        return 1
    chosen = [task.name for task in tasks or lab.tasks]
    found = check_source(lab.review_file.read_text(encoding="utf-8-sig"), review_assignment(lab))
    print_lines(console, finding_lines(lab.review_file, found))
    print_lines(console, unused_lines(lab, review, chosen))
    chosen = [task for task in chosen if task in review.begun]
    if not chosen:
        return 1
    no_versions, versions = "", tuple[Version, ...]()
    try:
        versions = available.source(lab)
    except NoVersions as error:
        no_versions = str(error)
    stored = load_review(lab)
    runs = Runs(lab, review, known=stored.verdicts)
    reviews = [_task_review(task, versions) for task in chosen]
    is_interrupted = False
    try:
        _run(lab, runs, reviews, versions)
    except KeyboardInterrupt:
        is_interrupted = True
        console.print("lab review: interrupted; what is known by now:\n")
    if read:
        print_lines(console, read_lines(lab, reviews))
    else:
        for each in reviews:
            print_lines(console, review_lines(lab, each, stored.shown, everything=everything))
    print_lines(console, [Line(f"{lab.label}: {no_versions}")] if no_versions else [])
    if versions:
        _store(console, lab, runs, reviews, versions, stored)
    if is_interrupted:
        return INTERRUPTED
    return 0 if all(each.is_whole for each in reviews) else 1


def unused_lines(lab: Lab, review: Review, tasks: Sequence[str]) -> list[Line]:
    """The tests that are not run, and the tasks without any."""
    file = lab.review_file.relative_to(lab.folder.parent.parent)
    lines = [
        Line(f"{name} is not run: the name of a test begins with {PREFIX} and a task", "red") for name in review.stray
    ]
    for task in tasks:
        if task not in review.begun:
            what = "is still to be written" if task in review.stubs else "is missing"
            lines.append(Line(f"{lab.label} · {task} · {PREFIX}{task} {what}: {file}"))
    return lines


def _task_review(task: str, versions: Iterable[Version]) -> TaskReview:
    right = [version.is_right for version in versions if task in version.tasks]
    return TaskReview(task, right.count(True), right.count(False))


def _run(lab: Lab, runs: Runs, reviews: Sequence[TaskReview], versions: Sequence[Version]) -> None:
    """Run the student's own module and the right versions; then the wrong ones, where no right one is refused."""
    by_task = {each.task: each for each in reviews}
    jobs = [Job(task, version) for task in by_task for version in versions if task in version.tasks]
    first = [job for job in jobs if job.version.is_right]
    if not file_problem(lab.student_file):
        text = lab.student_file.read_text(encoding="utf-8-sig")
        first = [Job(task, Version("", (task,), text)) for task in by_task] + first
    _follow(lab, runs, first, by_task, "right versions")
    wrong = [job for job in jobs if not job.version.is_right and by_task[job.task].accepts_right]
    _follow(lab, runs, wrong, by_task, "wrong versions")


def _follow(lab: Lab, runs: Runs, jobs: Sequence[Job], by_task: dict[str, TaskReview], what: str) -> None:
    console = Console(stderr=True)
    title = f"{lab.label} · {what}"
    verdicts = runs.verdicts(jobs)
    for job, verdict in track(
        verdicts, title, len(jobs), console=console, transient=True, disable=not console.is_terminal
    ):
        by_task[job.task].add(job, verdict)


def _store(
    console: Console,
    lab: Lab,
    runs: Runs,
    reviews: Sequence[TaskReview],
    versions: Sequence[Version],
    stored: StoredReview,
) -> None:
    """Store the verdicts that may be asked for again, and the counts for the board."""
    current = {runs.key(Job(task, version)) for version in versions for task in version.tasks}
    stored.verdicts = {key: verdict for key, verdict in runs.known.items() if key in current}
    stored.shown = sorted({*stored.shown, *(version.name for each in reviews for version in each.found)})
    stored.n_found |= {each.task: len(each.found) for each in reviews}
    stored.n_wrong = sum(not version.is_right for version in versions)
    try:
        store_review(lab, stored)
    except OSError as error:
        console.print(Text(f"the review of {lab.label} could not be stored: {error.strerror}", style="red"))
