"""Grading side by side: this course's judge with nbgrader recording, against nbgrader's own kernel way.

The submissions of one lab are all right and all different, so that no result is kept from before. Both ways grade the
same folders, from the first to the gradebook, starting their processes included. In the kernel way nbgrader executes
the notebook, whose check cells run the same suite on the same file; nothing is measured from outside there.

Lab 01, the default, has the lightest suite of all: what is compared is what stands around the tests. Where the tests
themselves take seconds (`--lab 5`), both ways take them, and the sandbox's processes are started twice over.

Each way runs in a process of its own, which tells the clock on the wall and the CPU time, of user and system, of all
processes that it started. What other programs take from this machine changes the first at once, the second hardly.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import forkserver, get_context, resource_tracker
from pathlib import Path

from benchmarks.harness import Table, Times, rows
from labkit.labs.catalog import find_lab, solution_file
from labkit.labs.manifest import Lab
from labstaff.course.grade import grade
from labstaff.course.make import make_course
from labstaff.course.paths import nbgrader
from labstaff.grader.grade import hidden_seed
from labstaff.grading.parallel import grade_all
from labstaff.grading.submitted import find_submissions

KERNEL_WAY = """
c = get_config()
c.CourseDirectory.course_id = "kernel"
c.Autograde.exclude_overwriting = {{"{assignment}": ["src/{module}.py"]}}
c.ExecutePreprocessor.timeout = 300
"""
OURS, THEIRS = "sandboxed, recorded by nbgrader", "nbgrader's kernel way"
JUDGED = "sandboxed, not recorded yet"
PR_SET_CHILD_SUBREAPER = 36
END_SECONDS = 30.0


def tables(*, lab: int = 1, submissions: int = 24, workers: int = 2) -> Iterator[Table]:
    """Two tables of one round, which takes minutes: by the clock on the wall, and by CPU time."""
    graded = find_lab(f"{lab:02}")
    wall, cpu = Times(), Times()
    with tempfile.TemporaryDirectory() as folder:
        course, kernel = Path(folder, "course"), Path(folder, "kernel")
        _hand_in(graded, course, kernel, submissions)
        for name, way, arguments in (
            (THEIRS, _kernel_way, (str(kernel), graded.number)),
            (JUDGED, _judging_alone, (str(course), graded.number, workers)),
            (OURS, _own_way, (str(course), graded.number, workers)),
        ):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
                by_the_wall, of_cpu = alone.submit(_seconds_of, way, *arguments).result()
            wall.seconds[name], cpu.seconds[name] = [by_the_wall], [of_cpu]
    setting = f"{submissions} submissions of Lab {graded.number}, {workers} workers, one round"
    yield Table("grading", "a batch", f"{setting}, wall time", rows=rows(wall, (THEIRS,)))
    yield Table("grading", "a batch, by CPU time", f"{setting}, CPU time of all processes", rows=rows(cpu, (THEIRS,)))


def _judging_alone(course: str, number: str, workers: int) -> None:
    """The part of it before recording; what it finds is kept apart."""
    lab = find_lab(number)
    with tempfile.TemporaryDirectory() as results:
        found = find_submissions(Path(course, "submitted"), [lab])
        for outcome in grade_all(found, Path(results), seed=hidden_seed(Path(course)), workers=workers):
            if outcome.result is None or outcome.result.points < lab.points:
                raise RuntimeError("a right submission lost points")


def _own_way(course: str, number: str, workers: int) -> None:
    """What `lab grade` does."""
    printed: list[str] = []
    if grade(Path(course, "submitted"), [find_lab(number)], workers=workers, say=printed.append):
        raise RuntimeError("\n".join(printed))


def _kernel_way(course: str, number: str) -> None:
    """What `nbgrader autograde` does."""
    done = nbgrader(Path(course), "autograde", find_lab(number).folder.name)
    if done.status:
        raise RuntimeError(done.output[-2000:])


def _seconds_of(way: Callable[..., None], *arguments: object) -> tuple[float, float]:
    """What a call takes, by the clock on the wall and of CPU time, with all processes that it starts and ends."""
    with suppress(AttributeError):  # whoever loses its parent is waited for here, where there is Linux
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    cpu_before, began = _cpu_seconds(), time.perf_counter()
    way(*arguments)
    wall_seconds = time.perf_counter() - began
    _wait_for_the_rest()
    return wall_seconds, _cpu_seconds() - cpu_before


def _wait_for_the_rest() -> None:
    """Until every process that was left behind has ended: CPU time counts for whoever waits for it."""
    for server in (forkserver._forkserver, resource_tracker._resource_tracker):  # they live as long as this process
        server._stop()  # type: ignore
    deadline = time.monotonic() + END_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            ended, _ = os.waitpid(-1, os.WNOHANG)
            if not ended:
                time.sleep(0.05)
        raise RuntimeError("a process was left behind that does not end")


def _cpu_seconds() -> float:
    """Of this process, and of all that it and its children have waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _hand_in(lab: Lab, course: Path, kernel: Path, submissions: int) -> None:
    """Make both courses, with the same submissions, up to where grading begins."""
    make_course([lab], course)
    text = solution_file(lab).read_text(encoding="utf-8")
    for number in range(submissions):
        place = course / "submitted" / f"s{number:03d}" / lab.folder.name
        shutil.copytree(course / "release" / lab.folder.name, place)
        (place / "src" / f"{lab.module}.py").write_text(f"{text}\n# {number}\n", encoding="utf-8")
    for part in ("source", "submitted"):
        shutil.copytree(course / part, kernel / part)
    config = KERNEL_WAY.format(assignment=lab.folder.name, module=lab.module)
    (kernel / "nbgrader_config.py").write_text(config, encoding="utf-8")
    done = nbgrader(kernel, "generate_assignment", lab.folder.name)
    if done.status:
        raise RuntimeError(done.output[-2000:])
