"""`python -m benchmarks [NAME]...`: runs benchmarks one after the other and prints one table of ratios."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table as Printed

from benchmarks.chapters import write_chapters
from benchmarks.harness import Table, save_tables, tables_of

NAMES = ("tiling", "flash", "linear", "window", "decode", "kernel", "feedback", "grading")


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar=f"[{'|'.join(NAMES)}]...", help="all, if none")] = None,
    n: Annotated[int | None, typer.Option(help="sequence length, where a benchmark has one")] = None,
    d: Annotated[int | None, typer.Option(help="width of a head, likewise")] = None,
    rounds: Annotated[int | None, typer.Option(help="timed rounds")] = None,
    lab: Annotated[int | None, typer.Option(help="which lab's submissions are graded")] = None,
    submissions: Annotated[int | None, typer.Option(help="how many of them")] = None,
    save: Annotated[bool, typer.Option("--save", help="keep the tables for the chapters")] = False,
) -> None:
    """Run benchmarks and print their ratios: interleaved rounds, medians, one thread."""
    if strangers := set(names or ()) - set(NAMES):
        raise typer.BadParameter(f"{', '.join(sorted(strangers))}: there are {', '.join(NAMES)}")
    settings = {"n": n, "d": d, "rounds": rounds, "lab": lab, "submissions": submissions}
    given = {name: value for name, value in settings.items() if value is not None}
    console = Console(width=None if Console().is_terminal else 140, highlight=False)
    tables = []
    for name in names or NAMES:
        # In a process of its own: what one benchmark leaves in the allocator makes the next one's fresh arrays cheap.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            made = alone.submit(tables_of, name, given).result()
        tables += made
        for table in made:
            console.print(printed(table))
    if save:
        save_tables(tables)
        write_chapters()
        console.print(f"kept in {os.path.relpath(Path(__file__).with_name('data.json'))}, and told in the chapters")


def printed(table: Table) -> Printed:
    """The table as the terminal shows it."""
    shown = Printed(title=f"{table.benchmark}: {table.title}", caption=table.setting, box=box.SIMPLE_HEAD)
    shown.add_column("", no_wrap=True)
    references = list(table.rows[0].times_as_fast) if table.rows else []
    has_gains, has_memory = any(row.gain for row in table.rows), any(row.peak_mib is not None for row in table.rows)
    heads = ["ms", *(f"× {name}" for name in references), *(["gain"] * has_gains)]
    for head in [*heads, *([f"{table.memory}, MiB"] * has_memory)]:
        shown.add_column(head, justify="right")
    for row in table.rows:
        cells = [f"{row.ms:.1f}", *(f"{row.times_as_fast[name]:.2f}" for name in references)]
        cells += [f"{row.gain:.2f}" if row.gain else ""] * has_gains
        cells += ["" if row.peak_mib is None else f"{row.peak_mib:.2f}"] * has_memory
        shown.add_row(row.name, *cells)
    return shown


if __name__ == "__main__":
    typer.run(main)
