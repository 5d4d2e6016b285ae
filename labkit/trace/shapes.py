"""Parses `--shape` of `lab trace`. This module does not import torch."""

from __future__ import annotations

import re
from typing import NamedTuple

DTYPES = {"int": "int64", "float": "float32"} | {
    name: name for name in ("bool", "int32", "int64", "float16", "bfloat16", "float32", "float64")
}


class CannotTrace(Exception):
    """A target or inputs that cannot be used; the message is one line for the user."""


class Shape(NamedTuple):
    """The shape of an input tensor; without `dtype` it has the dtype of the module's parameters."""

    sizes: tuple[int, ...]
    dtype: str = ""


def parse_shape(text: str) -> Shape:
    """The shape in a text like 1,4,256,64 or 1,256:int.

    Raises:
        CannotTrace: the text is no shape.
    """
    found = re.fullmatch(r"(\d+(?:,\d+)*)(?::(\w+))?", text.replace(" ", ""))
    if not found or (found[2] or "float") not in DTYPES:
        raise CannotTrace(
            f"--shape {text}: whole numbers with commas, like 1,4,256,64, and a dtype if needed: 1,256:int"
        )
    return Shape(tuple(map(int, found[1].split(","))), DTYPES[found[2]] if found[2] else "")
