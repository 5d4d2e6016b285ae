"""Calls an answer in a fresh process which the kernel lets hold so much and no more: what counts for points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from labkit.testing.outside import needs_more
from labstaff.judge import messages
from labstaff.judge.client import AnswerEnded, AnswerError, RemoteAnswer
from labstaff.judge.packing import pack

OF_TORCH = ("not enough memory", "can't allocate memory", "out of memory")
"""What torch says in a RuntimeError when there is no more."""


def called_within(
    far: RemoteAnswer, mib: float, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """What a call returns that may use `mib` MiB over its arguments, the answer's own text loaded within them.

    Raises:
        AssertionError: it needs more.
    """
    _, buffers = pack(messages.CallBack(0, [list(args), kwargs], []), far.encode)
    problem = far.problem
    far.end()
    far.bound_bytes = int(mib * 2**20) + sum(map(len, buffers))
    try:
        return function(*args, **kwargs)
    except Exception as error:
        if not problem and _is_want_of_memory(error):
            raise AssertionError(needs_more(function.__dict__["__name__"], mib, args)) from None
        raise
    finally:
        far.bound_bytes = None
        far.end()
        far.problem = problem


def _is_want_of_memory(error: Exception) -> bool:
    said = str(error)
    if isinstance(error, MemoryError) or "MemoryError" in said:
        return True
    if isinstance(error, AnswerEnded):  # it died: of a failed allocation that nobody looked at, or was told to
        return "SIG" in said
    if isinstance(error, AnswerError):  # its import, which works otherwise, failed
        return said.startswith("importing ") and "took too long" not in said
    return isinstance(error, RuntimeError) and any(words in said for words in OF_TORCH)
