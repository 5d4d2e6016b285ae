"""What Lab 09's suite compares with: counted bytes, caches and slots as plain models, and the usual mistakes."""

import math

import numpy as np
import torch

from labkit.testing.compare import (
    assert_at_most,
    assert_dtype,
    assert_equal,
    assert_type,
    require,
)
from labkit.testing.decoding.grouped import GroupedCase
from labkit.testing.decoding.steps import assert_own_products

# kv_cache_bytes


def assert_cache_bytes(answer, *sizes, **options):
    """Compare what `answer` says of a cache with a count; `sizes` are layers, key heads and their width."""

    def with_other(**changed):
        return counted_bytes(*sizes, **(options | changed))

    want, window = with_other(), options.get("window")
    latent, rope = options.get("latent_dim", 0), options.get("rope_dim", 0)
    usual = {
        "keys alone are counted: a value is kept for every key": want // 2,
        "the bits are counted: 8 to a byte": 8 * want,
        "the number is in MiB, not in bytes": want / 2**20,
        "dtype_bytes is ignored, and 2 is taken": with_other(dtype_bytes=2),
    }
    if window:
        usual["the window is ignored"] = with_other(window=None)
        usual["the whole window counts although there are fewer tokens: min(tokens, window)"] = with_other(
            tokens=window
        )
    if latent:
        twice, of_each_head = with_other(latent_dim=2 * latent), with_other(rope_dim=sizes[1] * rope)
        rope_twice = with_other(rope_dim=2 * rope)
        latent_of_each_head = with_other(latent_dim=sizes[1] * latent)
        usual |= {
            "the latent vector is counted twice: keys and values are both made from one": twice,
            "the rope part is counted twice: it is kept once": rope_twice,
            "latent vector and rope part are counted for keys and again for values: one vector serves both": 2 * want,
            "the rope part is counted for each head: all heads share it": of_each_head,
            "the latent vector is counted for each head: all heads share it": latent_of_each_head,
            "latent vector and rope part are counted for each head: all heads share them": sizes[1] * want,
            "the latent vector is ignored": with_other(latent_dim=0),
        }
    shown = ", ".join([*map(str, sizes), *(f"{name}={value}" for name, value in options.items())])
    got = answer(*sizes, **options)
    assert_equal(f"kv_cache_bytes({shown})", got, want, mistakes=usual)
    assert_type(f"kv_cache_bytes({shown})", got, int, "an int: bytes are counted")


def counted_bytes(layers, kv_heads, head_dim, tokens=1, dtype_bytes=2, window=None, latent_dim=0, rope_dim=0):
    """The bytes of a cache."""
    kept = tokens if window is None else min(tokens, window)
    return layers * kept * dtype_bytes * (latent_dim + rope_dim if latent_dim else 2 * kv_heads * head_dim)


# Steps of decoding


def assert_read_once(name, counts, k, v, hint):
    """Fail unless all of K and V was read, and no byte twice, by the task's own products."""
    assert_own_products(name, counts)
    for which, x in (("K", k), ("V", v)):
        read = counts["read"][which.lower()]
        assert_at_most(f"what {name} reads of {which}, which holds {x.nbytes:,} bytes,", read, x.nbytes, hint=hint)
        require(read >= x.nbytes, f"{name} reads {read:,} of {x.nbytes:,} bytes of {which}: every key counts")


def worked_case():
    """The handout's example: two query heads share a key head whose keys are 0."""
    case = GroupedCase(np.random.default_rng(0), kv_heads=1, group=2, n_queries=1, n_keys=2, d=1)
    case.Q = torch.ones(2, 1, 1)
    case.share(torch.zeros(1, 2, 1), torch.tensor([[[2.0], [4.0]]]))
    return case


def cancelling(case):
    """Equal weights, and values of which the second half nearly undoes the first: what is rounded before stays."""
    half = case.V.shape[-2] // 2
    case.Q = 0 * case.Q
    case.V = torch.cat([case.V[..., :half, :] + 300, case.V[..., half:, :] - 300], -2)
    return case


# Caches

KV_HEADS = 2


def tokens(rng, n, head_dim=3, dtype=torch.float32):
    """Keys and values of n tokens."""
    return [torch.from_numpy(rng.standard_normal((KV_HEADS, n, head_dim))).to(dtype) for _ in range(2)]


def appends(rng, sizes, **options):
    """Calls that append so many tokens each."""
    return [("append", *tokens(rng, n, **options)) for n in sizes]


def whole_numbers(rng):
    """Keys and values of 1,024 tokens in bfloat16, which has all whole numbers up to 256."""
    return torch.from_numpy(rng.integers(-99, 100, (2, KV_HEADS, 1024, 64))).bfloat16().unbind()


def assert_last_tokens(got, k, v, number, length):
    """Fail unless `last_after_appends` gave this length and the tokens that were appended last."""
    assert_equal("len, within the limit of memory", got[0], length)
    for name, x, want in zip(("keys", "values"), got[1:], (k, v), strict=True):
        right = torch.equal(x, want + (number - 1))
        require(right, f"memory stayed within the limit, but the last {name} are not those that were appended last")


def assert_follows(kind, capacity, calls, session):
    """Fail unless a cache held after each call what one that keeps all tokens in a list would hold."""
    seen = [x[:, :0] for x in calls[0][1:]]
    for number, ((name, *given), one) in enumerate(zip(calls, session, strict=True)):
        if name == "append":
            seen = [torch.cat(pair, 1) for pair in zip(seen, given, strict=True)]
            what = f"append of {given[0].shape[1]} tokens"
        else:
            seen = [x[:, : given[0]] for x in seen]
            what = f"truncate({given[0]})"
        first = 0 if kind == "KVCache" else max(0, seen[0].shape[1] - capacity)
        assert_held(f"after {what}, call {number + 1} of {kind}({capacity}, …)", one, *(x[:, first:] for x in seen))


def assert_held(when, found, k, v):
    """Fail unless a cache holds these tokens, in order."""
    require(found["error"] is None, f"{when} raises a ValueError: {found['error']}")
    for name, want in (("keys", k), ("values", v)):
        got = found[name]
        require(got is not None, f"{name} is no tensor {when}: it is a property, read without parentheses")
        assert_dtype(f"{name} {when}", got, want.dtype)
        require(got.shape == want.shape, f"{name} has shape {tuple(got.shape)} {when}, expected {tuple(want.shape)}")
        wrong = (got != want).any(-1).any(0).nonzero()[:, 0].tolist()
        if wrong:
            found_at = [[j for j in range(want.shape[1]) if torch.equal(got[:, i], want[:, j])] for i in wrong]
            cause = "the tokens are those of the window, in another order: the oldest comes first, also across the seam"
            if [] in found_at:
                cause = "another token lies there, an older one, or one that came later"
            message = f"{name} is wrong {when}, first for token {wrong[0]} of {want.shape[1]}"
            require(False, f"{message}\nUsual cause: {cause}")
    assert_equal(f"len {when}", found["len"], k.shape[1])


def assert_appends_write(session, sizes, written, memory, hint):
    """Fail where an append of n tokens writes more than `written(n)` bytes and a few, or takes more than `memory(n)`.

    A few: 256, and 32 a token, for the numbers of places.
    """
    for n, one in zip(sizes, session, strict=True):
        room = 256 + 32 * n
        what = f"what an append of {n} tokens writes"
        assert_at_most(what, one["written"], written(n) + room, hint=hint, required=written(n))
        assert_at_most(f"the memory an append of {n} tokens takes", one["peak_bytes"], memory(n) + room, hint=hint)


# num_splits_heuristic


def assert_heuristic(answer, total, sms, blocks, most=128):
    """Compare how many splits `answer` takes with the rule; where rounding could decide, anything will do."""
    right = efficiencies(total, sms, min(most, sms, blocks), blocks)
    best = max(right.values())
    if any(abs(each - 0.85 * best) < 1e-9 for each in right.values()):
        return
    near = [splits for splits, each in right.items() if each >= 0.85 * best]
    every = efficiencies(total, sms, min(most, sms, blocks), 0)
    unbounded = efficiencies(total, sms, min(sms, blocks), blocks)
    shorter = efficiencies(total, sms, min(most, sms, blocks) - 1, blocks)
    down = {splits: total * splits / sms / max(total * splits // sms, 1) for splits in right}
    more_than_sms = efficiencies(total, sms, min(most, blocks), blocks)

    def smallest(found, least):
        return next((splits for splits, each in found.items() if each >= least), 1)

    usual = {
        "the best efficiency is taken, not the smallest number of splits near it": max(right, key=right.get),
        "the best efficiency is taken, also of splits that leave one without a block": max(every, key=every.get),
        "the largest number of splits near the best is taken": near[-1],
        "there may be more splits than num_sms": smallest(more_than_sms, 0.85 * max(more_than_sms.values())),
        "max_splits is ignored": smallest(unbounded, 0.85 * max(unbounded.values())),
        "splits count that leave one without a block": smallest(every, 0.85 * max(every.values())),
        "the best efficiency is taken from all splits, also those that do not count": smallest(
            right, 0.85 * max(every.values())
        ),
        "the largest number allowed is left out: the range ends before it": smallest(
            shorter, 0.85 * max(shorter.values(), default=1)
        ),
        "an efficiency of 0.85 is enough, whatever the best one is": smallest(right, 0.85),
        "waves are rounded down: an unfinished one takes as long as a full one": smallest(
            down, 0.85 * max(down.values())
        ),
        "splits are as many as fill the multiprocessors once: the last wave may be nearly empty": min(
            max(right), -(-sms // total)
        ),
    }
    got = answer(total, sms, blocks, *([most] if most != 128 else []))
    enough = f"efficiency {right[near[0]]:.3f}, at least 0.85 times the best, {best:.3f} of {max(right, key=right.get)}"
    name = f"num_splits_heuristic({total}, {sms}, {blocks}, {most}) ({near[0]} has {enough})"
    assert_equal(name, got, near[0], mistakes=usual)


def efficiencies(total, sms, last, blocks):
    """The efficiency of every number of splits up to `last`; with `blocks`, of those that need it to be so many."""
    found = {}
    for splits in range(1, last + 1):
        if splits == 1 or not blocks or math.ceil(blocks / splits) != math.ceil(blocks / (splits - 1)):
            found[splits] = total * splits / (math.ceil(total * splits / sms) * sms)
    return found
