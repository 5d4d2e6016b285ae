"""How close right answers come to each limit of a suite, and how far mistakes stay away, over many seeds.

`python -m labstaff.calibrate 05 --seeds 1-50` judges the solution and every right answer of Lab 05 at each seed, plain
and sandboxed, and every mistake by its named tests at a few of them. For each comparison it tells the largest share of
the limit that a right answer used and the smallest that a mistake which it must find did. It ends with 1 when a right
answer was refused.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Annotated, NamedTuple

import typer

from labkit.labs.catalog import find_lab, find_labs
from labkit.labs.manifest import Lab
from labkit.suite.prefork import WarmRunner
from labstaff.answers.mistakes import mistakes_of
from labstaff.answers.right import right_answers

RUNNERS = 2
HEAVY = ("labkit.suite.prefork_torch", "matplotlib.pyplot")
MOST_USED, LEAST_USED = 0.75, 1.30
"""Of a limit: what a right answer may use at most, and what a mistake must use at least."""


class Job(NamedTuple):
    """One run of a suite: an answer, a seed, and whether it lives in a sandbox. `tests` are the named ones, or all."""

    lab: Lab
    answer: str
    seed: int
    mode: str
    options: tuple[str, ...]
    tests: tuple[str, ...] = ()
    right: bool = True

    def __str__(self) -> str:
        return f"{self.answer}, seed {self.seed}, {self.mode}"


class Limit(NamedTuple):
    """A comparison of a suite: parameters of the test left out."""

    lab: str
    test: str
    what: str


@dataclass
class Calibration:
    """What was seen so far."""

    n_right: int = 0
    refused: list[str] = field(default_factory=list)
    used: dict[Limit, float] = field(default_factory=lambda: defaultdict(float))
    by: dict[Limit, str] = field(default_factory=dict)
    mistakes: dict[Limit, float] = field(default_factory=dict)
    mistaken: dict[Limit, str] = field(default_factory=dict)

    def enter(self, job: Job, failed: list[str], margins: list[tuple[str, str, float]]) -> None:
        """Take in the outcome of one run."""
        worst: dict[Limit, float] = defaultdict(float)
        for test, what, share in margins:
            limit = Limit(job.lab.label, test.split("[")[0], what)
            worst[limit] = max(worst[limit], share)
        told = str(job)
        if job.right:
            self.n_right += 1
            self.refused += [f"{told}: {test}" for test in failed]
        for limit, share in worst.items():
            if job.right and share >= self.used[limit]:
                self.used[limit], self.by[limit] = share, told
            elif not job.right and share > 1 and share < self.mistakes.get(limit, float("inf")):
                self.mistakes[limit], self.mistaken[limit] = share, told


def jobs_of(lab: Lab, seeds: list[int], mistake_seeds: list[int], modes: list[str], folder: Path) -> Iterator[Job]:
    """Every right answer at every seed in every mode, and every mistake, written to `folder`, at a few seeds."""
    answers: list[tuple[str, tuple[str, ...]]] = [("solution", ("--solutions",))]
    answers += [(f"right/{file.name}", ("--answer", str(file))) for file in right_answers(lab)]
    for seed in seeds:
        for name, options in answers:
            for mode in modes:
                where = ("--sandboxed",) if mode == "sandboxed" else ()
                yield Job(lab, name, seed, mode, (*options, "--seed", str(seed), "--drawn", *where))
    for seed in mistake_seeds:
        for mistake in mistakes_of(lab):
            place = folder / lab.label / mistake.name
            mistake.write(place)
            options = ("--src", str(place), "--seed", str(seed))
            yield Job(lab, mistake.name, seed, "plain", options, mistake.killed_by, right=False)


def calibrate(jobs: list[Job], *, sandboxed: bool) -> Calibration:
    """Run every job, two at a time."""
    seen = Calibration()
    idle: Queue[WarmRunner] = Queue()
    for _ in range(RUNNERS):
        idle.put(WarmRunner(HEAVY, prepare="labstaff.judge.sandbox:keep_boxed" if sandboxed else ""))

    def one(job: Job) -> tuple[Job, list[str], list[tuple[str, str, float]]]:
        runner = idle.get()
        try:
            with tempfile.TemporaryDirectory(prefix="margins-") as folder:
                file = Path(folder, "margins")
                run = runner.run(job.lab.label, *job.options, "--margins", str(file), tests=job.tests)
                lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        finally:
            idle.put(runner)
        failed = [f"{verdict.test}: {' / '.join(verdict.lines)}" for verdict in run.verdicts if not verdict.passed]
        margins = [(str(test), str(what), float(share)) for test, what, share in map(json.loads, lines)]
        return job, [*([run.problem] if run.problem else []), *failed], margins

    with ThreadPoolExecutor(RUNNERS) as pool:
        for number, (job, failed, margins) in enumerate(pool.map(one, jobs), 1):
            seen.enter(job, failed, margins)
            if sys.stderr.isatty():
                print(f"\r{number} of {len(jobs)} runs", end="", file=sys.stderr)
    while not idle.empty():
        idle.get().close()
    return seen


def write_table(path: Path, seen: Calibration) -> None:
    """A line for each limit, the tightest first."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["lab", "test", "what", "right_at_most", "by", "mistakes_at_least", "mistake"])
        for limit in sorted({*seen.used, *seen.mistakes}, key=lambda each: (each.lab, -seen.used.get(each, 0.0))):
            mistakes = seen.mistakes.get(limit)
            least = "" if mistakes is None else f"{mistakes:.3g}"
            right = [f"{seen.used.get(limit, 0.0):.3f}", seen.by.get(limit, "")]
            table.writerow([*limit, *right, least, seen.mistaken.get(limit, "")])


def main(
    labs: Annotated[list[str] | None, typer.Argument(metavar="[LAB]...")] = None,
    seeds: Annotated[str, typer.Option(help="first-last")] = "1-20",
    mistake_seeds: Annotated[str, typer.Option(help="first-last; for mistakes")] = "1-1",
    mode: Annotated[str, typer.Option(help="plain, sandboxed or both")] = "both",
    table: Annotated[Path | None, typer.Option("--csv", help="write every limit to this file")] = None,
) -> None:
    """Judge right answers and mistakes over many seeds, and tell how much of each limit they use."""
    chosen = [find_lab(name) for name in labs or []] or find_labs()
    modes = ["plain", "sandboxed"] if mode == "both" else [mode]
    with tempfile.TemporaryDirectory(prefix="mistakes-") as folder:
        every = (jobs_of(lab, _range(seeds), _range(mistake_seeds), modes, Path(folder)) for lab in chosen)
        seen = calibrate([job for jobs in every for job in jobs], sandboxed="sandboxed" in modes)
    if table:
        write_table(table, seen)
    tight = {limit: share for limit, share in seen.used.items() if share > MOST_USED}
    near = {limit: share for limit, share in seen.mistakes.items() if share < LEAST_USED}
    typer.echo(f"{seen.n_right} right runs judged, {len(seen.refused)} tests refused one")
    for line in seen.refused:
        typer.echo(f"  refused: {line}")
    for limit, share in sorted(tight.items(), key=lambda each: -each[1]):
        typer.echo(f"  tight: {' '.join(limit)}: a right answer used {share:.2f} of it ({seen.by[limit]})")
    for limit, share in sorted(near.items(), key=lambda each: each[1]):
        typer.echo(f"  near: {' '.join(limit)}: a mistake used only {share:.2f} of it ({seen.mistaken[limit]})")
    raise typer.Exit(1 if seen.refused else 0)


def _range(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1)) if text else []


if __name__ == "__main__":
    typer.run(main)
