"""Lab 10's suite: kernels' results, the bytes they move, and what a GPU and its compiler would do with them.

Every call runs in Triton's interpreter, where each address is checked. Tests of the compiler need no GPU.
"""

import functools
import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from triton_kernel import choose_config, flash_backward, flash_forward, paged_decode, softmax_rows

from labkit.kernels.device import on_device
from labkit.kernels.resources import SHARED_BYTES, TARGETS
from labkit.testing.attention.cases import tensor_case
from labkit.testing.attention.table import FAR_BELOW, OVERFLOW, attention_cases, mismatched_shapes
from labkit.testing.compare import (
    assert_at_most,
    assert_close,
    assert_equal,
    assert_raises,
    assert_refused,
    assert_tuple,
    assert_type,
    require,
)
from labkit.testing.decoding.grouped import split_mistakes
from labkit.testing.decoding.paging import PagedBatch
from labkit.testing.tiles.io_formulas import queries_outside_traffic
from labkit.testing.unchanged import unchanged

from .probes import ROW_STRIDE, called, called_without_copies, compiled_for, softmax_of_far_rows
from .support import (
    GARBAGE,
    GRADIENTS,
    SHORT_SCORES,
    SHORT_SUMS,
    assert_backward,
    assert_blocks_refused,
    assert_bytes,
    assert_compiles,
    assert_forward,
    assert_int64_offsets,
    assert_multiplied,
    assert_softmax,
    assert_sound,
    measure,
    tiles_seen,
    worked_case,
)

causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
odd_blocks = pytest.mark.parametrize("blocks", [(16, 32), (32, 16)], ids=["16x32", "32x16"])
every_case = pytest.mark.parametrize("row", attention_cases("full", "causal", dtypes=("float16",), only=(
    "N63-causal", "random_sizes1-full", "random_sizes1-causal", "random_sizes2-full", "random_sizes2-causal",
    "N5x129-full", "N65x20-causal", "d_v5", "B2x3-causal", "logits_times_10000-full", "logits_far_below_0",
    "not_contiguous", "float16-full", "float16-causal",
)))  # fmt: skip
by_arch = pytest.mark.parametrize("arch", list(TARGETS), ids=[f"sm_{arch}" for arch in TARGETS])
CACHE = ("q", "k_cache", "v_cache", "block_table", "context_lens")

ON_A_DEVICE = "the interpreter agrees with the reference: is anything read or written by two programs, or past an end?"
SHORT_BLOCK = "rows behind the end of the last block weigh something, or rows before it are left out"
WEIGHT_BEHIND_THE_END = (
    "a key behind the end scores 0, and exp(0 − L) is immense where L is far below 0: its weight must be 0"
)
FOREIGN_TOKENS = (
    "a token behind the sequence's end is loaded, from a block of nobody, which holds NaN here: its weight is 0, and "
    "0 · NaN is NaN; leave such tokens out of the loads from the cache, not only out of the scores"
)
NO_TOKENS = "without tokens the largest score is −inf, −inf − (−inf) is NaN, and so is 0 / 0"
N_SMALL = 30
"""Tiles of a long sum, each of which adds less than half a unit of what a float16 sum has reached before."""


class TestSoftmaxRows:
    """One kernel, a row at a time."""

    def check(self, x, hint="", nan_hint=GARBAGE):
        got, seen = called("softmax_rows", {"x": x})
        assert_sound(seen)
        assert_softmax(got, x, hint=hint, nan_hint=nan_hint)
        return seen

    @pytest.mark.basic
    @pytest.mark.parametrize("shape", [(5, 63), (7, 129), (2, 64), (1, 1)], ids=["5x63", "7x129", "2x64", "1x1"])
    def test_shapes(self, rng, shape):
        x = torch.from_numpy(rng.standard_normal(shape)).float() * 3
        self.check(x, "the lanes behind a row's end weigh something: −inf weighs nothing")

    @pytest.mark.basic
    def test_worked_example(self):
        self.check(torch.tensor([[0.0, math.log(3)]]), "exp(0) = 1 and exp(1.0986) = 3 of 4 in all")

    @pytest.mark.robust
    def test_half_precision_is_summed_in_float32(self, rng):
        x = torch.from_numpy(rng.uniform(0, 0.1, (2, 70_000))).half()
        self.check(x, "70,000 powers near 1 are summed in float16, which ends at 65,504: convert what was loaded")

    @pytest.mark.robust
    def test_large_numbers(self, rng):
        self.check(torch.from_numpy(rng.standard_normal((5, 70)) * 10_000).float(), OVERFLOW, OVERFLOW)

    @pytest.mark.robust
    def test_numbers_left_out(self, rng):
        x = torch.from_numpy(rng.standard_normal((4, 33))).float()
        x[0, 3:], x[1, :], x[2, -1] = -math.inf, -math.inf, -math.inf
        hint = "in a row of −inf alone −inf − (−inf) is NaN, and so is 0 / 0: it gives zeros"
        self.check(x, hint, hint)

    @pytest.mark.robust
    def test_any_strides(self, rng):
        wide = torch.from_numpy(rng.standard_normal((9, 90))).float()
        for x in (wide[::2, :41], wide.T, wide[:, ::3]):
            self.check(
                x, "rows or columns are taken to be adjacent: column j of row i is at stride(0) · i + stride(1) · j"
            )

    @pytest.mark.robust
    def test_rows_far_apart(self, rng):
        x = torch.from_numpy(rng.standard_normal((3, 50))).half()
        got, outside = softmax_of_far_rows(x)
        require(
            not outside,
            f"with rows {ROW_STRIDE:,} elements apart a program loads at element {(outside or [0])[0]:,}, expected "
            f"{2 * ROW_STRIDE:,}\nOffsets in int32 end at 2,147,483,647 and begin again below 0; "
            "smaller tensors never show it\nUsual cause: tl.program_id is int32: .to(tl.int64) before it is multiplied",
        )
        assert_softmax(got, x)

    @pytest.mark.cost
    def test_each_number_moves_once(self, rng):
        """Of a row whose numbers are not adjacent too: a copy that torch makes first moves each number twice more."""
        wide = torch.from_numpy(rng.standard_normal((6, 200))).half()
        for x in (wide[:, :100].contiguous(), wide[:, ::2]):
            seen = self.check(x)
            of_x = {"x": seen["of_arguments"].get("x", 0)}
            copied = {"torch makes a copy of x, and the kernel loads from that": 0}
            hint = "a row does not stay in registers between its maximum, its sum and its division"
            assert_bytes("loaded", of_x, 600 * x.itemsize, copied, hint=hint)
            assert_bytes("stored", seen["stored"], 600 * x.itemsize, hint=hint)

    @pytest.mark.cost
    def test_compiles(self, rng):
        x = torch.from_numpy(rng.standard_normal((2, 500))).half()
        assert_compiles(compiled_for("softmax_rows", 80, {}, {"x": x}), 80, products=False)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        assert_raises(ValueError, lambda: softmax_rows(torch.ones(3)), when="for x of one axis", mentions=("(3,)",))
        x = torch.ones(2, 3, dtype=torch.bfloat16)
        assert_raises(TypeError, lambda: softmax_rows(x), when="for bfloat16", mentions=("bfloat16",))


def own_file():
    """The student's file: it is called in another process, where kernels are compiled."""
    return Path(sys.modules["triton_kernel"].__file__)


class TestFlashForward:
    """One pass over the keys, a program for each block of queries."""

    @pytest.mark.basic
    @causal_or_not
    @odd_blocks
    def test_blocks_that_do_not_divide(self, rng, blocks, causal):
        case = tensor_case(rng, n_queries=37, n_keys=43, d=8, causal=causal)
        measure("flash_forward", case, *blocks, hint="" if causal else SHORT_BLOCK)

    @pytest.mark.basic
    def test_worked_example(self):
        measure("flash_forward", worked_case())

    @every_case
    def test_results(self, rng, row):
        case = row.draw(tensor_case, rng)
        result, seen = called("flash_forward", case.arguments, case.causal, 32, 32)
        assert_sound(seen)
        assert_forward(case, result, 32, 32, hint=row.hint, nan_hint=row.nan_hint)

    @pytest.mark.robust
    def test_long_sums_in_half_precision(self, rng):
        """16 tiles of weight 1 a key, then 30 of weight exp(−5.2): a sum in float16 has no room for the latter."""
        case = tensor_case(rng, n_queries=16, n_keys=16 * (16 + N_SMALL), d=16, dtype=torch.float16)
        case.Q[:], case.K[:] = 0, 0
        case.Q[:, 0], case.K[:256, 0], case.K[256:, 0] = 4, 2.6, -2.6
        case.V.mul_(0.02).add_(1)
        case.V[256:] += 0.3
        measure("flash_forward", case, 16, 16, hint=SHORT_SUMS)

    @pytest.mark.robust
    def test_scores_of_half_precision_are_kept_in_float32(self, rng):
        case = tensor_case(rng, n=40, d=16, dtype=torch.float16)
        case.Q[..., 0] = case.K[..., 0] = 32  # all scores are 256 and a little, which float16 would lose
        (O, _), _ = called("flash_forward", case.arguments, False, 16, 16)
        assert_close("O", O.double(), case.want["O"], baseline=case.baseline["O"].astype(np.float16), hint=SHORT_SCORES)

    @pytest.mark.robust
    def test_without_keys(self, rng):
        case = tensor_case(rng, n_queries=5, n_keys=1, batch=(2,))
        (O, L), _ = called("flash_forward", {"Q": case.Q, "K": case.K[:, :0], "V": case.V[:, :0]})
        require(O.shape == (2, 5, 16) and bool((O == 0).all()), "without keys (N_k = 0) O must be 0")
        require(L.shape == (2, 5) and bool(L.isneginf().all()), "without keys (N_k = 0) L must be −inf")

    @pytest.mark.robust
    @causal_or_not
    def test_heads_far_apart(self, rng, causal):
        """12 heads of 480 numbers: the offset of the last is 5,280, and one within a head below 512."""
        case = tensor_case(rng, n=30, d=16, batch=(12,), causal=causal)
        assert_int64_offsets("flash_forward", case.arguments, 11 * 30 * 16, "the last head", causal, 16, 16)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        given = tensor_case(rng, n=20, d=8).arguments
        with unchanged(given):
            called_without_copies("flash_forward", *given.values())

    @pytest.mark.refuses
    def test_shapes_that_do_not_fit(self, rng):
        assert_refused(flash_forward, mismatched_shapes(*tensor_case(rng, n_queries=6, n_keys=5, d=8).inputs))

    @pytest.mark.refuses
    def test_bad_blocks_and_dtypes(self, rng):
        case = tensor_case(rng, n=6, d=8)
        assert_blocks_refused(flash_forward, *case.inputs)
        wide = [x.double() for x in case.inputs]
        assert_raises(TypeError, lambda: flash_forward(*wide), when="for float64", mentions=("float64",))

    @pytest.mark.cost
    @pytest.mark.parametrize(
        ("block_q", "block_k", "precision"), [(16, 16, "float32"), (32, 64, "float16")], ids=["16x16", "32x64-float16"]
    )
    def test_bytes_are_those_of_lab_04(self, rng, block_q, block_k, precision):
        case = tensor_case(rng, n_queries=63, n_keys=129, d=32, dtype=precision)
        seen = measure("flash_forward", case, block_q, block_k)
        want = queries_outside_traffic(63, 129, 32, 32, block_q, block_k, case.Q.itemsize)
        hint = "other blocks than those asked for, or a key is read again: Q once, K and V ⌈N_q / block_q⌉ times"
        converted = "torch converts Q, K and V to float32, and the kernel loads from that"
        mistakes = {converted: 2 * want.loaded} if precision == "float16" else {}
        assert_bytes("loaded", seen["loaded"], want.loaded, mistakes, hint=hint)
        hint = "more is stored than O once, in its dtype, and one float32 a query for L"
        assert_bytes("stored", seen["stored"], want.stored + 63 * 4, hint=hint)
        hint = "a program goes through several blocks of queries: each has a program of its own, at the same time"
        assert_equal("the programs that load Q", seen["readers"].get("Q", 0), -(-63 // block_q), hint=hint)

    @pytest.mark.cost
    @pytest.mark.parametrize(
        ("block_q", "block_k", "precision"), [(16, 16, "float32"), (16, 32, "float16")], ids=["16x16", "16x32-float16"]
    )
    def test_hidden_tiles_are_not_loaded(self, rng, block_q, block_k, precision):
        case = tensor_case(rng, n_queries=80, n_keys=112, d=32, causal=True, dtype=precision)
        seen = measure("flash_forward", case, block_q, block_k)
        tiles = tiles_seen(case, block_q, block_k)
        rows = sum(min(block_k, 112 - column * block_k) for _, column in tiles)
        loaded, most = sum(seen["loaded"].values()), (80 * 32 + rows * 64) * case.Q.itemsize
        every = queries_outside_traffic(80, 112, 32, 32, block_q, block_k, case.Q.itemsize).loaded
        end = "to N_k" if loaded >= every else "on behind the tile of its last query"
        hint = (
            "results are right all the same, since hidden keys weigh nothing; on a GPU the bytes cost the time\n"
            f"Usual cause: the loop over keys goes {end}: the last query of a block is the last to see anything"
        )
        assert_at_most("causal, the bytes loaded", loaded, most, hint=hint)
        assert_multiplied(seen, len(tiles) * block_q * block_k * 64, hint="each tile takes two products: Q Kᵀ and P V")

    @pytest.mark.cost
    def test_float32_is_multiplied_exactly(self, rng):
        made = compiled_for("flash_forward", 80, {}, tensor_case(rng, n=16).arguments, False, 16, 16)
        assert_compiles(made, 80, products=False, spills=True, exact=True)

    @pytest.mark.cost
    def test_compiles_without_spilling(self, rng):
        case = tensor_case(rng, n=16, d=64, dtype=torch.float16)
        assert_compiles(compiled_for("flash_forward", 80, {}, case.arguments, True, 64, 64), 80)

    @pytest.mark.cost
    def test_smallest_tiles_compile(self, rng):
        case = tensor_case(rng, n=16, d=5, d_v=3, dtype=torch.float16)
        assert_compiles(compiled_for("flash_forward", 80, {}, case.arguments, False, 16, 16), 80)

    @pytest.mark.gpu
    @causal_or_not
    def test_on_a_device(self, rng, causal):
        case = tensor_case(rng, n=500, d=64, batch=(2, 3), dtype=torch.float16, causal=causal)
        O, L = on_device(own_file(), "flash_forward", case.inputs, causal, 64, 64)
        case.check("O", O, hint=ON_A_DEVICE)
        case.check("L", L, hint=ON_A_DEVICE)
        built_in = torch.nn.functional.scaled_dot_product_attention(*(x.cuda() for x in case.inputs), is_causal=causal)
        off = float((O - built_in.cpu()).abs().max())
        require(off < 4e-3, f"O differs from scaled_dot_product_attention on the same device by {off:.3g}")


class TestFlashBackward:
    """All three gradients, each element with one program that owns it."""

    @pytest.mark.basic
    @causal_or_not
    @odd_blocks
    def test_blocks_that_do_not_divide(self, rng, blocks, causal):
        case = tensor_case(rng, n_queries=37, n_keys=43, d=8, causal=causal)
        measure("flash_backward", case, *blocks, hint="" if causal else SHORT_BLOCK)

    @pytest.mark.basic
    def test_worked_example(self):
        measure("flash_backward", worked_case())

    @every_case
    def test_results(self, rng, row):
        case = row.draw(tensor_case, rng)
        result, seen = called("flash_backward", case.backward_arguments, case.causal, 32, 32)
        assert_sound(seen)
        hint, nan_hint = row.hint, row.nan_hint
        if hint == FAR_BELOW:  # no maximum is taken here
            hint = nan_hint = WEIGHT_BEHIND_THE_END
        assert_backward(case, result, 32, 32, hint=hint, nan_hint=nan_hint)

    @pytest.mark.robust
    @pytest.mark.parametrize("along", ["queries", "keys"])
    def test_long_sums_in_half_precision(self, rng, along):
        """All weights are equal. One tile adds 8, the other 30 add 0.0035: a sum in float16 has no room for these."""
        long = 16 * (1 + N_SMALL)
        n_queries, n_keys = (long, 16) if along == "queries" else (16, long)
        case = tensor_case(rng, n_queries=n_queries, n_keys=n_keys, d=16, dtype=torch.float16)
        sign = 1.0 - 2.0 * (torch.arange(n_keys) % 2)[:, None]
        case.Q[:], case.K[:], case.V[:], case.dO[:] = 0, 0, sign, 1.2
        case.Q[:, 0] = 1
        case.K[:, 1:2] = sign
        part = case.dO if along == "queries" else case.K
        part[:16], part[16:] = part[:16] / part[:16].abs().max() * 8, part[16:] / part[16:].abs().max() * 0.0035
        measure("flash_backward", case, 16, 16, hint=SHORT_SUMS)

    @pytest.mark.robust
    def test_scores_of_half_precision_are_kept_in_float32(self, rng):
        case = tensor_case(rng, n_queries=8, n_keys=40, d=16, dtype=torch.float16)
        case.Q[..., 0] = case.K[..., 0] = 32  # all scores are 256 and a little, which float16 would lose
        (dQ, _, dV), _ = called("flash_backward", case.backward_arguments, False, 16, 16)
        for name, got, kernel_of in (("dV", dV, "the keys"), ("dQ", dQ, "the queries")):
            want, baseline = case.want[name][..., 1:], case.baseline[name][..., 1:].astype(np.float16)
            assert_close(name, got.double()[..., 1:], want, baseline=baseline, hint=f"{SHORT_SCORES} ({kernel_of})")

    @pytest.mark.robust
    def test_sums_of_do_and_o_are_kept_in_float32(self, rng):
        case = tensor_case(rng, n_queries=8, n_keys=40, d=16, dtype=torch.float16)
        case.V[..., 0] = case.dO[..., 0] = 32  # every D is 1024 and a little, which float16 would lose
        case.K += 1  # what is off in D adds up
        (dQ, _, _), _ = called("flash_backward", case.backward_arguments, False, 16, 16)
        baseline = case.baseline["dQ"].astype(np.float16)
        hint = "D is rounded to half precision: dO and O become float32 before they are multiplied"
        assert_close("dQ", dQ.double(), case.want["dQ"], baseline=baseline, hint=hint)

    def test_weights_come_from_the_given_l(self, rng):
        case = tensor_case(rng, n=40, d=8)
        given = case.backward_arguments
        given["L"] += math.log(2)
        (_, _, dV), _ = called("flash_backward", given, False, 32, 32)
        hint = "the softmax is computed once more, instead of P = exp(S − L), which is half as large here"
        name = "dV with log 2 added to L"
        assert_close(name, dV, case.want["dV"] / 2, baseline=case.baseline["dV"] / 2, hint=hint)

    @pytest.mark.robust
    def test_gradient_of_a_sum(self, rng):
        case = tensor_case(rng, n=30, d=8, batch=(2,))
        case.dO = torch.ones(()).expand(2, 30, 8)
        measure("flash_backward", case, 16, 16, hint="dO of O.sum() is one number, expanded: a view with strides of 0")

    @pytest.mark.robust
    @pytest.mark.parametrize("without", ["queries", "keys"])
    def test_without_queries_or_keys(self, rng, without):
        given = tensor_case(rng, n_queries=5, n_keys=6, batch=(2,)).backward_arguments
        given |= {"O": torch.zeros(2, 5, 16), "L": torch.full((2, 5), -math.inf)} if without == "keys" else {}
        for name in ("K", "V") if without == "keys" else ("Q", "O", "L", "dO"):
            given[name] = given[name][:, :0]
        result, _ = called("flash_backward", given)
        for name, got, like in zip(GRADIENTS, assert_tuple("the result", result, GRADIENTS), "QKV", strict=True):
            right = got.shape == given[like].shape and bool((got == 0).all())
            require(right, f"without {without} {name} must be 0, of {like}'s shape")

    @pytest.mark.robust
    @causal_or_not
    def test_heads_far_apart(self, rng, causal):
        """12 heads of 480 numbers: the offset of the last is 5,280, and one within a head below 512."""
        case = tensor_case(rng, n=30, d=16, batch=(12,), causal=causal)
        assert_int64_offsets("flash_backward", case.backward_arguments, 11 * 30 * 16, "the last head", causal, 16, 16)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        given = tensor_case(rng, n=20, d=8).backward_arguments
        with unchanged(given):
            called_without_copies("flash_backward", *given.values())

    @pytest.mark.refuses
    def test_shapes_that_do_not_fit(self, rng):
        given = tensor_case(rng, n_queries=6, n_keys=5, d=8).backward_arguments
        assert_refused(flash_backward, mismatched_shapes(*given.values()))

    @pytest.mark.refuses
    def test_bad_blocks_and_dtypes(self, rng):
        given = tensor_case(rng, n=6, d=8).backward_arguments
        assert_blocks_refused(flash_backward, *given.values())
        wide = (given | {name: given[name].double() for name in "QKV"}).values()
        assert_raises(TypeError, lambda: flash_backward(*wide), when="for float64", mentions=("float64",))

    @pytest.mark.cost
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
    def test_bytes_of_both_loops(self, rng, dtype):
        case, block = tensor_case(rng, n=64, d=32, causal=True, dtype=dtype), 16
        seen = measure("flash_backward", case, block, block)
        tiles = len(tiles_seen(case, block, block))
        a_loop = tiles * block * ((3 * 32 + 2 * 32) * dtype.itemsize + 2 * 4)  # rows of Q, dO, O and K, V; of L and D
        hidden = "\nUsual cause: hidden tiles are loaded too: results are right all the same"
        converted = "\nUsual cause: torch converts the inputs to float32, and the kernels load those"
        hint = (
            "a tile needs rows of Q, dO and O, and of K and V, once in each of at most two loops, in the inputs' dtype"
        )
        hint += hidden if dtype == torch.float32 else converted
        assert_at_most("the bytes loaded by both loops", sum(seen["loaded"].values()), 2 * a_loop, hint=hint)
        hint = "two loops of three and four products a tile, the scores among them twice, are the most that is needed"
        a_product = tiles * block * block * 32
        each, more = divmod(sum(math.prod(product) for product in seen["products"]), a_product)
        hint += hidden if more else f"\nUsual cause: {each} products a tile"
        assert_multiplied(seen, 7 * a_product, hint=hint)

    @pytest.mark.cost
    def test_float32_is_multiplied_exactly(self, rng):
        made = compiled_for("flash_backward", 80, {}, tensor_case(rng, n=16).backward_arguments, False, 16, 16)
        assert_compiles(made, 80, products=False, spills=True, exact=True)

    @pytest.mark.cost
    def test_compiles_without_spilling(self, rng):
        case = tensor_case(rng, n=16, d=64, dtype=torch.float16, causal=True)
        assert_compiles(compiled_for("flash_backward", 90, {}, case.backward_arguments, True, 32, 32), 90)

    @pytest.mark.gpu
    @causal_or_not
    def test_on_a_device(self, rng, causal):
        case = tensor_case(rng, n=300, d=64, batch=(2,), dtype=torch.float16, causal=causal)
        result = on_device(own_file(), "flash_backward", list(case.backward_arguments.values()), causal, 32, 32)
        for name, got in zip(GRADIENTS, result, strict=True):
            case.check(name, got, hint=ON_A_DEVICE)


def one_sequence(rng, q, k, v):
    """A batch of one sequence, of one head: q (d,), k (n, d) and v (n, d_v), of one dtype, in blocks of 64 tokens."""
    (n, d), d_v = k.shape, v.shape[-1]
    batch = PagedBatch(rng, (n,), block_size=64, kv_heads=1, group=1, d=d, d_v=d_v, dtype=q.dtype)
    (case,) = batch.cases
    case.Q, batch.q = q.view(1, 1, d), q.view(1, 1, d)
    case.share(k[None], v[None])
    tokens = torch.arange(n)
    places = batch.block_table[0, tokens // 64], tokens % 64
    batch.k_cache[places], batch.v_cache[places] = k[:, None], v[:, None]
    return batch


class TestPagedDecode:
    """Split, through a table."""

    def check(self, batch, num_splits=2, hint="", nan_hint=GARBAGE):
        """A call, right and sound; what it did."""
        given = dict(zip(CACHE, batch.arguments, strict=True))
        got, seen = called("paged_decode", given, num_splits)
        assert_type("o", got, torch.Tensor, "a tensor")
        if got.isnan().any():
            emptied = given | {name: given[name].nan_to_num(0) for name in ("k_cache", "v_cache")}
            if not called("paged_decode", emptied, num_splits)[0].isnan().any():
                nan_hint = FOREIGN_TOKENS
        assert_sound(seen, outside=["an exponential"])  # of a few log-sum-exps: parts may be merged by torch
        shape = (*batch.q.shape[:-1], batch.v_cache.shape[-1])
        require(tuple(got.shape) == shape, f"o has shape {tuple(got.shape)}, expected {shape}")
        for number, (case, o) in enumerate(zip(batch.cases, got, strict=True)):
            n = case.k.shape[-2]
            mistakes = split_mistakes(case, min(num_splits, n)) if n else {}
            try:
                case.check_results({"o": o[:, None]}, mistakes, hint=hint, nan_hint=nan_hint if n else NO_TOKENS)
            except AssertionError as error:
                about = f"in sequence {number}, of {n} tokens in {num_splits} parts, seen as (H_q, 1, d_v)"
                error.args = (f"{about}, {error}",)
                raise
        return seen

    @pytest.mark.basic
    @pytest.mark.parametrize(
        ("lengths", "dtype"), [((45, 5, 1), torch.float32), ((8, 16), torch.float16)], ids=["45-5-1", "8-16-float16"]
    )
    def test_lengths(self, rng, lengths, dtype):
        batch = PagedBatch(rng, lengths, block_size=8, d_v=5, dtype=dtype)
        self.check(batch)

    @pytest.mark.basic
    def test_worked_example(self):
        k_cache, v_cache = torch.zeros(4, 2, 1, 1), torch.arange(1.0, 9.0).view(4, 2, 1, 1)
        tensors = (torch.ones(1, 1, 1), k_cache, v_cache, torch.tensor([[2, 0, -1]]), torch.tensor([3]))
        got, _ = called("paged_decode", dict(zip(CACHE, tensors, strict=True)), 2)
        require(tuple(got.shape) == (1, 1, 1), f"o has shape {tuple(got.shape)}, expected (1, 1, 1)")
        mistakes = {
            "blocks are taken in order, whatever the table says": 2.0,
            "the last token is in no part": 5.5,
            "the parts' outputs are averaged, whatever they weigh": 3.25,
            "a part goes on to the last token, behind its own end": 3.25,
        }
        hint = GARBAGE if got.isnan().any() else ""
        assert_equal("o, the mean of 5, 6 and 1,", round(float(got), 5), 4.0, mistakes=mistakes, hint=hint)

    @pytest.mark.parametrize("num_splits", [1, 5])
    def test_splits(self, rng, num_splits):
        self.check(PagedBatch(rng, (37, 5), block_size=8), num_splits)

    @pytest.mark.parametrize(("kv_heads", "group"), [(2, 3), (1, 17)])
    def test_groups(self, rng, kv_heads, group):
        batch = PagedBatch(rng, (13, 6), block_size=4, kv_heads=kv_heads, group=group)
        self.check(batch)

    @pytest.mark.parametrize("block_size", [1, 5, 64])
    def test_block_sizes(self, rng, block_size):
        batch = PagedBatch(rng, (17, 64), block_size=block_size, d=20, d_v=20)
        self.check(batch)

    def test_random_sizes(self, rng):
        for _ in range(3):
            size, kv_heads, group, d, d_v, *lengths = rng.integers(1, (9, 3, 4, 20, 20, 40, 40)).tolist()
            sizes = {"block_size": size, "kv_heads": kv_heads, "group": group, "d": d, "d_v": d_v}
            self.check(PagedBatch(rng, lengths, **sizes), int(rng.integers(1, 5)))

    @pytest.mark.robust
    def test_more_splits_than_tokens(self, rng):
        hint = "a part without tokens weighs something: its log-sum-exp is −inf; −inf − (−inf) is NaN, and so is 0 / 0"
        self.check(PagedBatch(rng, (2, 9, 1), block_size=4), 5, hint, hint)

    @pytest.mark.robust
    def test_sequences_without_tokens(self, rng):
        self.check(PagedBatch(rng, (5, 0, 9), block_size=4))

    @pytest.mark.robust
    def test_large_logits(self, rng):
        batch = PagedBatch(rng, (30, 9), block_size=4, logit_scale=1000)
        self.check(batch, hint=OVERFLOW, nan_hint=OVERFLOW)

    @pytest.mark.robust
    def test_scores_and_log_sum_exps_are_kept_in_float32(self, rng):
        """All scores are 256 and a little, which float16 would lose."""
        batch = PagedBatch(rng, (200, 64), block_size=16, d=16, dtype=torch.float16)
        hint = f"the parts' log-sum-exps belong in float32, until they are merged; or {SHORT_SCORES}"
        batch.q[..., 0] = 32
        for case in batch.cases:
            case.Q[..., 0] = case.k[..., 0] = case.K[..., 0] = 32
        batch.k_cache[..., 0] = torch.where(batch.k_cache[..., 0].isnan(), torch.nan, 32)
        got, _ = called("paged_decode", dict(zip(CACHE, batch.arguments, strict=True)), 4)
        for case, o in zip(batch.cases, got, strict=True):
            baseline = case.baseline["O"].astype(np.float16)
            assert_close("o", o[:, None].double(), case.want["O"], baseline=baseline, hint=hint)

    @pytest.mark.robust
    def test_long_sums_in_half_precision(self, rng):
        """512 tokens of weight 1, then tiles of weight exp(−5.2) a token: a sum in float16 has no room for these."""
        n = 512 + 32 * 75
        q, k, v = torch.zeros(16), torch.zeros(n, 16), torch.ones(n, 16)
        q[0], k[:512, 0], k[512:, 0], v[512:] = 4, 2.6, -2.6, 1.3
        self.check(one_sequence(rng, q.half(), k.half(), v.half()), 1, SHORT_SUMS)

    @pytest.mark.robust
    def test_parts_are_kept_in_float32(self, rng):
        """All tokens weigh the same: means near 1000 and −1000 nearly cancel, and float16 has steps of 0.5 there."""
        v = torch.full((128, 16), 1000.0)
        v[64:] = -1000
        v[:64] += 0.5 * (torch.arange(64)[:, None] < torch.from_numpy(rng.integers(1, 30, 16)))
        batch = one_sequence(rng, torch.zeros(16).half(), torch.ones(128, 16).half(), v.half())
        self.check(batch, 2, "a part's output is rounded to half precision before the parts are merged")

    @pytest.mark.robust
    def test_blocks_far_apart(self, rng):
        """Of 23 blocks of 4 tokens the farthest in use begins at element 1,024 or later; all else is below that."""
        batch = PagedBatch(rng, (44, 35), block_size=4, d=16)
        given = dict(zip(CACHE, batch.arguments, strict=True))
        assert_int64_offsets("paged_decode", given, 1024, "the farthest block in use", 2)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        given = PagedBatch(rng, (9, 4), block_size=4).arguments
        with unchanged(dict(zip(CACHE, given, strict=True))):
            called_without_copies("paged_decode", *given, 2)

    @pytest.mark.cost
    @pytest.mark.parametrize(("num_splits", "dtype"), [(1, torch.float16), (3, torch.float32)], ids=str)
    def test_bytes_are_the_contexts(self, rng, num_splits, dtype):
        lengths, d = (41, 19, 5), 32
        batch = PagedBatch(rng, lengths, block_size=8, kv_heads=2, group=4, d=d, dtype=dtype)
        seen = self.check(batch, num_splits)
        for name in ("k_cache", "v_cache"):
            want = sum(lengths) * 2 * d * dtype.itemsize
            mistakes = {
                "each query head reads for itself: a group shares one read": 4 * want,
                "whole blocks are read": sum(-(-n // 8) * 8 for n in lengths) * 2 * d * dtype.itemsize,
            }
            mistakes["torch makes a copy of it, and the kernels load from that"] = 0
            found = {name: seen["of_arguments"].get(name, 0)}
            assert_bytes(
                "loaded", found, want, mistakes, hint="a token is read again, or one that is not the sequence's"
            )
        most = 3 * 8 * num_splits * (d + 1) * 4 + 3 * 8 * d * 4
        hint = "a part stores an output and a log-sum-exp of each query head: splits · H_q · (d_v + 1) a sequence"
        assert_at_most("the bytes stored", sum(seen["stored"].values()), most, hint=hint)

    @pytest.mark.cost
    def test_parts_have_programs_of_their_own(self, rng):
        seen = self.check(PagedBatch(rng, (41, 19), block_size=8, kv_heads=1), 3)
        found = seen["readers"].get("k_cache", 0)
        message = f"{found} programs load the keys of 2 sequences in 3 parts each, expected 6 at least"
        cause = "one program goes through several parts: each part has programs of its own, which run at the same time"
        require(found >= 6, f"{message}\nUsual cause: {cause}")

    @pytest.mark.cost
    def test_float32_is_multiplied_exactly(self, rng):
        batch = PagedBatch(rng, (40,), block_size=16, d=16, d_v=16, group=4)
        made = compiled_for("paged_decode", 80, {}, dict(zip(CACHE, batch.arguments, strict=True)), 2)
        assert_compiles(made, 80, products=False, spills=True, exact=True)

    @pytest.mark.cost
    def test_compiles_without_spilling(self, rng):
        batch = PagedBatch(rng, (40,), block_size=16, d=64, d_v=64, group=4, dtype=torch.float16)
        tensors = dict(zip(CACHE, batch.arguments, strict=True))
        assert_compiles(compiled_for("paged_decode", 80, {}, tensors, 2), 80)

    @pytest.mark.refuses
    def test_bad_arguments(self, rng):
        q, *rest = PagedBatch(rng, (9, 4), block_size=4).arguments
        call = functools.partial(paged_decode, q[:, :3], *rest, 2)
        assert_raises(ValueError, call, when="for 3 query heads on 2", mentions={"H_q": 3, "H_kv": 2})
        assert_raises(ValueError, lambda: paged_decode(q, *rest, 0), when="for 0 splits", mentions={"num_splits": 0})
        assert_raises(TypeError, lambda: paged_decode(q.double(), *rest, 2), when="for float64", mentions=("float64",))

    @pytest.mark.gpu
    def test_on_a_device(self, rng):
        batch = PagedBatch(rng, (300, 5, 77), block_size=16, d=64, d_v=64, group=4, dtype=torch.float16)
        (got,) = on_device(own_file(), "paged_decode", batch.arguments, 4)
        for case, o in zip(batch.cases, got, strict=True):
            case.check_results({"o": o[:, None]}, hint=ON_A_DEVICE)


CONFIGURATIONS = list(itertools.product((32, 64, 128), (2, 4), TARGETS))
"""Every width, dtype and architecture that may be asked for: one that was tried says nothing of the others."""
PARTS = ("block_q", "block_k", "num_warps", "num_stages")


OF_DESCRIPTORS = 256
"""Bytes of stack that tensor descriptors take which a kernel makes for itself, whatever its blocks are."""


@functools.cache
def configured(head_dim, dtype_bytes, arch):
    """What is chosen, and what the compiler and the assembler make of the causal forward kernel with it."""
    chosen = choose_config(head_dim, dtype_bytes, arch)
    block_q, block_k, num_warps, num_stages = assert_tuple("the configuration", chosen, PARTS)
    dtype = torch.float16 if dtype_bytes == 2 else torch.float32
    inputs = tensor_case(np.random.default_rng(0), n=16, d=head_dim, dtype=dtype).arguments
    options = {"num_warps": num_warps, "num_stages": num_stages}
    try:
        made = compiled_for("flash_forward", arch, options, inputs, True, block_q, block_k)
    except NotImplementedError:
        require(False, "the compiler is given your flash_forward with what is chosen: write that first")
    return chosen, assert_compiles(made, arch, products=dtype_bytes == 2, stack=OF_DESCRIPTORS, exact=True), made


class TestChooseConfig:
    """Graded by the compiler, on the forward kernel of the same file."""

    @by_arch
    @pytest.mark.parametrize("dtype_bytes", [2, 4])
    def test_what_is_asked_for(self, dtype_bytes, arch):
        for head_dim in (32, 64, 128):
            chosen = choose_config(head_dim, dtype_bytes, arch)
            block_q, block_k, num_warps, num_stages = assert_tuple("the configuration", chosen, PARTS)
            for name, size in (("block_q", block_q), ("block_k", block_k)):
                require(size >= 16 and size & (size - 1) == 0, f"{name} is {size}, expected a power of two from 16 on")
            require(num_warps in (4, 8), f"num_warps is {num_warps}, expected 4 or 8")
            least, passes = 64 if dtype_bytes == 2 else 32, -(-4096 // block_q)
            why = f"with N = 4096 K and V are read {passes} times"
            require(block_q >= least, f"block_q is {block_q}, expected {least} at least: {why}")
            why = "with less than 2 the next tile is not on its way while this one is multiplied"
            require(num_stages >= 2, f"num_stages is {num_stages}: {why}")

    @pytest.mark.parametrize(
        ("head_dim", "dtype_bytes", "arch"),
        CONFIGURATIONS,
        ids=[f"d{d}-{size}bytes-sm_{arch}" for d, size, arch in CONFIGURATIONS],
    )
    def test_the_compiler_takes_it(self, head_dim, dtype_bytes, arch):
        chosen, taken, _ = configured(head_dim, dtype_bytes, arch)
        shared = max(each.shared for each in taken)
        require(shared <= SHARED_BYTES[arch], f"{chosen}: {shared:,} B of shared memory are too much for sm_{arch}")

    @pytest.mark.parametrize("head_dim", [64, 128])
    def test_hopper_multiplies_by_warpgroups(self, head_dim):
        chosen, _, made = configured(head_dim, 2, 90)
        require(
            any("wgmma" in each["ptx"] for each in made),
            f"with {chosen} the kernel for sm_90 has no wgmma: it multiplies as an A100 does, at half of the speed\n"
            "Usual cause: four warps work as one on 64 rows: block_q below 16 rows a warp leaves none for them",
        )

    @pytest.mark.refuses
    def test_bad_arguments(self, rng):
        narrow, wide = (int(rng.integers(*limits)) for limits in ((1, 32), (129, 300)))
        for changed in ({"head_dim": 48}, {"dtype_bytes": 3}, {"arch": 75}, {"head_dim": narrow}, {"head_dim": wide}):
            given = {"head_dim": 64, "dtype_bytes": 2, "arch": 80} | changed
            call = functools.partial(choose_config, *given.values())
            assert_raises(ValueError, call, when=f"for {changed}", mentions=changed)
