"""Which tiles of the scores a NumPy function computes, told by its matrix products."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


def score_tiles(
    fn: Callable[..., Any], Q: npt.NDArray, K: npt.NDArray, V: npt.NDArray, *args: Any, **options: Any
) -> tuple[Any, list[tuple[int, int]]]:
    """What `fn(Q, K, V, …)` returns, and for each tile of its scores (queries, keys).

    They are its products over a width of d, where no other product is as wide; a batch counts as many tiles. Who copies
    Q and K to plain arrays first is not seen; then there are too few, never too many. Q must be positive and K negative
    throughout: a product may be one of K and Q transposed.
    """
    found: list[tuple[int, int]] = []
    d = Q.shape[-1]

    class Watched(np.ndarray):
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
            plain = [_plain(x) for x in inputs]
            if out is not None:
                options["out"] = tuple(_plain(x) for x in out)
            result = getattr(ufunc, method)(*plain, **options)
            if ufunc is np.matmul and plain[0].shape[-1] == d:
                rows, columns = result.shape[-2:]
                tile = (rows, columns) if plain[0].sum() > 0 else (columns, rows)
                found.extend([tile] * math.prod(result.shape[:-2]))
            return result.view(Watched) if isinstance(result, np.ndarray) else result

    output = fn(*(x.view(Watched) for x in (Q, K, V)), *args, **options)
    return _plain(output), found


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, np.ndarray) else x
