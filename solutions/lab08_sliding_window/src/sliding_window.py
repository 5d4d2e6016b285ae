"""Lab 08: attention through a sliding window: mask, tiles, a cache of tile masks, and an audit of their memory."""

import gc
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch.profiler import ProfilerActivity, profile, record_function

VARIANTS = ("naive_mask", "flex_block_mask", "causal_sdpa", "tiled_window")


def measure_phases(*phases: Callable[[], object]) -> list[tuple[int, int]]:
    """Call `phases` in turn; returns (peak_bytes, live_bytes) of each. Given; do not change it.

    Both are bytes of the CPU's memory, without what was allocated before the first phase: the most at one moment of the
    phase, and what is left at its end. They come from the allocator's own record, so scratch inside a kernel counts.
    What a phase returns is dropped: keep what must stay alive in a variable outside.
    """
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        for number, phase in enumerate(phases):
            with record_function(f"phase {number}"):
                phase()
    events = run.profiler.kineto_results.events()
    ends = sorted(event.start_ns() + event.duration_ns() for event in events if event.name().startswith("phase "))
    records = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    found, live, at = [], 0, 0
    for end in ends:
        peak = live
        while at < len(records) and records[at][0] <= end:
            live += records[at][1]
            peak, at = max(peak, live), at + 1
        found.append((peak, live))
    return found


def window_mask(seq_len: int, window: int) -> torch.Tensor:
    """The mask of a causal sliding window, True where a key is masked out.

    mask[i, j] is False, so that query i sees key j, exactly when i − window < j ≤ i: the key with its own number and
    the window − 1 keys before it, if there are as many.

    Args:
        seq_len: N, queries and keys, at least 1.
        window: keys that a query sees, itself included, at least 1; may exceed N.

    Returns:
        (N, N), torch.bool, on the CPU.

    Raises:
        ValueError: naming the argument that is below 1.

    Example:
        window_mask(4, 2) is [[F, T, T, T], [F, F, T, T], [T, F, F, T], [T, T, F, F]].
    """
    ### BEGIN SOLUTION
    _check(seq_len=seq_len, window=window)
    visible = torch.ones(seq_len, seq_len, dtype=torch.bool).tril_()
    return visible.triu_(1 - window).logical_not_()
    ### END SOLUTION


def classify_tiles(seq_len: int, window: int, block: int) -> npt.NDArray[np.str_]:
    """What each tile of `window_mask(seq_len, window)` holds, without making the mask.

    Queries and keys are cut into T = ⌈N / block⌉ blocks from the start; the last one may be smaller. Take the pairs of
    a query and a key that are in tile [a, b] (query block a, key block b) and in the sequence. If the query sees its
    key in all of them the tile is "full", in none "empty", in some "partial".

    Args:
        seq_len: N, at least 1.
        window: keys that a query sees, itself included, at least 1; may exceed N.
        block: queries and keys in a tile, at least 1; need not divide N, may exceed it.

    Returns:
        (T, T) NumPy array of "empty", "partial" and "full". Nothing larger than a few arrays of T × T is made.

    Raises:
        ValueError: naming the argument that is below 1.

    Example:
        classify_tiles(6, 4, 2) is [[partial, empty, empty], [full, partial, empty], [partial, full, partial]].
    """
    ### BEGIN SOLUTION
    _check(seq_len=seq_len, window=window, block=block)
    first = np.arange(0, seq_len, block)
    last = np.minimum(first + block, seq_len) - 1
    least = first[:, None] - last[None, :]  # of i − j in the tile; every number up to `most` occurs
    most = last[:, None] - first[None, :]
    empty = (most < 0) | (least >= window)
    full = (least >= 0) & (most < window)
    return np.select([empty, full], ["empty", "full"], "partial")
    ### END SOLUTION


def sliding_window_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, block: int
) -> torch.Tensor:
    """Causal attention through a sliding window, exact, in O(N · window) time and memory, forward and backward.

    With s[i, j] = q[i] · k[j] / √d, over the keys i − window < j ≤ i and no others:
    out[i] = Σ_j exp(s[i, j]) v[j] / Σ_j exp(s[i, j]). Leading axes are a batch: each entry is a separate attention.

    Args:
        q: queries, (..., N, d), float64, float32, bfloat16 or float16.
        k: keys, (..., N, d), with q's leading axes and dtype.
        v: values, (..., N, d_v), likewise; d_v may differ from d.
        window: keys that a query sees, itself included, at least 1; may exceed N.
        block: queries and keys in a tile, at least 1; need not divide N, may exceed N and window. Tiles in which no
            query sees a key are not computed, in either pass.

    Returns:
        (..., N, d_v) in q's dtype, finite for logits of any size; sums of half-precision inputs are kept in float32.
        It is differentiable by autograd, which keeps no more than O(N · (window + block)) bytes per batch entry.

    Raises:
        ValueError: naming both shapes, when q and k differ, or k and v in N; naming the argument, when `window` or
            `block` is below 1.

    Example:
        q = [[1], [1], [1]], k = [[0], [0], [0]], v = [[1], [2], [6]], window 2: all weights of a row are equal, and
        out = [[1], [1.5], [4]].
    """
    ### BEGIN SOLUTION
    _check(window=window, block=block)
    if q.shape != k.shape:
        raise ValueError(f"q and k must have one shape, got {tuple(q.shape)} and {tuple(k.shape)}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k and v must agree but for the last axis, got {tuple(k.shape)} and {tuple(v.shape)}")
    return _WindowAttention.apply(q, k, v, window, block)
    ### END SOLUTION


class BlockMaskCache:
    """Keeps the `maxsize` most recently used tile masks, so that a layer need not make one at every step.

    A tile mask depends on seq_len, window, block and its device, but not on the number of batch entries and heads that
    use it. When the cache is full, the least recently used mask is removed.

    Example:
        cache = BlockMaskCache(2); cache.get(6, 4, 2) is [[1, 0, 0], [2, 1, 0], [1, 2, 1]]; after one more get with
        (6, 4, 2) and one with (8, 4, 2), len(cache) is 2.
    """

    def __init__(self, maxsize: int) -> None:
        """Start empty, for at most `maxsize` masks. Raises ValueError, naming it, when it is below 1."""
        ### BEGIN SOLUTION
        _check(maxsize=maxsize)
        self._maxsize = maxsize
        self._masks: OrderedDict[tuple[int, int, int, torch.device], torch.Tensor] = OrderedDict()
        ### END SOLUTION

    def get(self, seq_len: int, window: int, block: int, device: str | torch.device = "cpu") -> torch.Tensor:
        """The tile mask for these arguments, made if it is not in the cache.

        Args:
            seq_len, window, block: as for `classify_tiles`.
            device: the mask's device: "cpu", torch.device("cpu"), "meta", "cuda:0", … Two ways to write one device are
                one device.

        Returns:
            (T, T) torch.int8 on `device`: 0 where `classify_tiles` returns "empty", 1 for "partial", 2 for "full". The
            same tensor, not a copy, as long as it is in the cache; the caller must not change it.

        Raises:
            ValueError: as `classify_tiles`.
        """
        ### BEGIN SOLUTION
        key = (seq_len, window, block, torch.empty(0, device=device).device)
        if key in self._masks:
            self._masks.move_to_end(key)
            return self._masks[key]
        kinds = classify_tiles(seq_len, window, block)
        codes = np.select([kinds == "full", kinds == "partial"], [2, 1], 0)
        self._masks[key] = torch.tensor(codes, dtype=torch.int8, device=device)
        if len(self._masks) > self._maxsize:
            self._masks.popitem(last=False)
        return self._masks[key]
        ### END SOLUTION

    def clear(self) -> None:
        """Empty the cache; memory without other references is freed at once."""
        ### BEGIN SOLUTION
        self._masks.clear()
        ### END SOLUTION

    def __len__(self) -> int:
        """The number of masks in the cache."""
        ### BEGIN SOLUTION
        return len(self._masks)
        ### END SOLUTION


def memory_breakdown(
    variant: str,
    batch: int,
    heads: int,
    seq_len: int,
    head_dim: int,
    window: int,
    block: int,
    dtype: torch.dtype,
    checkpointed: bool = False,
) -> dict[str, int]:
    """Measure how the bytes of one attention's training step are divided, on the CPU.

    The step: the mask is made; then out = attention(q, k, v); then out.sum().backward(). q, k and v, each
    (batch, heads, seq_len, head_dim) of `dtype`, random, requiring grad, exist before and do not count. The mask and
    out stay alive to the end. Variants:
        "naive_mask": q kᵀ / √d written out, `window_mask` applied, softmax, times v. Autograd differentiates it.
        "flex_block_mask": `flex_attention`, not compiled, with the block mask of the same window from
            `create_block_mask` with B=None, H=None and BLOCK_SIZE=block. On the CPU it has no backward pass: the step
            ends with out, and q, k and v require no grad.
        "causal_sdpa": `scaled_dot_product_attention(..., is_causal=True)`: no window, no mask.
        "tiled_window": `sliding_window_attention`, with no mask.

    Args:
        variant: one of the four.
        batch, heads, seq_len, head_dim: B, H, N and d.
        window, block: as for `sliding_window_attention`.
        dtype: of q, k and v.
        checkpointed: attention runs under `torch.utils.checkpoint.checkpoint(..., use_reentrant=False)`, the mask made
            outside of it, before. It changes nothing for "flex_block_mask".

    Returns:
        dict, in bytes (ints), from `measure_phases`: "mask", alive after the mask is made; "output", out; "saved",
        everything else alive between the two passes; "gradients", those of q, k and v (0 without a backward pass);
        "workspace", everything else that the two passes hold at their peak; "total", all that is alive at that peak:
        the sum of the five. Not part of the sum is "mask_building": the most that is alive while the mask is made (0
        where there is none).

    Raises:
        ValueError: naming the four variants, for another one.

    Example:
        "naive_mask" with batch 1, heads 2, seq_len 256, head_dim 16, float32: mask 65,536 (256², one byte per pair),
        output 32,768, saved 524,288 (the weights) and a few bytes, gradients 98,304.
    """
    ### BEGIN SOLUTION
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}; got {variant!r}")
    trains = variant != "flex_block_mask"
    shape = (batch, heads, seq_len, head_dim)
    q, k, v = (torch.randn(shape, dtype=torch.float32).to(dtype).requires_grad_(trains) for _ in range(3))
    make_mask, attention = _variant(variant, seq_len, window, block)
    alive: dict[str, object] = {}

    def build() -> None:
        alive["mask"] = make_mask()

    def forward() -> None:
        if checkpointed and trains:
            out = torch.utils.checkpoint.checkpoint(attention, q, k, v, alive["mask"], use_reentrant=False)
        else:
            out = attention(q, k, v, alive["mask"])
        alive["output"] = out

    def backward() -> None:
        if trains:
            alive["output"].sum().backward()

    (mask_building, mask), (forward_peak, between), (backward_peak, _) = measure_phases(build, forward, backward)
    total = max(forward_peak, backward_peak)
    output = alive["output"].untyped_storage().nbytes()
    saved = between - mask - output
    gradients = sum(x.grad.untyped_storage().nbytes() for x in (q, k, v)) if trains else 0
    return {
        "mask": mask,
        "output": output,
        "saved": saved,
        "gradients": gradients,
        "workspace": total - mask - output - saved - gradients,
        "total": total,
        "mask_building": mask_building,
    }
    ### END SOLUTION


### BEGIN SOLUTION
from collections import OrderedDict  # noqa: E402

import torch.nn.functional as F  # noqa: E402
import torch.utils.checkpoint  # noqa: E402


class _WindowAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, window, block):
        out, lse = _forward(q, k, v, window, block)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.window, ctx.block = window, block
        return out

    @staticmethod
    def backward(ctx, d_out):
        if torch.is_grad_enabled():  # in a backward pass it is so under create_graph=True alone
            raise RuntimeError("no second derivatives: to autograd what was saved are constants")
        return *_backward(*ctx.saved_tensors, d_out, ctx.window, ctx.block), None, None


def _forward(q, k, v, window, block):
    """The output, and the log-sum-exp of each row's scores: (..., N, d_v) and (..., N)."""
    scale, precise = q.shape[-1] ** -0.5, _precise(q.dtype)
    out = q.new_empty(v.shape)
    lse = q.new_empty(q.shape[:-1], dtype=precise)
    for rows, tiles in _row_blocks(q.shape[-2], window, block):
        q_rows = scale * q[..., rows, :].to(precise)
        top = q_rows.new_full((*q_rows.shape[:-1], 1), -torch.inf)
        mass, total = torch.zeros_like(top), q_rows.new_zeros(*q_rows.shape[:-1], v.shape[-1])
        for cols in reversed(tiles):  # the diagonal first: there every query sees a key, and `top` becomes finite
            scores = _scores(q_rows, k, rows, cols, window)
            new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
            powers, shrink = torch.exp(scores - new_top), torch.exp(top - new_top)
            mass = shrink * mass + powers.sum(-1, keepdim=True)
            total = shrink * total + powers @ v[..., cols, :].to(precise)
            top = new_top
        out[..., rows, :] = (total / mass).to(out.dtype)
        lse[..., rows] = (top + mass.log())[..., 0]
    return out, lse


def _backward(q, k, v, out, lse, d_out, window, block):
    """The gradients of Σ out ∘ d_out; the weights are recomputed from the scores and `lse`, a tile at a time."""
    scale, precise = q.shape[-1] ** -0.5, lse.dtype
    dq, dk, dv = (torch.zeros_like(x, dtype=precise) for x in (q, k, v))
    for rows, tiles in _row_blocks(q.shape[-2], window, block):
        q_rows, do_rows = scale * q[..., rows, :].to(precise), d_out[..., rows, :].to(precise)
        delta = (do_rows * out[..., rows, :].to(precise)).sum(-1, keepdim=True)
        for cols in tiles:
            weights = torch.exp(_scores(q_rows, k, rows, cols, window) - lse[..., rows, None])
            dv[..., cols, :] += weights.mT @ do_rows
            d_scores = weights * (do_rows @ v[..., cols, :].to(precise).mT - delta)
            dq[..., rows, :] += scale * (d_scores @ k[..., cols, :].to(precise))
            dk[..., cols, :] += d_scores.mT @ q_rows
    return tuple(grad.to(x.dtype) for grad, x in zip((dq, dk, dv), (q, k, v), strict=True))


def _row_blocks(seq_len, window, block):
    """Each block of queries, and the blocks of keys that some of its queries see, as slices."""
    for start in range(0, seq_len, block):
        rows = slice(start, min(start + block, seq_len))
        first = max(0, start - window + 1) // block * block
        yield rows, [slice(at, min(at + block, seq_len)) for at in range(first, rows.stop, block)]


def _scores(q_rows, k, rows, cols, window):
    """A tile's scores; where the tile is partial, −inf for the pairs that the mask hides."""
    scores = q_rows @ k[..., cols, :].to(q_rows.dtype).mT
    if rows.start >= cols.stop - 1 and rows.stop - 1 - cols.start < window:
        return scores
    i = torch.arange(rows.start, rows.stop, device=scores.device)[:, None]
    j = torch.arange(cols.start, cols.stop, device=scores.device)
    return scores.masked_fill_((j > i) | (j <= i - window), -torch.inf)


def _precise(dtype):
    return torch.float32 if dtype.itemsize == 2 else dtype


def _variant(variant, seq_len, window, block):
    """The function that makes the mask, and the attention that uses it: (q, k, v, mask) → out."""

    def nothing():
        return None

    def visible(_batch, _head, i, j):
        return (j <= i) & (j > i - window)

    def block_mask():
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(visible, None, None, seq_len, seq_len, device="cpu", BLOCK_SIZE=block)

    def flex(q, k, v, mask):
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(q, k, v, block_mask=mask)

    def naive(q, k, v, mask):
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(mask, -torch.inf)
        return scores.softmax(-1) @ v

    return {
        "naive_mask": (lambda: window_mask(seq_len, window), naive),
        "flex_block_mask": (block_mask, flex),
        "causal_sdpa": (nothing, lambda q, k, v, _: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
        "tiled_window": (nothing, lambda q, k, v, _: sliding_window_attention(q, k, v, window, block)),
    }[variant]


def _check(**numbers):
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")


### END SOLUTION
