"""The command: `python -m labstaff.calibrate 05 --seeds 1-50` judges Lab 05's right answers at each of these seeds.

The solution and every right answer are judged plain and sandboxed, and every mistake by its named tests at a few
seeds. For each comparison the largest share of the limit that a right answer used is found, and the smallest by which
a mistake was. It ends with 1 when a right answer was refused or a mistake let pass.
"""

from __future__ import annotations

import datetime
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from labkit.labs.catalog import find_lab, find_labs
from labstaff.calibrate.limits import LEAST_USED, MOST_USED, Found, found_in
from labstaff.calibrate.runs import Job, Record, mistaken_jobs, right_jobs, run


def main(
    labs: Annotated[list[str] | None, typer.Argument(metavar="[LAB]...")] = None,
    seeds: Annotated[str, typer.Option(help="first-last: for right answers in this process")] = "1-20",
    sandboxed_seeds: Annotated[str, typer.Option(help="first-last: for right answers in a sandbox")] = "",
    mistake_seeds: Annotated[str, typer.Option(help="first-last: for mistakes")] = "",
    record: Annotated[Path | None, typer.Option(help="keep outcomes in this file, and go on from it")] = None,
    table: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="write limits.csv and README.md to it")
    ] = None,
    only_table: Annotated[bool, typer.Option("--only-table", help="run nothing: what the record says")] = False,
) -> None:
    """Judge right answers and mistakes over many seeds, and tell how much of each limit they use."""
    chosen = [find_lab(name) for name in labs or []] or find_labs()
    with tempfile.TemporaryDirectory(prefix="calibrate-") as folder:
        jobs: list[Job] = []
        for lab in chosen:
            jobs += mistaken_jobs(lab, _range(mistake_seeds), Path(folder))
            jobs += right_jobs(lab, _range(seeds), "plain")
            jobs += right_jobs(lab, _range(sandboxed_seeds), "sandboxed")
        kept = Record(record or Path(folder, "record"))
        left = [] if only_table else kept.left(job for job in jobs if job.seeds)
        for number, outcomes in enumerate(run(left, sandboxed=any(job.mode == "sandboxed" for job in left)), 1):
            kept.add(outcomes)
            if sys.stderr.isatty():
                print(f"\r{number} of {len(left)} jobs", end="", file=sys.stderr)
        found = found_in(kept.of(jobs))
    if table:
        (table / "limits.csv").write_text(found.table(), encoding="utf-8")
        (table / "README.md").write_text(_page(found, sorted({lab.label for lab in chosen})), encoding="utf-8")
    typer.echo(f"{found.n_right.total()} right runs judged, {len(found.refused)} tests refused one")
    if found.n_mistaken:
        typer.echo(f"{found.n_mistaken} runs of mistakes, {len(found.let_pass)} let pass")
    for kind, lines in _lists(found).items():
        for line in lines:
            typer.echo(f"  {kind}: {line}")
    raise typer.Exit(1 if found.refused or found.let_pass else 0)


def _lists(found: Found) -> dict[str, list[str]]:
    """What somebody should look at, by what is the matter with it."""
    return {
        "refused": found.refused,
        "let pass": found.let_pass,
        "tight": found.too_tight(),
        "near": found.too_wide(),
    }


def _page(found: Found, labs: Sequence[str]) -> str:
    """What the runs were, and what they found, for somebody who wonders about limits.csv."""
    rows = [f"| {lab} | {found.n_right[lab, 'plain']} | {found.n_right[lab, 'sandboxed']} |" for lab in labs]
    mistaken = [each.mistaken for each in found.shares.values() if each.mistaken is not None]
    smallest = f"the smallest is {min(mistaken):.2f}" if mistaken else "no mistakes were judged in this run"
    lists = {kind.capitalize(): lines for kind, lines in _lists(found).items()}
    return "\n".join(
        [
            "# How close answers come to the limits of the suites",
            "",
            f"Calibrated on {datetime.datetime.now(datetime.UTC).date()} by `python -m labstaff.calibrate`.",
            "",
            f"**{found.n_right.total()} judged right runs, {len(found.refused)} refusals.** A run is the solution or a "
            "right answer, judged by its lab's suite at one",
            "seed, in this process (plain) or in the sandbox. At each answer's first seed the whole suite is run, at "
            "the others what draws from the seed.",
            "",
            "| lab | plain | sandboxed |",
            "|---|---:|---:|",
            *rows,
            "",
            f"**{found.n_mistaken} runs of mistakes, {len(found.let_pass)} let pass.** A run is the solution with one "
            "mistake, judged at one seed by the tests that name it.",
            "",
            f"[limits.csv](limits.csv) has a line for each of {len(found.shares)} limits: how much of it right answers "
            f"used at most, which must stay below {MOST_USED:g},",
            "and the smallest amount by which a mistake that is found by it was, at least "
            f"{LEAST_USED:g} ({smallest}).",
            f"Of {found.exact()} right answers use exactly 1: a count that was asked for, of tiles, say, each computed "
            "once. Less would be wrong.",
            "Of a memory that blocks are chosen to fill, they use what they can. A limit that has no mistake stands "
            "beside one, in the same test or another, that is broken by more.",
            *(
                line
                for name, lines in lists.items()
                if lines
                for line in ("", f"## {name}", "", *(f"- {each}" for each in lines))
            ),
            "",
        ]
    )


def _range(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1)) if text else []


if __name__ == "__main__":
    typer.run(main)
