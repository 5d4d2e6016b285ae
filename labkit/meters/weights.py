"""Counts the attention weights that NumPy code computes, in rows of each length, whatever computes them."""

from __future__ import annotations

import collections
import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

POWERS = (np.exp, np.exp2, np.expm1, np.power, np.float_power)


def weights_computed(
    function: Callable[..., Any], *args: Any, others: Iterable[Callable[..., Any]] = ()
) -> tuple[Any, dict[int, int]]:
    """What `function(*args)` returns, and {N_k: how many weights were computed in rows of that length}.

    Seen are calls of `standard_attention`, and powers that NumPy takes: an attention of another name is seen by its
    softmax. Both are looked for in the modules of `function` and of `others`, functions that it may call.
    """
    called: collections.Counter[int] = collections.Counter()
    powers: collections.Counter[int] = collections.Counter()

    def call_seen(Q: Any, K: Any, *_: Any, **__: Any) -> None:
        called[K.shape[-2]] += math.prod(Q.shape[:-1]) * K.shape[-2]

    def powers_seen(*operands: Any, **__: Any) -> None:
        shape = np.broadcast_shapes(*(np.shape(x) for x in operands[:2]))
        powers[shape[-1] if shape else 1] += math.prod(shape)

    homes = [vars(np), *(getattr(each, "__globals__", {}) for each in (function, *others))]
    with contextlib.ExitStack() as stack:
        for home in homes:
            for name, value in list(home.items()):
                told = powers_seen if any(value is ufunc for ufunc in POWERS) else None
                told = call_seen if name == "standard_attention" else told
                if told and not isinstance(value, _Counted):
                    home[name] = _Counted(value, told)
                    stack.callback(home.__setitem__, name, value)
        result = function(*args)
    return result, {n: max(called[n], powers[n]) for n in {*called, *powers}}


class _Counted:
    """A function that tells what it is given."""

    def __init__(self, function: Callable[..., Any], told: Callable[..., None]) -> None:
        self.function, self.told = function, told

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.told(*args, **kwargs)
        return self.function(*args, **kwargs)
