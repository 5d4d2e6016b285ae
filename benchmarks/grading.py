"""Grading side by side: this course's judge with nbgrader recording, against nbgrader's own kernel way.

The submissions of Lab 01 are all right and all different, so that no result is kept from before. Both ways grade the
same folders, from the first to the gradebook, starting their processes included; the clock is the one on the wall. In
the kernel way nbgrader executes the notebook, whose check cells run the same suite on the same file.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Table, Times, rows
from labkit.labs.catalog import find_lab, solution_file
from labkit.labs.manifest import Lab
from labstaff.course.make import make_course
from labstaff.course.nbgrader_process import Nbgrader
from labstaff.course.recorder import Recorder
from labstaff.grading.run import grade_submitted

KERNEL_WAY = """
c = get_config()
c.CourseDirectory.course_id = "kernel"
c.Autograde.exclude_overwriting = {{"{assignment}": ["src/{module}.py"]}}
c.ExecutePreprocessor.timeout = 300
"""
OURS, THEIRS = "sandboxed, recorded by nbgrader", "nbgrader's kernel way"


def tables(*, submissions: int = 24, workers: int = 2) -> Iterator[Table]:
    """One table: both ways, once; a round takes minutes."""
    lab = find_lab("01")
    times = Times({THEIRS: [], OURS: []})
    with tempfile.TemporaryDirectory() as folder, Nbgrader() as nbgrader:
        course, kernel = Path(folder, "course"), Path(folder, "kernel")
        _hand_in(lab, course, kernel, nbgrader, submissions)
        own = Nbgrader()
        own(course, "--version")  # until it is there, as it is for the kernel way
        began = time.perf_counter()
        with Recorder(course, lambda: own) as recorder:
            outcomes = grade_submitted(
                course / "submitted", [lab], workers=workers, on_outcome=recorder.judged, say=lambda line: None
            )
            recorder.finish(outcomes)
        times.seconds[OURS].append(time.perf_counter() - began)
        if any(outcome.judged is None or outcome.judged.points < lab.points for outcome in outcomes):
            raise RuntimeError("a right submission lost points")
        began = time.perf_counter()
        for command in ("generate_assignment", "autograde"):
            done = nbgrader(kernel, command, lab.folder.name)
            if done.status:
                raise RuntimeError(done.output[-2000:])
        times.seconds[THEIRS].append(time.perf_counter() - began)
    setting = f"{submissions} submissions of Lab 01, {workers} workers, wall time, one round"
    yield Table("grading", "a batch", setting, rows=rows(times, (THEIRS,)))


def _hand_in(lab: Lab, course: Path, kernel: Path, nbgrader: Nbgrader, submissions: int) -> None:
    """Make both courses, with the same submissions."""
    make_course([lab], course, nbgrader)
    text = solution_file(lab).read_text(encoding="utf-8")
    for number in range(submissions):
        place = course / "submitted" / f"s{number:03d}" / lab.folder.name
        shutil.copytree(course / "release" / lab.folder.name, place)
        (place / "src" / f"{lab.module}.py").write_text(f"{text}\n# {number}\n", encoding="utf-8")
    for part in ("source", "submitted"):
        shutil.copytree(course / part, kernel / part)
    config = KERNEL_WAY.format(assignment=lab.folder.name, module=lab.module)
    (kernel / "nbgrader_config.py").write_text(config, encoding="utf-8")
