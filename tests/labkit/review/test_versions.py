"""The data file of a release: its lock, and what is damaged."""

from __future__ import annotations

import pytest

from labkit.review.versions import DATA_FILE, NoVersions, Version, packed, stored_versions
from labkit.suite.results import TaskResult, store
from tests.student import student_lab

VERSIONS = (Version("solution", ("a",), "x = 1\n"), Version("slip", ("a",), "x = 2\n", "x is 2."))


def done(lab, but=None):
    """Store that every task passes, `but` one."""
    store(lab, {task.name: TaskResult(task.name, 3 - (task.name == but), 3, True) for task in lab.tasks})


def test_versions_open_when_every_task_is_done(tmp_path):
    lab = student_lab(tmp_path)
    (lab.folder / DATA_FILE).write_bytes(packed(VERSIONS, after=True))
    last = lab.tasks[-1].name
    done(lab, but=last)
    with pytest.raises(NoVersions, match=last):
        stored_versions(lab)
    done(lab)
    assert stored_versions(lab) == VERSIONS


def test_open_versions_wait_for_nothing(tmp_path):
    lab = student_lab(tmp_path)
    (lab.folder / DATA_FILE).write_bytes(packed(VERSIONS, after=False))
    assert stored_versions(lab) == VERSIONS


@pytest.mark.parametrize("data", [b"", b"text", packed(VERSIONS, after=False)[:-9]])
def test_damaged_file_is_reported(tmp_path, data):
    lab = student_lab(tmp_path)
    (lab.folder / DATA_FILE).write_bytes(data)
    with pytest.raises(NoVersions, match="damaged"):
        stored_versions(lab)


def test_a_release_without_versions_says_so(tmp_path):
    with pytest.raises(NoVersions, match="later"):
        stored_versions(student_lab(tmp_path))


def test_data_file_shows_no_text_of_a_version():
    assert b"x = 2" not in packed(VERSIONS, after=True)
