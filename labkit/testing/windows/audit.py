"""What Lab 08's audit must find: the sizes it is asked for, their bytes, and the same step measured by the course."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils.checkpoint

from labkit.meters.profiler import profile_memory
from labkit.testing.compare import (
    assert_at_most,
    assert_equal,
    assert_keys,
    assert_type,
    require,
    require_at_least,
    require_at_most,
)

PARTS = ("mask", "output", "saved", "gradients", "workspace")
SIZES = {"batch": 1, "heads": 2, "seq_len": 256, "head_dim": 16, "window": 48, "block": 32}
STATE = 16 * 1024
"""Bytes: the state of the CPU's random generator, which checkpoint keeps, is 5,056."""


def as_breakdown(variant: str, got: Any) -> dict[str, int]:
    """What `memory_breakdown` gave, its form checked."""
    named = f"memory_breakdown({variant!r}, …)"
    assert_keys(named, got, (*PARTS, "total", "mask_building"))
    for key, value in got.items():
        assert_type(f"{key} of {named}", value, int, "an int: bytes are counted")
    return got


def assert_adds_up(got: Mapping[str, int], text: str) -> None:
    """Fail unless the components of a breakdown are what `total` says, none of them negative."""
    total = sum(got[part] for part in PARTS)
    require(total == got["total"], f"{', '.join(PARTS)} {text} are {total:,} bytes together, and total is "
            f"{got['total']:,}")  # fmt: skip
    negative = [part for part in PARTS if got[part] < 0]
    require(not negative, f"{', '.join(negative)} {text} is negative")


def shape_of(sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of q, k and v."""
    return tuple(sizes[name] for name in ("batch", "heads", "seq_len", "head_dim"))


def own_bytes(dtype: torch.dtype = torch.float32, **sizes: int) -> int:
    """The bytes of q, `sizes` in place of those of `SIZES`."""
    return math.prod(shape_of(SIZES | sizes)) * dtype.itemsize


def assert_own_bytes(got: Mapping[str, int], text: str, q_bytes: int, hint: str = "") -> None:
    """Fail unless the output is as large as q, and the gradients as large as q, k and v."""
    assert_equal(f"output {text}", got["output"], q_bytes, hint=hint)
    assert_equal(f"gradients {text}", got["gradients"], 3 * q_bytes, hint=hint)


def assert_at_least(name: str, got: int, least: float, why: str) -> None:
    """Fail unless so many bytes are there: nothing was measured otherwise, or not all of it."""
    require_at_least(name, got, least, f"{name} is {got:,} bytes: {why}", kind="bytes")


def score_bytes(**sizes: int) -> int:
    """The bytes of all scores in float32."""
    batch, heads, seq_len, _ = shape_of(SIZES | sizes)
    return 4 * batch * heads * seq_len**2


def some_inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    """q, k and v."""
    return [torch.randn(shape_of(SIZES)).to(dtype).requires_grad_() for _ in range(3)]


def causal_step_peak(dtype: torch.dtype, checkpointed: bool) -> int:
    """The peak bytes of a step of causal attention, by the course's own reading of the allocator's record."""
    q, k, v = some_inputs(dtype)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def step() -> torch.Tensor:
        if checkpointed:
            out = torch.utils.checkpoint.checkpoint(attend, q, k, v, use_reentrant=False)
        else:
            out = attend(q, k, v)
        out.sum().backward()
        return out

    gc.collect()
    return profile_memory(step).peak_bytes


def assert_total(got: int, variant: str, want: int, dtype: torch.dtype, checkpointed: bool) -> None:
    """Fail unless a total is the peak `want` of the same step, in the allocator's own record."""
    q_bytes = own_bytes(dtype)
    suspects = {3: "q, k and v are counted, which were there before", -1: "out is left out", -3: "the gradients are"
                " left out"}  # fmt: skip
    near = [text for times, text in suspects.items() if abs(got - want - times * q_bytes) <= 0.1 * q_bytes]
    require_at_most(
        f"the error of the total of {variant!r}",
        abs(got - want),
        0.03 * want + 4096,
        f"total of {variant!r} ({dtype}, {checkpointed=}) is {got:,} bytes; the same step has a peak of "
        f"{want:,}\nUsual cause: " + (near[0] if near else "it is computed, or another step is measured"),
        kind="bytes",
    )


def block_mask_bytes() -> int:
    """What FlexAttention's mask of the window holds."""
    from torch.nn.attention.flex_attention import create_block_mask

    n, window = SIZES["seq_len"], SIZES["window"]
    mask = create_block_mask(
        lambda b, h, i, j: (j <= i) & (j > i - window), None, None, n, n, device="cpu", BLOCK_SIZE=SIZES["block"]
    )
    tensors = [getattr(mask, name) for name in dir(mask) if not name.startswith("_")]
    held = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors if isinstance(x, torch.Tensor)}
    return sum(held.values())


def flops_of_scores(shape: tuple[int, ...]) -> int:
    """The FLOPs of all scores of q, k and v of this shape."""
    return 2 * math.prod(shape) * shape[-2]


def assert_step_was_run(variant: str, inputs: Sequence[torch.Tensor], flops: int, shape: tuple[int, ...]) -> None:
    """Fail unless a forward and a backward pass were, on q, k and v of `shape`."""
    one = flops_of_scores(shape)
    least = 6 * one if variant == "naive_mask" else 0
    told = f"memory_breakdown({variant!r}, …) does {flops:,} FLOPs of products; a forward and a backward pass need "
    told += f"{least:,}\nUsual cause: "
    told += "nothing was run: measure, do not compute" if flops < one else "the backward pass is missing"
    require(flops >= least, told)
    require(len(inputs) == 3, f"{variant!r} runs on {len(inputs)} arrays of {shape}, (batch, heads, seq_len, "
            "head_dim), to which a gradient comes; expected q, k and v")  # fmt: skip


def assert_naive_mask(got: Mapping[str, int]) -> None:
    """Fail unless a breakdown has one mask for all heads, the weights that autograd keeps, and a backward pass."""
    n, weights = SIZES["seq_len"], score_bytes()
    suspects = {"there is a mask for every head": weights // 4, "the mask is of float32": 4 * n * n}
    assert_equal("mask of 'naive_mask'", got["mask"], n * n, suspects=suspects, hint="one byte a pair, once")
    hint = "autograd keeps the weights, N² a head"
    why = f"the weights alone are {weights:,}\n{hint}"
    assert_at_least("saved of 'naive_mask'", got["saved"], 0.7 * weights, why)
    assert_at_most("saved of 'naive_mask'", got["saved"], 4 * weights, hint=hint)
    alive = f"at least three arrays of {weights:,} are alive at once"
    hint = "the backward pass has the weights, their gradient and the scores' at once: is it measured?"
    assert_at_least("total of 'naive_mask'", got["total"], 2.4 * weights, f"{alive}\nUsual cause: {hint}")
    require(got["mask_building"] >= got["mask"], "mask_building is less than mask, which is alive at its end")


def assert_checkpointed(variant: str, plain: Mapping[str, int], again: Mapping[str, int]) -> None:
    """Fail unless `again`, with checkpointed=True, keeps little beside what `plain`, without it, keeps."""
    hint = "is attention called through torch.utils.checkpoint.checkpoint, and the mask made before, outside of it?"
    assert_at_most(f"saved of {variant!r} with checkpointed=True", again["saved"], STATE, hint=hint)
    kept = "checkpoint keeps a state of 5,056 bytes\nUsual cause: it is not measured"
    assert_at_least(f"saved of {variant!r} with checkpointed=True", again["saved"], 1024, kept)
    told = f"mask of {variant!r} is {again['mask']:,} with and {plain['mask']:,} without checkpointed"
    require(again["mask"] == plain["mask"], f"{told}: it is made outside, and stays")
    if variant == "naive_mask":
        told = "checkpointed=True lowers the total of 'naive_mask': what is made again is alive again"
        told += ", so the backward pass must be measured too"
        require_at_least("total with checkpointed=True", again["total"], 0.6 * plain["total"], told, kind="bytes")


def assert_flex_block_mask(got: Mapping[str, int]) -> None:
    """Fail unless a breakdown has what a BlockMask holds, what making it takes, and a forward pass."""
    n, want = SIZES["seq_len"], block_mask_bytes()
    hint = "a BlockMask is no tensor; what it holds are eight small ones, kept until attention has run"
    suspects = {"the peak of making it is taken for what stays": got["mask_building"]}
    suspects["there is a mask for every head"] = want * SIZES["heads"] * SIZES["batch"]
    assert_equal("mask of 'flex_block_mask'", got["mask"], want, suspects=suspects, hint=hint)
    made = f"on the way create_block_mask makes several bytes a pair, {n * n:,} pairs"
    assert_at_least("mask_building of 'flex_block_mask'", got["mask_building"], 2 * n * n, made)
    hint = "on the CPU it runs forward only"
    assert_equal("gradients of 'flex_block_mask'", got["gradients"], 0, hint=hint)
    assert_at_most("saved of 'flex_block_mask'", got["saved"], 64, hint=hint)
    made = f"without the compiler it makes all scores, {score_bytes():,}"
    assert_at_least("total of 'flex_block_mask'", got["total"], score_bytes(), made)
    assert_adds_up(got, "of 'flex_block_mask'")


@contextlib.contextmanager
def one_quiet_thread() -> Iterator[None]:
    """One thread, as where answers are judged: scratch grows with threads. No gc.collect() looks at what was there."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        torch.set_num_threads(n_threads)
