"""`python -m labstaff.calibrate 05 --seeds 20 --mistakes`: how much of each limit of a suite submissions use.

The solution and every alternative solution run at each seed, and with `--mistakes` every mistake, by the test that
finds it. Correct submissions should use at most 75 % of a limit, and mistakes exceed it by at least 30 %, but for
limits that are there to be used up: counts of which all were asked for, and memories that blocks are chosen to fill.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple

import pytest
import typer

from labkit.labs.catalog import find_lab
from labkit.labs.manifest import Lab
from labkit.meters.kernels.cache import cached_kernels
from labkit.suite.forked import ForkedRunner, heavy_modules
from labkit.suite.messages import ending_text, result_lines
from labkit.testing import compare
from labstaff.authoring.alternatives import alternative_solutions
from labstaff.authoring.mistakes import mistakes_of


class Job(NamedTuple):
    """A run of the suite: a submission, as pytest's options; the tests named, or all."""

    name: str
    options: tuple[str, ...]
    tests: tuple[str, ...] = ()
    correct: bool = True


class Limit(NamedTuple):
    """A comparison of a suite; numbers in what is compared are left out."""

    test: str
    what: str
    unit: str


class Result(NamedTuple):
    """A job, the lines of its failed tests, and the share of each limit that it used."""

    job: Job
    failed: list[str]
    shares: dict[Limit, float]


def main(
    number: Annotated[str, typer.Argument(metavar="LAB")],
    seeds: Annotated[int, typer.Option(help="correct submissions run at so many seeds")] = 4,
    mistakes: Annotated[bool, typer.Option("--mistakes", help="run mistakes too")] = False,
) -> None:
    """Run correct submissions, and list each limit with the share of it that the worst of them used."""
    lab = find_lab(number)
    with tempfile.TemporaryDirectory(prefix="calibrate-") as name, ThreadPoolExecutor(2) as pool:
        folder, runner = Path(name), ForkedRunner(heavy_modules(*lab.suite_files))
        jobs = [*correct_jobs(lab, seeds), *(mistaken_jobs(lab, folder) if mistakes else [])]
        with cached_kernels(folder / "kernels"):
            results = list(pool.map(functools.partial(_run, runner, lab, folder), jobs, itertools.count()))
    for line in report(results):
        typer.echo(line)


def correct_jobs(lab: Lab, n_seeds: int) -> Iterator[Job]:
    """The solution and every alternative solution at each seed, by the whole suite."""
    options: dict[str, tuple[str, ...]] = {"solution": ("--solutions",)}
    options |= {file.stem: ("--alternative", str(file)) for file in alternative_solutions(lab)}
    for seed, (name, chosen) in itertools.product(range(1, n_seeds + 1), options.items()):
        yield Job(f"{name}, seed {seed}", (*chosen, "--seed", str(seed)))


def mistaken_jobs(lab: Lab, folder: Path) -> Iterator[Job]:
    """Every mistake, by the test that finds it."""
    for mistake in mistakes_of(lab):
        mistake.write(folder / mistake.name)
        yield Job(mistake.name, ("--src", str(folder / mistake.name)), mistake.found_by, correct=False)


def _run(runner: ForkedRunner, lab: Lab, folder: Path, job: Job, number: int) -> Result:
    file = folder / f"{number}.json"
    options = ("-p", "labstaff.calibrate", "--margins", str(file), *job.options)
    run = runner.run(lab.label, *options, tests=job.tests)
    failed = [f"{each.test}: {' / '.join(result_lines(each))}" for each in run.results if not each.passed]
    shares: dict[Limit, float] = {}
    for test, what, unit, share in json.loads(file.read_text(encoding="utf-8")) if file.exists() else []:
        limit = Limit(test, re.sub(r"\d[\d,.]*(?= |$|,)", "n", what), unit)
        shares[limit] = max(share, shares.get(limit, 0.0))
    return Result(job, failed + [text for text in (ending_text(run.ended),) if text], shares)


def report(results: list[Result]) -> Iterator[str]:
    """Correct submissions that failed; each limit, the tightest first; and what mistakes exceed, the nearest first.

    A mistake counts for the limit of each test that it exceeds by the most.
    """
    used: dict[Limit, tuple[float, str]] = {}
    exceeded: list[tuple[float, Limit, str]] = []
    for job, failed, shares in results:
        if job.correct:
            yield from (f"refused: {job.name}: {line}" for line in failed)
            for limit, share in shares.items():
                used[limit] = max((share, job.name), used.get(limit, (0.0, "")))
        else:
            by_test = {limit.test: (share, limit, job.name) for limit, share in sorted(shares.items(), key=_share)}
            exceeded += [each for each in by_test.values() if each[0] > 1]
    for limit, (share, name) in sorted(used.items(), key=lambda each: -each[1][0]):
        yield f"{share:.2f} used by {name}: {' '.join(limit)}"
    for share, limit, name in sorted(exceeded):
        yield f"{share:.2f} exceeded by {name}: {' '.join(limit)}"


def _share(used: tuple[Limit, float]) -> float:
    return used[1]


# In the runs: this module is a pytest plugin there, which writes what the comparisons record.


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file that the shares are written to."""
    parser.addoption("--margins", type=Path, metavar="FILE", help="write the share of each limit used to FILE, as JSON")


@pytest.fixture(autouse=True)
def margins(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Keep what a test's comparisons record with its result."""
    kept = request.node.user_properties
    monkeypatch.setattr(compare, "margin_recorder", lambda *margin: kept.append(("margin", margin)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write a list of [test, what is compared, unit, share]."""
    shares = [
        ("::".join(item.nodeid.split("::")[1:]).split("[")[0], *margin)  # type: ignore[misc]
        for item in session.items
        for name, margin in item.user_properties
        if name == "margin"
    ]
    session.config.option.margins.write_text(json.dumps(shares), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
