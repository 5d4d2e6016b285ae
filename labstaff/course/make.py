"""Makes an nbgrader course from the labs: sources, settings, and released assignments, searched for leaks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from labkit.labs.catalog import ROOT, reviewed_lab, solution_folder
from labkit.labs.manifest import Lab
from labkit.review.versions import DATA_FILE, packed
from labstaff.course.nbgrader import nbgrader
from labstaff.course.paths import CONFIG_FILE, NOTEBOOK, SUBMITTED
from labstaff.course.settings import CONFIG
from labstaff.derive.build import derive_stub
from labstaff.derive.markers import MarkerError
from labstaff.derive.notebooks import ReportError, read_report, to_text
from labstaff.grader.course_state import course_secret
from labstaff.release.leaks import find_leaks
from labstaff.review.versions import versions_of

REVIEW_REPORT = Path(__file__).with_name("review_report.txt")
"""The notebook of a review's assignment: nothing to answer, and a check cell for each task."""


class CourseError(RuntimeError):
    """Why there is no course; the folder is gone again."""


def make_course(labs: Sequence[Lab], out: Path, config: str = CONFIG) -> None:
    """Write the course to `out`, which must not exist, with `config` as its nbgrader_config.py.

    `source/` holds the reports with their model answers and is the instructor's; `release/` is what
    `nbgrader generate_assignment` made of it, and what students may have.

    Raises:
        CourseError: `out` exists, nbgrader failed, or a passage of a solution was found in `release/`.
    """
    if out.exists():
        raise CourseError(f"{out} exists already: name a folder that does not")
    try:
        for lab in labs:
            for name, text in source_texts(lab).items():
                path = out / "source" / lab.folder.name / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text)
        (out / CONFIG_FILE).write_text(config, encoding="utf-8")
        course_secret(out)
        (out / "exchange").mkdir()  # nbgrader warns where there is none; nothing is put in it
        (out / SUBMITTED).mkdir()
        commands = nbgrader(out)
        for lab in labs:
            done = commands.generate_assignment(lab.folder.name)
            if not done["success"]:
                raise CourseError(f"nbgrader generate_assignment {lab.folder.name} failed:\n{done['error']}")
            released = [path for path in (out / "release" / lab.folder.name).rglob("*") if path.is_file()]
            if leaks := find_leaks([reviewed_lab(lab) or lab], released):
                passages = "\n".join(f"  {leak.file.name}: {leak.passage}" for leak in leaks[:10])
                raise CourseError(f"{len(leaks)} passages of solutions would be released\n{passages}")
    except BaseException as error:
        shutil.rmtree(out, ignore_errors=True)
        if isinstance(error, MarkerError | ReportError | OSError):
            raise CourseError(str(error)) from error
        raise


def source_texts(lab: Lab) -> dict[str, bytes]:
    """The report with model answers, and what else is released, by name: nbgrader clears notebooks and copies the rest.

    Raises:
        MarkerError, ReportError, OSError: something cannot be derived.
    """
    reviewed = reviewed_lab(lab)
    report = REVIEW_REPORT if reviewed else solution_folder(lab) / "report.py"
    page = ROOT / "docs" / "reviewing.md" if reviewed else lab.folder / "README.md"
    files = {
        NOTEBOOK: to_text(read_report(lab, report)).encode(),
        "README.md": page.read_bytes(),
        f"src/{lab.module}.py": derive_stub(lab).encode(),
    }
    return files | {DATA_FILE: packed(versions_of(reviewed), after=False)} if reviewed else files
