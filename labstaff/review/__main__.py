"""Tries model answers: `python -m labstaff.review NN [TASK]...` runs `solutions/labNN_name/review.py` on every version.

It prints what the right versions say, what is found of the wrong ones by kind, and which are not found; and writes
these into `review.json` next to the answer, since a graded review does not ask for them. A model answer has at most 120
lines, passes every right version at three seeds, and finds at least 95 % of the wrong ones.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from labkit.labs.catalog import find_lab, find_task, review_assignment, solution_file
from labkit.labs.manifest import Lab
from labkit.review.file import read_review
from labkit.review.lines import ladder
from labkit.review.runs import Job, Runs
from labkit.review.stored import Verdict
from labstaff.review.versions import versions_of, write_not_found

SEEDS = (0, 1, 2)
LEAST_FOUND = 0.95
MOST_LINES = 120


def main(
    lab: Annotated[str, typer.Argument(help="its number")],
    tasks: Annotated[list[str] | None, typer.Argument(metavar="[TASK]...", help="some of its tasks")] = None,
    file: Annotated[Path | None, typer.Option(help="another file of tests: nothing is written then")] = None,
) -> None:
    """Run a model answer on every version; exits with 1 unless it is as good as one must be."""
    found = find_lab(lab)
    names = [find_task(found, task).name for task in tasks or []] or [task.name for task in found.tasks]
    began = time.perf_counter()
    problems, missed = try_answer(found, file or solution_file(review_assignment(found)), names)
    typer.echo(f"{time.perf_counter() - began:.1f} s")
    if not tasks and file is None:
        write_not_found(found, missed)
    for problem in problems:
        typer.echo(problem)
    raise typer.Exit(1 if problems else 0)


def try_answer(lab: Lab, file: Path, tasks: list[str], seeds: tuple[int, ...] = SEEDS) -> tuple[list[str], list[str]]:
    """Print the table of a model answer; returns what is wrong with it, and the mistakes that it does not find.

    Right versions are run with each of `seeds`, wrong ones with the first.
    """
    review = read_review(lab, file)
    versions = versions_of(lab)
    problems, missed = [], []
    if (n_lines := len(file.read_text(encoding="utf-8").splitlines())) > MOST_LINES:
        problems.append(f"{n_lines} lines: at most {MOST_LINES}")
    if absent := [task for task in tasks if task not in review.begun]:
        problems.append(f"no tests of {', '.join(absent)}")
    runs = [Runs(lab, review, seed) for seed in seeds]
    n_wrong, spent = 0, 0.0
    for task in [task for task in tasks if task in review.begun]:
        jobs = [Job(task, version) for version in versions if task in version.tasks]
        right = [job for job in jobs if job.version.is_right]
        for each in runs:
            refused = {job.version.name: verdict for job, verdict in each.verdicts(right) if not verdict.accepted}
            problems += [_refusal(task, name, each.seed, verdict) for name, verdict in refused.items()]
            if refused:
                break
        verdicts = {job.version: verdict for job, verdict in runs[0].verdicts(jobs) if not job.version.is_right}
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
    if n_wrong and len(missed) > (1 - LEAST_FOUND) * n_wrong:
        problems.append(f"{n_wrong - len(missed)} of {n_wrong} found: at least {LEAST_FOUND:.0%}")
    return problems, missed


def _refusal(task: str, name: str, seed: int, verdict: Verdict) -> str:
    return "\n  ".join([f"{task}: {name} is refused at seed {seed} by {verdict.failed}", *verdict.lines])


if __name__ == "__main__":
    typer.run(main)
