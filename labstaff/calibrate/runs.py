"""The runs of a calibration: which there are, how they are done, and the file in which what came of them is kept."""

from __future__ import annotations

import ast
import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from labkit.labs.catalog import solution_file
from labkit.labs.manifest import Lab
from labkit.meters.kernels.kept import kernels_kept
from labkit.suite.forked import ForkedRunner
from labkit.testing.margins import Margin
from labstaff.answers.mistakes import mistakes_of
from labstaff.answers.right import right_answers
from labstaff.grader.runner import SandboxedRunner

HEAVY = ("labkit.suite.prefork_torch", "matplotlib.pyplot")
N_RUNNERS = 2
MOST_SEEDS = 8
"""In one process: an answer in a sandbox has 180 s of CPU time, and what an accident costs is done again."""


@dataclass(frozen=True)
class Job:
    """An answer, judged at several seeds in one mode.

    Attributes:
        state: of the suite and the answer: what came of another state does not count.
        tests: the named ones, for a mistake; all when empty.
        whole: at the first seed, also what draws nothing from it.
    """

    lab: Lab
    answer: str
    state: str
    seeds: tuple[int, ...]
    mode: str
    options: tuple[str, ...]
    tests: tuple[str, ...]
    whole: bool
    right: bool


@dataclass(frozen=True)
class Outcome:
    """What came of one answer at one seed.

    Attributes:
        failed: a line for each test that refused it.
        margins: of each test (parameters left out, `TestClass::test_name`) and comparison, the largest share used.
    """

    lab: str
    answer: str
    state: str
    seed: int
    mode: str
    right: bool
    failed: list[str]
    margins: list[tuple[str, str, str, float]]

    def each(self) -> Iterator[tuple[str, Margin]]:
        """The margins, each with its test."""
        for test, what, kind, share in self.margins:
            yield test, Margin(what, kind, share)

    def __str__(self) -> str:
        return f"{self.answer}, seed {self.seed}, {self.mode}"


class Record:
    """A file of outcomes, a line of JSON each: a calibration that was stopped goes on where it was."""

    def __init__(self, file: Path) -> None:
        self._file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self.outcomes = [Outcome(**json.loads(line)) for line in lines]
        self._known = {self._key(each.lab, each.answer, each.state, each.seed, each.mode) for each in self.outcomes}

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Keep what came of a job."""
        with self._file.open("a", encoding="utf-8") as file:
            for outcome in outcomes:
                file.write(json.dumps(asdict(outcome)) + "\n")
                self.outcomes.append(outcome)

    def left(self, jobs: Iterable[Job]) -> list[Job]:
        """The jobs, or their seeds, that are not in the file; in turns, so that every lab is seen early."""
        parts = []
        for job in jobs:
            seeds = [
                s for s in job.seeds if self._key(job.lab.label, job.answer, job.state, s, job.mode) not in self._known
            ]
            for turn, first in enumerate(range(0, len(seeds), MOST_SEEDS)):
                whole = job.whole and job.seeds[0] in seeds and first == 0
                part = tuple(seeds[first : first + MOST_SEEDS])
                parts.append((turn, Job(**(vars(job) | {"seeds": part, "whole": whole}))))
        return [job for _, job in sorted(parts, key=lambda each: each[0])]

    def of(self, jobs: Iterable[Job]) -> list[Outcome]:
        """What came of these jobs, the newest where there are several."""
        wanted = {self._key(job.lab.label, job.answer, job.state, s, job.mode) for job in jobs for s in job.seeds}
        found = {self._key(each.lab, each.answer, each.state, each.seed, each.mode): each for each in self.outcomes}
        return [found[key] for key in found if key in wanted]

    @staticmethod
    def _key(*parts: str | int) -> tuple[str | int, ...]:
        return parts


def right_jobs(lab: Lab, seeds: Sequence[int], mode: str) -> Iterator[Job]:
    """The solution and every other right answer, by the whole suite at the first seed."""
    texts: list[tuple[str, tuple[str, ...], str]] = [("solution", ("--solutions",), "")]
    texts += [(f"right/{f.name}", ("--answer", str(f)), f.read_text("utf-8")) for f in right_answers(lab)]
    for name, options, text in texts:
        state = _state(lab, solution_file(lab).read_text("utf-8"), text)
        yield Job(lab, name, state, tuple(seeds), mode, options, (), True, True)


def mistaken_jobs(lab: Lab, seeds: Sequence[int], folder: Path) -> Iterator[Job]:
    """Every mistake, written to `folder`, by the tests that must find it."""
    for mistake in mistakes_of(lab):
        place = folder / lab.label / mistake.name
        mistake.write(place)
        state = _state(lab, mistake.source(), " ".join(mistake.killed_by))
        options = ("--src", str(place))
        yield Job(lab, mistake.name, state, tuple(seeds), "plain", options, mistake.killed_by, True, False)


def run(jobs: Iterable[Job], *, sandboxed: bool) -> Iterator[list[Outcome]]:
    """What comes of each job, in their order, from one warm process, two at once."""
    with (
        tempfile.TemporaryDirectory(prefix="margins-") as folder,
        kernels_kept(Path(folder, "kernels")),
        SandboxedRunner() if sandboxed else ForkedRunner(HEAVY) as runner,
        ThreadPoolExecutor(N_RUNNERS) as pool,
    ):
        files = (Path(folder, str(number)) for number in count())
        yield from pool.map(lambda job, file: _run(runner, job, file), jobs, files)


def _run(runner: ForkedRunner, job: Job, file: Path) -> list[Outcome]:
    seeds = ",".join(map(str, job.seeds))
    options = ["-p", "labstaff.calibrate.repeated", "--margins", str(file), "--seeds", seeds, *job.options]
    suite_run = runner.run(job.lab.label, *options, *(["--whole"] if job.whole else []), tests=job.tests)
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    told = {each.pop("seed"): each for each in map(json.loads, lines)}
    fixed = (job.lab.label, job.answer, job.state)
    outcomes = [
        Outcome(*fixed, seed, job.mode, job.right, each["failed"], each["margins"]) for seed, each in told.items()
    ]
    ended_at = next((seed for seed in job.seeds if seed not in told), None)
    if ended_at is not None:
        problem = suite_run.problem or "the run has ended without a word"
        outcomes.append(Outcome(*fixed, ended_at, job.mode, job.right, [problem], []))
    return outcomes


def _state(lab: Lab, *texts: str) -> str:
    whole = "\0".join([without_imports(lab.suite_file.read_text("utf-8")), *texts])
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


def without_imports(source: str) -> str:
    """What a suite says, without comments and where it has things from: a room that moves changes no verdict."""
    module = ast.parse(source)
    module.body = [each for each in module.body if not isinstance(each, (ast.Import, ast.ImportFrom))]
    return ast.unparse(module)
