"""Assertions of Lab 13: a number of blocks, a cache of few bits a number, plans of a scheduler, and traces."""

from functools import cache, partial

import torch

from labkit.serving.drive import serve_plans
from labkit.serving.engine import serve
from labkit.serving.model import SPEC
from labkit.serving.requests import Request, make_trace
from labkit.testing.compare import (
    TOLERANCE,
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_type,
    require,
)
from labkit.testing.serving.bit_blocks import attention, rounded, scale_and_zero, steps_of
from labkit.testing.sessions import Session

from .probes import cache_calls, plans_of_scheduler, scheduler_calls, served_by_server, server_calls

NEAR_A_TIE = 0.01
"""In steps. Vectors with a number so near to the middle between two codes are drawn again: rounding would decide."""
FOREIGN = (
    "a place that is not the sequence's is read: behind the blocks that are needed, or behind the last query in its own"
)


def assert_plan(cache_plan, spec, nbytes, block_size, bits):
    """Compare a number of blocks with a count of a block's bytes."""
    width, scales = spec["head_dim"], 4 if bits <= 8 else 0
    vectors = 2 * spec["layers"] * spec["kv_heads"] * block_size
    vector = width * bits // 8 + scales
    mistakes = {
        "scales and zeros are not counted: 4 bytes a vector": nbytes // (vectors * width * bits // 8),
        "a token's vectors share one scale and one zero: each vector has its own": nbytes
        // (vectors * width * bits // 8 + block_size * 4),
        "only keys are counted: values are kept as well as keys, twice as many vectors": nbytes
        // (vectors // 2 * vector),
        "query heads are counted: what is kept are key heads": nbytes
        // (vectors // spec["kv_heads"] * spec["heads"] * vector),
        "one layer is counted: every layer keeps its own": nbytes // (vectors // spec["layers"] * vector),
        "the division is rounded up: a block that does not fit whole is none": -(-nbytes // (vectors * vector)),
        "scales and zeros are counted with 32 bits too: there is neither scale nor zero": nbytes
        // (vectors * (width * bits // 8 + 4)),
        "scales and zeros are counted as float32: both are float16": nbytes // (vectors * (width * bits // 8 + 8)),
        "bits are taken for bytes: a code takes bits / 8 of a byte": nbytes // (vectors * (width * bits + scales)),
        "tokens are counted: a block holds block_size of them": nbytes // (vectors // block_size * vector),
    }
    want = nbytes // (vectors * vector)
    mistakes["bytes are divided as floats, which are rounded: //, of whole numbers, is exact"] = int(
        nbytes / (vectors * vector)
    )
    mistakes = {text: value for text, value in mistakes.items() if value != want}
    name = f"the blocks of {block_size} tokens in {nbytes:,} bytes, {bits} bits a number, {spec},"
    assert_equal(name, cache_plan(spec, nbytes, block_size, bits), want, mistakes=mistakes)


class Written:
    """Keys and values (layers, tokens, kv_heads, d) of a sequence, and its block table."""

    def __init__(self, k, v, table):
        self.k, self.v, self.table = k, v, table


class WrittenCache:
    """A cache under test, and the sequences that were written into it."""

    def __init__(self, rng, *, num_blocks=12, block_size=4, layers=2, kv_heads=2, group=2, d=8, bits=8):
        self.rng, self.bits, self.block_size, self.layers = rng, bits, block_size, layers
        self.kv_heads, self.group, self.d = kv_heads, group, d
        self.cache = Session(partial(cache_calls, (num_blocks, block_size, layers, kv_heads, d, bits)))
        self.free = rng.permutation(num_blocks).tolist()
        self.sizes = f"{bits} bits, blocks of {block_size}, {group * kv_heads} heads on {kv_heads}, d = {d}"

    def sequence(self, n_tokens, *, spread=1.0, offset=0.0):
        """A new sequence with blocks of its own, in any order."""
        shape = (2, self.layers, n_tokens, self.kv_heads, self.d)
        k, v = _clear_vectors(self.rng, shape, self.bits, spread, offset)
        return Written(k, v, [self.free.pop() for _ in range(-(-n_tokens // self.block_size))])

    def write(self, sequence, start=0, end=None):
        """Write tokens start … end − 1 in all layers."""
        end = sequence.k.shape[1] if end is None else end
        for layer in range(self.layers):
            k, v = (x[layer, start:end].clone() for x in (sequence.k, sequence.v))
            self.cache.write(layer, *self._places(sequence, start, end), k, v)

    def write_nan(self, sequence, start):
        """Write NaN into a sequence's places from `start` to the end of its last block."""
        end = len(sequence.table) * self.block_size
        nan = torch.full((end - start, self.kv_heads, self.d), torch.nan)
        for layer in range(self.layers):
            self.cache.write(layer, *self._places(sequence, start, end), nan, nan)

    def _places(self, sequence, start, end):
        at = range(start, end)
        return [sequence.table[t // self.block_size] for t in at], [t % self.block_size for t in at]

    def check(self, sequence, start, n=1, *, sharp=1.0, table=None, hint="", nan_hint=FOREIGN):
        """Compare attention of n queries at `start` in every layer; `table` instead of the sequence's own.

        With a negative `sharp` all queries point away from keys whose numbers are positive.
        """
        for layer in range(self.layers):
            drawn = self.rng.standard_normal((n, self.group * self.kv_heads, self.d))
            q = torch.from_numpy(sharp * (abs(drawn) if sharp < 0 else drawn)).float()
            got = self.cache.attend(layer, q, list(sequence.table if table is None else table), start)
            self._compare(got, q, sequence, layer, start, hint, nan_hint)

    def _compare(self, got, q, sequence, layer, start, hint, nan_hint):
        end = start + len(q)
        name = f"o of queries {start} to {end - 1} in layer {layer} ({self.sizes})"
        assert_type(name, got, torch.Tensor, "a tensor")
        require(tuple(got.shape) == tuple(q.shape), f"{name} has shape {tuple(got.shape)}, expected {tuple(q.shape)}")
        assert_dtype(name, got, torch.float32)
        k, v = (rounded(x[layer, :end].double(), self.bits) for x in (sequence.k, sequence.v))
        largest_score = float(q.double().norm(dim=-1).max() * k.norm(dim=-1).max()) / self.d**0.5
        assert_close(
            name,
            got,
            attention(q.double(), k, v).numpy(),
            baseline=attention(q, k.float(), v.float()).numpy(),
            tolerance=TOLERANCE.for_scores(largest_score),
            reference=attention,
            mistakes=lambda: self._mistakes(q.double(), sequence, layer, start),
            hint=hint,
            nan_hint=nan_hint,
        )

    def _mistakes(self, q, sequence, layer, start):
        """Usual mistakes → what each leads to."""
        end, bits = start + len(q), self.bits
        whole = [x[layer, :end].double() for x in (sequence.k, sequence.v)]
        kept = [rounded(x, bits) for x in whole]

        def cut(x):
            scale, zero = scale_and_zero(x, bits)
            return steps_of(x, scale, zero).floor().clamp(0, 2**bits - 1) * scale + zero

        def by_codes(x):
            scale, zero = scale_and_zero(x * (2**bits - 1) / 2**bits, bits)[0], scale_and_zero(x, bits)[1]
            return steps_of(x, scale, zero).round().clamp(0, 2**bits - 1) * scale + zero

        def unrounded(x):
            low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
            scale, zero = scale_and_zero(x, bits)
            return steps_of(x, (high - low) / (2**bits - 1), low).round() * scale + zero

        def wrapped(x):
            scale, zero = scale_and_zero(x, bits)
            return steps_of(x, scale, zero).round().remainder(2**bits) * scale + zero

        def one_range(x):
            return rounded(x.flatten(-2), bits).view_as(x)

        in_turn = q.unflatten(1, (-1, self.kv_heads)).transpose(1, 2).flatten(1, 2)
        in_turn = attention(in_turn, *kept).unflatten(1, (self.kv_heads, -1)).transpose(1, 2).flatten(1, 2)
        found = {
            "keys and values are kept whole: each number is a code, and what is read is code · scale + zero": attention(
                q, *whole
            ),
            "the fraction is cut off: the nearest code is taken (round)": attention(q, *map(cut, whole)),
            "the range is divided by 2^bits: between 2^bits codes there are 2^bits − 1 steps": attention(
                q, *map(by_codes, whole)
            ),
            "codes are computed with scale and zero before these are rounded, and not as they are kept": attention(
                q, *map(unrounded, whole)
            ),
            "codes below 0 or above 2^bits − 1 are not clipped, and wrap around": attention(q, *map(wrapped, whole)),
            "all heads of a token share one range: each vector has its own": attention(q, *map(one_range, whole)),
            "the scores are not divided by √head_dim": attention(q * self.d**0.5, *kept),
            "query head h reads key head h % kv_heads: it is h // (H / kv_heads)": in_turn,
            "causal counts from the top left: the first query is at `start`, and sees all before it": attention(
                q, *kept, first=0
            ),
            "all queries see what the first one sees: the one at position p sees 0 … p": torch.cat(
                [attention(row[None], *(x[: start + 1] for x in kept)) for row in q]
            ),
            "queries see the tokens after them: the one at position p sees 0 … p": attention(q, *kept, first=end),
            "only the last block is masked, and in those before it queries see the tokens after them": attention(
                q, *kept, masked_from=(end - 1) // self.block_size * self.block_size
            ),
        }
        return {text: value.numpy() for text, value in found.items()}


def _clear_vectors(rng, shape, bits, spread, offset):
    """Vectors (..., d) in float32, drawn until no rounding of float32 decides about a code or a scale."""

    def draw(*sizes):
        return torch.from_numpy(offset + spread * rng.standard_normal(sizes)).float()

    found = draw(*shape)
    while bool((unclear := _unclear(found, bits)).any()):
        found[unclear] = draw(int(unclear.sum()), shape[-1])
    return found


def _unclear(x, bits):
    """Where a vector has a number near the middle between two codes, or a scale near that of two float16."""
    x = x.double()
    steps = steps_of(x, *scale_and_zero(x, bits))
    near = ((steps - steps.floor() - 0.5).abs() < NEAR_A_TIE).any(-1)
    exact = (x.amax(-1) - x.amin(-1)) / (2**bits - 1)
    below, above = ((exact * (1 + side * 1e-6)).half() for side in (-1, 1))
    return near | (below != above)


def assert_served(trace, *sizes, most_steps=None, hint=""):
    """Drive a new scheduler through a trace; what came of it, in at most so many steps."""
    served = serve_plans(Session(partial(scheduler_calls, sizes), plans_of_scheduler(*sizes, trace)), trace, *sizes)
    if most_steps is not None:
        name = (
            f"{len(trace)} requests, {sizes[0]} blocks of {sizes[1]} and {sizes[2]} tokens a step: the number of steps"
        )
        assert_at_most(name, served.steps, most_steps, hint=hint, unit="")
    return served


def different_requests(n, prompt, max_new):
    """n requests with different prompts of one length, all at once."""
    return [Request(i, 0, tuple((i * 31 + j * 7) % 64 for j in range(prompt)), max_new) for i in range(n)]


trace_of = cache(make_trace)
"""The trace of a run's own seed, drawn once for all tests that serve it."""


def serve_recorded(trace, nbytes, max_tokens, metered=False):
    """Check what a new server gave for a trace; what came of it, and what was measured."""
    sizes = SPEC, nbytes, max_tokens
    measured = served_by_server(*sizes, trace, metered)
    return serve(Session(partial(server_calls, sizes), measured["record"]), trace, *sizes), measured


def assert_trace(trace, nbytes, max_tokens):
    """Serve a trace to its end; fails too where keys and values are kept outside the cache that settings describe."""
    served, measured = serve_recorded(trace, nbytes, max_tokens, metered=True)
    hint, asked = "settings say fewer bits, or fewer blocks, than are kept", served.cache_bytes
    name = "the bytes that the server holds from the beginning"
    assert_at_most(name, measured["held"], asked + nbytes // 8, hint=hint, required=asked)
    hint = "a step keeps keys and values besides the cache, whose memory is made once"
    assert_at_most("the bytes that the steps keep beside the cache", measured["kept"], nbytes // 8, hint=hint)
    return served
