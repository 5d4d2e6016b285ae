"""Makes an nbgrader course from the labs: sources, settings, released assignments that hold no more than they must."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from labkit.labs.catalog import solution_folder
from labkit.labs.manifest import Lab
from labstaff.course.paths import CONFIG_FILE, NOTEBOOK, SUBMITTED, nbgrader
from labstaff.course.settings import CONFIG
from labstaff.derive.build import derive_stub
from labstaff.derive.markers import MarkerError
from labstaff.derive.notebooks import ReportError, derive_report, read_report, to_text
from labstaff.grader.course_state import course_state
from labstaff.release.leaks import find_leaks


class CourseError(RuntimeError):
    """Why there is no course; the folder is gone again."""


class LeakError(RuntimeError):
    """Why an assignment must not be released; the message names files and passages."""


def make_course(labs: Sequence[Lab], out: Path) -> None:
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
        (out / CONFIG_FILE).write_text(CONFIG, encoding="utf-8")
        course_state(out)
        (out / "exchange").mkdir()  # nbgrader warns where there is none; nothing is put in it
        (out / SUBMITTED).mkdir()
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


def check_release(lab: Lab, folder: Path, texts: Mapping[str, str] | None = None) -> None:
    """Compare the files in `folder` with what may be there, and search them for the lab's solution.

    Args:
        folder: the released assignment.
        texts: files that are about to be written there, by name, with their text.

    Raises:
        LeakError: a file more or fewer than expected, an answer that is not the stub, or a passage of a solution.
    """
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} | set(texts or {})
    expected = {NOTEBOOK, *assignment_files(lab)}
    if found != expected:
        extra, missing = ", ".join(sorted(found - expected)), ", ".join(sorted(expected - found))
        raise LeakError(f"{lab.folder.name}: not to be released: {extra or 'nothing'}; missing: {missing or 'nothing'}")
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in (texts or {}).items():
            (Path(scratch) / name).write_text(text, encoding="utf-8")
        files = {name: Path(scratch if texts and name in texts else folder) / name for name in sorted(found)}
        if leaks := find_leaks([lab], files.values()):
            passages = "\n".join(f"  {leak.file.name}: {leak.passage}" for leak in leaks[:10])
            raise LeakError(f"{lab.folder.name}: {len(leaks)} passages of solutions would be released\n{passages}")
        _compare(lab, json.loads(files[NOTEBOOK].read_text(encoding="utf-8")))


def assignment_files(lab: Lab) -> dict[str, str]:
    """What a student gets of `lab` besides the notebook: names and texts."""
    return {
        "README.md": (lab.folder / "README.md").read_text(encoding="utf-8"),
        f"src/{lab.module}.py": derive_stub(lab),
    }


def _write_source(lab: Lab, folder: Path) -> None:
    """The report with model answers, and what else is released: nbgrader clears notebooks and copies the rest."""
    report = to_text(read_report(lab, solution_folder(lab) / "report.py"))
    for name, text in {NOTEBOOK: report, **assignment_files(lab)}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _compare(lab: Lab, released: dict) -> None:
    """Cell by cell with the report that `lab build` derives: nbgrader's way of clearing must have the same result."""
    derived = json.loads(derive_report(lab, solution_folder(lab) / "report.py"))
    texts = [["".join(cell["source"]).strip() for cell in notebook["cells"]] for notebook in (released, derived)]
    if texts[0] != texts[1]:
        at = next((i for i, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), min(map(len, texts)))
        raise LeakError(f"{lab.folder.name}: {NOTEBOOK}: cell {at} is not the one that students are to get")
