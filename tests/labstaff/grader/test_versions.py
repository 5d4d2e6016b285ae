"""What decides a result, and so is in the version under which it is kept."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from labkit.labs.catalog import ROOT, find_lab
from labstaff.grader import version as versions

pytestmark = pytest.mark.slow

LAB = find_lab("01")


@pytest.fixture
def another_course(tmp_path, monkeypatch):
    """A copy of the course whose files may be changed; a function that gives its version for Lab 01."""
    for part in ("labkit", "labstaff", f"labs/{LAB.folder.name}"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    lab = msgspec.structs.replace(LAB, folder=tmp_path / "labs" / LAB.folder.name)

    def version(seed=1):
        versions._common.cache_clear()
        return versions.version_of(lab, seed)

    yield tmp_path, version
    versions._common.cache_clear()


@pytest.mark.parametrize(
    "file",
    [
        "labkit/testing/compare.py",
        "labkit/bench/configs/deepseek-v3.json",
        "labstaff/grader/sandbox.py",
        "labstaff/pytest_plugin.py",
        "pyproject.toml",
        f"labs/{LAB.folder.name}/tests/test_profiling.py",
    ],
)
def test_what_decides_a_result_is_in_its_version(file, another_course):
    folder, version = another_course
    before = version()
    with (folder / file).open("a", encoding="utf-8") as text:
        text.write("\n# mended\n")
    assert version() != before


@pytest.mark.parametrize(
    ("old", "new", "decides"), [("dtype=np.float32)", "dtype)", True), ("points = 20", "points = 25", False)]
)
def test_of_a_manifest_everything_but_the_points_decides(old, new, decides, another_course):
    """A result holds shares of them."""
    folder, version = another_course
    before, manifest = version(), folder / "labs" / LAB.folder.name / "lab.toml"
    text = manifest.read_text(encoding="utf-8")
    assert old in text
    manifest.write_text(text.replace(old, new), encoding="utf-8")
    assert (version() != before) == decides


def test_what_decides_nothing_is_not(another_course):
    folder, version = another_course
    before = version()
    for file in ("labstaff/course/record.py", f"labs/{LAB.folder.name}/README.md"):
        with (folder / file).open("a", encoding="utf-8") as text:
            text.write("\n# mended\n")
    assert version() == before


@pytest.mark.parametrize("name", ["numpy", "torch", "python", "seed", "limit"])
def test_libraries_limits_and_the_seed_are_in_the_version(name, another_course, monkeypatch):
    _, version = another_course
    before = version()
    if name == "python":
        monkeypatch.setattr(versions.platform, "python_version", lambda: "4.0")
    elif name == "limit":
        monkeypatch.setenv("ATTENTION_LABS_TEST_SECONDS", "77")
    else:
        installed = versions.version
        monkeypatch.setattr(versions, "version", lambda each: "99" if each == name else installed(each))
    assert version(2 if name == "seed" else 1) != before
