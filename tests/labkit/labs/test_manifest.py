"""A manifest is read correctly, and a malformed one gives one clear message."""

from __future__ import annotations

import re
import sys

import pytest

from labkit.labs.catalog import UnknownLab, find_lab, find_labs
from labkit.labs.manifest import ManifestError, read_manifest

GOOD = """
title = "A lab"
summary = "What it is."
outcomes = ["write it", "measure it", "find what is wrong"]
module = "thing"
hours = 1.5

[[tasks]]
name = "first"
signature = "first(a, b=1)"
tests = "TestFirst"
points = 3
hints = ["Look closer."]

[[tasks]]
name = "second"
signature = "second(x)"
tests = "TestSecond"
points = 2.5
hints = ["Again."]

[[questions]]
id = "why"
title = "Why?"
points = 4
"""


def write(root, text, folder="lab01_thing"):
    """A manifest in a separate folder."""
    path = root / "labs" / folder / "lab.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_what_is_written(tmp_path):
    lab = read_manifest(write(tmp_path, GOOD))
    assert (lab.number, lab.label, lab.title, lab.module, lab.hours) == ("01", "lab01", "A lab", "thing", 1.5)
    assert [(t.name, t.signature, t.tests, t.points, t.hints) for t in lab.tasks] == [
        ("first", "first(a, b=1)", "TestFirst", 3, ("Look closer.",)),
        ("second", "second(x)", "TestSecond", 2.5, ("Again.",)),
    ]
    assert lab.points == 5.5
    assert lab.student_file == tmp_path / "labs/lab01_thing/src/thing.py"
    assert lab.suite_file == tmp_path / "labs/lab01_thing/tests/test_thing.py"
    assert lab.task_of("TestSecond") is lab.tasks[1]
    assert lab.task_of("TestThird") is None


def test_platform_and_environment(tmp_path):
    more = 'platform = "linux"\nlibraries = ["triton>=3.6"]\nenvironment = ["TRITON_INTERPRET=1"]\n'
    lab = read_manifest(write(tmp_path, GOOD.replace("hours = 1.5\n", f"hours = 1.5\n{more}")))
    assert (lab.platform, lab.libraries, lab.environment) == ("linux", ("triton>=3.6",), ("TRITON_INTERPRET=1",))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('title = "A lab"', "", "title: missing"),
        ('title = "A lab"', "title = 7", "title: expected `str`, got `int`"),
        ('module = "thing"', 'module = "a thing"', "module: expected `str` matching regex"),
        ('"find what is wrong"', "", "outcomes: expected `array` of length >= 3"),
        ('"measure it"', '"understand it"', "outcomes[1]: expected `str` matching regex"),
        ('"measure it"', '"measure it."', "outcomes[1]: expected `str` matching regex"),
        ("hours = 1.5", "hours = true", "hours: expected `int | float`, got `bool`"),
        ("points = 3", "points = 0", "tasks[0].points: expected `int` >= 1"),
        ("points = 2.5", 'points = "2"', "tasks[1].points: expected `int | float`, got `str`"),
        ('hints = ["Again."]', "hints = []", "tasks[1].hints: expected `array` of length >= 1"),
        ('hints = ["Again."]', 'hints = [" "]', "tasks[1].hints[0]: expected `str` matching regex"),
        (
            '"second(x)"',
            '"third(x)"',
            "tasks[1].signature: expected a call of second, like second(Q, K), found 'third(x)'",
        ),
        ('name = "second"', 'name = "first"', "tasks[1].signature: expected a call of first"),
        ('tests = "TestSecond"', 'tests = "TestFirst"', "tasks: expected each name once, found twice: TestFirst"),
        ("hours = 1.5", "hours = 1.5\ncolour = 1", "colour: not a key of a lab's manifest"),
        ("points = 4", "points = 4\nrubric = 1", "questions[0].rubric: not a key of a lab's manifest"),
        ("hours = 1.5", "hours = ", "not valid TOML"),
        ("[[questions]]", "[questions]", "questions: expected `array`, got `object`"),
    ],
)
def test_malformed(tmp_path, old, new, says):
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ManifestError) as caught:
        read_manifest(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert says in message
    assert "\n" not in message


def test_without_tasks(tmp_path):
    path = write(tmp_path, GOOD.split("[[tasks]]")[0])
    with pytest.raises(ManifestError, match="tasks: missing"):
        read_manifest(path)


def test_a_folder_left_behind_by_a_deleted_lab_is_no_lab(tmp_path):
    write(tmp_path, GOOD)
    (tmp_path / "labs/lab07_deleted/tests/__pycache__").mkdir(parents=True)
    (tmp_path / "labs/lab07_deleted/tests/__pycache__/test_deleted.cpython-311.pyc").touch()
    assert [lab.folder.name for lab in find_labs(tmp_path)] == ["lab01_thing"]


@pytest.mark.parametrize("folder", ["lab01_other", "lab02_thing"])
def test_two_labs_cannot_share_a_number_or_a_module(tmp_path, folder):
    write(tmp_path, GOOD)
    write(tmp_path, GOOD if folder == "lab02_thing" else GOOD.replace('"thing"', '"other"'), folder)
    with pytest.raises(ManifestError, match="expected one of its own"):
        find_labs(tmp_path)


def test_a_lab_is_found_by_any_of_its_names(tmp_path):
    write(tmp_path, GOOD)
    for key in ("1", "01", "lab01", "lab1", "lab01_thing", "labs/lab01_thing/"):
        assert find_lab(key, tmp_path).label == "lab01"
    for key in ("2", "thing", "lab", "011"):
        with pytest.raises(UnknownLab, match=r"there is no lab '.*'; there are: 01 \(A lab\)"):
            find_lab(key, tmp_path)


@pytest.mark.parametrize("lab", find_labs(), ids=lambda lab: lab.label)
def test_the_handout_says_how_long_a_test_may_take(lab):
    handout = (lab.folder / "README.md").read_text(encoding="utf-8")
    assert f"A test may take {lab.test_seconds:g} s of CPU time" in handout


@pytest.mark.parametrize("lab", find_labs(), ids=lambda lab: lab.label)
def test_the_handout_names_the_imports_that_a_solution_needs(lab):
    handout = (lab.folder / "README.md").read_text(encoding="utf-8")
    paragraph = re.search(r"^\*\*Imports\.\*\*(?:.+\n)+", handout, re.MULTILINE)
    assert paragraph
    imports = {each.partition(">=")[0] for each in lab.libraries}
    # A library's name covers its submodules; the course's own modules are named in full.
    names = {name if name.startswith("labkit.") else name.partition(".")[0] for name in imports}
    names -= sys.stdlib_module_names
    assert [name for name in sorted(names) if name not in paragraph[0].casefold()] == []
