"""nbgrader's zip_collect with this course's regular expressions for the names that Moodle and Canvas give."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile

import pytest

from labstaff.course.accept import accept_all
from labstaff.grader.submission import NOTES_FILE
from tests.labstaff.course.submissions import CODE, NAME
from tests.student import LAB

pytestmark = pytest.mark.slow

FILE = f"{LAB.module}.py"
MOODLE = {
    f"Ann Ångström_101_assignsubmission_file_/{FILE}": "ann",
    "Ann Ångström_101_assignsubmission_file_/report.ipynb": "{}",
    f"Bob Bee_102_assignsubmission_file/{FILE}": "bob",
    "Cec_103_assignsubmission_file_/lab.zip": None,
    f"Dan_104_assignsubmission_file_{FILE}": "dan",
    f"Eve_105_assignsubmission_file_/mine/{CODE}": "eve",
    "Fay_106_assignsubmission_file_/lab.tar.gz": "fay",
    "grades.txt": "",
}
CANVAS = {
    f"angstromann_101_9001_{FILE}": "ann",
    "angstromann_101_9002_report.ipynb": "{}",
    f"beebob_LATE_102_9003_{LAB.module}-1.py": "bob",
    "cec_103_9004_lab.zip": None,
    "fay_106_9005_lab.tar.gz": "fay",
    "notes.txt": "",
}


@pytest.mark.parametrize(
    ("platform", "files", "students", "without_code"),
    [
        (
            "MOODLE",
            MOODLE,
            {"Ann Ångström_101": "ann", "Bob Bee_102": "bob", "Cec_103": "cec", "Dan_104": "dan", "Eve_105": "eve"},
            "Fay_106",
        ),
        ("CANVAS", CANVAS, {"101": "ann", "102": "bob", "103": "cec"}, "106"),
    ],
    ids=["moodle", "canvas"],
)
def test_downloads_are_collected(made_course, tmp_path, platform, files, students, without_code):
    course = tmp_path / "course"
    shutil.copytree(made_course, course)
    config = course / "nbgrader_config.py"
    config.write_text(config.read_text().replace("named_regexp = MOODLE", f"named_regexp = {platform}"))
    for name, text in files.items():
        path = course / "downloaded" / NAME / "archive" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            with zipfile.ZipFile(path, "w") as packed:
                packed.writestr(f"mine/{CODE}", "cec")
        else:
            path.write_text(text)
    for _again in range(2):
        subprocess.run([sys.executable, "-P", "-m", "nbgrader", "zip_collect", NAME], cwd=course, check=True)
    assert accept_all(course, [LAB]) == {}
    found = {place.parents[2].name: place.read_text() for place in course.glob(f"accepted/*/{NAME}/{CODE}")}
    assert found == students
    assert "there is no src" in (course / "accepted" / without_code / NAME / NOTES_FILE).read_text()
