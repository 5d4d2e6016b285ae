"""Gradients compared with those of plain autograd, in float64 and in the precision under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.compare import assert_close, require

Args = dict[str, Any]
Gradients = dict[str, torch.Tensor | None]


def assert_gradients(
    got: Sequence[torch.Tensor | None] | None,
    fn: Callable[[Args], Any],
    args: Args,
    factors: Sequence[torch.Tensor],
    *,
    names: Mapping[str, str] | None = None,
    mistakes: Mapping[str, Gradients] | None = None,
    hint: str = "",
    lost: str = "",
) -> None:
    """Compare `got`, a gradient for each of `args`, with plain autograd's of `fn(args)`.

    Args:
        got: None where the results had no graph at all.
        fn: what is computed, from arguments by name.
        args: a name for a message → the argument.
        factors: the loss is the sum of the floating-point results, each times its factor.
        names: what an argument is called in messages, if not by its name.
        mistakes: a usual mistake → the gradients that it leads to.
        hint: what usually causes an error.
        lost: why a gradient may be missing.
    """
    exact, plain = (gradients(fn, args, factors, dtype) for dtype in (torch.float64, torch.float32))
    for i, (name, arg) in enumerate(args.items()):
        want = exact[name]
        if want is None:
            continue
        found = got[i] if got else None
        called = f"the gradient of {(names or {}).get(name, name)}"
        require(found is not None, f"{called} is None\nUsual cause: {lost or hint}")
        usual = {text: numbers(value) for text, each in (mistakes or {}).items() if (value := each[name]) is not None}
        usual |= {"the gradient arrives twice": 2 * numbers(want), "the gradient is lost": 0 * numbers(want)}
        rounded = numbers(plain[name])
        assert_close(called, found, numbers(want), plain=rounded, dtype=arg.dtype, mistakes=usual, hint=hint)


def gradients(
    fn: Callable[[Args], Any], args: Args, factors: Sequence[torch.Tensor], dtype: torch.dtype = torch.float64
) -> Gradients:
    """The gradients by plain autograd, in `dtype`; None where an argument has none."""
    leaves = copies(args, dtype)
    results = fn(leaves)
    every = [x for x in (results if isinstance(results, tuple) else (results,)) if x.is_floating_point()]
    sum((x * factor.to(x)).sum() for x, factor in zip(every, factors, strict=True)).backward()
    return {name: leaf.grad if isinstance(leaf, torch.Tensor) else None for name, leaf in leaves.items()}


def copies(args: Args, dtype: torch.dtype) -> Args:
    """New leaves with the same numbers, in `dtype` where they are of a floating-point dtype."""
    return {
        name: x.detach().to(dtype if x.is_floating_point() else x.dtype).clone().requires_grad_(x.requires_grad)
        if isinstance(x, torch.Tensor)
        else x
        for name, x in args.items()
    }


def numbers(tensor: Any) -> npt.NDArray[np.floating]:
    """The tensor as a NumPy array."""
    return tensor.detach().cpu().numpy()
