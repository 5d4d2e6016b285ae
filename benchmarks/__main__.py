"""`python -m benchmarks [NAME]...`: runs benchmarks and prints their tables; --save updates the pages with them."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Annotated

import typer

from benchmarks.harness import markdown, run_benchmark, save_tables, write_pages

NAMES = ("tiling", "flash", "linear", "window", "decode", "kernel", "model", "serving", "h100")


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar=f"[{'|'.join(NAMES)}]...", help="all, if none")] = None,
    n: Annotated[int | None, typer.Option(help="sequence length")] = None,
    d: Annotated[int | None, typer.Option(help="width of a head")] = None,
    rounds: Annotated[int | None, typer.Option(help="timed rounds")] = None,
    dry: Annotated[bool, typer.Option("--dry", help="of h100: small sizes on the CPU, to try its code")] = False,
    save: Annotated[bool, typer.Option("--save", help="write the tables to data.json and to the pages")] = False,
) -> None:
    """Run benchmarks and print their tables: interleaved rounds, medians, one thread."""
    if unknown := set(names or ()) - set(NAMES):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are {', '.join(NAMES)}")
    if dry and (save or list(names or ()) != ["h100"]):
        raise typer.BadParameter("--dry is for h100 alone, and its numbers are not saved")
    settings = {"n": n, "d": d, "rounds": rounds, "dry": dry or None}
    options = {name: value for name, value in settings.items() if value is not None}
    tables = []
    for name in names or NAMES:
        # Each benchmark has its own process: memory that one leaves in the allocator would make the next one faster.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            new = pool.submit(run_benchmark, name, options).result()
        for table in new:
            typer.echo(f"{table.name}: {table.setting}\n{markdown(table)}\n")
        tables += new
    if save:
        save_tables(tables)
        write_pages()


if __name__ == "__main__":
    typer.run(main)
