"""Tests written as lines of Python that run where an answer is, with what must be read then in comments beside them."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.testing.compare import assert_equal, assert_raises, assert_tuple, assert_type, require

MIB = 2**20
MISTAKE = re.compile(r"(-?\d+): (.*)")
NOT_LEFT = "the way out is taken only when all goes well: `with`, or `try … finally`, leaves in every case"


@dataclass
class Reading:
    """What must be read after a line: bytes by name ("current", "peak", or "" for the only one)."""

    line: str
    numbers: dict[str, int]
    hint: str
    suspects: dict[str, int] = field(default_factory=dict)


class Lines:
    """Runs lines by `run`, a program of the suite: `run(lines, **names)` gives what the lines `note(…)`.

    Lines must know `read` and `left_on` of `labkit.meters.lines`, and `AllocationMeter`.
    """

    def __init__(self, run: Callable[..., list[Any]]) -> None:
        self.run = run

    def follow(self, tests: Any) -> Any:
        """Make tests of the docstrings of a class's tests, or of one: lines with what a tracker has to read after them.

        `# current 4000, peak 8000 — why` is about the tracker called `tracker`, `# inner: peak 4000` about another. A
        comment behind `with …:` is about the moment of entering, one alone on its line about that after the block.
        Comments below it, `# 40: what is counted then`, name usual mistakes. The test's parameters are names that the
        lines know, and so is what its body returns, a dict; a number in braces is one of them.
        """
        return self._of_docstrings(tests, self.assert_readings)

    def gives(self, task: str, part: int | None = None) -> Callable[[Any], Any]:
        """As `follow`, for lines some of which have a comment that says how many bytes `task` gives for that line.

        `x.exp().sum()  # 4000 — why`: called with a function that computes the line, and with what it uses of the names
        before it, `task` has to give 4000; or, with `part`, that part of a pair. The rest is as in `follow`.
        """

        def assert_given(lines: str, **names: Any) -> None:
            source, expected = _calls(lines, task, set(names))
            for reading, got in zip(expected, self.run(source, **names), strict=True):
                if part is not None:
                    got = peak_and_result(got, task)[part]
                _assert_reading(f"what {task} gives for {reading.line}", got, reading, "")

        return lambda tests: self._of_docstrings(tests, assert_given)

    def assert_readings(self, lines: str, **names: Any) -> None:
        """Run lines that are written as `follow` says, and compare."""
        source, expected = _readings(lines)
        for reading, got in zip(expected, self.run(source, **names), strict=True):
            require(got, "`with MemoryTracker() as tracker` must give the tracker itself")
            for name in reading.numbers:
                told = got[0 if name == "current" else 1]
                _assert_reading(f"{name}_allocated() {reading.line}", told, reading, name)

    def call(self, task: str, text: str, *, times: int = 1, **args: Any) -> Any:
        """What a task returns each time when it is given a function of `args` that computes `text`, and then those."""
        names = ", ".join(args)
        results = self.run(f"for _ in range({times}): note({task}(lambda {names}: {text}, {names}))", **args)
        return results if times > 1 else results[0]

    def measured(self, text: str, **args: Any) -> tuple[Any, ...]:
        """(peak_bytes, result) of `measure_memory` for a function of `args` that computes `text`."""
        return peak_and_result(self.call("measure_memory", text, **args))

    def metered(self, text: str, **names: Any) -> list[Any]:
        """What `text` gives, and the peak bytes that an AllocationMeter sees while it is computed."""
        lines = ("with AllocationMeter() as meter:", f"    note({text})", "note(meter.peak_bytes)")
        return self.run("\n".join(lines), **names)

    def alive_after(self, statement: str, **names: Any) -> int:
        """Bytes that `statement` allocates and that something holds after it."""
        lines = ("import gc", "with AllocationMeter() as meter:", f"    {statement}", "    gc.collect()")
        return self.run("\n".join([*lines, "    note(meter.live_bytes)"]), **names)[0]

    def assert_nothing_alive(self, statement: str, after: str, **names: Any) -> None:
        """Fail when something holds bytes that `statement` allocates; `after` is what has ended then, and why not."""
        alive = self.alive_after(statement, **names)
        require(alive == 0, f"{alive:,} bytes are still alive after {after}")

    def assert_passes_on(self, call: Callable[[], Any], when: str) -> None:
        """Fail unless `call` passes a KeyError on, raised as `when` says, and leaves nothing switched on."""
        with self.nothing_left_on("an exception"):
            assert_raises(KeyError, call, when=when)

    @contextlib.contextmanager
    def nothing_left_on(self, after: str) -> Iterator[None]:
        """Fail when a dispatch mode or a hook on saved tensors is on when the block has ended."""
        self.run("left_on()")
        yield
        (found,) = self.run("note(left_on())")
        require(not found, f"after {after} {' and '.join(found)} still looks on\nUsual cause: {NOT_LEFT}")

    def _of_docstrings(self, tests: Any, compare: Callable[..., None]) -> Any:
        if not isinstance(tests, type):
            return self._of_docstring(tests, compare)
        for name, test in list(vars(tests).items()):
            if name.startswith("test") and test.__doc__:
                setattr(tests, name, self._of_docstring(test, compare))
        return tests

    def _of_docstring(self, test: Callable[..., Any], compare: Callable[..., None]) -> Callable[..., None]:
        lines = textwrap.dedent(test.__doc__ or "").strip("\n")

        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            names = kwargs | (test(*args, **kwargs) or {})
            compare(lines.format(**names) if names else lines, **names)

        return run


def assert_bytes(name: str, got: Any, want: int, *, suspects: Mapping[str, Any] | None = None, hint: str = "") -> None:
    """Compare a number of bytes, which is an int."""
    assert_type(name, got, (int, float), "an int: bytes")
    usual = {
        "the value is in MiB: memory is in bytes": want / MIB,
        "the value is in KiB: memory is in bytes": want / 2**10,
        "elements of four bytes are counted in place of bytes": want / 4,
    }
    assert_equal(name, got, want, suspects={**(suspects or {}), **usual}, hint=hint)
    assert_type(name, got, int, "an int: bytes")


def peak_and_result(got: Any, task: str = "measure_memory") -> tuple[Any, ...]:
    """What `task` returned, which must be (peak_bytes, result)."""
    return assert_tuple(f"{task}'s result", got, ("peak_bytes", "result"))


def lines_of_dtypes(**itemsizes: int) -> str:
    """Lines for `Lines.assert_readings`: a tensor of each dtype, whose numbers take so many bytes, and all stay."""
    lines, total = ["kept = []", "with MemoryTracker() as tracker:"], 0
    for dtype, itemsize in itemsizes.items():
        total += 77 * itemsize
        lines.append(f"    kept += [torch.zeros(77, dtype=torch.{dtype})]  # current {total} — bytes, unrounded")
    return "\n".join(lines)


def random_lines(rng: np.random.Generator, n_lines: int = 80) -> str:
    """Lines for `Lines.assert_readings`: tensors are made, viewed, written and dropped in any order under a tracker."""
    lines, peak_bytes = ["with MemoryTracker() as tracker:"], 0
    alive: dict[str, tuple[int, int]] = {}  # a tensor's name → the storage it is on, and its length
    nbytes: dict[int, int] = {}
    for step in range(n_lines):
        action = str(rng.choice(["make", "exp", "view", "in place", "drop", "drop", "reset"]))
        if not alive and action != "reset":
            action = "make"
        new, old = f"t{step}", str(rng.choice(list(alive))) if alive else ""
        storage, n = alive.get(old, (step, 0))
        line = {
            "exp": f"{new} = {old}.exp()",
            "view": f"{new} = {old}[{n // 3}:]",
            "in place": f"{old}.mul_(0.5)",
            "drop": f"del {old}",
            "reset": "tracker.reset()",
        }.get(action)
        if action == "make":
            n = int(rng.integers(1, 900))
            line = f"{new} = torch.zeros({n})"
        if action in ("make", "exp"):
            alive[new], nbytes[step] = (step, n), 4 * n
        elif action == "view":
            alive[new] = (storage, n - n // 3)
        elif action == "drop":
            del alive[old]
        live_bytes = sum(nbytes[storage] for storage in {storage for storage, _ in alive.values()})
        peak_bytes = max(0 if action == "reset" else peak_bytes, live_bytes)
        lines.append(f"    {line}  # current {live_bytes}, peak {peak_bytes} — line {step} of a random program")
    return "\n".join(lines)


def _assert_reading(name: str, got: Any, reading: Reading, which: str) -> None:
    assert_bytes(name, got, reading.numbers[which], hint=reading.hint, suspects=reading.suspects)


def _readings(lines: str) -> tuple[str, list[Reading]]:
    """The lines with a reading noted after each that has a comment, and what is expected there."""
    source: list[str] = []
    expected: list[Reading] = []
    for line in lines.split("\n"):
        code, comment = _parted(line)
        if not code and (mistake := MISTAKE.fullmatch(comment)):
            expected[-1].suspects[mistake[2]] = int(mistake[1])
            continue
        source.append(code)
        if not comment:
            continue
        said, _, hint = comment.partition(" — ")
        which, _, numbers = said.rpartition(": ")
        opens = code.endswith(":")
        when = "on entering" if opens else f"after `{code.strip()}`" if code else "after the block"
        wanted = {name: int(nbytes) for name, nbytes in map(str.split, numbers.split(", "))}
        expected.append(Reading(when, wanted, hint))
        indent = len(line) - len(line.lstrip()) + (4 if opens else 0)
        source.append(f"{' ' * indent}note(read({which or 'tracker'}))")
    return "\n".join(source), expected


def _calls(lines: str, task: str, known: set[str]) -> tuple[str, list[Reading]]:
    """The lines with a call of `task` noted in place of each that has a comment, and what is expected there."""
    source: list[str] = []
    expected: list[Reading] = []
    for line in lines.split("\n"):
        code, comment = _parted(line)
        if not code and (mistake := MISTAKE.fullmatch(comment)):
            expected[-1].suspects[mistake[2]] = int(mistake[1])
            continue
        names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
        if not comment:
            known = known | {node.id for node in names if isinstance(node.ctx, ast.Store)}
            source.append(code)
            continue
        used = ", ".join(dict.fromkeys(node.id for node in names if node.id in known))
        source.append(f"note({task}(lambda {used}: {code}, {used}))")
        nbytes, _, hint = comment.partition(" — ")
        expected.append(Reading(code, {"": int(nbytes)}, hint))
    return "\n".join(source), expected


def _parted(line: str) -> tuple[str, str]:
    """The code of a line and its comment."""
    code, _, comment = line.partition("# ")
    return code.rstrip(), comment.strip()
