"""`lab trace`: run a function, follow its memory, and write the page."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

FOLDER = Path("traces")


def trace(
    target: Annotated[
        list[str], typer.Argument(metavar="TARGET", help="FILE:FUNCTION, or a lab and its task: 05 flash_backward")
    ],
    against: Annotated[
        str | None, typer.Option(metavar="TARGET", help="another run beside it: FILE:FUNCTION or LAB:TASK")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="1,4,256,64", help="of every argument, or given once for each")
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="FILE:FUNCTION", help="a function that returns the tuple of arguments")
    ] = None,
    forward_only: Annotated[bool, typer.Option("--forward-only", help="leave out the backward pass")] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="on meta tensors: any size, and nothing computed")
    ] = False,
    out: Annotated[
        list[Path] | None, typer.Option(help="where to: .html, .json, .svg or .png; may be given several times")
    ] = None,
) -> None:
    """Follow every tensor of a run, and write a page that shows what is alive when, and which line made it."""
    from labkit.labs.catalog import UnknownLab
    from labkit.meters.tracing import Trace
    from labkit.trace.page import write
    from labkit.trace.record import record
    from labkit.trace.targets import CannotTrace, find_target

    device, shapes = "meta" if simulate else "cpu", [shape_of(text) for text in shape or []]
    runs: list[tuple[str, Trace]] = []
    try:
        for words in [target, [against]] if against else [target]:
            found = find_target(words, inputs)
            runs.append((found.name, record(found.function, found.inputs(shapes, device), backward=not forward_only)))
    except (CannotTrace, ValueError) as error:
        if isinstance(error, ValueError) and _is_theirs(error):
            sys.exit(told(error))
        sys.exit(f"lab trace: {error}")
    except UnknownLab:
        raise
    except Exception as error:
        sys.exit(told(error))
    files = out or [FOLDER / f"{file_name([name for name, _ in runs])}.html"]
    try:
        for file in files:
            write(file, runs)
    except (CannotTrace, ValueError) as error:
        sys.exit(f"lab trace: {error}")
    for name, each in runs:
        for line in summary(name, each):
            typer.echo(line)
    for file in files:
        typer.echo(f"written: {file}")


def shape_of(text: str) -> tuple[int, ...]:
    """The shape that a text like 1,4,256,64 gives; ends the command with one line where it gives none."""
    if not re.fullmatch(r"\d+(,\d+)*", text.replace(" ", "")):
        sys.exit(f"lab trace: --shape {text}: whole numbers with commas, like 1,4,256,64")
    return tuple(map(int, text.split(",")))


def file_name(names: Sequence[str]) -> str:
    """A file's name for runs of these names."""
    return re.sub(r"\W+", "_", "_against_".join(names))


def summary(name: str, trace) -> list[str]:  # type: ignore[no-untyped-def]
    """What the run's peak is, when, and the largest tensors at it."""
    if not trace.steps:
        return [f"{name}: no operator of torch ran: arrays of NumPy are not followed"]
    step = trace.steps[trace.peak_step]
    in_pass = "forward" if trace.peak_step < trace.forward_steps else "backward"
    lines = [
        f"{name}: {trace.peak_bytes:,} bytes at the peak, step {trace.peak_step + 1} of {len(trace.steps)}, in the "
        f"{in_pass} pass ({step.op.removeprefix('aten::')})"
    ]
    for life in trace.alive_at(trace.peak_step)[:4]:
        line = trace.lines[life.line] if life.line is not None else None
        where = f"   {line.file}:{line.number}  {line.text}" if line else f"   {life.op.removeprefix('aten::')}"
        lines.append(f"  {life.nbytes:>13,} B  {' × '.join(map(str, life.shape)):<20}{where}")
    return lines


def _is_theirs(error: BaseException) -> bool:
    """Whether an error comes from the code that was traced."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and not frames[-1].filename.startswith(str(Path(__file__).parents[1]))


def told(error: BaseException) -> str:
    """An error of the code that was traced, in a few lines: which one, and where in that code."""
    ours = str(Path(__file__).parents[1])
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    frames = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    where = [f"  {Path(frame.filename).name}:{frame.lineno}  {frame.line}" for frame in frames[-3:]]
    if isinstance(error, NotImplementedError) and not str(error):
        return f"lab trace: not implemented yet: {where[-1].strip()}" if where else "lab trace: not implemented yet"
    said = str(error).splitlines()[0] if str(error) else ""
    return "\n".join([f"lab trace: the code ended in {type(error).__name__}: {said}", *where])
