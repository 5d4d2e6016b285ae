"""Lab 10's suite: kernels' results, the bytes they move, and what a GPU and its compiler would say of them."""

import functools
import math
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from triton_kernel import choose_config, flash_backward, flash_forward, paged_decode, softmax_rows

from labkit.kernels.device import on_device
from labkit.kernels.resources import SHARED_BYTES, TARGETS
from labkit.meters.kernels.calls import compiled_call, kernel_call
from labkit.meters.kernels.far import ROW_STRIDE, call_on_far_rows
from labkit.testing.attention.tensor_cases import Case, strided
from labkit.testing.attention.tensor_suspects import backward_suspects, forward_suspects, lse_suspects
from labkit.testing.compare import (
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_raises,
    assert_tuple,
    assert_type,
    assert_unchanged,
    compare_each,
    require,
)
from labkit.testing.decoding.grouped import split_suspects
from labkit.testing.decoding.paging import PagedBatch
from labkit.testing.kernels.assertions import GARBAGE, assert_bytes, assert_compiles, assert_multiplied, assert_sound
from labkit.testing.kernels.row_softmax import assert_softmax
from labkit.testing.probes import probe
from labkit.testing.tiles.counts import tiles_with_an_entry
from labkit.testing.tiles.io_formulas import queries_outside_traffic

robust, small, refuses = (pytest.mark.kind(kind) for kind in ("robust", "small", "refuses"))
causal_or_not = pytest.mark.parametrize("causal", [False, True])
by_arch = pytest.mark.parametrize("arch", list(TARGETS))
by_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
BLOCKS = [(32, 16), (16, 64), (64, 32)]
GRADIENTS = ("dQ", "dK", "dV")
RESULTS = {"flash_forward": ("O", "L"), "flash_backward": GRADIENTS}
CACHE = ("q", "k_cache", "v_cache", "block_table", "context_lens")

ON_A_DEVICE = "the interpreter agrees with the reference: is anything read or written by two programs, or past an end?"
OVERFLOW = "exp overflows: no score may enter exp without the row's maximum, or L, taken from it"
SHORT_SUMS = "sums of float16 belong in float32: accumulators made with tl.float32, one .to(…) at the end"
NO_TOKENS = "without tokens the largest score is −inf, −inf − (−inf) is NaN, and so is 0 / 0"


# Every call is watched, where the answer is


@probe
def called(task, given, *more, garbage=True):
    """What a task returns, and what its kernels did."""
    return kernel_call(_function(task), given, *more, garbage=garbage)


@probe
def compiled_for(task, archs, options, given, *more):
    """The kernels of a call, compiled for each of `archs`."""
    return compiled_call(_function(task), given, *more, archs=archs, **options)


@probe
def softmax_of_far_rows(x):
    return call_on_far_rows(softmax_rows, x)


@probe
def _function(task):
    return {
        "softmax_rows": softmax_rows,
        "flash_forward": flash_forward,
        "flash_backward": flash_backward,
        "paged_decode": paged_decode,
    }[task]


class TestSoftmaxRows:
    """One kernel, a row at a time."""

    def check(self, x, hint="", nan_hint=GARBAGE):
        got, seen = called("softmax_rows", {"x": x})
        assert_sound(seen)
        assert_softmax(got, x, hint=hint, nan_hint=nan_hint)
        return seen

    def test_worked_example(self):
        self.check(torch.tensor([[0.0, math.log(3)]]), "exp(0) = 1 and exp(1.0986) = 3 of 4 in all")

    @by_dtype
    @pytest.mark.parametrize("shape", [(1, 1), (5, 63), (7, 129), (3, 500), (2, 64)])
    def test_shapes(self, rng, shape, dtype):
        x = torch.from_numpy(rng.standard_normal(shape)).to(dtype) * 3
        self.check(x, "the lanes behind a row's end must weigh nothing: −inf, not 0")

    def test_rows_below_zero(self, rng):
        x = torch.from_numpy(rng.standard_normal((4, 37))).float() - 30
        self.check(x, "a lane behind the end that scores 0 is the largest of such a row: other=-inf")

    def test_no_rows(self):
        got, _ = called("softmax_rows", {"x": torch.empty(0, 5)})
        assert_softmax(got, torch.empty(0, 5))

    @robust
    @pytest.mark.parametrize("logit_scale", [100, 10_000])
    def test_large_numbers(self, rng, logit_scale):
        self.check(torch.from_numpy(rng.standard_normal((5, 70)) * logit_scale).float(), OVERFLOW, OVERFLOW)

    @robust
    def test_numbers_left_out(self, rng):
        x = torch.from_numpy(rng.standard_normal((4, 33))).float()
        x[0, 3:], x[1, :], x[2, -1] = -math.inf, -math.inf, -math.inf
        hint = "a row of −inf alone gives zeros: −inf − (−inf) is NaN, and so is 0 / 0"
        self.check(x, hint, hint)

    @robust
    def test_half_precision_is_summed_in_float32(self, rng):
        x = torch.from_numpy(rng.uniform(0, 0.1, (2, 70_000))).half()
        self.check(x, "70,000 powers near 1 are summed in float16, which ends at 65,504: convert what was loaded")

    @robust
    def test_any_strides(self, rng):
        wide = torch.from_numpy(rng.standard_normal((9, 90))).float()
        for x in (wide[::2, :41], wide.T, wide[:, ::3]):
            self.check(x, "row i begins at x.stride(0) · i, column j lies x.stride(1) · j behind that")

    @robust
    def test_rows_far_apart(self, rng):
        x = torch.from_numpy(rng.standard_normal((3, 50))).half()
        got, outside = softmax_of_far_rows(x)
        require(
            not outside,
            f"with rows {ROW_STRIDE:,} elements apart a program loads at element {(outside or [0])[0]:,}, expected "
            f"{2 * ROW_STRIDE:,}\nOffsets in int32 end at 2,147,483,647 and begin anew below 0; "
            "smaller tensors never show it\nUsual cause: tl.program_id is int32: .to(tl.int64) before it is multiplied",
        )
        assert_softmax(got, x)

    @small
    @by_dtype
    def test_each_number_moves_once(self, rng, dtype):
        x = torch.from_numpy(rng.standard_normal((6, 100))).to(dtype)
        seen = self.check(x)
        for what in ("loaded", "stored"):
            hint = "a row stays in registers between its maximum, its sum and its division: one load, one store"
            assert_bytes(what, seen[what], 600 * x.itemsize, hint=hint)

    @small
    @by_arch
    def test_compiles(self, rng, arch):
        x = torch.from_numpy(rng.standard_normal((2, 500))).half()
        assert_compiles(compiled_for("softmax_rows", [arch], {}, {"x": x})[arch], arch, products=False)

    @refuses
    def test_bad_arguments(self):
        assert_raises(ValueError, lambda: softmax_rows(torch.ones(3)), when="for x of one axis", mentions=("(3,)",))
        for dtype in (torch.bfloat16, torch.int32):
            x = torch.ones(2, 3, dtype=dtype)
            assert_raises(TypeError, lambda x=x: softmax_rows(x), when=f"for {dtype}", mentions=(str(dtype),))


# Attention


def own_file():
    """Where the answer lies: it is called in another process, where kernels are compiled."""
    return Path(sys.modules["triton_kernel"].__file__)


def given(task, case):
    """The tensors that a pass is given, by their names."""
    inputs = {"Q": case.Q, "K": case.K, "V": case.V}
    if task == "flash_backward":
        inputs |= dict(zip(("O", "L"), case.forward_result, strict=True)) | {"dO": case.dO}
    return inputs


def tiles_seen(case, block_q, block_k):
    """Row and column of each tile in which some query sees a key."""
    return tiles_with_an_entry(case.Q.shape[-2], case.K.shape[-2], block_q, block_k, case.causal)


class EitherPass:
    """What is asked of both passes."""

    task: ClassVar[str]

    def check(self, case, block_q=32, block_k=32, hint="", nan_hint=GARBAGE):
        """The results of a call, right and sound; what it did."""
        result, seen = called(self.task, given(self.task, case), case.causal, block_q, block_k)
        assert_sound(seen)
        usual = forward_suspects if self.task == "flash_forward" else backward_suspects
        suspects = functools.partial(usual, case, block_q, block_k)
        names = RESULTS[self.task]
        got = dict(zip(names, assert_tuple(f"{self.task}'s result", result, names), strict=True))

        def check(name):
            found = (lambda: suspects() | lse_suspects(case)) if name == "L" else suspects
            case.check(name, got[name], found, hint=hint, nan_hint=nan_hint)
            assert_dtype(name, got[name], case.precise if name == "L" else case.Q.dtype)

        compare_each(names, check)
        return seen

    def test_worked_example(self):
        case = Case.of([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [0.0]], [[1.0]])
        self.check(case, 16, 16, hint="compare each step with the handout's numbers")

    @causal_or_not
    @by_dtype
    def test_odd_lengths(self, rng, causal, dtype):
        self.check(Case(rng, n=63, d=17, causal=causal, dtype=dtype))

    @causal_or_not
    @pytest.mark.parametrize(("n_queries", "n_keys"), [(5, 70), (70, 7)])
    def test_other_lengths(self, rng, n_queries, n_keys, causal):
        hint = "query i sees the keys j ≤ i, whatever the lengths" if causal else "N_q is taken for N_k somewhere"
        self.check(Case(rng, n_queries=n_queries, n_keys=n_keys, d=16, causal=causal), hint=hint)

    @by_dtype
    def test_values_of_another_width(self, rng, dtype):
        for d, d_v in [(24, 5), (7, 40)]:
            self.check(Case(rng, n=40, d=d, d_v=d_v, dtype=dtype), hint="d is taken for d_v somewhere")

    @pytest.mark.parametrize(("batch", "causal"), [((3,), False), ((2, 2), True)])
    def test_batch(self, rng, batch, causal):
        case = Case(rng, n_queries=20, n_keys=49, d=8, batch=batch, causal=causal)
        case.Q *= 10.0 ** torch.arange(batch[-1])[:, None, None]
        self.check(case, hint="every batch entry is an attention of its own: its tensors begin N · d further on")

    @causal_or_not
    @pytest.mark.parametrize(("block_q", "block_k"), BLOCKS)
    def test_blocks_that_do_not_divide(self, rng, block_q, block_k, causal):
        case = Case(rng, n_queries=65, n_keys=59, d=8, causal=causal)
        self.check(case, block_q, block_k, hint="the last block holds fewer rows than a tile")

    def test_keys_that_score_below_zero(self, rng):
        case = Case(rng, n_queries=9, n_keys=20, d=8)
        case.Q, case.K = case.Q.abs() + 1, -case.K.abs() - 1
        self.check(case, 16, 16, hint="keys behind the end score 0, more than all that are there: give them −inf")

    def test_sizes_drawn_at_random(self, rng):
        for _ in range(3):
            n_queries, n_keys, d, d_v = (int(x) for x in rng.integers(2, 50, 4))
            block_q, block_k = (int(x) for x in 2 ** rng.integers(4, 7, 2))
            case = Case(rng, n_queries=n_queries, n_keys=n_keys, d=d, d_v=d_v, causal=bool(rng.integers(2)))
            self.check(case, block_q, block_k)

    @causal_or_not
    @pytest.mark.parametrize("logit_scale", [30, 10_000])
    @robust
    def test_large_logits(self, rng, logit_scale, causal):
        self.check(Case(rng, n=40, causal=causal, logit_scale=logit_scale), hint=OVERFLOW, nan_hint=OVERFLOW)

    @robust
    def test_sums_of_half_precision_are_kept_in_float32(self, rng):
        n_queries, n_keys = (17, 300) if self.task == "flash_forward" else (800, 16)
        case = Case(rng, n_queries=n_queries, n_keys=n_keys, d=16, dtype=torch.float16)
        case.Q, case.K, case.V, case.dO = (x.abs() + 1 for x in (case.Q, case.K, case.V, case.dO))
        case.Q /= 8
        case.V[: n_keys // 2] += 4  # so that a sum first grows, then shrinks: what it lost on the way stays lost
        self.check(case, 16, 16, hint=SHORT_SUMS)

    @robust
    def test_inputs_need_not_be_contiguous(self, rng):
        case = Case(rng, n=20, d=8, batch=(2, 3))
        case.Q, case.K, case.V, case.dO = strided(case.Q, case.K, case.V, case.dO)
        self.check(case, hint="a (batch, N, heads, d) tensor seen as (batch, heads, N, d): its rows are not adjacent")

    @robust
    def test_arguments_are_left_alone(self, rng):
        case = Case(rng, n=20, causal=True)
        tensors = given(self.task, case)
        before = {name: x.clone() for name, x in tensors.items()}
        {"flash_forward": flash_forward, "flash_backward": flash_backward}[self.task](*tensors.values(), True, 16, 16)
        for name, now in tensors.items():
            assert_unchanged(name, now, before[name])

    @refuses
    def test_bad_arguments(self, rng):
        call = {"flash_forward": flash_forward, "flash_backward": flash_backward}[self.task]
        case = Case(rng, n_queries=6, n_keys=5, d=8)
        Q, K, V, *rest = given(self.task, case).values()
        for inputs, when, shapes in [
            ((Q, K[:, :7].contiguous(), V), "when Q and K differ in d", ("(6, 8)", "(5, 7)")),
            ((Q, K, V[:4]), "when K and V differ in N_k", ("(5, 8)", "(4, 8)")),
        ]:
            assert_raises(ValueError, lambda inputs=inputs: call(*inputs, *rest), when=when, mentions=shapes)
        for name, size in [("block_q", 8), ("block_k", 48), ("block_q", 0)]:
            blocks = {name: size}
            assert_raises(ValueError, lambda blocks=blocks: call(Q, K, V, *rest, **blocks),
                          when=f"for {name}={size}", mentions=(name,))  # fmt: skip
        wide = [x.double() for x in (Q, K, V)]
        assert_raises(TypeError, lambda: call(*wide, *rest), when="for float64", mentions=("float64",))

    @small
    def test_float32_is_multiplied_exactly(self, rng):
        case = Case(rng, n=16, d=32)
        made = compiled_for(self.task, [80], {}, given(self.task, case), False, 16, 16)[80]
        assert_compiles(made, 80, products=False, spills=True, exact=True)


class TestFlashForward(EitherPass):
    task = "flash_forward"

    def test_one_query_and_one_key(self, rng):
        self.check(Case(rng, n=1, d=17))

    @robust
    def test_scores_of_half_precision_are_kept_in_float32(self, rng):
        case = Case(rng, n=40, d=16, dtype=torch.float16)
        case.Q[..., 0] = case.K[..., 0] = 32  # all scores are 256 and a little, which float16 would lose
        (O, _), _ = called(self.task, given(self.task, case), False, 16, 16)
        Q, K, V = (x.float() for x in case.inputs)
        plain = ((Q @ K.mT / 4).softmax(-1) @ V).half().numpy()
        hint = "scores are rounded to half precision: tl.dot gives float32, which exp needs"
        assert_close("O", O.double().numpy(), case.want["O"], plain=plain, hint=hint)

    @robust
    def test_very_negative_logits(self, rng):
        case = Case(rng, n=40)
        case.Q, case.K = case.Q.abs() * 300, -case.K.abs() - 1
        hint = "the largest score may be far below 0: start m at −inf, not at 0"
        self.check(case, 16, 16, hint=hint, nan_hint=hint)

    @robust
    def test_without_keys(self, rng):
        case = Case(rng, n_queries=5, n_keys=1, batch=(2,))
        (O, L), _ = called(self.task, {"Q": case.Q, "K": case.K[:, :0], "V": case.V[:, :0]})
        require(O.shape == (2, 5, 16) and bool((O == 0).all()), "without keys (N_k = 0) O must be 0")
        require(L.shape == (2, 5) and bool(L.isneginf().all()), "without keys (N_k = 0) L must be −inf")

    @small
    @by_dtype
    @pytest.mark.parametrize(("block_q", "block_k"), [(16, 16), (32, 64)])
    def test_bytes_are_those_of_lab_04(self, rng, block_q, block_k, dtype):
        case = Case(rng, n_queries=63, n_keys=129, d=32, dtype=dtype)
        seen = self.check(case, block_q, block_k)
        sizes, itemsize = (63, 129, 32, 32), case.Q.itemsize
        want = queries_outside_traffic(*sizes, block_q, block_k, itemsize)
        exchanged = queries_outside_traffic(*sizes, block_k, block_q, itemsize)
        others = {
            "the two block sizes are exchanged": exchanged.loaded,
            "K and V are read twice: one pass over the keys is enough": 2 * want.loaded - 63 * 32 * itemsize,
        }  # fmt: skip
        hint = "a program keeps its queries, and reads every key and value once: Q + ⌈N_q / block_q⌉ · (K + V)"
        assert_bytes("loaded", seen["loaded"], want.loaded, others, hint=hint)
        hint = "O once, in its dtype, and one float32 a query for L: nothing else leaves the multiprocessor"
        assert_bytes("stored", seen["stored"], want.stored + 63 * 4, hint=hint)

    @small
    @pytest.mark.parametrize(("block_q", "block_k"), [(16, 16), (32, 16), (16, 32)])
    def test_hidden_tiles_are_not_loaded(self, rng, block_q, block_k):
        case = Case(rng, n_queries=80, n_keys=112, d=32, causal=True)
        seen = self.check(case, block_q, block_k)
        tiles = tiles_seen(case, block_q, block_k)
        rows = sum(min(block_k, 112 - column * block_k) for _, column in tiles)
        most = (80 * 32 + rows * 64) * 4
        hint = (
            "results are right all the same, since hidden keys weigh nothing; on a GPU the bytes cost the time\n"
            "Usual cause: the loop over keys goes to N_k: the last query of a block is the last to see anything"
        )
        assert_at_most("causal, the bytes loaded", sum(seen["loaded"].values()), most, hint=hint)
        assert_multiplied(seen, len(tiles) * block_q * block_k * 64, hint="each tile takes two products: Q Kᵀ and P V")

    @small
    @by_arch
    def test_compiles_without_spilling(self, rng, arch):
        case = Case(rng, n=16, d=64, dtype=torch.float16, causal=True)
        assert_compiles(compiled_for(self.task, [arch], {}, given(self.task, case), True, 64, 64)[arch], arch)

    @pytest.mark.gpu
    @causal_or_not
    def test_on_a_device(self, rng, causal):
        case = Case(rng, n=500, d=64, batch=(2, 3), dtype=torch.float16, causal=causal)
        O, L = on_device(own_file(), self.task, case.inputs, causal, 64, 64)
        case.check("O", O, hint=ON_A_DEVICE)
        case.check("L", L, hint=ON_A_DEVICE)
        built_in = torch.nn.functional.scaled_dot_product_attention(*(x.cuda() for x in case.inputs), is_causal=causal)
        off = float((O - built_in.cpu()).abs().max())
        require(off < 4e-3, f"O differs from scaled_dot_product_attention on the same device by {off:.3g}")

    @small
    def test_smallest_tiles_compile(self, rng):
        case = Case(rng, n=16, d=5, d_v=3, dtype=torch.float16)
        assert_compiles(compiled_for(self.task, [80], {}, given(self.task, case), False, 16, 16)[80], 80)


class TestFlashBackward(EitherPass):
    task = "flash_backward"

    def test_weights_come_from_the_given_l(self, rng):
        case = Case(rng, n=40, d=8)
        tensors = given(self.task, case)
        (_, _, dV), _ = called(self.task, tensors | {"L": tensors["L"] + math.log(2)}, False, 16, 16)
        half = case.want["dV"] / 2
        hint = "weights exp(S − L) are then half as large: the softmax is not computed once more"
        plain = case.plain["dV"] / 2
        assert_close("dV with log 2 added to L", dV, half, plain=plain, hint=hint)

    def test_d_comes_from_the_given_o(self, rng):
        case = Case(rng, n=40, d=8)
        tensors = given(self.task, case)
        others = (tensors, tensors | {"O": torch.zeros_like(tensors["O"])})
        right, without = (called(self.task, each, False, 16, 16)[0][0].double().numpy() for each in others)
        P = np.exp(case.arrays.scores - case.want["L"][..., None])
        D = (case.dO.double().numpy() * case.want["O"]).sum(-1, keepdims=True)
        change = P * D @ case.K.double().numpy() * 8**-0.5
        plain = change + (case.plain["dQ"] - case.want["dQ"])
        hint = "D is dO · O, from the O that is given"
        assert_close("what dQ changes by when 0 is given for O", without - right, change, plain=plain, hint=hint)

    @robust
    def test_keys_that_no_query_sees(self, rng):
        case = Case(rng, n_queries=20, n_keys=65, d=8, causal=True)
        (_, dK, dV), seen = called(self.task, given(self.task, case), True, 16, 16)
        assert_sound(seen)
        for name, got in (("dK", dK), ("dV", dV)):
            largest = float(got[20:].abs().nan_to_num(math.inf).max())
            require(largest == 0, f"{name} is {largest:.3g} for keys that come after every query, expected 0\n"
                    "Usual cause: no program writes there, and torch.empty found anything")  # fmt: skip

    @robust
    def test_gradient_of_a_sum(self, rng):
        case = Case(rng, n=30, d=8, batch=(2,))
        case.dO = torch.ones(()).expand(2, 30, 16)[..., :8]
        self.check(case, 16, 16, hint="dO of O.sum() is one number, expanded: a view with strides of 0")

    @robust
    def test_without_keys(self, rng):
        case = Case(rng, n_queries=5, n_keys=1, batch=(2,))
        empty = {"K": case.K[:, :0], "V": case.V[:, :0], "O": torch.zeros(2, 5, 16), "L": torch.full((2, 5), -math.inf)}
        (dQ, dK, dV), _ = called(self.task, {"Q": case.Q, **empty, "dO": case.dO})
        require(dQ.shape == (2, 5, 16) and bool((dQ == 0).all()), "without keys (N_k = 0) dQ must be 0")
        require(dK.shape == dV.shape == (2, 0, 16), f"dK is {tuple(dK.shape)}, dV {tuple(dV.shape)}, K (2, 0, 16)")

    @small
    @pytest.mark.parametrize("causal", [False, True])
    def test_bytes_of_both_loops(self, rng, causal):
        case, block = Case(rng, n=64, d=32, causal=causal), 16
        seen = self.check(case, block, block)
        tiles = len(tiles_seen(case, block, block))
        passes = tiles * block * (2 * 64 + 4 * 64) + 4 * 64 * (64 + 2)  # twice over all tiles, and sums added to
        hidden = "\nUsual cause: hidden tiles are loaded too: results are right all the same" if causal else ""
        hint = "every tile needs rows of Q and dO, or of K and V, once in each of at most two loops" + hidden
        assert_at_most("the bytes loaded by both loops", sum(seen["loaded"].values()), 4 * passes, hint=hint)
        most = tiles * block * block * 7 * 32
        hint = "two loops of three and four products a tile, the scores among them twice, are the most that is needed"
        hint += hidden
        assert_multiplied(seen, most, hint=hint)

    @small
    @by_arch
    def test_compiles_without_spilling(self, rng, arch):
        case = Case(rng, n=16, d=64, dtype=torch.float16, causal=True)
        assert_compiles(compiled_for(self.task, [arch], {}, given(self.task, case), True, 32, 32)[arch], arch)

    @pytest.mark.gpu
    @causal_or_not
    def test_on_a_device(self, rng, causal):
        case = Case(rng, n=300, d=64, batch=(2,), dtype=torch.float16, causal=causal)
        result = on_device(own_file(), self.task, list(given(self.task, case).values()), causal, 32, 32)
        for name, got in zip(GRADIENTS, result, strict=True):
            case.check(name, got, hint=ON_A_DEVICE)


# Decoding


def paged(batch, num_splits=2, hint="", nan_hint=GARBAGE):
    """A call of paged_decode, right and sound; what it did."""
    got, seen = called("paged_decode", dict(zip(CACHE, batch.arguments, strict=True)), num_splits)
    assert_type("o", got, torch.Tensor, "a tensor")
    assert_sound(seen, outside=["an exponential"])  # of a few log-sum-exps: parts may be merged by torch
    shape = (*batch.q.shape[:-1], batch.v_cache.shape[-1])
    require(tuple(got.shape) == shape, f"o has shape {tuple(got.shape)}, expected {shape}")
    for number, (case, o) in enumerate(zip(batch.cases, got, strict=True)):
        n = case.k.shape[-2]
        suspects = split_suspects(case, min(num_splits, n)) if n else {}
        told = f"sequence {number} of {n} tokens in {num_splits} parts. {hint}"
        case.check_results({"o": o[:, None]}, suspects, hint=told, nan_hint=nan_hint if n else NO_TOKENS)
    return seen


class TestPagedDecode:
    """Split, through a table."""

    def test_worked_example(self):
        k_cache, v_cache = torch.zeros(4, 2, 1, 1), torch.arange(1.0, 9.0).view(4, 2, 1, 1)
        tensors = (torch.ones(1, 1, 1), k_cache, v_cache, torch.tensor([[2, 0, -1]]), torch.tensor([3]))
        got, _ = called("paged_decode", dict(zip(CACHE, tensors, strict=True)), 2)
        require(got.shape == (1, 1, 1) and abs(float(got) - 4) < 1e-6, f"o is {got.tolist()}, expected [[[4.0]]]: the "
                "values 5, 6 and 1")  # fmt: skip

    @by_dtype
    @pytest.mark.parametrize("lengths", [(8, 16), (1, 5, 45), (7,)])
    def test_lengths(self, rng, lengths, dtype):
        paged(PagedBatch(rng, lengths, block_size=8, d_v=5, dtype=dtype), hint="tokens behind the last weigh nothing")

    @pytest.mark.parametrize("num_splits", [1, 3, 4, 7])
    def test_splits(self, rng, num_splits):
        hint = "each part weighs exp of its log-sum-exp, from which the largest of all was taken"
        paged(PagedBatch(rng, (37, 5), block_size=8), num_splits, hint)

    @pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (2, 3), (3, 1), (1, 17)])
    def test_groups(self, rng, kv_heads, group):
        hint = "query head h reads key head h // group"
        paged(PagedBatch(rng, (13, 6), block_size=4, kv_heads=kv_heads, group=group), hint=hint)

    @pytest.mark.parametrize("block_size", [1, 5, 16, 64])
    def test_block_sizes(self, rng, block_size):
        paged(
            PagedBatch(rng, (17, 64), block_size=block_size, d=20, d_v=20), hint="token t lies in block t // block_size"
        )

    def test_sizes_drawn_at_random(self, rng):
        for _ in range(3):
            size, kv_heads, group, d, d_v, *lengths = rng.integers(1, (9, 3, 4, 20, 20, 40, 40)).tolist()
            sizes = {"block_size": size, "kv_heads": kv_heads, "group": group, "d": d, "d_v": d_v}
            paged(PagedBatch(rng, lengths, **sizes), int(rng.integers(1, 5)))

    @robust
    def test_more_splits_than_tokens(self, rng):
        hint = "a part without tokens has log-sum-exp −inf and weighs nothing: no −inf − (−inf), no 0 / 0"
        paged(PagedBatch(rng, (2, 9, 1), block_size=4), 5, hint, hint)

    @robust
    @pytest.mark.parametrize("lengths", [(0,), (5, 0, 9)])
    def test_sequences_without_tokens(self, rng, lengths):
        paged(PagedBatch(rng, lengths, block_size=4), hint="without tokens the output is 0")

    @robust
    def test_integers_of_another_width(self, rng):
        batch = PagedBatch(rng, (9, 4), block_size=4)
        batch.block_table, batch.context_lens = batch.block_table.int(), batch.context_lens.int()
        paged(batch)

    @robust
    def test_large_logits(self, rng):
        paged(PagedBatch(rng, (30, 9), block_size=4, logit_scale=1000), hint=OVERFLOW, nan_hint=OVERFLOW)

    @robust
    def test_half_precision_is_merged_in_float32(self, rng):
        batch = PagedBatch(rng, (200, 64), block_size=16, dtype=torch.float16)
        paged(batch, 4, "the parts' outputs and log-sum-exps belong in float32, until they are merged")
        batch = PagedBatch(rng, (200, 64), block_size=16, dtype=torch.float16, logit_scale=30)
        paged(batch, 4, "scores are rounded to half precision: tl.dot gives float32, which exp needs")

    @small
    @pytest.mark.parametrize("num_splits", [1, 3])
    def test_bytes_are_the_contexts(self, rng, num_splits):
        lengths, d = (41, 19, 5), 32
        batch = PagedBatch(rng, lengths, block_size=8, kv_heads=2, group=4, d=d)
        seen = paged(batch, num_splits)
        for name in ("k_cache", "v_cache"):
            want = sum(lengths) * 2 * d * 4
            suspects = {"each query head reads for itself: a group shares one read": 4 * want,
                        "whole blocks are read": sum(-(-n // 8) * 8 for n in lengths) * 2 * d * 4}  # fmt: skip
            found = {name: seen["loaded"].get(name, 0)}
            assert_bytes("loaded", found, want, suspects, hint="H_kv · d numbers a token of a sequence's own, once")
        parts = 3 * 8 * num_splits * (d + 1) * 4 + 3 * 8 * d * 4
        hint = (
            "a part leaves an output and a log-sum-exp of each query head: splits · H_q · (d_v + 1) numbers a sequence"
        )
        assert_at_most("the bytes stored", sum(seen["stored"].values()), parts, hint=hint)

    @small
    @by_arch
    def test_compiles_without_spilling(self, rng, arch):
        batch = PagedBatch(rng, (40,), block_size=16, d=64, d_v=64, group=4, dtype=torch.float16)
        tensors = dict(zip(CACHE, batch.arguments, strict=True))
        assert_compiles(compiled_for("paged_decode", [arch], {}, tensors, 2)[arch], arch)

    @pytest.mark.gpu
    def test_on_a_device(self, rng):
        batch = PagedBatch(rng, (300, 5, 77), block_size=16, d=64, d_v=64, group=4, dtype=torch.float16)
        (got,) = on_device(own_file(), "paged_decode", batch.arguments, 4)
        for case, o in zip(batch.cases, got, strict=True):
            case.check_results({"o": o[:, None]}, hint=ON_A_DEVICE)

    @refuses
    def test_bad_arguments(self, rng):
        q, *rest = PagedBatch(rng, (9, 4), block_size=4).arguments
        assert_raises(ValueError, lambda: paged_decode(q[:, :3], *rest, 2), when="for 3 query heads on 2",
                      mentions=("3", "2"))  # fmt: skip
        assert_raises(ValueError, lambda: paged_decode(q, *rest, 0), when="for 0 splits", mentions=("num_splits",))
        assert_raises(TypeError, lambda: paged_decode(q.double(), *rest, 2), when="for float64", mentions=("float64",))


# What the compiler says of the blocks


CONFIGURATIONS = [(64, 2), (128, 2), (64, 4)]
PARTS = ("block_q", "block_k", "num_warps", "num_stages")


@functools.cache
def configured(head_dim, dtype_bytes, arch, causal=True):
    """What is chosen, and what the compiler and the assembler make of the forward kernel with it."""
    chosen = choose_config(head_dim, dtype_bytes, arch)
    block_q, block_k, num_warps, num_stages = assert_tuple("the configuration", chosen, PARTS)
    dtype = torch.float16 if dtype_bytes == 2 else torch.float32
    case = Case(np.random.default_rng(0), n=16, d=head_dim, dtype=dtype, causal=causal)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    try:
        made = compiled_for("flash_forward", [arch], options, given("flash_forward", case), causal, block_q, block_k)
    except NotImplementedError:
        require(False, "the compiler is given your flash_forward with what is chosen: write that first")
    return chosen, assert_compiles(made[arch], arch, products=dtype_bytes == 2, exact=True), made[arch]


class TestChooseConfig:
    """Judged by the compiler, on the forward kernel of the same file."""

    @by_arch
    @pytest.mark.parametrize(("head_dim", "dtype_bytes"), [(d, b) for b in (2, 4) for d in (32, 64, 128)])
    def test_what_is_asked_for(self, head_dim, dtype_bytes, arch):
        chosen = assert_tuple("the configuration", choose_config(head_dim, dtype_bytes, arch), PARTS)
        block_q, block_k, num_warps, num_stages = chosen
        for name, size in (("block_q", block_q), ("block_k", block_k)):
            require(size >= 16 and size & (size - 1) == 0, f"{name} is {size}, expected a power of two from 16 on")
        require(num_warps in (4, 8), f"num_warps is {num_warps}, expected 4 or 8")
        least = 64 if dtype_bytes == 2 else 32
        require(block_q >= least, f"block_q is {block_q}, expected {least} at least: with N = 4096 K and V are read "
                f"{-(-4096 // block_q)} times")  # fmt: skip
        require(num_stages >= 2, f"num_stages is {num_stages}: with less than 2 the next tile is not on its way while "
                "this one is multiplied")  # fmt: skip

    @by_arch
    @pytest.mark.parametrize(("head_dim", "dtype_bytes"), CONFIGURATIONS)
    def test_the_compiler_takes_it(self, head_dim, dtype_bytes, arch):
        chosen, taken, _ = configured(head_dim, dtype_bytes, arch)
        shared = max(each.shared for each in taken)
        require(shared <= SHARED_BYTES[arch], f"{chosen}: {shared:,} B of shared memory are too much for sm_{arch}")

    def test_drawn_at_random(self, rng):
        head_dim, dtype_bytes = [(32, 2), (32, 4), *CONFIGURATIONS][rng.integers(5)]
        configured(head_dim, dtype_bytes, list(TARGETS)[rng.integers(2)], causal=bool(rng.integers(2)))

    @pytest.mark.parametrize("head_dim", [64, 128])
    def test_hopper_multiplies_by_warpgroups(self, head_dim):
        chosen, _, made = configured(head_dim, 2, 90)
        require(
            any("wgmma" in each["ptx"] for each in made),
            f"with {chosen} the kernel for sm_90 has no wgmma: it multiplies as an A100 does, at half of the speed\n"
            "Usual cause: four warps work as one on 64 rows: block_q below 16 rows a warp leaves none for them",
        )

    @refuses
    def test_bad_arguments(self):
        for bad, name in [((48, 2, 80), "head_dim"), ((64, 3, 80), "dtype_bytes"), ((64, 2, 75), "arch")]:
            assert_raises(ValueError, lambda bad=bad: choose_config(*bad), when=f"for {bad}", mentions=(name,))
