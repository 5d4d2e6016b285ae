"""Measures grading side by side: this course's judge with nbgrader recording, against nbgrader's own kernel way.

`python -m benchmarks.grading [--submissions 12]`. The submissions of Lab 01 are all right and all
different, so that no result is kept from before. Both ways grade the same folders, from the first to the
gradebook, starting their processes included. In the kernel way nbgrader executes the notebook, whose check cells run
the same suite on the same file.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from labkit.labs.catalog import find_lab, solution_file
from labstaff.course.make import make_course
from labstaff.course.nbgrader_process import Nbgrader
from labstaff.course.record import record
from labstaff.grading.run import grade_submitted

KERNEL_WAY = """
c = get_config()
c.CourseDirectory.course_id = "kernel"
c.Autograde.exclude_overwriting = {{"{assignment}": ["src/{module}.py"]}}
c.ExecutePreprocessor.timeout = 300
"""


def main(submissions: Annotated[int, typer.Option(help="how many")] = 12, workers: int = 2) -> None:
    """Print how many submissions a minute each way grades, and their ratio."""
    lab = find_lab("01")
    text = solution_file(lab).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, Nbgrader() as nbgrader:
        course, kernel = Path(folder, "course"), Path(folder, "kernel")
        make_course([lab], course, nbgrader)
        for number in range(submissions):
            place = course / "submitted" / f"s{number:03d}" / lab.folder.name
            shutil.copytree(course / "release" / lab.folder.name, place)
            (place / "src" / f"{lab.module}.py").write_text(f"{text}\n# {number}\n", encoding="utf-8")
        for part in ("source", "submitted"):
            shutil.copytree(course / part, kernel / part)
        (kernel / "nbgrader_config.py").write_text(
            KERNEL_WAY.format(assignment=lab.folder.name, module=lab.module), encoding="utf-8"
        )
        began = time.perf_counter()
        outcomes = grade_submitted(course / "submitted", [lab], workers=workers, say=lambda line: None)
        record(course, lab, nbgrader)
        ours = time.perf_counter() - began
        if any(outcome.judged is None or outcome.judged.points < lab.points for outcome in outcomes):
            sys.exit("a right submission lost points")
        began = time.perf_counter()
        assert not nbgrader(kernel, "generate_assignment", lab.folder.name).status
        done = nbgrader(kernel, "autograde", lab.folder.name)
        theirs = time.perf_counter() - began
        if done.status:
            sys.exit(done.output[-2000:])
    for name, seconds in (("sandboxed, recorded by nbgrader", ours), ("nbgrader's kernel way", theirs)):
        print(f"{name}: {submissions} in {seconds:.1f} s, {60 * submissions / seconds:.1f} a minute")
    print(f"ratio: {theirs / ours:.1f}")


if __name__ == "__main__":
    typer.run(main)
