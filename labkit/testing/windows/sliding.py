"""Sliding windows: what they hide, what their tiles hold, attention through them, and the mistakes usual in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.attention.suspects import scale_suspects
from labkit.testing.attention.tensor_cases import Case, Results, numbers
from labkit.testing.attention.tensor_reference import attention
from labkit.testing.compare import (
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_type,
    require,
    require_at_least,
    require_own_work,
)
from labkit.testing.wording import dtype_name

Hidden = npt.NDArray[np.bool_]
MOST_SCATTER = 1.35
"""How much more than one rounding at the end may scatter the errors of half precision."""


def hidden_pairs(seq_len: int, window: int) -> Hidden:
    """True where query i does not see key j, as NumPy; `window` may be below 1 here: then nothing is seen."""
    i, j = np.arange(seq_len)[:, None], np.arange(seq_len)
    return ~((i - window < j) & (j <= i))


def window_suspects(seq_len: int, window: int) -> dict[str, Hidden]:
    """Usual mistakes in a window → the pairs that are hidden then."""
    i, j = np.arange(seq_len)[:, None], np.arange(seq_len)
    return {
        "the window is one key too wide: it is the number of keys seen, the query's own included": hidden_pairs(
            seq_len, window + 1
        ),
        "the window is one key too narrow: the query's own key counts as one of the window": hidden_pairs(
            seq_len, window - 1
        ),
        "later keys are not masked out: j ≤ i": j <= i - window,
        "the window is not cut off on the left: only j ≤ i is applied": j > i,
        "the window reaches to both sides of the query": abs(i - j) >= window,
        "the window lies after the query: rows and columns are exchanged": hidden_pairs(seq_len, window).T,
        "True and False are exchanged: True must stand where a key is masked out": ~hidden_pairs(seq_len, window),
    }


def tiles(hidden: Hidden, block: int, whole_blocks: bool = False) -> npt.NDArray[np.str_]:
    """What each tile of a mask holds; with `whole_blocks` pairs beyond the sequence's end count as hidden."""
    count = -(-len(hidden) // block)
    kinds = np.empty((count, count), dtype="<U7")
    for a in range(count):
        for b in range(count):
            tile = hidden[a * block : (a + 1) * block, b * block : (b + 1) * block]
            ragged = whole_blocks and tile.size < block * block
            kinds[a, b] = "empty" if tile.all() else "partial" if tile.any() or ragged else "full"
    return kinds


def tile_suspects(seq_len: int, window: int, block: int) -> dict[str, npt.NDArray[np.str_]]:
    """Usual mistakes → the array that each leads to."""
    hidden = hidden_pairs(seq_len, window)
    right = tiles(hidden, block)
    exchanged = {"partial": "full", "full": "partial", "empty": "empty"}
    turned = {"partial": "partial", "full": "empty", "empty": "full"}
    return {
        "partial and full are exchanged": np.vectorize(exchanged.get)(right),
        "empty and full are exchanged: is True read as seen?": np.vectorize(turned.get)(right),
        "every partial tile is called full": np.where(right == "partial", "full", right),
        "every full tile is called partial": np.where(right == "full", "partial", right),
        "a tile that the sequence's end cuts is called partial although every pair in it is seen": tiles(
            hidden, block, whole_blocks=True
        ),
        "the window is one key too wide": tiles(hidden_pairs(seq_len, window + 1), block),
        "the window is one key too narrow": tiles(hidden_pairs(seq_len, window - 1), block),
        "the window is not cut off on the left": tiles(hidden_pairs(seq_len, seq_len), block),
        "rows and columns are exchanged: the query block comes first": right.T,
    }


def area(seq_len: int, window: int, block: int) -> tuple[int, int]:
    """Pairs in the tiles that are not empty, and pairs that are seen."""
    hidden = hidden_pairs(seq_len, window)
    size = np.minimum(block, seq_len - np.arange(0, seq_len, block))
    visited = tiles(hidden, block) != "empty"
    return int((visited * size[:, None] * size).sum()), int(np.count_nonzero(~hidden))


def last_queries_are_right(out: torch.Tensor, dq: torch.Tensor, inputs: Sequence[torch.Tensor], window: int) -> bool:
    """Whether out and dq are, for the last `window` queries: they see keys of the last 2 · window − 1 alone.

    `inputs` are q, k, v and the gradient of out, each (N, d).
    """
    q, k, v, d_out = inputs
    q, d_out = q[-window:].double(), d_out[-window:].double()
    k, v = k[1 - 2 * window :].double(), v[1 - 2 * window :].double()
    seen = torch.ones(window, 2 * window - 1).tril(window - 1).triu() > 0
    scale = q.shape[-1] ** -0.5
    weights = (scale * q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1)
    slopes = d_out @ v.mT
    d_scores = weights * (slopes - (weights * slopes).sum(-1, keepdim=True))
    pairs = ((out, weights @ v), (dq, scale * d_scores @ k))
    return all(torch.allclose(got[-window:].double(), want, 0, 1e-4) for got, want in pairs)


RESULTS = {"out": "O", "dq": "dQ", "dk": "dK", "dv": "dV"}
"""What the handout calls a result → what the reference calls it."""


def assert_mask(got: Any, seq_len: int, window: int) -> None:
    """Fail unless `got` is the mask of `window_mask(seq_len, window)`."""
    name = f"window_mask({seq_len}, {window})"
    assert_type(name, got, torch.Tensor, "a tensor")
    require(got.dtype == torch.bool, f"{name} is {dtype_name(got.dtype)}, expected bool")
    want = hidden_pairs(seq_len, window)
    require(tuple(got.shape) == want.shape, f"{name} has shape {tuple(got.shape)}, expected {want.shape}")
    found = got.numpy()
    if np.array_equal(found, want):
        return
    suspects = window_suspects(seq_len, window).items()
    cause = next((text for text, value in suspects if np.array_equal(found, value)), "")
    i, j = np.argwhere(found != want)[0]
    seen = "not to be seen" if want[i, j] else "to be seen"
    require(
        False,
        f"{name}: wrong for {np.count_nonzero(found != want):,} of {want.size:,} pairs, first for query {i}, key {j}, "
        f"which is {seen}: {i} − {window} < j ≤ {i}" + (f"\nThat is what comes out when {cause}" if cause else ""),
    )


def assert_tiles(got: Any, seq_len: int, window: int, block: int) -> None:
    """Fail unless `got` says what `classify_tiles(seq_len, window, block)` has to."""
    name = f"classify_tiles({seq_len}, {window}, {block})"
    want = tiles(hidden_pairs(seq_len, window), block)
    assert_type(name, got, np.ndarray, "a NumPy array")
    require(got.shape == want.shape, f"{name} has shape {got.shape}, expected {want.shape}: ⌈N / block⌉ blocks")
    wrong = np.argwhere(got != want)
    if not len(wrong):
        return
    suspects = tile_suspects(seq_len, window, block).items()
    cause = next((text for text, value in suspects if np.array_equal(got, value)), "")
    a, b = wrong[0]
    tile = hidden_pairs(seq_len, window)[a * block : (a + 1) * block, b * block : (b + 1) * block]
    require(
        False,
        f"{name}: {len(wrong):,} of {want.size:,} tiles are wrong, first [{a}, {b}]: {str(got[a, b])!r}, expected "
        f"{str(want[a, b])!r}, as {np.count_nonzero(~tile):,} of its {tile.size:,} pairs are seen"
        + (f"\nThat is exactly what comes out when {cause}" if cause else ""),
    )


def assert_codes(name: str, got: Any, arguments: tuple[int, int, int]) -> None:
    """Fail unless `got` is the tile mask for (seq_len, window, block)."""
    assert_type(name, got, torch.Tensor, "a tensor")
    seq_len, window, block = arguments
    kinds = tiles(hidden_pairs(seq_len, window), block)
    want = np.select([kinds == "full", kinds == "partial"], [2, 1], 0)
    require(got.dtype == torch.int8, f"{name} is {dtype_name(got.dtype)}, expected int8")
    require(tuple(got.shape) == want.shape, f"{name} has shape {tuple(got.shape)}, expected {want.shape}: one code a "
            "tile, whatever the batch and the heads")  # fmt: skip
    found = got.numpy()
    exchanged = np.array_equal(found, np.where(want > 0, 3 - want, 0))
    cause = "partial and full are exchanged: 1 is partial, 2 is full" if exchanged else "it is another mask's"
    wrong = np.argwhere(found != want)
    if len(wrong):
        a, b = wrong[0]
        require(False, f"{name} is {found[a, b]} at [{a}, {b}], expected {want[a, b]}; {len(wrong)} of {want.size} "
                f"are wrong\nUsual cause: {cause}")  # fmt: skip


def assert_attends(variant: str, inputs: list[torch.Tensor], arrays: list[torch.Tensor], window: int) -> None:
    """Fail unless among `arrays` is what a `variant` of the audit must make of `inputs`: q, k and v in any order."""
    n = inputs[0].shape[-2]
    whole = np.zeros((n, n), dtype=bool)
    causal = hidden_pairs(n, n)
    right = causal if variant == "causal_sdpa" else hidden_pairs(n, window)
    if _is_among(arrays, inputs, right):
        return
    masks = {"the mask is ignored: every key is seen": whole} | window_suspects(n, window)
    usual: list[tuple[str, Hidden, float | None]] = [
        (text, mask, None) for text, mask in masks.items() if not np.array_equal(mask, right)
    ]
    d = inputs[0].shape[-1]
    usual += [("the scores are not divided by √d", right, 1.0), ("the scores are divided by d", right, 1 / d)]
    cause = next((text for text, mask, scale in usual if _is_among(arrays, inputs, mask, scale)), "")
    require(False, f"the attention that {variant!r} runs is another one: what it should make of its q, k and v is "
            "nowhere" + (f"\nThat is exactly what comes out when {cause}" if cause else ""))  # fmt: skip


def _is_among(
    arrays: list[torch.Tensor], inputs: list[torch.Tensor], hidden: Hidden, scale: float | None = None
) -> bool:
    for q, k, v in permutations(inputs):
        want = attention(q, k, v, mask=torch.from_numpy(hidden), scale=scale).output
        if any(torch.allclose(x.double().reshape(want.shape), want, 1e-3, 1e-4) for x in arrays):
            return True
    return False


def assert_empty_tiles_skipped(step: Mapping[str, Any], n: int, window: int, block: int, d: int = 8) -> None:
    """Fail where a pass of a step with n tokens, d = d_v, computes tiles in which no query sees a key.

    `step` tells the "flops" of each pass, and the "fused" calls in it.
    """
    visited, seen = area(n, window, block)
    fused = step["forward"]["fused"] + step["backward"]["fused"]
    require_own_work(not fused, f"torch's own attention was called ({', '.join(fused)}): write it")
    for name, products in (("forward", 2), ("backward", 7)):
        done = step[name]["flops"]
        unit = 2 * d * products
        hint = "tiles in which no query sees a key are computed and then masked: leave them out"
        if done > 0.9 * n * n * unit * (4 / 7 if name == "backward" else 1):
            hint = "all N² scores are computed and then masked: a query block needs the keys of its window only"
        what = f"the arithmetic of the {name} pass's products (N={n}, {window=}, {block=})"
        assert_at_most(what, done, int(1.4 * visited * unit), unit="FLOPs", hint=hint)
        least = seen * 2 * d * min(products, 4)
        told = f"the {name} pass's products do {done:,} FLOPs, and the pairs that are seen need {least:,}"
        told += "\nWrite products with @, so that they can be counted"
        require_at_least(f"the products of the {name} pass", done, least, told, kind="FLOPs")


class WindowCase(Case):
    """Inputs, and what comes out of them through a window."""

    def __init__(self, rng: np.random.Generator, seq_len: int, window: int, block: int, **sizes: Any) -> None:
        super().__init__(rng, n=seq_len, mask=hidden_pairs(seq_len, window), **({"d": 12, "d_v": 7} | sizes))
        self.seq_len, self.window, self.block = seq_len, window, block
        self.pairs = hidden_pairs(seq_len, window)

    @cached_property
    def suspects(self) -> dict[str, Callable[[], Results]]:
        """Usual mistakes → all results that each leads to."""
        n, block = self.seq_len, self.block
        hidden = window_suspects(n, self.window)
        hidden["tiles that the left edge of the window cuts are taken as full"] = self._left_edge(False)
        hidden["tiles that the left edge of the window cuts are left out"] = self._left_edge(True)
        if 0 < n // block * block < n:
            whole = np.arange(n) < n // block * block
            hidden["the keys of the last, smaller block are left out"] = self.pairs | ~whole
        found: dict[str, Callable[[], Results]] = {
            text: lambda value=value: self.results(hidden=value)  # type: ignore[misc]
            for text, value in hidden.items()
        }
        scales = scale_suspects(self.arrays).items()
        return found | {
            text: lambda value=value: self.results(scale=value)  # type: ignore[misc]
            for text, value in scales
        }

    def _left_edge(self, are_hidden: bool) -> Hidden:
        hidden, block = self.pairs.copy(), self.block
        for a, b in np.argwhere(tiles(hidden, block) == "partial"):
            if a != b:
                hidden[a * block : (a + 1) * block, b * block : (b + 1) * block] = are_hidden
        return hidden

    def compare(self, name: str, got: Any, hint: str = "", nan_hint: str = "") -> None:
        """Compare one result with the reference, and name a usual mistake where one fits."""
        assert_type(name, got, torch.Tensor, "a tensor")
        assert_dtype(name, got, self.Q.dtype)
        there = RESULTS[name]
        usual = {text: lambda value=value: value()[there] for text, value in self.suspects.items()}
        nan_hint = nan_hint or (
            "a query that sees no key of the first tile it looks at: its maximum is −inf, and −inf − (−inf) is NaN; "
            "or memory of `empty` that was never written"
        )
        assert_close(name, got.detach().double(), self.want[there], plain=self.plain[there],
                     roundings=self.roundings, suspects=usual, hint=hint, nan_hint=nan_hint)  # fmt: skip
        if got.dtype.itemsize == 2:
            self._compare_scatter(name, numbers(got), hint)

    def _compare_scatter(self, name: str, got: npt.NDArray, hint: str) -> None:
        """Single roundings are lost in the largest error; over all numbers each of them widens the scatter."""
        want = self.want[RESULTS[name]]
        scatter = _scatter(got - want) / _scatter(self.plain[RESULTS[name]] - want)
        what = f"the scatter of {name}'s errors, by one rounding at the end,"
        assert_at_most(what, scatter, MOST_SCATTER, unit="times", hint=f"Usual cause: {hint}")

    def check_penalised_gradients(self, got: Sequence[Any]) -> None:
        """Compare the gradients by q, k and v of a loss and the squares of its own gradients with the reference."""
        leaves = [x.clone().requires_grad_() for x in self.inputs]
        loss = (attention(*leaves, mask=self.hidden).output * self.dO).sum()
        alone = torch.autograd.grad(loss, leaves, create_graph=True)
        want = torch.autograd.grad(loss + sum((x**2).sum() for x in alone), leaves)
        hint = "backward is differentiated too, but what it saved is a constant there: refuse, where is_grad_enabled()"
        left_out = "the penalty is left out: backward's results come without a graph, and without an error"
        for name, value, right, first in zip("qkv", got, map(numbers, want), map(numbers, alone), strict=True):
            name = f"d{name} of a loss with a penalty on its own gradients (create_graph=True)"
            require(isinstance(value, torch.Tensor), f"{name} is None\nUsual cause: {hint}")
            assert_close(name, value, right, plain=right + 1e-10, suspects={left_out: first}, hint=hint)


class WindowStepCase(WindowCase):
    """A case of somebody's `attend`, forward and backward; `step` gives the output and the gradients of q, k and v."""

    attend: Callable[..., Any]
    step: Callable[..., Any]

    def check_step(self, hint: str = "", nan_hint: str = "", names: Sequence[str] = ("dq", "dk", "dv")) -> None:
        """One training step, compared with the reference."""
        out = self.attend(*(x.detach().requires_grad_() for x in self.inputs), self.window, self.block)
        require(isinstance(out, torch.Tensor) and out.requires_grad, "out does not require grad, though q, k and v do")
        self.compare("out", out, hint, nan_hint)
        _, *gradients = self.step(*self.inputs, self.dO, self.window, self.block)
        for name, gradient in zip(("dq", "dk", "dv"), gradients, strict=True):
            require(gradient is not None, f"{name} never arrived: what autograd was to follow was cut by a detach")
            if name in names:
                self.compare(name, gradient, hint, nan_hint)


def _scatter(errors: npt.NDArray) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))
