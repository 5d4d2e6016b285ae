"""A lab's board of counts: the course's reference rows beside a student's own runs, kept from one to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from labkit.labs.manifest import Lab
from labkit.suite.results import write_json

BOARD_FILE = "board.json"
Counts = dict[str, int]
Day = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\d$")]


class Column(NamedTuple):
    """One quantity of the board: a count, or the ratio of two.

    `title` has a place where its line may break. `better` is 1 where more is, −1 where less is, and 0 where a number
    says little by itself, as blocks do without their size.
    """

    name: str
    title: str
    better: int
    counted: str
    over: str = ""

    def of(self, counts: Counts) -> Fraction | None:
        """Its value, exactly; None where something is not counted, or is to be divided by none."""
        if self.counted not in counts or (self.over and not counts.get(self.over)):
            return None
        return Fraction(counts[self.counted], counts[self.over] if self.over else 1)


COLUMNS = (
    Column("requests_in_time", "requests\nin time", 1, "in_time"),
    Column("bytes_read_a_token", "bytes read\na token", -1, "bytes_read", "tokens"),
    Column("prefix_tokens_not_computed", "prefix tokens\nnot computed", 1, "prefix_tokens"),
    Column("tokens_computed_again", "computed\nagain", -1, "again"),
    Column("peak_blocks", "blocks\nat most", 0, "peak_blocks"),
    Column("peak_bytes", "bytes\nat most", -1, "peak_bytes"),
)
"""What a board shows, in the order in which runs are compared: the first that differs says which is better."""


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A right answer of the course's: what it does, and its counts by trace."""

    name: str
    counts: dict[str, Counts]


class Board(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands on a lab's board before anybody has run anything: each trace in a sentence, and the references."""

    traces: dict[str, str]
    references: list[Reference]


class Run(msgspec.Struct, frozen=True):
    """One run of a student's: on which day, of which text (`file`), on which board, by which version of labkit.

    By trace either `counts`, or what it `broke`.
    """

    day: Day
    file: str
    board: str
    labkit: str = ""
    counts: dict[str, Counts] = {}
    broke: dict[str, list[str]] = {}


class History(msgspec.Struct, frozen=True):
    """A student's runs, the oldest first."""

    runs: list[Run] = []


class NoBoard(ValueError):
    """The lab has no board that can be read; the message says so in one line."""


def has_board(lab: Lab) -> bool:
    """Whether something is counted in `lab` beyond its points."""
    return (lab.folder / BOARD_FILE).is_file()


def read_board(lab: Lab) -> Board:
    """The lab's board.

    Raises:
        NoBoard: it has none, or what lies there is none.
    """
    try:
        return msgspec.json.decode((lab.folder / BOARD_FILE).read_bytes(), type=Board)
    except FileNotFoundError:
        raise NoBoard(f"{lab.label} has no board: its points are all that it counts") from None
    except OSError as error:
        raise NoBoard(f"{lab.folder.name}/{BOARD_FILE} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise NoBoard(f"{lab.folder.name}/{BOARD_FILE} is no board: {error}") from None


def board_digest(lab: Lab) -> str:
    """Changes when the traces or their counting do: the references' counts follow from both."""
    return hashlib.sha256((lab.folder / BOARD_FILE).read_bytes()).hexdigest()[:16]


def trace_of(test: str) -> str:
    """The parameter of a test that is marked `board`: `chat` of `test_traces[chat]`."""
    return test.partition("[")[2].removesuffix("]")


def best(runs: Iterable[Run], trace: str, board: str) -> Run | None:
    """The run that does best on `trace`, the first of several alike; only runs on the same board can be compared."""
    counted = [run for run in runs if run.board == board and trace in run.counts]
    return max(counted, key=lambda run: _rank(run.counts[trace]), default=None)


def kept_runs(lab: Lab) -> list[Run]:
    """The runs so far; none before the first.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else.
    """
    try:
        return msgspec.json.decode(_path(lab).read_bytes(), type=History).runs
    except FileNotFoundError:
        return []


def set_aside(lab: Lab) -> Path:
    """Move a history that cannot be used out of the way; returns where it lies now."""
    path = _path(lab)
    return path.rename(path.with_suffix(".unreadable.json"))


def keep_runs(lab: Lab, runs: Sequence[Run]) -> None:
    """Keep `runs` in place of those that were kept.

    Raises:
        OSError: it cannot be written; what was kept before is still there.
    """
    write_json(_path(lab), History(list(runs)))


def _rank(counts: Counts) -> tuple[tuple[bool, Fraction], ...]:
    """Compares runs of one trace: the larger, the better; what is not counted is worst."""
    values = [(column.of(counts), column.better) for column in COLUMNS]
    return tuple((value is not None, better * (value or Fraction())) for value, better in values)


def _path(lab: Lab) -> Path:
    return lab.folder.parent.parent / ".lab" / f"{lab.label}-board.json"
