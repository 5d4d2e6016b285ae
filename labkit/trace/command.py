"""`lab trace`: run a function or a module, follow its memory, and write the page."""

from __future__ import annotations

import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.trace.shapes import CannotTrace, parse_shape

if TYPE_CHECKING:
    from labkit.meters.tracing import Life, Trace

FOLDER = Path("traces")
ENDINGS = (".html", ".json", ".svg", ".png")
MAX_ROWS = 6


def trace(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET",
            help="FILE:NAME or PACKAGE.MODULE:NAME of a function, class or module; a lab and its task: "
            "05 flash_backward; or a CUDA memory snapshot: FILE.pickle",
        ),
    ],
    against: Annotated[str | None, typer.Option(metavar="TARGET", help="a second run, to compare with")] = None,
    init: Annotated[
        str | None,
        typer.Option(metavar="ARGUMENTS", help="call TARGET with these and trace the result: '768, n_head=12'"),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="1,256,768[:int]",
            help="of every argument, or given once for each; default: what a module's first layer takes, "
            "else 1,4,256,64 (batch, heads, positions, width)",
        ),
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="FILE:FUNCTION", help="returns the arguments: a tuple, or a dict by name")
    ] = None,
    forward_only: Annotated[
        bool, typer.Option("--forward-only", help="the forward pass alone, in torch.no_grad()")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="training steps: forward, backward, optimizer")] = None,
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="of torch.optim, for --steps; with arguments: 'SGD(momentum=0.9)'")
    ] = "AdamW",
    simulate: Annotated[bool, typer.Option("--simulate", help="without values: any size, in seconds")] = False,
    out: Annotated[
        list[Path] | None, typer.Option(help="output file: .html, .json, .svg or .png; may be given several times")
    ] = None,
) -> None:
    """Write a page that shows every tensor of a run: when it is alive, its size, and the line that made it."""
    targets = [target, [against]] if against else [target]
    try:
        shapes = [parse_shape(text) for text in shape or []]
        _check_files(targets, out or [])
        if forward_only and steps:
            raise CannotTrace("--forward-only makes no gradients, and --steps needs them: leave one of them out")
    except CannotTrace as error:
        sys.exit(f"lab trace: {error}")
    from labkit.labs.catalog import UnknownLab
    from labkit.trace.page import write
    from labkit.trace.record import record
    from labkit.trace.snapshot import read_snapshot
    from labkit.trace.targets import find_optimizer, find_target

    runs: list[tuple[str, Trace]] = []
    fake: AbstractContextManager[object] = nullcontext()
    if simulate:
        from labkit.meters.torch_private import FakeTensorMode

        fake = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        stepping = find_optimizer(optimizer) if steps else None
        for words in targets:
            if _is_snapshot(words):
                runs += read_snapshot(Path(words[0]))
                continue
            with fake:
                found = find_target(words, init=init, factory=inputs)
                made = record(
                    found.function,
                    found.inputs(shapes),
                    backward=not forward_only,
                    steps=steps or 1,
                    optimizer=stepping,
                )
            runs.append((found.name, made))
    except CannotTrace as error:
        sys.exit(f"lab trace: {error}")
    except UnknownLab:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None:
            raise  # for instance a full disk: `labkit.commands.cli` reports it
        sys.exit(error_text(error, simulated=simulate))
    files = out or [FOLDER / f"{file_name([name for name, _ in runs])}.html"]
    for file in files:
        write(file, runs)
    for name, each in runs:
        for line in summary(name, each, default_inputs=not (shape or inputs)):
            typer.echo(line)
    if len(runs) == 2:
        for line in comparison(*runs):
            typer.echo(line)
    for file in files:
        typer.echo(f"written: {file}")


def file_name(names: Sequence[str]) -> str:
    """A file's name for runs of these names."""
    return re.sub(r"\W+", "_", "_against_".join(names))


def summary(name: str, trace: Trace, *, default_inputs: bool = False) -> Iterator[str]:
    """The run's peak, its step, the largest tensors alive then, and notes on what is not counted."""
    from labkit.meters.tracing import THERE_BEFORE

    if not trace.steps:
        yield f"{name}: no torch operator ran; NumPy arrays are not traced"
        return
    step = trace.steps[trace.peak_step]
    in_pass = trace.pass_at(trace.peak_step)
    alive = trace.alive_at(trace.peak_step)
    yield (
        f"{name}: {trace.peak_bytes:,} bytes at the peak, step {trace.peak_step + 1} of {len(trace.steps)}"
        f"{_during(in_pass)} ({step.op.removeprefix('aten::')})"
    )
    if trace.before_bytes:
        in_all = trace.before_bytes + trace.peak_bytes
        yield f"  over {trace.before_bytes:,} bytes from before the run, {in_all:,} in all"
        if before := _there_before(trace, default_inputs):
            yield f"  {before}"
    made = [life for life in alive if life.kind not in THERE_BEFORE]
    by_kind: Counter[str] = Counter()
    for life in made:
        by_kind[life.kind] += life.nbytes
    yield f"  made by the run: {', '.join(f'{nbytes:,} of {kind}' for kind, nbytes in by_kind.most_common())}"
    for life in made[:MAX_ROWS]:
        yield f"  {life.nbytes:>13,} B  {life.kind:<15} {_shape(life):<20} {_where(life, trace)}".rstrip()
    if rest := made[MAX_ROWS:]:
        yield f"  {sum(life.nbytes for life in rest):>13,} B  in {len(rest)} more"
    yield from (f"  {note}" for note in trace.notes)


def comparison(first: tuple[str, Trace], second: tuple[str, Trace]) -> Iterator[str]:
    """The lines and modules whose bytes differ most between the peaks of two runs."""
    from labkit.trace.totals import differences

    yield f"{second[0]} against {first[0]}, at their peaks:"
    for by, rows in differences(first[1], second[1]).items():
        if not rows:
            yield f"  by {by}: no difference"
        for row in rows[:MAX_ROWS]:
            yield f"  {row.second_bytes - row.first_bytes:>+17,} B  by {by:<7} {row.name}"


def error_text(error: BaseException, *, simulated: bool = False) -> str:
    """An error of the traced code in a few lines: its type, the lines in that code, and what to do."""
    from labkit.meters.torch_private import CannotCount

    ours = str(Path(__file__).parents[1])
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    frames = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    where = [f"  {Path(frame.filename).name}:{frame.lineno}  {frame.line}" for frame in frames[-3:]]
    if isinstance(error, NotImplementedError) and not str(error):
        return f"lab trace: not implemented yet: {where[-1].strip()}" if where else "lab trace: not implemented yet"
    if simulated and (operator := getattr(error, "func", None)) is not None:
        return f"lab trace: {operator} needs values, and --simulate has none:{where[-1] if where else ''}"
    if isinstance(error, CannotCount):
        return f"lab trace: {error}:{where[-1] if where else ''}"
    message = str(error).splitlines()[0] if str(error) else ""
    lines = [f"lab trace: the code ended in {type(error).__name__}: {message}", *where]
    if simulated:
        lines.append("  with --simulate tensors have no values; without it they do")
    return "\n".join(lines)


def _check_files(targets: Sequence[Sequence[str]], out: Sequence[Path]) -> None:
    """Raise CannotTrace for missing files and unknown suffixes, before torch is imported."""
    for words in targets:
        file = words[0] if _is_snapshot(words) else ":".join(words).rpartition(":")[0]
        if file.endswith((".py", ".pickle")) and not Path(file).is_file():
            raise CannotTrace(f"there is no file {file}")
    for path in out:
        if path.suffix not in ENDINGS:
            raise CannotTrace(f"{path.name}: traces are written as {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")


def _is_snapshot(words: Sequence[str]) -> bool:
    return len(words) == 1 and words[0].endswith((".pickle", ".pkl"))


def _there_before(trace: Trace, default_inputs: bool) -> str:
    parameters = [life for life in trace.lives if life.kind == "parameter"]
    inputs = [life for life in trace.lives if life.kind == "input"]
    parts = [f"{sum(life.nbytes for life in parameters):,} of parameters"] if parameters else []
    if inputs:
        names = [f"{life.name} {_shape(life)}" for life in inputs[:4]] + ["…"] * (len(inputs) > 4)
        parts.append(f"inputs {', '.join(names)}{' (the default; --shape gives others)' if default_inputs else ''}")
    return "; ".join(parts)


def _during(name: str) -> str:
    return {"": "", "optimizer": ", in the optimizer's step"}.get(name, f", in the {name} pass")


def _shape(life: Life) -> str:
    return " × ".join(map(str, life.shape))


def _where(life: Life, trace: Trace) -> str:
    stack = trace.stacks[life.stack] if life.stack is not None else None
    if stack and stack.lines:
        line = trace.lines[stack.lines[0]]
        code = f"{line.file}:{line.number}  {line.text or line.function}"
    else:
        callers = {"backward": "the backward call", "optimizer": "the optimizer's step"}
        code = callers.get(trace.pass_at(life.born), life.op.removeprefix("aten::"))
    return "   ".join(filter(None, (life.name or _within(stack.module if stack else ""), code)))


def _within(module: str) -> str:
    """A module's path without the outermost module, unless it is that."""
    return module.partition(".")[2] or module
