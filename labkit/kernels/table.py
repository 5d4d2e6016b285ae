"""The table of `lab kernel`: the compiler's figures for a kernel at each block size."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from labkit.kernels.resources import resources
from labkit.meters.kernels.adapter import SWITCH
from labkit.meters.kernels.compiled import POINTERS, compiled
from labkit.meters.kernels.watch import Launch, watched

DTYPES = {"fp16": torch.float16, "fp32": torch.float32, "bf16": torch.bfloat16}
NUMBERS: dict[str, Any] = {"i32": 17, "i32:16": 1024, "i64": 2**31 + 1, "i64:16": 2**32, "fp32": 0.5, "i1": True}
"""Sample values by the types that `--type` takes for numbers; `:16` says that 16 divides them."""


class CannotReport(ValueError):
    """A target that cannot be compiled; the message is a sentence for the user."""


class Row(NamedTuple):
    """One kernel with one choice of constants, for one architecture; `problem` is why it was refused, if it was.

    `fits` is whether shared memory and registers suffice: a stack of 0 bytes.
    """

    kernel: str
    arch: int
    constants: dict[str, Any]
    num_warps: int
    num_stages: int
    shared: int = 0
    registers: int = 0
    stack: int = 0
    products: int = 0
    tf32: int = 0
    fits: bool = False
    problem: str = ""


def rows_of(
    launches: Sequence[Launch], constants: Mapping[str, Any], arch: int, num_warps: int, num_stages: int
) -> Iterator[Row]:
    """A row for each of `launches`. Raises AssemblerMissing, UnknownTriton."""
    for each in compiled(launches, arch, num_warps=num_warps, num_stages=num_stages):
        head = (each["kernel"], arch, dict(constants), num_warps, num_stages)
        if each["error"]:
            yield Row(*head, problem=each["error"])
            continue
        try:
            taken = resources(each["ptx"], each["shared"], arch)
        except ValueError as error:
            yield Row(*head, problem=str(error))
            continue
        yield Row(
            *head,
            shared=taken.shared,
            registers=taken.registers,
            stack=taken.stack,
            products=taken.products,
            tf32=taken.tf32,
            fits=taken.fits(arch) and not taken.stack,
        )


def attention_launches(
    function: Callable[..., Any], head_dim: int, dtype: str, causal: bool, block_q: int, block_k: int
) -> list[Launch]:
    """The launches of a function like Lab 10's `flash_forward` on small tensors, with these blocks."""
    Q, K, V = (torch.ones(1, 16, head_dim, dtype=DTYPES[dtype]) for _ in range(3))
    return _launches(function, {"Q": Q, "K": K, "V": V}, causal, block_q, block_k)


def example_launches(block_m: int, block_n: int, dtype: str) -> list[Launch]:
    """The launches of the course's own example."""
    from labkit.kernels.example import tile_product

    A, B = (torch.ones(16, 16, dtype=DTYPES[dtype]) for _ in range(2))
    return _launches(tile_product, {"A": A, "B": B}, block_m, block_n)


def kernel_launch(kernel: Any, types: Mapping[str, str], constants: Mapping[str, Any]) -> Launch:
    """A launch of any kernel, made of the types of its arguments and the values of its constants.

    Raises:
        CannotReport: an argument has neither, or a type is not known.
    """
    arguments: dict[str, Any] = {}
    pointers = {text: dtype for dtype, text in POINTERS.items()}
    for name in kernel.arg_names:
        if name in constants:
            arguments[name] = constants[name]
        elif types.get(name) in pointers:
            arguments[name] = torch.empty(64, dtype=pointers[types[name]])
        elif types.get(name) in NUMBERS:
            arguments[name] = NUMBERS[types[name]]
        else:
            known = ", ".join([*pointers, *NUMBERS])
            raise CannotReport(
                f"{name} needs --type {name}=… ({known}) or, for a tl.constexpr, --set {name}=…"
                + (f"; {types[name]} is not one of these" if name in types else "")
            )
    return Launch(kernel, arguments, {})


def load_target(file: Path, name: str) -> Any:
    """The object `name` of `file`: a kernel, or a function that launches kernels.

    Raises:
        CannotReport: there is no such file or name, or importing the file fails.
    """
    os.environ.setdefault(SWITCH, "1")
    if not file.is_file():
        raise CannotReport(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(f"kernels_of_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise CannotReport(f"importing {file} failed: {type(error).__name__}: {error}") from None
    if not hasattr(module, name):
        raise CannotReport(f"{file} defines no {name}")
    return getattr(module, name)


def combinations(values: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every choice of one value for each name."""
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def _launches(function: Callable[..., Any], given: dict[str, Any], *more: Any) -> list[Launch]:
    os.environ.setdefault(SWITCH, "1")
    _, seen = watched(function, given, *more)
    if not seen.launches:
        raise CannotReport("no kernel is launched")
    return seen.launches
