"""Makes an nbgrader course from the labs: sources, settings, and the released assignments, searched for leaks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from labkit.labs.catalog import solution_folder
from labkit.labs.manifest import Lab
from labstaff.course.nbgrader_process import Nbgrader
from labstaff.course.paths import NOTEBOOK
from labstaff.course.release_check import LeakError, assignment_files, check_release
from labstaff.course.settings import CONFIG
from labstaff.derive.markers import MarkerError
from labstaff.derive.notebooks import ReportError, read_report, to_text


class CourseError(RuntimeError):
    """Why there is no course; the folder is gone again."""


def make_course(labs: Sequence[Lab], out: Path, nbgrader: Nbgrader) -> None:
    """Write the course to `out`, which must not exist.

    `source/` holds the reports with their model answers and is the instructor's; `release/` is what
    `nbgrader generate_assignment` made of it, and what students may have.

    Raises:
        CourseError: `out` exists, nbgrader failed, or a passage of a solution was found in `release/`.
    """
    if out.exists():
        raise CourseError(f"{out} exists already: name a folder that does not")
    try:
        for lab in labs:
            _write_source(lab, out / "source" / lab.folder.name)
        (out / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
        (out / "exchange").mkdir()  # nbgrader complains of one that is not there; nothing is put in it
        for lab in labs:
            done = nbgrader(out, "generate_assignment", lab.folder.name)
            if done.status:
                raise CourseError(f"nbgrader generate_assignment {lab.folder.name} failed:\n{done.output}")
            check_release(lab, out / "release" / lab.folder.name)
    except (CourseError, LeakError, MarkerError, ReportError, OSError) as error:
        shutil.rmtree(out, ignore_errors=True)
        raise CourseError(str(error)) from error
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise


def _write_source(lab: Lab, folder: Path) -> None:
    """The report with model answers, and what else is released: nbgrader clears notebooks and copies the rest."""
    report = to_text(read_report(lab, solution_folder(lab) / "report.py"))
    for name, text in {NOTEBOOK: report, **assignment_files(lab)}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
