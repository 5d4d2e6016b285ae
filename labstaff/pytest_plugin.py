"""Pytest options for instructors: run the solutions, an alternative solution, or submissions in a sandbox."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.abc import Loader
from pathlib import Path

import pytest

from labkit.labs.catalog import solution_file, solution_folder
from labkit.labs.manifest import Lab
from labkit.suite.finder import Source
from labstaff.authoring.alternatives import variant_text


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, besides labkit's `--src` and `--seed`."""
    group = parser.getgroup("attention labs")
    group.addoption("--solutions", action="store_true", help="use the course's solutions instead of labs/*/src")
    group.addoption(
        "--alternative", type=Path, metavar="FILE", help="use an alternative solution, in solutions/*/alternatives"
    )
    group.addoption("--sandboxed", action="store_true", help="run the code in a separate, sandboxed process")


def pytest_lab_source(config: pytest.Config, lab: Lab) -> Source | None:
    """The solution, or an alternative solution."""
    option = config.option
    if option.alternative and solution_folder(lab) in option.alternative.resolve().parents:
        folder = tempfile.TemporaryDirectory(prefix="alternative-")
        config.add_cleanup(folder.cleanup)
        file = Path(folder.name, f"{lab.module}.py")
        file.write_text(variant_text(lab, option.alternative), encoding="utf-8")
        return Source(lab, file)
    return Source(lab, solution_file(lab)) if option.solutions else None


def pytest_lab_loader(config: pytest.Config, labs: list[Lab]) -> Callable[[Source], Loader] | None:
    """With `--sandboxed`, what calls submissions in a sandbox."""
    if not config.option.sandboxed:
        return None
    from labkit.suite.forked import heavy_modules
    from labstaff.grader import sandbox
    from labstaff.grader.remote import remote_loader

    workers = sandbox.current
    if workers is None:
        try:
            workers = sandbox.Sandbox(heavy_modules(*(file for lab in labs for file in lab.suite_files)))
        except sandbox.SandboxMissing as error:
            raise pytest.UsageError(str(error)) from None
        config.add_cleanup(workers.close)
    return remote_loader(config, workers)
