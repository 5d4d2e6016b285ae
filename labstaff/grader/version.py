"""What besides a student's file decides a result: the suite, the course's own code, the libraries, the seed."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from labkit.labs.catalog import ROOT, reviewed_lab, solution_folder
from labkit.labs.manifest import MANIFEST_NAME, Lab

CODE = (
    "labkit/**/*.py",
    "labkit/**/*.json",
    "labstaff/grader/*.py",
    "labstaff/review/*.py",
    "labstaff/pytest_plugin.py",
    "pyproject.toml",
)
VERSIONS = (".py", ".toml", ".json")
LIBRARIES = ("numpy", "torch", "triton", "matplotlib", "pytest")
LIMIT = "ATTENTION_LABS_TEST_SECONDS"
"""An environment variable that sets a limit."""


def version_of(lab: Lab, seed: int) -> str:
    """16 characters that change when a file of the same content may get another result than before."""
    reviewed = reviewed_lab(lab)
    manifest = tomllib.loads(((reviewed or lab).folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    for task in manifest["tasks"]:
        del task["points"]  # a result holds shares of them
    suite = _digest(lab.suite_files, lab.folder)
    if reviewed:  # it is run on what is in `solutions/`
        folder = solution_folder(lab)
        suite = _digest(sorted(file for file in folder.rglob("*") if file.suffix in VERSIONS), folder)
    parts = (_common(), manifest, suite, lab.folder.name, seed, os.environ.get(LIMIT, ""))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@functools.cache
def _common() -> str:
    code = _digest(sorted(file for pattern in CODE for file in ROOT.glob(pattern)), ROOT)
    return repr((code, platform.python_version(), platform.machine(), [*map(_installed, LIBRARIES)]))


def _digest(files: list[Path], folder: Path) -> str:
    contents = {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return hashlib.sha256(repr(contents).encode()).hexdigest()


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
