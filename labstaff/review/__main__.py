"""Tries model answers: `python -m labstaff.review NN [TASK]...` runs `solutions/labNN_name/review.py` on every version.

It prints what the right versions say, what is found of the wrong ones by kind, and which are not found. Where no right
version is refused, it writes two files next to the answer: `review.json`, the mistakes that are not found, which a
graded review does not ask for; and `review_found.json`, the test that finds each of the others, which is run first the
next time. CI runs every sixteenth of those.
A model answer has at most three lines for each wrong version of the lab, blank ones not counted, passes every right
version at three seeds, and finds at least 95 % of the wrong ones.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple

import typer

from labkit.labs.catalog import find_lab, find_task, review_assignment, solution_file
from labkit.labs.manifest import Lab
from labkit.review.file import PREFIX, read_review
from labkit.review.lines import ladder
from labkit.review.runs import Job, Runs
from labkit.review.stored import Verdict
from labkit.review.versions import Version
from labstaff.authoring.mistakes import mistakes_of
from labstaff.review.versions import NOT_FOUND, found_by, versions_of, write_found

SEEDS = (0, 1, 2)
LEAST_FOUND = 0.95
LINES_OF_A_MISTAKE = 3


class Tried(NamedTuple):
    """What trying a model answer shows.

    Attributes:
        problems: what is wrong with it, a sentence each; the right versions that it refuses are not among them.
        refusals: the right versions that it refuses, and why.
        missed: the names of the mistakes that it does not find.
        tests: by the names of the others, the test that finds each.
    """

    problems: list[str]
    refusals: list[str]
    missed: list[str]
    tests: dict[str, str]


def main(
    lab: Annotated[str, typer.Argument(help="its number")],
    tasks: Annotated[list[str] | None, typer.Argument(metavar="[TASK]...", help="some of its tasks")] = None,
    file: Annotated[Path | None, typer.Option(help="another file of tests: nothing is written then")] = None,
) -> None:
    """Run a model answer on every version; exits with 1 unless it is as good as one must be."""
    found = find_lab(lab)
    names = [find_task(found, task).name for task in tasks or []] or [task.name for task in found.tasks]
    began = time.perf_counter()
    tried = try_answer(found, file or solution_file(review_assignment(found)), names, tests=found_by(found))
    typer.echo(f"{time.perf_counter() - began:.1f} s")
    for problem in [*tried.problems, *tried.refusals]:
        typer.echo(problem)
    if not tasks and file is None:
        if tried.refusals:
            typer.echo(f"{NOT_FOUND} is left as it is: the model answer refuses a right version")
        else:
            write_found(found, tried.missed, tried.tests)
    raise typer.Exit(1 if tried.problems or tried.refusals else 0)


def lines_allowed(lab: Lab) -> int:
    """How many lines the model answer may have, blank ones left out."""
    return LINES_OF_A_MISTAKE * len(mistakes_of(lab))


def n_lines(file: Path) -> int:
    """How many lines a file has, blank ones left out."""
    return sum(bool(line.strip()) for line in file.read_text(encoding="utf-8").splitlines())


def try_answer(
    lab: Lab,
    file: Path,
    tasks: list[str],
    seeds: tuple[int, ...] = SEEDS,
    tests: Mapping[str, str] = MappingProxyType({}),
    wrong: Collection[str] | None = None,
) -> Tried:
    """Print the table of a model answer, and return what it shows.

    Right versions are run with each of `seeds`, wrong ones with the first: those named in `wrong`, all by default.
    Where `tests` has the test that finds a mistake, that one is run first, and the others only if it does not.
    """
    review = read_review(lab, file)
    versions = [each for each in versions_of(lab) if each.is_right or wrong is None or each.name in wrong]
    problems, refusals, missed, finding = list[str](), list[str](), list[str](), dict[str, str]()
    if n_lines(file) > lines_allowed(lab):
        problems.append(f"{n_lines(file)} lines: at most {lines_allowed(lab)}")
    if absent := [task for task in tasks if task not in review.begun]:
        problems.append(f"no tests of {', '.join(absent)}")
    runs = [Runs(lab, review, seed) for seed in seeds]
    n_wrong, spent = 0, 0.0
    for task in [task for task in tasks if task in review.begun]:
        jobs = [Job(task, version) for version in versions if task in version.tasks]
        right = [job for job in jobs if job.version.is_right]
        for each in runs:
            refused = {job.version.name: verdict for job, verdict in each.verdicts(right) if not verdict.accepted}
            refusals += [_refusal(task, name, each.seed, verdict) for name, verdict in refused.items()]
            if refused:
                break
        verdicts = _wrong_verdicts(runs[0], [job for job in jobs if not job.version.is_right], tests)
        left = [version for version, verdict in verdicts.items() if verdict.accepted]
        seconds, spent = runs[0].cpu_seconds - spent, runs[0].cpu_seconds
        n_runs = len(seeds) * len(right) + len(verdicts)
        typer.echo(
            f"{task}: {len(right)} right versions; {ladder(verdicts)}; {seconds:.1f} s of CPU time, {n_runs} runs"
        )
        for version in left:
            typer.echo(f"  not found: {version.name} ({version.kind}): {version.what}")
        n_wrong += len(verdicts)
        missed += [version.name for version in left]
        finding |= {version.name: said.failed for version, said in verdicts.items() if said.failed.startswith(PREFIX)}
    if n_wrong and len(missed) > (1 - LEAST_FOUND) * n_wrong:
        problems.append(f"{n_wrong - len(missed)} of {n_wrong} found: at least {LEAST_FOUND:.0%}")
    return Tried(problems, refusals, missed, finding)


def _wrong_verdicts(runs: Runs, jobs: list[Job], tests: Mapping[str, str]) -> dict[Version, Verdict]:
    """The verdict about each version, by the test in `tests` alone where that one fails."""
    known = [replace(job, test=tests[job.version.name]) for job in jobs if job.version.name in tests]
    found = {job.version: said for job, said in runs.verdicts(known) if said.failed == job.test}
    rest = [job for job in jobs if job.version not in found]
    return found | {job.version: said for job, said in runs.verdicts(rest)}


def _refusal(task: str, name: str, seed: int, verdict: Verdict) -> str:
    return "\n  ".join([f"{task}: {name} is refused at seed {seed} by {verdict.failed}", *verdict.lines])


if __name__ == "__main__":
    typer.run(main)
