"""Times candidates in turn, puts ratios into tables, and writes the tables into data.json and the pages.

All candidates run in each round, after one round to warm up. A time is the median over the rounds, a ratio the median
of the ratios within each round, so that a slow moment of the machine slows both sides. Clocks count CPU time unless a
benchmark says otherwise.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import ModuleType

import msgspec

from labkit.labs.catalog import ROOT, find_lab, solution_file, solution_folder
from labkit.meters.profiler import profile_memory

DATA = Path(__file__).with_name("data.json")
"""The tables in chapters and handouts, with more digits."""

Candidate = Callable[[], object]
Column = Callable[[str], float | None]
"""The value of a candidate, by its name; None for an empty field."""


class Table(msgspec.Struct):
    """A table: one row per candidate, with values in the order of `columns`.

    `page` is the file, from the repository's root, that shows it between <!-- benchmark NAME: begin --> and
    <!-- benchmark NAME: end -->; "" if none does.
    """

    name: str
    page: str
    setting: str
    heading: str
    columns: list[str]
    rows: dict[str, list[float | None]]


class Times:
    """Seconds of each candidate in each round."""

    def __init__(self, seconds: Mapping[str, Sequence[float]]) -> None:
        self.seconds = seconds

    def ms(self, name: str) -> float:
        """The median, in milliseconds."""
        return round(1e3 * median(self.seconds[name]), 2)

    def times_as_fast(self, reference: str) -> Column:
        """How many times as fast as `reference` a candidate is."""

        def ratio(name: str) -> float:
            pairs = zip(self.seconds[reference], self.seconds[name], strict=True)
            return round(median(slow / fast for slow, fast in pairs), 3)

        return ratio

    def gain(self, name: str) -> float | None:
        """For a name that begins with "+", a step on top of the row above: how many times as fast it is as that."""
        names = list(self.seconds)
        return self.times_as_fast(names[names.index(name) - 1])(name) if name.startswith("+") else None


def time_in_turn(
    candidates: Mapping[str, Candidate], rounds: int, *, clock: Callable[[], float] = time.process_time, warm: int = 1
) -> Times:
    """Run all candidates in turn, `warm` rounds untimed and `rounds` rounds timed."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(warm + rounds):
        for name, run in candidates.items():
            start = clock()
            run()
            if number >= warm:
                seconds[name].append(clock() - start)
    return Times(seconds)


def made(
    name: str, page: str, setting: str, heading: str, names: Iterable[str], columns: Mapping[str, Column]
) -> Table:
    """The table with a row for each of `names`."""
    rows = {each: [value(each) for value in columns.values()] for each in names}
    return Table(name, page, setting, heading, list(columns), rows)


def peak_mib(candidates: Mapping[str, Candidate]) -> Column:
    """The peak of one call without its inputs, in MiB, by the CPU allocator's own record (`torch.profiler`)."""
    return lambda name: round(profile_memory(candidates[name]).peak_bytes / 2**20, 3)


def run_benchmark(name: str, options: Mapping[str, int]) -> list[Table]:
    """The tables of `benchmarks/NAME.py`."""
    return list(importlib.import_module(f"benchmarks.{name}").tables(**options))


@functools.cache
def solution_module(number: str, other: str | None = "") -> ModuleType:
    """A lab's solution as a module, loaded once; definitions in `other` (`alternatives/tuned`) replace its own."""
    lab = find_lab(number)
    files = [solution_file(lab), *([solution_folder(lab) / f"{other}.py"] if other else [])]
    name = f"{lab.module}_{Path(other or 'solution').stem}"
    spec = importlib.util.spec_from_file_location(name, files[-1])
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    for file in files:
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), module.__dict__)
    return module


def markdown(table: Table) -> str:
    """The table in Markdown, as pages show it."""
    lines = ["| " + " | ".join([table.heading, *table.columns]) + " |", "|---|" + "---:|" * len(table.columns)]
    for name, values in table.rows.items():
        fields = [_field(column, value) for column, value in zip(table.columns, values, strict=True)]
        label = name.removeprefix("+ ") if "gain of the step" in table.columns else name
        lines.append("| " + " | ".join([label, *fields]) + " |")
    return "\n".join(lines).replace("|  |", "| |")


def _field(column: str, value: float | None) -> str:
    """MiB with two decimals, other values with reproducible digits."""
    if value is None:
        return ""
    if "MiB" in column:
        return f"{value:.2f}"
    if column != "ms" and value < 2:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def load_tables() -> list[Table]:
    """The tables of data.json."""
    return msgspec.json.decode(DATA.read_bytes(), type=list[Table])


def save_tables(tables: Sequence[Table]) -> None:
    """Replace the tables in data.json that have the same names; the others stay."""
    by_name = {table.name: table for table in [*load_tables(), *tables]}
    ordered = [by_name[name] for name in sorted(by_name)]
    DATA.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")


def with_table(text: str, table: Table) -> str:
    """The text of a page with this table inserted; ValueError if the page has no place for it."""
    begin, end = (f"<!-- benchmark {table.name}: {word} -->" for word in ("begin", "end"))
    parts = re.split(f"{begin}\n.*?{end}", text, flags=re.DOTALL)
    if len(parts) != 2:
        raise ValueError(f"{table.page} has {len(parts) - 1} places for the table {table.name}, expected one")
    return f"{parts[0]}{begin}\n{markdown(table)}\n{end}{parts[1]}"


def write_pages() -> None:
    """Write the tables of data.json into chapters and handouts."""
    for table in load_tables():
        if table.page:
            path = ROOT / table.page
            path.write_text(with_table(path.read_text(encoding="utf-8"), table), encoding="utf-8")
