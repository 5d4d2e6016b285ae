"""Tests written as lines of Python that run where an answer is, with what must be read then in comments beside them."""

from __future__ import annotations

import ast
import contextlib
import functools
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from labkit.testing.compare import Suspects, assert_equal, assert_tuple, assert_type, require

MIB = 2**20
NOT_LEFT = "the way out is taken only when all goes well: `with`, or `try … finally`, leaves in every case"


class Reading(NamedTuple):
    """What a tracker has to read at a moment: `numbers` is "current" or "peak" → bytes."""

    when: str
    numbers: dict[str, int]
    hint: str


class Lines:
    """Runs lines by `run`, a program of the suite: `run(lines, **names)` gives what the lines `note(…)`.

    The lines must know `read`, which gives (current, peak) of a tracker, or None; `AllocationMeter`; and `left_on`.
    """

    def __init__(self, run: Callable[..., list[Any]]) -> None:
        self.run = run

    def follow(self, test: Any = None, *, suspects: Suspects | None = None) -> Any:
        """Make a test of a docstring: lines, some with a comment that says what a tracker has to read after them.

        `# current 4000, peak 8000 — why` is about the tracker called `tracker`, `# inner: peak 4000` about another. A
        comment behind `with …:` is about the moment of entering, one alone on its line about that after the block.
        What the test's body returns, a dict, are names that the lines know; a number in braces is one of them.
        """
        if test is None:
            return functools.partial(self.follow, suspects=suspects)
        lines = textwrap.dedent(test.__doc__).strip("\n")

        @functools.wraps(test)
        def followed(*args: Any, **kwargs: Any) -> None:
            names = test(*args, **kwargs) or {}
            self.assert_readings(lines.format(**names) if names else lines, suspects=suspects, **names)

        return followed

    def assert_readings(self, lines: str, *, suspects: Suspects | None = None, **names: Any) -> None:
        """Run lines that are written as `follow` says, and compare."""
        source, expected = _readings(lines)
        for (when, numbers, hint), got in zip(expected, self.run(source, **names), strict=True):
            require(got, "`with MemoryTracker() as tracker` must give the tracker itself")
            for name, nbytes in numbers.items():
                told = got[0 if name == "current" else 1]
                assert_bytes(f"{name}_allocated() {when}", told, nbytes, hint=hint, suspects=suspects)

    def gives(self, task: str, *, part: int | None = None, suspects: Suspects | None = None) -> Any:
        """Make tests of docstrings: lines, some with a comment that says how many bytes `task` gives for that line.

        `x.exp().sum()  # 4000 — why`: called with a function that computes the line, and with what it uses of the names
        before it, `task` has to give 4000; or, with `part`, that part of a tuple.
        """

        def decorate(test: Any) -> Any:
            lines = textwrap.dedent(test.__doc__).strip("\n").split("\n")

            @functools.wraps(test)
            def called(*args: Any, **kwargs: Any) -> None:
                names = test(*args, **kwargs) or {}
                source, expected = _calls([line.format(**names) if names else line for line in lines], task, set(names))
                for (text, nbytes, hint), got in zip(expected, self.run(source, **names), strict=True):
                    if part is not None:
                        got = assert_tuple(f"{task}'s result", got, ("peak_bytes", "result"))[part]
                    assert_bytes(f"what {task} gives for {text}", got, nbytes, hint=hint, suspects=suspects)

            return called

        return decorate

    def call(self, task: str, text: str, *, times: int = 1, **args: Any) -> Any:
        """What a task returns each time when it is given a function of `args` that computes `text`, and then those."""
        names = ", ".join(args)
        results = self.run(f"for _ in range({times}): note({task}(lambda {names}: {text}, {names}))", **args)
        return results if times > 1 else results[0]

    def alive_after(self, statement: str, **names: Any) -> int:
        """Bytes that `statement` allocates and that something holds after it."""
        lines = (
            "import gc",
            "with AllocationMeter() as meter:",
            f"    {statement}",
            "    gc.collect()",
            "    note(meter.live_bytes)",
        )
        return self.run("\n".join(lines), **names)[0]

    @contextlib.contextmanager
    def nothing_left_on(self, after: str) -> Iterator[None]:
        """Fail when a dispatch mode or a hook on saved tensors is on when the block has ended."""
        self.run("left_on()")
        yield
        (found,) = self.run("note(left_on())")
        require(not found, f"after {after} {' and '.join(found)} still looks on\nUsual cause: {NOT_LEFT}")


def assert_bytes(name: str, got: Any, want: int, *, suspects: Suspects | None = None, hint: str = "") -> None:
    """Compare a number of bytes, which is an int."""
    assert_type(name, got, (int, float), "an int: bytes")
    usual = {
        "the value is in MiB: memory is in bytes": want / MIB,
        "the value is in KiB: memory is in bytes": want / 2**10,
        "elements of four bytes are counted in place of bytes": want / 4,
    }
    assert_equal(name, got, want, suspects={**(suspects or {}), **usual}, hint=hint)
    assert_type(name, got, int, "an int: bytes")


def _readings(lines: str) -> tuple[str, list[Reading]]:
    """The lines with a reading noted after each that has a comment, and what is expected there."""
    source: list[str] = []
    expected: list[Reading] = []
    for line in lines.split("\n"):
        code, _, comment = (each.rstrip() for each in line.partition("# "))
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


def _calls(lines: list[str], task: str, known: set[str]) -> tuple[str, list[tuple[str, int, str]]]:
    """The lines with a call of `task` noted in place of each that has a comment, and what is expected there."""
    source: list[str] = []
    expected: list[tuple[str, int, str]] = []
    for line in lines:
        code, _, comment = (each.strip() for each in line.partition("# "))
        names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
        if not comment:
            known = known | {node.id for node in names if isinstance(node.ctx, ast.Store)}
            source.append(code)
            continue
        used = ", ".join(dict.fromkeys(node.id for node in names if node.id in known))
        source.append(f"note({task}(lambda {used}: {code}, {used}))")
        nbytes, _, hint = comment.partition(" — ")
        expected.append((code, int(nbytes), hint))
    return "\n".join(source), expected
