"""Compiles kernels that were launched in the interpreter up to PTX, without a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from labkit.meters.kernels.adapter import compilable, compiler, to_ptx
from labkit.meters.kernels.watch import Launch

POINTERS = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float64: "*fp64",
            torch.int32: "*i32", torch.int64: "*i64", torch.bool: "*i1", torch.int8: "*i8", torch.int16: "*i16",
            torch.uint8: "*u8"}  # fmt: skip


def compiled(launches: Iterable[Launch], arch: int, **options: int) -> list[dict[str, Any]]:
    """For each launch, in plain data: `kernel`, `ptx`, `shared` bytes, or `error` in the compiler's own words.

    The arguments are specialised as a launch on a GPU does: pointers and integers by what 16 divides, ones are
    constants.

    Args:
        arch: 80 for sm_80, 90 for sm_90.
        options: `num_warps` and `num_stages` instead of the launch's own.
    """
    made = []
    with compiler() as second:
        for launch in launches:
            asked = {"num_warps": 4, "num_stages": 3, **launch.options, **options}
            told = {"kernel": launch.kernel.fn.__name__, "ptx": "", "shared": 0, "error": ""}
            told |= {name: asked[name] for name in ("num_warps", "num_stages")}
            try:
                kernel = compilable(launch.kernel, second)
                ptx, shared = to_ptx(
                    kernel, *specialised(launch), arch, asked["num_warps"], asked["num_stages"], second
                )
                told |= {"ptx": ptx, "shared": shared}
            except Exception as error:  # whatever the compiler says of a kernel is for its writer
                told["error"] = said_by(error)
            made.append(told)
    return made


def specialised(launch: Launch) -> tuple[dict[str, str], dict[str, Any], list[str]]:
    """The types of a launch's arguments, its constants with their values, and the arguments that 16 divides."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    divisible: list[str] = []
    annotations = launch.kernel.fn.__annotations__
    for name, value in launch.arguments.items():
        if "constexpr" in str(annotations.get(name, "")) or value is None or value is True or value is False:
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
            divisible += [name] if value.data_ptr() % 16 == 0 else []
        elif isinstance(value, int):
            if value == 1:
                signature[name], constants[name] = "constexpr", 1
            else:
                signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
                divisible += [name] if value % 16 == 0 else []
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            raise TypeError(f"{name} is a {type(value).__name__}: give kernels tensors and numbers")
    return signature, constants, divisible


def said_by(error: BaseException) -> str:
    """Triton's message about a kernel, without the kernel's text: the last line, and the line it is about."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and set(line.strip()) != {"^"}]
    cause = error.__cause__ or error.__context__
    where = next((line for line in lines if line.startswith("at ")), "")
    last = lines[-1] if lines else type(error).__name__
    if cause is not None and str(cause) and str(cause).splitlines()[0] not in last:
        last = f"{last}: {str(cause).splitlines()[0]}" if last else str(cause).splitlines()[0]
    return f"{last} ({where.rstrip(':')})" if where and where not in last else last
