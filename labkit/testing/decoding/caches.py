"""Caches of keys and values, compared deed by deed with a list of all tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from labkit.testing.compare import assert_at_most, assert_equal, assert_raises, require

KV_HEADS = 2
Deed = tuple[Any, ...]
"""("append", k, v) or ("truncate", n)."""

Session = Callable[..., tuple[list[dict[str, Any]], int]]
"""Called with the kind of cache, its arguments and deeds: what is told of each deed, and the bytes alive at the end."""


def follow(
    session: Session,
    kind: str,
    capacity: int,
    deeds: Sequence[Deed],
    *,
    dtype: torch.dtype = torch.float32,
    head_dim: int = 3,
) -> tuple[list[dict[str, Any]], int]:
    """Run deeds, and compare after each with a cache that keeps all tokens in a list; returns what was told."""
    told, life = session(kind, (capacity, KV_HEADS, head_dim, dtype), deeds)
    seen = [torch.zeros(KV_HEADS, 0, head_dim, dtype=dtype) for _ in range(2)]
    for number, (deed, one) in enumerate(zip(deeds, told, strict=True)):
        if deed[0] == "append":
            seen = [torch.cat([old, new], 1) for old, new in zip(seen, deed[1:], strict=True)]
            what = f"append of {deed[1].shape[1]} tokens"
        else:
            seen = [x[:, : deed[1]] for x in seen]
            what = f"truncate({deed[1]})"
        kept = seen if kind == "KVCache" else [x[:, max(0, x.shape[1] - capacity) :] for x in seen]
        assert_held(f"after {what}, deed {number + 1} with {kind}({capacity}, …),", one, *kept)
    return told, life


def appends(rng: np.random.Generator, sizes: Iterable[int], **options: Any) -> list[Deed]:
    """Deeds that append so many tokens each."""
    return [("append", *some_tokens(rng, n, **options)) for n in sizes]


def random_deeds(rng: np.random.Generator, capacity: int) -> list[Deed]:
    """Appends of few tokens, and truncations, in an order that is drawn; nothing is asked that cannot be."""
    deeds: list[Deed] = []
    length = 0
    for _ in range(25):
        if length and rng.random() < 0.3:
            length = int(rng.integers(0, length + 1))
            deeds.append(("truncate", length))
        else:
            n = int(rng.integers(0, min(6, capacity - length) + 1))
            length += n
            deeds += appends(rng, [n])
    return deeds


def some_tokens(
    rng: np.random.Generator, n: int, head_dim: int = 3, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Keys and values of n tokens."""
    return [torch.from_numpy(rng.standard_normal((KV_HEADS, n, head_dim))).to(dtype) for _ in range(2)]


def assert_held(when: str, told: Mapping[str, Any], k: torch.Tensor, v: torch.Tensor) -> None:
    """Fail unless a cache holds these tokens, in order."""
    require(told["error"] is None, f"{when} raises a ValueError: {told['error']}")
    for name, got, want in (("keys", told["keys"], k), ("values", told["values"], v)):
        require(got is not None, f"{name} is no tensor {when}: it is a property, read without parentheses")
        require(got.dtype == want.dtype, f"{name} is {got.dtype} {when}, expected {want.dtype}")
        require(got.shape == want.shape, f"{name} has shape {tuple(got.shape)} {when}, expected {tuple(want.shape)}")
        if not torch.equal(got, want):
            where = int((got != want).any(-1).any(0).nonzero()[0])
            require(False, f"{name} is wrong {when}, first for token {where} of {want.shape[1]}" + _why(got, want))
    assert_equal(f"len {when}", told["len"], k.shape[1])


def assert_appends_write(
    told: Sequence[Mapping[str, Any]],
    sizes: Sequence[int],
    *,
    asked: Callable[[int], int],
    room: Callable[[int], int],
    memory: Callable[[int], int],
    hint: str,
) -> None:
    """Fail where an append of n tokens writes more than what is asked and `room`, or takes more than `memory`."""
    for n, one in zip(sizes, told, strict=True):
        what = f"what an append of {n} tokens writes"
        assert_at_most(what, one["written"], asked(n) + room(n), hint=hint, asked=asked(n))
        assert_at_most(f"the memory an append of {n} tokens takes", one["peak_bytes"], memory(n), hint=hint)


def assert_window_is_written(
    told: Sequence[Mapping[str, Any]], life: int, sizes: Sequence[int], window: int, token_bytes: int
) -> None:
    """Fail where appends to a cache with a window write more than what it keeps of them, or it holds more than that.

    `token_bytes` are those of a token's keys and values, `life` the bytes alive at the end.
    """
    hint = "what stays is moved, or tokens are written that are overwritten at once: write the last ones, once"

    def once(n: int) -> int:
        return token_bytes * min(n, window)

    def room(n: int) -> int:  # for the numbers of places
        return 256 + 32 * n

    assert_appends_write(
        told, sizes, asked=lambda n: 2 * once(n), room=room, memory=lambda n: once(n) + room(n), hint=hint
    )
    what = f"the bytes a cache with window {window} holds after {sum(sizes)} tokens"
    assert_at_most(what, life, 2 * window * token_bytes, hint="tokens that have left the window are kept")


def assert_no_room(told: Mapping[str, Any], when: str, max_len: int) -> None:
    """Fail unless an append that does not fit raises a ValueError that names max_len."""
    wrapped = "\nUsual cause: the index wraps, or a slice is cut off at the end without a word"
    require(told["error"] is not None, f"no ValueError {when}{wrapped}")
    named = str(max_len) in told["error"]
    require(named, f"the ValueError does not name max_len, {max_len}; it says: {told['error']}")


def assert_refuses_truncation(
    told: Sequence[Mapping[str, Any]], numbers: Sequence[int], n_tokens: int, window: int
) -> None:
    """Fail unless a full cache with a window refuses to be truncated to each of `numbers`, and stays full."""
    for number, one in zip(numbers, told, strict=True):
        told_so = f"truncate({number}) succeeds after {n_tokens} tokens with window {window}: what token {number - 1} "
        why = "could see then has been overwritten, so that what is left is not the beginning of the sequence"
        require(one["error"] is not None, told_so + why)
    assert_equal("len after a truncate that failed", told[-1]["len"], window)


def assert_one_storage(told: Sequence[Mapping[str, Any]]) -> None:
    """Fail where keys or values were moved to other memory, or are copied when they are read."""
    moved = "keys or values lie in other memory than before: the storage is made once, and what is handed out is a view"
    copied = "keys and values are copies: a slice of the storage is a view"
    for one in told:
        require(all(one["stays"]), f"{moved} of it")
        assert_at_most("the memory that reading keys and values takes", one["reading_bytes"], 0, hint=copied)


def assert_apart(rng: np.random.Generator, make: Callable[..., Any]) -> None:
    """Fail where one cache knows of another's tokens."""
    cache, other = (make(4, KV_HEADS, 3, torch.float32) for _ in range(2))
    cache.append(*some_tokens(rng, 3))
    told = f"after 3 tokens in one of two caches they hold {len(cache)} and {len(other)}"
    cause = "what belongs to the instance is kept by the class"
    require((len(cache), len(other)) == (3, 0), f"{told}\nUsual cause: {cause}")


def _why(got: torch.Tensor, want: torch.Tensor) -> str:
    order = [next((j for j in range(want.shape[1]) if torch.equal(got[:, i], want[:, j])), None)
             for i in range(got.shape[1])]  # fmt: skip
    if None in order:
        return f"\nUsual cause: {'an older token' if sum(i is None for i in order) else 'another token'} lies there"
    return "\nThe tokens are those of the window, in another order: the oldest comes first, also across the seam"


def assert_refuses_tokens(rng: np.random.Generator, make: Callable[..., Any], capacity: str) -> None:
    """Fail unless a cache refuses sizes of 0, its first one called `capacity`, and tokens that do not fit."""
    for place, name in enumerate((capacity, "kv_heads", "head_dim")):
        sizes = [4, 2, 3]
        sizes[place] = 0
        assert_raises(ValueError, partial(make, *sizes, torch.float32), when=f"for {name}=0", mentions=[name])
    (k, v), cache = some_tokens(rng, 2), make(4, 2, 3, torch.float32)
    bad = {
        "for keys of one head": (k[:1], v),
        "for values of another width": (k, v[..., :2]),
        "when k and v differ in tokens": (k, v[:, :1]),
        "for keys of another dtype": (k.double(), v),
    }
    for when, wrong in bad.items():
        assert_raises(ValueError, partial(cache.append, *wrong), when=when)
    assert_equal("len after appends that failed", len(cache), 0)
