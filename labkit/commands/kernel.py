"""`lab kernel`: compiles a Triton kernel for several block sizes, warps and stages, without a GPU."""

from __future__ import annotations

import csv
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from labkit.kernels.table import Row
    from labkit.meters.kernels.watch import Launch

HEADS = ("arch", "warps", "stages", "shared B", "registers", "stack B", "products", "tf32", "fits")
LEGEND = """
shared B: bytes of shared memory per program · registers: per thread, at most 255
stack B: bytes that a thread spills to memory because registers do not suffice
products: tensor-core instructions in the code; tf32: those of them that round float32 to 10 bits
fits: whether shared memory and registers of this architecture suffice for one program: nothing is on the stack"""
BLOCKS = "64x64,128x64,128x128"


class Form(StrEnum):
    """How a table is written."""

    text = "text"
    csv = "csv"
    json = "json"


def kernel(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE:NAME]",
            help="a kernel, or a function called like Lab 10's flash_forward; without it, your own flash_forward, "
            "or the course's example while that is not written",
        ),
    ] = None,
    blocks: Annotated[str, typer.Option(help="block sizes, rows x columns, with commas")] = BLOCKS,
    head_dim: Annotated[int, typer.Option(help="d and d_v, for a function of attention")] = 64,
    dtype: Annotated[str, typer.Option(help="fp16, fp32 or bf16, likewise")] = "fp16",
    causal: Annotated[bool, typer.Option("--causal", help="likewise")] = False,
    arch: Annotated[str, typer.Option(help="80, 90, with commas")] = "80,90",
    warps: Annotated[str, typer.Option(help="warps of a program, with commas")] = "4,8",
    stages: Annotated[str, typer.Option(help="tiles loaded at once, with commas")] = "2",
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="NAME=TYPE", help="of a kernel's argument: *fp16, i32, i32:16 …"),
    ] = None,
    constants: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=A,B", help="values of a kernel's tl.constexpr")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="of the table")] = Form.text,
) -> None:
    """Compile a Triton kernel without a GPU: its shared memory, registers, spills and tensor-core instructions."""
    from labkit.kernels.resources import AssemblerMissing
    from labkit.kernels.table import DTYPES, CannotReport, rows_of
    from labkit.meters.kernels.adapter import UnknownTriton
    from labkit.suite.finder import platform_problem

    if problem := platform_problem(_lab_10()):
        sys.exit(f"lab kernel: {problem}")
    if dtype not in DTYPES:
        sys.exit(f"lab kernel: --dtype {dtype}: one of {', '.join(DTYPES)}")
    settings = [
        (each_arch, each_warps, each_stages)
        for each_arch in numbers("--arch", arch, (80, 90))
        for each_warps in numbers("--warps", warps)
        for each_stages in numbers("--stages", stages)
    ]
    rows: list[Row] = []
    try:
        for chosen, launches in _to_compile(target, blocks, head_dim, dtype, causal, types or [], constants or []):
            for setting in settings:
                rows += rows_of(launches, chosen, *setting)
    except (CannotReport, UnknownTriton, AssemblerMissing) as error:
        sys.exit(f"lab kernel: {error}")
    WRITERS[form](rows)


def numbers(option: str, text: str, known: Sequence[int] = ()) -> list[int]:
    """Whole numbers with commas; ends the command with one line where they are not."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        sys.exit(f"lab kernel: {option} {text}: whole numbers with commas")
    if unknown := [each for each in found if known and each not in known]:
        sys.exit(f"lab kernel: {option} {unknown[0]}: one of {', '.join(map(str, known))}")
    return found


def _to_compile(
    target: str | None, blocks: str, head_dim: int, dtype: str, causal: bool, types: list[str], constants: list[str]
) -> Iterator[tuple[dict[str, Any], list[Launch]]]:
    """The launches to compile, each with what was chosen for it."""
    from labkit.kernels.table import (
        CannotReport,
        attention_launches,
        combinations,
        example_launches,
        kernel_launch,
        load_target,
    )

    function: Any = None
    if target is None:
        function = load_target(_lab_10().student_file, "flash_forward")
    else:
        file, _, name = target.rpartition(":")
        if not file:
            raise CannotReport(f"{target}: a file and a name, like my_kernels.py:scale_rows")
        function = load_target(Path(file), name)
    if hasattr(function, "arg_names"):
        known = dict(_pair("--type", each) for each in types)
        values: dict[str, list[Any]] = {}
        for each in constants:
            name, text = _pair("--set", each)
            values[name] = [_value(part) for part in text.split(",")]
        for chosen in combinations(values):
            yield chosen, [kernel_launch(function, known, chosen)]
        return
    sizes = [_block(each) for each in blocks.split(",")]
    is_written = True
    for rows, columns in sizes:
        try:
            if is_written:
                chosen = {"block_q": rows, "block_k": columns}
                yield chosen, attention_launches(function, head_dim, dtype, causal, rows, columns)
                continue
        except NotImplementedError as error:
            last_frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
            if last_frame.f_globals["__name__"].startswith("triton."):  # the function is written
                raise CannotReport(f"Triton has not implemented this: {error}") from None
            if target is not None:
                raise CannotReport(f"{target} is not written yet") from None
            typer.echo("your flash_forward is not written yet: this is labkit/kernels/example.py, a product", err=True)
            is_written = False
        yield {"block_m": rows, "block_n": columns}, example_launches(rows, columns, dtype)


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        sys.exit(f"lab kernel: {option} {text}: NAME=…")
    return name, value


def _value(text: str) -> Any:
    """A constant as it is typed: a number, True or False, or a word."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _block(text: str) -> tuple[int, int]:
    rows, x, columns = text.partition("x")
    if not (x and rows.isdigit() and columns.isdigit()):
        sys.exit(f"lab kernel: --blocks {text}: like 64x64,128x64")
    return int(rows), int(columns)


def _lab_10() -> Any:
    from labkit.labs.catalog import find_lab

    return find_lab("10")


def _as_text(rows: list[Row]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row.constants))
    lines = [["kernel", *names, *HEADS]]
    for row in rows:
        head = [row.kernel, *(str(row.constants.get(name, "")) for name in names)]
        head += [f"sm_{row.arch}", str(row.num_warps), str(row.num_stages)]
        if row.problem:
            lines.append([*head, *[""] * 5, row.problem])
            continue
        found = [str(x) for x in (row.shared, row.registers, row.stack, row.products, row.tf32)]
        lines.append([*head, *found, _fits(row)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    for line in lines:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:], strict=True)),
        ]
        typer.echo("  ".join([*cells, line[-1]]))
    typer.echo(LEGEND)


def _fits(row: Row) -> str:
    """Whether a program fits, or what does not suffice."""
    if row.fits:
        return "yes"
    return "no: registers spill" if row.stack else "no: too much shared memory"


def _as_csv(rows: list[Row]) -> None:
    written = csv.DictWriter(sys.stdout, list(_flat(rows[0])) if rows else [])
    written.writeheader()
    written.writerows(_flat(row) for row in rows)


def _as_json(rows: list[Row]) -> None:
    typer.echo(json.dumps([_flat(row) for row in rows], indent=1))


def _flat(row: Row) -> dict[str, Any]:
    fields = row._asdict()
    return {"kernel": fields.pop("kernel"), **fields.pop("constants"), **fields}


WRITERS: dict[Form, Callable[[list[Row]], None]] = {Form.text: _as_text, Form.csv: _as_csv, Form.json: _as_json}
