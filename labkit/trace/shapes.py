"""Reads the shapes that `lab trace` is asked for, where torch is not imported."""

from __future__ import annotations

import re
from typing import NamedTuple

DTYPES = {"int": "int64", "float": "float32"} | {
    name: name for name in ("bool", "int32", "int64", "float16", "bfloat16", "float32", "float64")
}


class CannotTrace(Exception):
    """A target or its inputs that cannot be made sense of; the message is one line for the user."""


class Shape(NamedTuple):
    """A tensor that `--shape` asks for; without `dtype`, floats like the module's parameters."""

    sizes: tuple[int, ...]
    dtype: str = ""


def parse_shape(text: str) -> Shape:
    """The shape that a text like 1,4,256,64 or 1,256:int gives.

    Raises:
        CannotTrace: it gives none.
    """
    found = re.fullmatch(r"(\d+(?:,\d+)*)(?::(\w+))?", text.replace(" ", ""))
    if not found or (found[2] or "float") not in DTYPES:
        raise CannotTrace(
            f"--shape {text}: whole numbers with commas, like 1,4,256,64, and if need be a dtype: 1,256:int"
        )
    return Shape(tuple(map(int, found[1].split(","))), DTYPES[found[2]] if found[2] else "")
