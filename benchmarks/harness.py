"""Times candidates in turn and tells them as ratios: the one loop, and the one form of a result, of all benchmarks.

Rounds of all candidates in turn, after one that warms up; a time is the median over the rounds, a ratio the median of
the ratios within each round, so that what slows the machine for a while slows both sides. Clocks count CPU time unless
a benchmark says otherwise: what other programs take from the core is not counted.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import ModuleType

import msgspec

from labkit.labs.catalog import find_lab, solution_file, solution_folder

DATA = Path(__file__).with_name("data.json")
"""The tables of the last run that was saved: what the chapters' tables are made of."""

Candidate = Callable[[], object]


class Row(msgspec.Struct):
    """One candidate: its milliseconds, how many times as fast as each reference it is, and its memory in MiB.

    `gain` is its speed over the row above it; 0 where it is no step on top of that.
    """

    name: str
    ms: float
    times_as_fast: dict[str, float] = {}
    gain: float = 0.0
    peak_mib: float | None = None


class Table(msgspec.Struct):
    """What one benchmark tells: under which settings, and a row a candidate. `memory` says what `peak_mib` counts."""

    benchmark: str
    title: str
    setting: str
    memory: str = "peak"
    rows: list[Row] = []

    @property
    def key(self) -> str:
        """The name under which it is kept."""
        return f"{self.benchmark}: {self.title}"


@dataclass
class Times:
    """Seconds by candidate and round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def ms(self, name: str) -> float:
        """The median, in milliseconds."""
        return 1e3 * median(self.seconds[name])

    def times_as_fast(self, name: str, reference: str) -> float:
        """How many times as fast as `reference` a candidate is: the median over the rounds."""
        pairs = zip(self.seconds[reference], self.seconds[name], strict=True)
        return median(slow / fast for slow, fast in pairs)


def time_in_turn(
    candidates: Mapping[str, Candidate], rounds: int, *, clock: Callable[[], float] = time.process_time, warm: int = 1
) -> Times:
    """Run all candidates in turn, `warm` rounds unseen and `rounds` rounds timed."""
    times = Times({name: [] for name in candidates})
    for lap in range(warm + rounds):
        for name, run in candidates.items():
            began = clock()
            run()
            if lap >= warm:
                times.seconds[name].append(clock() - began)
    return times


def rows(
    times: Times,
    references: Sequence[str],
    peak_mib: Callable[[str], float | None] = lambda name: None,
) -> list[Row]:
    """A row for each candidate; a name that begins with "+" is a step on top of the one before it."""
    made: list[Row] = []
    for name in times.seconds:
        fast = {reference: round(times.times_as_fast(name, reference), 3) for reference in references}
        gain = times.times_as_fast(name, made[-1].name) if made and name.startswith("+") else 0.0
        made.append(Row(name, round(times.ms(name), 2), fast, round(gain, 3), peak_mib(name)))
    return made


def tables_of(name: str, given: Mapping[str, int]) -> list[Table]:
    """The tables of one benchmark; settings that it does not have are left out."""
    function = importlib.import_module(f"benchmarks.{name}").tables
    known = function.__kwdefaults__ or {}
    return list(function(**{key: value for key, value in given.items() if key in known}))


def answer_module(number: str, other: str | None = "") -> ModuleType:
    """A lab's solution as a module, with what `other` (`right/tuned`, say) defines in place of its own."""
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


def load_tables() -> dict[str, Table]:
    """The tables kept by the last run that was saved, by key."""
    if not DATA.exists():
        return {}
    return {table.key: table for table in msgspec.json.decode(DATA.read_bytes(), type=list[Table])}


def save_tables(tables: Sequence[Table]) -> None:
    """Keep `tables` in place of those with the same keys."""
    kept = load_tables() | {table.key: table for table in tables}
    ordered = [kept[key] for key in sorted(kept)]
    DATA.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
