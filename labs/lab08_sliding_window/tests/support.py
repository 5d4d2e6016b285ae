"""What Lab 08's suite compares with: masks, tiles and attention through a window, and the mistakes usual in each."""

import math
from functools import cached_property, partial
from itertools import permutations
from typing import ClassVar

import numpy as np
import torch

from labkit.testing.attention.backward_mistakes import gradients_by_formulas
from labkit.testing.attention.cases import Case, numbers, random_tensors
from labkit.testing.attention.mistakes import MAXIMUM_FIRST, scale_mistakes, weights_below_hidden
from labkit.testing.attention.reference import attention, gradients, gradients_with_penalty
from labkit.testing.compare import (
    Tolerance,
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_type,
    require,
)
from labkit.testing.unchanged import copied
from labkit.testing.wording import dtype_name

MAX_SCATTER = 1.35
"""How much more than one rounding at the end may scatter the errors of half precision: the handout's number."""
NOTHING_SEEN = (
    "a query that sees no key of the first tile it looks at: its maximum is −inf, and −inf − (−inf) is NaN; "
    "or memory of `empty` that was never written"
)


# Masks and tiles


def hidden_pairs(seq_len, window):
    """True where query i does not see key j, as NumPy; `window` may be below 1 here: then nothing is seen."""
    i, j = np.arange(seq_len)[:, None], np.arange(seq_len)
    return ~((i - window < j) & (j <= i))


def window_mistakes(seq_len, window):
    """Usual mistakes in a window → the pairs that are hidden then."""
    i, j = np.arange(seq_len)[:, None], np.arange(seq_len)
    hidden = partial(hidden_pairs, seq_len)
    return {
        "the window is one key too wide: it is the number of keys seen, the query's own included": hidden(window + 1),
        "the window is one key too narrow: the query's own key counts as one of the window": hidden(window - 1),
        "later keys are not masked out: j ≤ i": j <= i - window,
        "the window is not cut off on the left: only j ≤ i is applied": j > i,
        "the window reaches to both sides of the query": abs(i - j) >= window,
        "the window lies after the query: rows and columns are exchanged": hidden(window).T,
        "True and False are exchanged: True must stand where a key is masked out": ~hidden(window),
        "a window larger than the sequence is cut to N − 1 keys": hidden(min(window, max(1, seq_len - 1))),
    }


def assert_mask(got, seq_len, window):
    """Fail unless `got` is the mask of `window_mask(seq_len, window)`."""
    name = f"window_mask({seq_len}, {window})"
    hint = f"query i sees key j when i − {window} < j ≤ i, and True stands where a key is masked out"
    _assert_entries(name, got, hidden_pairs(seq_len, window), torch.bool, window_mistakes(seq_len, window), hint)


def kinds_of_tiles(hidden, block):
    """What each tile of a mask holds."""
    n_blocks = -(-len(hidden) // block)
    kinds = np.full((n_blocks, n_blocks), "partial")
    for a, b in np.ndindex(kinds.shape):
        tile = hidden[a * block : (a + 1) * block, b * block : (b + 1) * block]
        if tile.all() or not tile.any():
            kinds[a, b] = "empty" if tile.all() else "full"
    return kinds


def assert_tiles(got, seq_len, window, block):
    """Fail unless `got` is what `classify_tiles(seq_len, window, block)` must return."""
    assert_type("classify_tiles's result", got, np.ndarray, "a NumPy array")
    masked = hidden_pairs(seq_len, window)
    want = kinds_of_tiles(masked, block)
    mistakes = {
        "every partial tile is called full": np.where(want == "partial", "full", want),
        "every full tile is called partial": np.where(want == "full", "partial", want),
    }
    hidden = window_mistakes(seq_len, window)
    mistakes |= {text: kinds_of_tiles(mask, block) for text, mask in hidden.items()}
    mistakes |= _tile_mistakes(seq_len, window, block, want)

    def witness(at, kind):
        """A pair of a query and a key that shows what the tile `at` is, where it is called a `kind`."""
        if kind not in ("empty", "partial", "full"):
            cut = want[at].startswith(str(kind)) and got.dtype.kind == "U"
            letters = f"the array holds {got.dtype.itemsize // 4} letters an entry: give it dtype=object or '<U7'"
            return f"\nUsual cause: {letters}" if cut else ""
        queries, keys = (np.arange(n * block, min((n + 1) * block, seq_len)) for n in at)
        first, last = f"query {queries[0]} {{}} key {keys[-1]}", f"query {queries[-1]} {{}} key {keys[0]}"
        if want[at] == "full":
            pairs = dict.fromkeys((first.format("sees"), last.format("sees")))
            return f"\nIn this tile {', '.join(pairs)}, and no pair is masked out"
        if want[at] == "empty":
            nearest = last if keys[0] > queries[-1] else first
            return f"\nIn this tile {nearest.format('does not see')}, and no other pair is nearer"
        seen = kind == "empty"
        i, j = np.argwhere(masked[np.ix_(queries, keys)] != seen)[0]
        return f"\nIn this tile query {queries[i]} {'sees' if seen else 'does not see'} key {keys[j]}"

    _assert_entries(f"classify_tiles({seq_len}, {window}, {block})", got, want, None, mistakes, witness=witness)


def _tile_mistakes(seq_len, window, block, want):
    """Usual mistakes that are seen in tiles alone: what each then holds."""
    n_blocks = len(want)
    filled_up = np.ones((n_blocks * block,) * 2, bool)
    filled_up[:seq_len, :seq_len] = hidden_pairs(seq_len, window)
    corners = hidden_pairs(n_blocks * block, window)[::block, ::block]
    below = np.tril(np.ones((n_blocks, n_blocks), bool), -1)
    return {
        "the last block is taken as a whole one: only pairs in the sequence count": kinds_of_tiles(
            hidden_pairs(n_blocks * block, window), block
        ),
        "the last block is filled up with hidden pairs: only those in the sequence count": kinds_of_tiles(
            filled_up, block
        ),
        "a tile's first query and first key decide whether it is empty: other pairs of it may be seen": np.where(
            corners, "empty", want
        ),
        "tiles that the left edge of the window cuts are called full": np.where(
            below & (want == "partial"), "full", want
        ),
    }


def assert_codes(name, got, arguments):
    """Fail unless `got` is the tile mask for (seq_len, window, block), whatever the batch and the heads."""
    seq_len, window, block = arguments[:3]
    kinds = kinds_of_tiles(hidden_pairs(seq_len, window), block)
    want = np.select([kinds == "full", kinds == "partial"], [2, 1], 0)
    why = ": one code a tile, whatever the batch and the heads"
    _assert_entries(name, got, want, torch.int8, hint="it is another mask's", why=why)


def _assert_entries(name, got, want, dtype, mistakes=None, hint="", why="", witness=None):
    """Compare a table, a tensor of `dtype` or a NumPy array, entry by entry.

    `witness` tells more of the first wrong entry: its place and what is there give a line of the message.
    """
    if dtype:
        assert_type(name, got, torch.Tensor, "a tensor")
        require(got.dtype == dtype, f"{name} is {dtype_name(got.dtype)}, expected {dtype_name(dtype)}")
    require(tuple(got.shape) == want.shape, f"{name} has shape {tuple(got.shape)}, expected {want.shape}{why}")
    found = np.asarray(got)
    wrong = np.argwhere(found != want)
    if len(wrong):
        at = tuple(wrong[0].tolist())
        message = f"{name} is {found[at]} at {list(at)}, expected {want[at]}; {len(wrong):,} of {want.size:,} are wrong"
        usual = f"\nUsual cause: {hint}" if hint else ""
        shown = witness(at, found[at]) if witness else ""
        require(False, message + shown + (_cause(found, mistakes or {}) or usual))


def _cause(found, mistakes):
    """The known mistakes that give the same array, as a line of a message; none where more than two do."""
    causes = [text for text, value in mistakes.items() if np.array_equal(found, value)]
    return f"\nThat is exactly what comes out when {'; or when '.join(causes)}" if 0 < len(causes) <= 2 else ""


# Attention


class WindowCase(Case):
    """Inputs of attention through a window, and its results by the handout's names."""

    names: ClassVar = {"out": "O", "dq": "dQ", "dk": "dK", "dv": "dV"}

    def __init__(self, rng, seq_len, window, block, **sizes):
        tensors = random_tensors(rng, n=seq_len, **({"d": 12, "d_v": 7} | sizes))
        super().__init__(*tensors, mask=hidden_pairs(seq_len, window))
        self.window, self.block = window, block

    @classmethod
    def drawn(cls, rng, *, window, block, n=0, n_queries=0, n_keys=0, **sizes):
        """A case of one of the table's rows; where it has two lengths, the first counts for both."""
        return cls(rng, n or n_queries, window, block, **sizes)

    @property
    def arguments(self):
        """Copies of the tensors that a training step is given, by their names."""
        return dict(zip(("q", "k", "v", "d_out"), copied(*self.inputs, self.dO), strict=True))

    @property
    def step(self):
        """The arguments of a training step."""
        return *self.arguments.values(), self.window, self.block

    @cached_property
    def mistakes(self):
        """Usual mistakes → all results that each leads to."""
        hidden = window_mistakes(len(self.mask), self.window)
        left_edge, block = self.mask.copy(), self.block
        for a, b in np.argwhere(kinds_of_tiles(self.mask, block) == "partial"):
            if a != b:
                left_edge[a * block : (a + 1) * block, b * block : (b + 1) * block] = False
        hidden["tiles that the left edge of the window cuts are taken as full"] = left_edge
        hidden |= self._in_what_is_computed(hidden)
        scales = scale_mistakes(self)
        largest = np.finfo(np.float64 if self.Q.dtype == torch.float64 else np.float32).max
        too_large = (self.want["L"] > np.log(largest))[..., None]
        overflown = {"O": np.where(too_large, 0.0, self.want["O"])}
        outside = self._left_out()
        others = {
            f"{MAXIMUM_FIRST} (in a block's {where})": partial(self._maximum_first, left_out)
            for where, left_out in outside.items()
        }
        others |= {
            "exp overflows where no maximum is taken off: L is inf there, and every weight 0": self.want | overflown,
            "the softmax runs over the queries (dim −2) instead of the keys": self._over_queries,
        }
        others |= {
            f"the sums of one block of queries replace those before, instead of being added (in its {where})": partial(
                self._replaced, left_out
            )
            for where, left_out in outside.items()
        }
        return (
            others
            | {text: partial(self.results, hidden=value) for text, value in hidden.items()}
            | {text: partial(self.results, scale=value) for text, value in scales.items()}
        )

    def _left_out(self):
        """The pairs that are not computed where a block of queries takes its strip of keys, or its tiles."""
        i, j = np.arange(len(self.mask))[:, None], np.arange(len(self.mask))
        start = i // self.block * self.block
        first = np.maximum(0, start - self.window + 1)
        after = j >= start + self.block
        return {"strip": (j < first) | after, "tiles": (j < first // self.block * self.block) | after}

    def _maximum_first(self, left_out):
        """The output where hidden keys of what is computed take part in a row's maximum."""
        return self.want | {"O": weights_below_hidden(self, left_out) @ self.exact_inputs[2]}

    def _in_what_is_computed(self, hidden):
        """The same mistakes where keys outside a block's strip or its tiles are left out, and mistakes of strips."""
        i, j = np.arange(len(self.mask))[:, None], np.arange(len(self.mask))
        start = i // self.block * self.block
        first = np.maximum(0, start - self.window + 1)
        outside = self._left_out()
        found = {}
        for text, mask in hidden.items():
            for where, left_out in outside.items():
                made = mask | left_out
                if not any(np.array_equal(made, other) for other in (*hidden.values(), *found.values(), self.mask)):
                    found[f"{text} (in a block's {where})"] = made
        row, column = i - start, j - first
        local = (column > row) | (column <= row - self.window)
        return found | {
            "a block of queries sees its own block of keys alone": self.mask | (j < start),
            "queries and keys of a strip are counted from its beginning, not from the sequence's": local
            | outside["strip"],
        }

    def _over_queries(self):
        """The output where a block's softmax runs over its queries."""
        scores, weights = self.scores, np.zeros_like(self.want["P"])
        for start in range(0, len(self.mask), self.block):
            rows = np.s_[..., start : start + self.block, :]
            powers = np.exp(scores[rows] - scores[rows].max())
            weights[rows] = powers / np.maximum(powers.sum(-2, keepdims=True), 1e-300)
        return self.want | {"O": weights @ self.exact_inputs[2]}

    def _replaced(self, left_out):
        """dK and dV of each key from the last block of queries for which it is computed."""
        block_of = np.arange(len(self.mask))[:, None] // self.block
        last = np.where(left_out, -1, block_of).max(0)
        found = gradients_by_formulas(self, hidden=self.mask | (block_of < last))
        return self.want | {name: found[name] for name in ("dK", "dV")}

    def compare(self, name, got, hint="", nan_hint=NOTHING_SEEN):
        """Compare one result with the reference, and name a usual mistake where one fits."""
        cut = got is None and name != "out"
        require(not cut, f"{name} never arrived: what autograd was to follow was cut by a detach")
        shape = tuple(getattr(got, "shape", ()))
        if shape[-2:-1] == (len(self.mask) // self.block * self.block,) != (len(self.mask),):
            message = f"{name} has shape {shape}, expected {self.want[self.names[name]].shape}"
            require(False, f"{message}\nUsual cause: the last, smaller block of queries is left out")
        self.check(self.names[name], got, self.mistakes, hint=hint, nan_hint=nan_hint, called=name)
        assert_dtype(name, got, self.Q.dtype)

    def compare_step(self, results, hint="", nan_hint=""):
        """Compare the results of a training step."""
        for name, got in zip(self.names, results, strict=True):
            self.compare(name, got, hint, nan_hint or NOTHING_SEEN)

    def compare_scatter(self, results, hint):
        """Fail where the errors of half-precision results scatter more than one rounding at the end explains."""
        for name, got in zip(self.names, results, strict=True):
            want, baseline = (each[self.names[name]] for each in (self.want, self.baseline))
            scatter = round(_spread(numbers(got) - want) / _spread(baseline - want), 3)
            what = f"the scatter of {name}'s errors, by one rounding at the end,"
            assert_at_most(what, scatter, MAX_SCATTER, unit="times", hint=f"Usual cause: {hint}")

    def compare_penalised(self, got):
        """Compare the gradients of a loss and the squares of its own gradients with those of the reference."""
        hint = "backward is differentiated too, but what it saved is a constant there: refuse, where is_grad_enabled()"
        left_out = "the penalty is left out: backward's results come without a graph, and without an error"
        both = gradients_with_penalty(*self.exact_inputs, numbers(self.dO), mask=self.hidden)
        for name, value, want, without in zip("qkv", got, *both, strict=True):
            name = f"d{name} of a loss with a penalty on its own gradients (create_graph=True)"
            require(value is not None, f"{name} is None\nUsual cause: {hint}")
            options = {"tolerance": Tolerance(atol=4e-7 * np.abs(want).max()), "reference": gradients_with_penalty}
            assert_close(name, value, want, baseline=want, mistakes={left_out: without}, hint=hint, **options)


def _spread(errors):
    return float(np.sqrt(np.mean(np.square(errors))))


def flops_needed(seq_len, window, block, d):
    """FLOPs of one product over all pairs of the tiles that are not empty, and over the pairs that are seen."""
    hidden = hidden_pairs(seq_len, window)
    size = np.minimum(block, seq_len - np.arange(0, seq_len, block))
    visited = kinds_of_tiles(hidden, block) != "empty"
    return 2 * d * int((visited * size[:, None] * size).sum()), 2 * d * int(np.count_nonzero(~hidden))


def last_queries_are_right(out, dq, inputs, window):
    """Whether out and dq are right for the last `window` queries: they see keys of the last 2 · window − 1 alone.

    `inputs` are q, k, v and the gradient of out, each (N, d).
    """
    q, k, v, d_out = (numbers(x[1 - 2 * window :]) for x in inputs)
    d_out[:-window] = 0
    hidden = hidden_pairs(2 * window - 1, window)
    want = attention(q, k, v, mask=hidden).output, gradients(q, k, v, d_out, mask=hidden).dQ
    pairs = zip((out, dq), want, strict=True)
    return all(np.allclose(numbers(got[-window:]), right[-window:], 0, 1e-4) for got, right in pairs)


# BlockMaskCache


def assert_cache_follows(maxsize, operations, session, hint=""):
    """Fail unless a cache, given `operations`, did what a plain model of it does: the same masks, no others held.

    `session` is what the probe `cache_session` tells of them.
    """
    held = {}  # key → the operation that made the mask; the least recently used first
    cleared = False
    kept = set()  # by callers
    message = f"after its first operation a new cache with maxsize {maxsize} has {session[0]['len']} masks"
    cause = "masks of another cache are among them: an attribute of the class is common to all caches"
    require(session[0]["len"] <= 1, f"{message}\nUsual cause: {cause}")
    for number, ((kind, *given), one) in enumerate(zip(operations, session, strict=True)):
        call = {"clear": "clear()"}.get(kind) or f"get{given[0]}"
        after = f"{call}, operation {number + 1} of a cache with maxsize {maxsize},"
        if kind == "clear":
            held, cleared = {}, True
        elif kind != "fail":
            key = (*given[0][:3], _device(given[0]))
            want = held.pop(key, number)
            _assert_mask_of(after, one, given[0], want, number, hint)
            held[key] = want
            held = dict(list(held.items())[-maxsize:])
            kept |= {want} if kind == "hold" else set()
        cause = hint
        if kind == "fail":
            cause = "a mask goes, or a place is taken, before the arguments are checked"
        elif cleared and one["len"] < len(held):
            cause = "a mask goes though there is room: a count besides the masks' own goes on after clear()"
        assert_equal(f"len(cache) after {after}", one["len"], len(held), hint=cause)
        alive = {session[place]["memory"] for place in one["alive"]}
        for place, cause in (
            (set(held.values()) - alive, "another than the least recently used goes, the one made first (FIFO)"),
            (alive - {*held.values(), *kept}, "another list or cache still holds it, a functools.lru_cache perhaps"),
        ):
            keys = " and ".join(f"get{operations[each][1]}" for each in sorted(place))
            held_or_not = "still" if place & alive else "not"
            require(not place, f"the mask of {keys} is {held_or_not} in memory after {after}\nUsual cause: {cause}")


def _device(arguments):
    """The device that `get` is asked for, in torch's own spelling: 'cpu:0' is 'cpu'."""
    return torch.empty(0, device=(*arguments[3:], "cpu")[0]).device


def _assert_mask_of(after, one, arguments, want, number, hint):
    device, got = _device(arguments), one["mask"]
    cause = f"\nUsual cause: {hint}" if hint else ""
    assert_type(f"the result of {after}", got, torch.Tensor, "a tensor")
    require(got.device == device, f"{after} gives a mask on {got.device}\nUsual cause: the device belongs in the key: "
            "a mask must lie where it is used")  # fmt: skip
    if one["tensor"] != want:
        if one["memory"] == want:
            cause = "\nUsual cause: a view or a detach of what is held: the very same tensor is asked for (`is`)"
        which = "another tensor than before" if want < number else "a tensor that it gave before, for another mask"
        require(False, f"{after} gives {which}{cause}")
    if device.type == "cpu":
        assert_codes(f"the result of {after}", got, arguments)
    if want < number:
        a_number_or_two = 16  # of a tensor that only tells which device is meant
        assert_at_most(f"the memory that {after} takes", one["peak_bytes"], a_number_or_two, hint=hint)


# memory_breakdown

SIZES = {"batch": 1, "heads": 2, "seq_len": 256, "head_dim": 16, "window": 48, "block": 32}
SMALL = {"batch": 2, "heads": 3, "seq_len": 48, "head_dim": 8, "window": 11, "block": 16}
TRAINED = ("naive_mask", "causal_sdpa", "tiled_window")
PARTS = ("mask", "output", "saved", "gradients", "workspace")


def shape_of(sizes):
    """The shape of q, k and v."""
    return tuple(sizes[name] for name in ("batch", "heads", "seq_len", "head_dim"))


def bytes_of_q(dtype=torch.float32, **sizes):
    """The bytes of q, with `sizes` instead of those of `SIZES`."""
    return math.prod(shape_of(SIZES | sizes)) * dtype.itemsize


def bytes_of_scores(**sizes):
    """The bytes of all scores in float32."""
    batch, heads, seq_len, _ = shape_of(SIZES | sizes)
    return 4 * batch * heads * seq_len**2


def made_in_a_phase(want, q_bytes):
    """The usual mistake with a part that is to be `want` bytes: q, k and v count besides."""
    return {"q, k and v are made in a phase: they exist before the first one, and do not count": want + 3 * q_bytes}


def assert_adds_up(got, text):
    """Fail unless the components of a breakdown add up to `total`, none of them negative."""
    total = sum(got[part] for part in PARTS)
    sums = f"{', '.join(PARTS)} {text} are {total:,} bytes together, and total is {got['total']:,}"
    require(total == got["total"], sums)
    negative = [part for part in PARTS if got[part] < 0]
    require(not negative, f"{', '.join(negative)} {text} is negative")


def assert_attends(variant, inputs, arrays, window):
    """Fail unless among `arrays` is what a `variant` of the audit must make of `inputs`: q, k and v in any order."""
    n = inputs[0].shape[-2]
    right = hidden_pairs(n, n if variant == "causal_sdpa" else window)
    if _is_among(arrays, inputs, right):
        return
    masks = {"the mask is ignored: every key is seen": np.zeros((n, n), bool)} | window_mistakes(n, window)
    usual = [(text, mask, None) for text, mask in masks.items() if not np.array_equal(mask, right)]
    usual.append(("the scores are not divided by √d", right, 1.0))
    cause = next((text for text, mask, scale in usual if _is_among(arrays, inputs, mask, scale)), "")
    message = f"the attention that {variant!r} runs is another one: what it should make of its q, k and v is nowhere"
    require(False, message + (f"\nThat is exactly what comes out when {cause}" if cause else ""))


def _is_among(arrays, inputs, hidden, scale=None):
    for q, k, v in permutations(inputs):
        want = attention(*map(numbers, (q, k, v)), mask=hidden, scale=scale).output
        if any(np.allclose(numbers(x).reshape(want.shape), want, 1e-3, 1e-4) for x in arrays):
            return True
    return False


def bytes_of_block_mask():
    """What FlexAttention's mask of the window holds.

    For queries and for keys, for partial and for full tiles: a count for each row of T tiles, and a list of T indices,
    of 4 bytes each.
    """
    n_blocks = SIZES["seq_len"] // SIZES["block"]
    return 4 * 4 * (n_blocks + n_blocks**2)
