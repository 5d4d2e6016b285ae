"""`python -m labstaff.calibrate 05 --seeds 1-20`: how much of each limit correct submissions use.

The solution and every alternative solution run at each seed, in this process (`--seeds`) and in a sandbox
(`--sandboxed-seeds`); every mistake runs by the test that finds it (`--mistake-seeds`). Limits of which a correct
submission uses more than 75 % are listed, and limits that a mistake exceeds by less than 30 %. Ends with 1 when a
correct submission failed or a mistake passed.
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from labkit.labs.catalog import find_lab, find_labs
from labkit.labs.manifest import Lab
from labkit.meters.kernels.cache import cached_kernels
from labkit.suite.forked import HEAVY, ForkedRunner
from labstaff.authoring.alternatives import alternative_solutions
from labstaff.authoring.mistakes import mistakes_of
from labstaff.grader.runner import SandboxedRunner

MOST_USED, LEAST_EXCEEDED = 0.75, 1.30
CAPACITIES = ("bytes of SRAM", "bytes of the budget")
"""Limits that are there to be used up: blocks are chosen to fill a memory."""


class Job(NamedTuple):
    """One run of a suite: a submission, as pytest's options, at one seed; the tests named, or all."""

    lab: Lab
    name: str
    options: tuple[str, ...]
    tests: tuple[str, ...]
    seed: int
    correct: bool


class Limit(NamedTuple):
    """A comparison of a suite; numbers in what is compared are left out."""

    lab: str
    test: str
    what: str
    unit: str


@dataclass
class Shares:
    """Shares of a limit: the largest that a correct submission used, and the smallest that a mistake exceeded it by."""

    correct: float = 0.0
    by: str = ""
    mistaken: float | None = None
    mistake: str = ""


class Result(NamedTuple):
    """A job, the lines of its failed tests, and the share of each limit that it used."""

    job: Job
    failed: list[str]
    shares: list[tuple[Limit, float]]


def main(
    labs: Annotated[list[str] | None, typer.Argument(metavar="[LAB]...")] = None,
    seeds: Annotated[str, typer.Option(help="first-last: correct submissions in this process")] = "1-4",
    sandboxed_seeds: Annotated[str, typer.Option(help="first-last: correct submissions in a sandbox")] = "",
    mistake_seeds: Annotated[str, typer.Option(help="first-last: mistakes")] = "",
    table: Annotated[Path | None, typer.Option(help="write every limit to this CSV file")] = None,
) -> None:
    """Run correct submissions and mistakes at many seeds, and list the limits that are too tight or too loose."""
    chosen = [find_lab(name) for name in labs or []] or find_labs()
    with tempfile.TemporaryDirectory(prefix="calibrate-") as name:
        folder = Path(name)
        jobs = [
            job for lab in chosen for job in (*correct_jobs(lab, seeds), *mistaken_jobs(lab, mistake_seeds, folder))
        ]
        sandboxed = [job for lab in chosen for job in correct_jobs(lab, sandboxed_seeds)]
        with cached_kernels(folder / "kernels"):
            results = list(run_all(ForkedRunner(tuple(HEAVY.values())), jobs, folder)) if jobs else []
            if sandboxed:
                results += run_all(SandboxedRunner(), sandboxed, folder)
    limits = shares_of(results)
    if table:
        write_table(table, limits)
    problems = [
        f"refused: {each.job.name}, seed {each.job.seed}: {line}"
        for each in results
        for line in each.failed
        if each.job.correct
    ]
    problems += [f"passes: {each.job.name}" for each in results if not each.job.correct and not each.failed]
    n_correct = sum(each.job.correct for each in results)
    typer.echo(f"{n_correct} runs of correct submissions, {len(results) - n_correct} of mistakes, {len(limits)} limits")
    for line in (*problems, *near_lines(limits)):
        typer.echo(line)
    raise typer.Exit(1 if problems else 0)


def correct_jobs(lab: Lab, seeds: str) -> Iterator[Job]:
    """The solution and every alternative solution at each seed, by the whole suite."""
    options = {"solution": ("--solutions",)} | {
        file.stem: ("--answer", str(file)) for file in alternative_solutions(lab)
    }
    for seed, (name, chosen) in itertools.product(_range(seeds), options.items()):
        yield Job(lab, f"{lab.label} {name}", chosen, (), seed, True)


def mistaken_jobs(lab: Lab, seeds: str, folder: Path) -> Iterator[Job]:
    """Every mistake at each seed, by the test that finds it."""
    for seed, mistake in itertools.product(_range(seeds), mistakes_of(lab)):
        place = folder / lab.label / mistake.name
        mistake.write(place)
        yield Job(lab, f"{lab.label} {mistake.name}", ("--src", str(place)), mistake.found_by, seed, False)


def run_all(runner: ForkedRunner, jobs: list[Job], folder: Path) -> Iterator[Result]:
    """The results of the jobs, two at a time, in their order."""
    with runner, ThreadPoolExecutor(2) as pool:
        for n_done, result in enumerate(pool.map(functools.partial(_run, runner, folder), jobs, itertools.count()), 1):
            if sys.stderr.isatty():
                print(f"\r{n_done} of {len(jobs)} runs", end="", file=sys.stderr)
            yield result


def _run(runner: ForkedRunner, folder: Path, job: Job, number: int) -> Result:
    file = folder / f"{number}.json"
    options = ("-p", "labstaff.calibrate.plugin", "--margins", str(file), "--seed", str(job.seed), *job.options)
    run = runner.run(job.lab.label, *options, tests=job.tests)
    failed = [f"{each.test}: {' / '.join(each.lines)}" for each in run.results if not each.passed]
    failed += [run.problem] if run.problem else []
    shares = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    file.unlink(missing_ok=True)
    return Result(job, failed, [(_limit(job.lab, *names), share) for *names, share in shares])


def _limit(lab: Lab, test: str, what: str, unit: str) -> Limit:
    return Limit(lab.label, test, re.sub(r"\d[\d,.]*(?= |$|,)", "n", what), unit)


def shares_of(results: list[Result]) -> dict[Limit, Shares]:
    """The shares of each limit that were used. A mistake counts for the limit that it exceeds by the most."""
    limits: dict[Limit, Shares] = {}
    for job, _, shares in results:
        worst: dict[str, tuple[float, Limit]] = {}
        for limit, share in shares:
            found = limits.setdefault(limit, Shares())
            if job.correct and share >= found.correct:
                found.correct, found.by = share, f"{job.name}, seed {job.seed}"
            worst[limit.test] = max(worst.get(limit.test, (0.0, limit)), (share, limit))
        for share, limit in worst.values() if not job.correct else ():
            found = limits[limit]
            if share > 1 and (found.mistaken is None or share < found.mistaken):
                found.mistaken, found.mistake = share, f"{job.name}, seed {job.seed}"
    return limits


def near_lines(limits: dict[Limit, Shares]) -> Iterator[str]:
    """A line for each limit that correct submissions nearly reach, or that a mistake barely exceeds.

    A count of which exactly all is used was asked for.
    """
    for limit, each in sorted(limits.items()):
        exact = each.correct == 1 and limit.unit != "tolerance"
        if each.correct > MOST_USED and not exact and limit.unit not in CAPACITIES:
            yield f"tight: {' '.join(limit)}: {each.correct:.2f} used by {each.by}"
        if each.mistaken is not None and each.mistaken < LEAST_EXCEEDED:
            yield f"near: {' '.join(limit)}: {each.mistaken:.2f} by {each.mistake}"


def write_table(file: Path, limits: dict[Limit, Shares]) -> None:
    """Every limit as a row of CSV."""
    with file.open("w", encoding="utf-8", newline="") as text:
        table = csv.writer(text, lineterminator="\n")
        table.writerow((*Limit._fields, "correct at most", "by", "mistakes at least", "mistake"))
        for limit, each in sorted(limits.items()):
            least = "" if each.mistaken is None else f"{each.mistaken:.3g}"
            table.writerow((*limit, f"{each.correct:.3f}", each.by, least, each.mistake))


def _range(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1)) if text else []


if __name__ == "__main__":
    typer.run(main)
