"""Words for the values in a message: short, exact, never an array written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def place(at: tuple[Any, ...]) -> str:
    """Where in an array: ` at [1, 2]`; nothing for a single number."""
    return f" at [{', '.join(str(int(i)) for i in at)}]" if at else ""


def got_and_expected(got: float, expected: float) -> str:
    """Both numbers, with as many digits as it takes to tell them apart."""
    digits = next((n for n in range(6, 17) if f"{got:.{n}g}" != f"{expected:.{n}g}"), 17)
    return f"got {got:.{digits}g}, expected {expected:.{digits}g}"


def compared(got: float, expected: float) -> str:
    """How many times as much as expected, or what part of it; nothing where that says little."""
    ratio = got / expected if expected else 0.0
    told = f"{ratio:.3g}"
    if not 1e-6 < ratio < 1e3 or told == "1":
        return ""
    if ratio > 1:
        return f"{told} times as much"
    inverse = 1 / ratio
    whole = round(inverse) > 1 and abs(inverse - round(inverse)) < 0.005 * inverse
    part = f"1/{inverse:.3g}" if inverse < 999 else f"1/{inverse:,.0f}"
    return f"{part} of it" if whole or inverse > 10 else f"{told} of it"


def are(name: str) -> str:
    """The verb for a quantity by its name: "the bytes loaded" are, "the peak" is."""
    subject = name.rpartition(", ")[2]
    noun = subject.removeprefix("the ").partition(" ")[0]
    return (
        "are" if subject.startswith("the ") and noun.endswith("s") and not noun.endswith(("ss", "is", "us")) else "is"
    )


def dtype_name(dtype: Any) -> str:
    """What a dtype is called, torch's without its module: `float32`."""
    return str(dtype).removeprefix("torch.")


def sizes_of(arguments: Mapping[str, Any]) -> str:
    """Arguments by name: of arrays and tensors shape and dtype; without those that are None."""
    words = []
    for name, value in arguments.items():
        if hasattr(value, "shape"):
            words.append(f"{name} {tuple(value.shape)} {dtype_name(value.dtype)}")
        elif value is not None:
            words.append(f"{name}={value}")
    return ", ".join(words)


def share(n: int, total: int) -> str:
    """How many of the elements, as the beginning of a sentence."""
    if total == 1:
        return "the only element is"
    return f"all {total:,} elements are" if n == total else f"{n:,} of {total:,} elements are"


def type_name(value: Any) -> str:
    """What a value is, with its article: `a list`."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' or name == 'ndarray' else 'a'} {name}"


def none_hint(value: Any) -> str:
    """Why a function may have returned None; nothing for any other value."""
    return "\nUsual cause: a path through the function ends without `return`" if value is None else ""


def show(value: Any) -> str:
    """A value short enough for a line, whole numbers with commas."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float) and value.is_integer():
        return f"{value:,.1f}"
    text = repr(value)
    if " object at 0x" in text:
        return type_name(value)
    return text if len(text) <= 120 else f"{type_name(value)} ({text[:100]} …)"
