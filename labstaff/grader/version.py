"""What besides a student's file decides a result: the suite, the course's own code, the libraries, the seed."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from labkit.labs.catalog import ROOT
from labkit.labs.manifest import Lab

CODE = (
    *("labkit/*.py", "labkit/labs", "labkit/suite", "labkit/testing", "labkit/meters", "labkit/bench"),
    *("labkit/kernels", "labkit/ranks", "labkit/serving", "labkit/simulated_memory", "labstaff/grader"),
    "labkit/suite/*.json",
)
"""What takes part in grading. The rest (boards, traces, the site, recording) changes no result."""

LIBRARIES = ("numpy", "torch", "triton", "matplotlib", "pytest", "hypothesis")
LIMITS = ("ATTENTION_LABS_TEST_SECONDS",)
"""Environment variables that set a limit."""


def version_of(lab: Lab, seed: int) -> str:
    """16 characters that change when a file of the same content may get another result than before."""
    digest = hashlib.sha256(_common().encode())
    for file in (lab.folder / "lab.toml", *lab.suite_files):
        _add(digest, file, lab.folder)
    limits = {name: os.environ.get(name, "") for name in LIMITS}
    digest.update(repr((lab.folder.name, seed, limits)).encode())
    return digest.hexdigest()[:16]


@functools.cache
def _common() -> str:
    digest = hashlib.sha256()
    for file in sorted(_code()):
        _add(digest, file, ROOT)
    digest.update(repr((platform.python_version(), platform.machine(), [*map(_installed, LIBRARIES)])).encode())
    return digest.hexdigest()


def _code() -> Iterator[Path]:
    for place in CODE:
        for path in ROOT.glob(place):
            yield from path.rglob("*.py") if path.is_dir() else (path,)


def _add(digest: hashlib._Hash, file: Path, folder: Path) -> None:
    digest.update(f"{file.relative_to(folder).as_posix()}\n".encode())
    digest.update(hashlib.sha256(file.read_bytes()).digest())


def _installed(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} -"
