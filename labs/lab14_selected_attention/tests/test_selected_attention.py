"""Lab 14's suite: pages and their bounds, what is chosen, attention over it, the indexer, and the bytes of it all."""

import pytest
import torch
from selected_attention import (
    block_sparse_attention,
    index_top_tokens,
    page_bounds,
    page_scores,
    select_pages,
    selected_decode,
    selection_bytes,
)

from labkit.testing.attention.table import OVERFLOW
from labkit.testing.compare import (
    TOLERANCE,
    Tolerance,
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_refused,
    assert_tuple,
    assert_type,
    require,
    require_own_work,
)

from .probes import gradients, measured
from .support import (
    assert_rows,
    attend,
    bounds_case,
    byte_mistakes,
    call,
    decode_case,
    drawn,
    hint_at_ties,
    pages_case,
    require_ascending,
    require_no_nan,
    scores_case,
    sparse_case,
    tokens_case,
    whole_numbers,
)

HALVES = [torch.float16, torch.bfloat16]
full_and_half = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
NOTHING = "nothing is read: a maximum over no scores, −inf − (−inf), or 0 / 0"


BOUNDS = [
    pytest.param({"sizes": (4, 4, 4), "page": 4}, id="full pages"),
    pytest.param({"sizes": (3, 3), "page": 3, "batch": (2, 3)}, id="batch"),
    pytest.param({"sizes": (2, 2), "page": 2, "offset": 9.0}, id="all above zero"),
    pytest.param(
        {"sizes": (5, 5, 2), "page": 5, "offset": 9.0}, marks=pytest.mark.robust, id="short last page above zero"
    ),
    pytest.param(
        {"sizes": (5, 5, 1), "page": 5, "offset": -9.0}, marks=pytest.mark.robust, id="short last page below zero"
    ),
    pytest.param({"sizes": (4, 3), "page": 4, "offset": 9.0, "scale": 1e30}, marks=pytest.mark.robust, id="very large"),
    pytest.param({"sizes": (3,), "page": 8}, marks=pytest.mark.robust, id="fewer keys than a page"),
    pytest.param({"sizes": (1, 1, 1), "page": 1}, marks=pytest.mark.robust, id="pages of one key"),
    pytest.param({"sizes": (), "page": 4}, marks=pytest.mark.robust, id="no keys"),
    pytest.param({"sizes": (4, 4), "page": 4, "strided": True}, marks=pytest.mark.robust, id="strided"),
    pytest.param({"sizes": (4, 4), "page": 4, "dtype": torch.bfloat16}, marks=pytest.mark.robust, id="bfloat16"),
    pytest.param({"sizes": (4, 3), "page": 4, "dtype": torch.float64}, marks=pytest.mark.robust, id="float64"),
]


class TestPageBounds:
    """Two vectors a page, from its keys and from nothing else."""

    @pytest.mark.basic
    @pytest.mark.parametrize("sizes", BOUNDS)
    def test_bounds(self, rng, sizes):
        case = bounds_case(rng, **sizes)
        got = assert_tuple("page_bounds's result", call(page_bounds, case.given), ("lows", "highs"))
        for name, x in zip(("lows", "highs"), got, strict=True):
            baseline = case.want[name].float().numpy()
            assert_close(name, x, case.want[name], baseline=baseline, dtype=case.dtype, mistakes=case.mistakes[name])

    @pytest.mark.basic
    def test_worked_example(self):
        K = torch.tensor([[1.0, -2.0], [3.0, -5.0], [-4.0, -1.0]])
        lows, highs = assert_tuple("page_bounds's result", page_bounds(K, 2), ("lows", "highs"))
        assert_equal("lows", lows.tolist(), [[1, -5], [-4, -1]], mistakes={
            "lows and highs are exchanged": [[3, -2], [-4, -1]],
            "the last page, which is part-filled, has no bounds": [[1, -5]],
            "the last page is filled up with keys of the page before it": [[1, -5], [-4, -5]],
        })  # fmt: skip
        padded = {"the last page is padded with zeros, which enter its bounds": [[3, -2], [0, 0]]}
        assert_equal("highs", highs.tolist(), [[3, -2], [-4, -1]], mistakes=padded)

    @pytest.mark.cost
    @full_and_half
    @pytest.mark.parametrize("n_full", [64, 256])
    def test_keys_are_not_copied(self, rng, n_full, dtype):
        case = bounds_case(rng, (16,) * n_full + (5,), 16, d=32, dtype=dtype)
        K = case.given["K"]
        _, counts = measured("page_bounds", {"K": K}, 16)
        name = f"page_bounds (N = {len(K):,}, pages of 16)"
        hint = "the keys are copied, or padded in a copy: full pages are a view, and the last page is handled apart"
        assert_at_most(f"the peak of {name}", counts["peak_bytes"], K.nbytes // 2, hint=hint)
        hint = "read the keys once for the minimum and once for the maximum, and no more"
        assert_at_most(f"what {name} reads of K", counts["read"]["K"], 2 * K.nbytes, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=8)
    def test_far_from_a_copy(self, rng, memory_limit):
        K = drawn(rng, 131_072, 64, dtype=torch.bfloat16)
        lows, highs = memory_limit(page_bounds, K, 64)
        pages = K.unflatten(0, (-1, 64))
        right = torch.equal(lows, pages.amin(1)) and torch.equal(highs, pages.amax(1))
        require(right, "memory stayed within the limit, but bounds of 131,072 keys in pages of 64 are wrong")

    @pytest.mark.refuses
    def test_bad_pages(self):
        K = torch.zeros(3, 2)
        assert_refused(page_bounds, [((K, page), f"for page={page}", {"page": page}) for page in (0, -1)])


SCORES = [
    pytest.param({}, id="groups of 3"),
    pytest.param({"kv_heads": 3, "group": 2, "batch": (2,)}, id="batch"),
    pytest.param({"kv_heads": 4, "group": 1}, id="a key head per query head"),
    pytest.param({"whole": True}, id="whole numbers"),
    pytest.param({"size": 1}, marks=pytest.mark.robust, id="one key per page"),
    pytest.param({"n_pages": 1, "kv_heads": 1}, marks=pytest.mark.robust, id="one page"),
    pytest.param({"scale": 300.0}, marks=pytest.mark.robust, id="large"),
    *(
        pytest.param({"dtype": dtype, "d": 64}, marks=pytest.mark.robust, id=str(dtype)[6:])
        for dtype in [*HALVES, torch.float64]
    ),
]


class TestPageScores:
    """A bound on every product of the query with a key of the page."""

    @pytest.mark.basic
    @pytest.mark.parametrize("sizes", SCORES)
    def test_scores(self, rng, sizes):
        case = scores_case(rng, **sizes)
        got = call(page_scores, case.given)
        hint = "products are made in half precision: q and the bounds become float32 first"
        hint = hint if sizes.get("dtype") in HALVES else ""
        assert_close("scores", got, case.want, baseline=case.baseline.numpy(), mistakes=case.mistakes, hint=hint)
        assert_dtype("scores", got, case.dtype)

    @pytest.mark.basic
    def test_worked_example(self):
        q, low, high = (torch.tensor(x) for x in ([[2.0, -1.0]], [[[1.0, -5.0]]], [[[3.0, -2.0]]]))
        got = page_scores(q, low, high)
        assert_type("the result", got, torch.Tensor, "a tensor")
        assert_equal("the score of the handout's page", got.tolist(), [[11.0]], mistakes={
            "only the upper bounds are used": [[8.0]], "only the lower bounds are used": [[7.0]],
            "the bounds are exchanged: the smaller product of each channel is taken": [[4.0]],
            "the larger of q · low and q · high is taken after the sum": [[8.0]],
        })  # fmt: skip

    @pytest.mark.cost
    @full_and_half
    @pytest.mark.parametrize("n_pages", [256, 1024])
    def test_no_product_of_channels_for_every_head(self, rng, n_pages, dtype):
        case = scores_case(rng, kv_heads=2, group=8, n_pages=n_pages, size=1, d=32, dtype=dtype)
        _, counts = measured("page_scores", case.given)
        name = f"page_scores (16 heads on 2, {n_pages} pages, d = 32)"
        hint = "products of single channels, (H_q, P, d), are held at once: a matrix product holds only their sums"
        assert_at_most(f"the peak of {name}", counts["peak_bytes"], 16 * n_pages * 32 * 4 // 2, hint=hint)
        for which in ("lows", "highs"):
            nbytes = case.given[which].nbytes
            hint = "bounds are read again for each query head, or copied: the heads of a group share one read"
            assert_at_most(f"what {name} reads of {which}", counts["read"][which], nbytes, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=19)
    def test_far_from_products_of_channels(self, rng, memory_limit):
        q, keys = drawn(rng, 16, 32, dtype=torch.bfloat16), drawn(rng, 2, 8192, 2, 32, dtype=torch.bfloat16)
        lows, highs = keys.amin(-2), keys.amax(-2)
        got = memory_limit(page_scores, q, lows, highs)
        rows = q.float().unflatten(0, (2, 8))
        want = (rows.clamp(min=0) @ highs.float().mT + rows.clamp(max=0) @ lows.float().mT).flatten(0, 1)
        assert_close("scores of 8,192 pages", got, want, baseline=want.numpy(), tolerance=Tolerance(roundings=100))

    @pytest.mark.refuses
    def test_shapes_that_do_not_fit(self):
        q, bounds = torch.zeros(4, 6), torch.zeros(2, 5, 6)
        table = [
            ((torch.zeros(5, 6), bounds, bounds), "for 5 query heads on 2", {"H_q": 5, "H_kv": 2}),
            ((q, bounds, bounds[:, :4]), "for lows of 5 pages and highs of 4", ("(2, 5, 6)", "(2, 4, 6)")),
        ]
        assert_refused(page_scores, table)


PAGES = [
    pytest.param({}, id="groups of 3"),
    pytest.param({"kv_heads": 3, "group": 2, "batch": (2, 2), "budget": 4}, id="batch"),
    pytest.param({"kv_heads": 3, "group": 1, "n_pages": 40, "budget": 17}, id="a key head per query head"),
    pytest.param({"budget": 2}, marks=pytest.mark.robust, id="only the two fixed pages"),
    pytest.param({"budget": 12}, marks=pytest.mark.robust, id="a budget of all pages"),
    pytest.param({"budget": 20}, marks=pytest.mark.robust, id="a budget beyond all pages"),
    pytest.param({"n_pages": 1}, marks=pytest.mark.robust, id="one page"),
    pytest.param({"n_pages": 2, "budget": 2}, marks=pytest.mark.robust, id="two pages"),
    pytest.param({"current": 7, "after": 100.0}, marks=pytest.mark.robust, id="large scores after the current page"),
    pytest.param({"current": 7, "after": torch.nan}, marks=pytest.mark.robust, id="NaN after the current page"),
    pytest.param({"current": 0, "after": 100.0}, marks=pytest.mark.robust, id="the first page is current"),
    pytest.param({"n_pages": 50, "budget": 20, "levels": 2}, marks=pytest.mark.robust, id="equal scores"),
    pytest.param({"n_pages": 300, "budget": 100, "levels": 0}, marks=pytest.mark.robust, id="all scores equal"),
    pytest.param({"n_pages": 30, "infinite": True}, marks=pytest.mark.robust, id="infinite scores"),
    pytest.param({"dtype": torch.bfloat16, "n_pages": 60}, marks=pytest.mark.robust, id="bfloat16"),
]


class TestSelectPages:
    """One choice for a group, the first and the current page in it, sorted."""

    @pytest.mark.basic
    @pytest.mark.parametrize("sizes", PAGES)
    def test_pages(self, rng, sizes):
        case = pages_case(rng, **sizes)
        current = case.given["current"]
        hint = "pages after `current` do not exist yet" if current < case.given["scores"].shape[-1] - 1 else ""
        got = call(select_pages, case.given)
        assert_type("pages", got, torch.Tensor, "a tensor")
        require_ascending("pages", got, case.want)
        assert_rows("pages", got, case.want, case.mistakes, hint or hint_at_ties(case.scores, got, case.want))

    @pytest.mark.basic
    def test_worked_example(self):
        scores = torch.tensor([[9.0, 1.0, 5.0, 5.0, 2.0], [0.0, 1.0, 4.0, 6.0, 2.0]])
        mistakes = {
            "a group is judged by its first head alone": torch.tensor([[0, 2, 4]]),
            "the page being written is not always among them": torch.tensor([[0, 2, 3]]),
        }
        assert_rows("pages", select_pages(scores, 1, 3, 4), torch.tensor([[0, 3, 4]]), mistakes)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        scores = torch.zeros(4, 6)
        table = [
            ((scores, 2, 1, 5), "for budget 1", {"budget": 1}),
            ((scores, 2, 3, 6), "for current 6 of 6 pages", {"current": 6}),
            ((scores, 2, 3, -1), "for current −1", {"current": -1}),
            ((scores, 3, 3, 5), "for 4 query heads on 3", {"H_q": 4, "H_kv": 3}),
        ]
        assert_refused(select_pages, table)


DECODE = [
    pytest.param({"last": False}, id="full pages"),
    pytest.param({"last": False, "kv_heads": 3, "group": 2, "batch": (2,)}, id="batch"),
    pytest.param({"n_tokens": 40}, id="the last page, full"),
    pytest.param({}, marks=pytest.mark.robust, id="the last page, part-filled"),
    pytest.param({"n_tokens": 36, "n_chosen": 1}, marks=pytest.mark.robust, id="a page of one token"),
    pytest.param({"n_chosen": 8}, marks=pytest.mark.robust, id="everything"),
    pytest.param({"n_tokens": 3, "n_chosen": 1}, marks=pytest.mark.robust, id="a cache of less than a page"),
    pytest.param({"n_chosen": 0}, marks=pytest.mark.robust, id="no page"),
    pytest.param({"page": 1, "n_chosen": 7}, marks=pytest.mark.robust, id="pages of one token"),
    pytest.param({"scale": 300.0}, marks=pytest.mark.robust, id="large logits"),
    pytest.param({"batch": (2,), "strided": True}, marks=pytest.mark.robust, id="strided"),
    *(pytest.param({"dtype": dtype, "n_tokens": 500, "n_chosen": 60}, marks=pytest.mark.robust, id=str(dtype)[6:])
      for dtype in [*HALVES, torch.float64]),
]  # fmt: skip


class TestSelectedDecode:
    """Exact over what was chosen, and nothing else is read."""

    def check(self, case, got, hint=""):
        got = dict(zip(("o", "lse"), assert_tuple("selected_decode's result", got, ("o", "lse")), strict=True))
        for name, x in got.items():
            baseline, tolerance = case.baseline[name].numpy(), TOLERANCE.for_scores(case.want["lse"])
            assert_close(name, x, case.want[name], baseline=baseline, tolerance=tolerance, mistakes=case.mistakes[name],
                         hint=hint, nan_hint=NOTHING)  # fmt: skip
            assert_dtype(name, x, case.dtypes[name])

    @pytest.mark.basic
    @pytest.mark.parametrize("sizes", DECODE)
    def test_decode(self, rng, sizes):
        case = decode_case(rng, **sizes)
        self.check(case, call(selected_decode, case.given), OVERFLOW if "scale" in sizes else "")

    @pytest.mark.basic
    def test_worked_example(self):
        K, V = torch.zeros(1, 5, 1), torch.arange(1.0, 6.0).view(1, 5, 1)
        got = selected_decode(torch.ones(1, 1), K, V, torch.tensor([[0, 2]]), 2)
        o, lse = assert_tuple("selected_decode's result", got, ("o", "lse"))
        mean = torch.tensor([[8 / 3]])
        mistakes = {
            "a place after the last token counts": mean * 0.75,
            "the last token counts again for each place after it": torch.tensor([[3.25]]),
        }
        assert_close("o", o, mean, baseline=mean.numpy(), mistakes=mistakes)
        assert_close("lse", lse, torch.tensor([3.0]).log(), baseline=torch.tensor([3.0]).log().numpy())

    @pytest.mark.cost
    def test_nothing_else_is_read(self, rng):
        case = decode_case(rng, n_tokens=40, n_chosen=3)
        self.check(case, call(selected_decode, case.given))
        given, tokens = dict(case.given), torch.arange(40) // 5
        chosen = (tokens[:, None] == given["pages"][..., None, :]).any(-1)
        for name in "KV":
            given[name] = given[name].masked_fill(~chosen[..., None], torch.nan)
        o, _ = call(selected_decode, given)
        require_no_nan("o", o, "tokens that were not chosen are read, and masked or given no weight")

    @pytest.mark.cost
    @full_and_half
    @pytest.mark.parametrize("n_tokens", [1024, 4096])
    def test_bytes_read_and_held(self, rng, n_tokens, dtype):
        case = decode_case(rng, n_tokens=n_tokens, page=16, n_chosen=8, group=4, d=64, d_v=64, dtype=dtype)
        tensors = {name: case.given[name] for name in ("q", "K", "V", "pages")}
        got, counts = measured("selected_decode", tensors, 16)
        self.check(case, got)
        name = f"selected_decode (8 heads on 2, N = {n_tokens:,}, 8 pages of 16)"
        require_own_work(not counts["fused"], f"{name} calls torch's own attention ({', '.join(counts['fused'])})")
        chosen = 2 * 8 * 16 * 64
        hint = "the pages are read for each query head, or more than the pages: once per key head, and nothing else"
        if dtype != torch.float32:
            hint += "; a cache that is converted to float32 is read whole: convert only what was chosen"
        for which in "KV":
            assert_at_most(f"what {name} reads of {which}", counts["read"][which], chosen * dtype.itemsize, hint=hint)
        hint = "at most three times the chosen keys and values in float32: is something held that grows with the cache?"
        assert_at_most(f"the peak of {name}", counts["peak_bytes"], 3 * 2 * chosen * 4, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=8)
    def test_far_from_the_whole_cache(self, rng, memory_limit):
        q, K, V = (drawn(rng, *shape, 64, dtype=torch.bfloat16) for shape in ((8,), (2, 32_768), (2, 32_768)))
        pages = torch.tensor([[3, 700, 2047], [0, 11, 1500]])
        got = memory_limit(selected_decode, q, K, V, pages, 16)
        tokens = (pages[..., None] * 16 + torch.arange(16)).flatten(1)
        k, v = (torch.stack([x[head, tokens[head]] for head in (0, 1)]).float() for x in (K, V))
        o, lse = attend(q.float().unflatten(0, (2, 4)) @ k.mT / 8, v)
        o, lse = o.flatten(0, 1).bfloat16().float(), lse.flatten()
        assert_close("o over three pages of 32,768 tokens", got[0], o, baseline=o.numpy(), dtype=torch.bfloat16)
        assert_close(
            "lse over three pages of 32,768 tokens",
            got[1],
            lse,
            baseline=lse.numpy(),
            tolerance=Tolerance(roundings=100),
        )

    @pytest.mark.refuses
    def test_bad_arguments(self):
        q, K, pages = torch.zeros(4, 6), torch.zeros(2, 9, 6), torch.tensor([[0, 1], [1, 2]])
        table = [
            ((q, K, K, pages + 1, 4), "for page 3 of 3", {"pages": 3}),
            ((q, K, K, pages - 1, 4), "for page −1", {"pages": -1}),
            ((q, K, K, pages, 0), "for page=0", {"page": 0}),
            ((q[:3], K, K, pages, 4), "for 3 query heads on 2", {"H_q": 3, "H_kv": 2}),
        ]
        assert_refused(selected_decode, table)


SPARSE = [
    pytest.param({"n": 28}, id="full blocks"),
    pytest.param({"n": 24, "batch": (2, 3), "block": 3, "top": 1}, id="batch"),
    pytest.param({"n": 48, "block": 6, "top": 4}, id="many blocks"),
    pytest.param({}, marks=pytest.mark.robust, id="a short last block"),
    pytest.param({"top": 0}, marks=pytest.mark.robust, id="the own block alone"),
    pytest.param({"top": 20}, marks=pytest.mark.robust, id="more than there are blocks"),
    pytest.param({"block": 50}, marks=pytest.mark.robust, id="one block"),
    pytest.param({"block": 1}, marks=pytest.mark.robust, id="blocks of one token"),
    pytest.param({"n": 1}, marks=pytest.mark.robust, id="one token"),
    pytest.param({"n": 64, "equal": True, "top": 3}, marks=pytest.mark.robust, id="equal scores"),
    pytest.param({"scale": 300.0}, marks=pytest.mark.robust, id="large logits"),
    pytest.param({"batch": (2,), "strided": True}, marks=pytest.mark.robust, id="strided"),
    *(pytest.param({"dtype": dtype, "n": 260, "block": 64, "top": 2}, marks=pytest.mark.robust, id=str(dtype)[6:])
      for dtype in [*HALVES, torch.float64]),
    pytest.param({"dtype": torch.bfloat16, "n": 520, "block": 64, "top": 2, "close": True}, marks=pytest.mark.robust,
                 id="means that bfloat16 cannot tell apart"),
]  # fmt: skip


class TestBlockSparseAttention:
    """A prompt in which each query chooses its blocks, without an N × N tensor."""

    @pytest.mark.basic
    @pytest.mark.parametrize("sizes", SPARSE)
    def test_output(self, rng, sizes):
        case = sparse_case(rng, **sizes)
        O = call(block_sparse_attention, case.given)
        hint = OVERFLOW if "scale" in sizes else ""
        assert_close(
            "O", O, case.want, baseline=case.baseline.numpy(), mistakes=case.mistakes, hint=hint, nan_hint=NOTHING
        )
        assert_dtype("O", O, case.dtype)

    @pytest.mark.basic
    def test_worked_example(self):
        Q, K, V = (torch.tensor(x).view(3, 1) for x in ([0.0, 0.0, 1.0], [1.0, 3.0, 2.0], [1.0, 2.0, 4.0]))
        e = torch.tensor(1.0).exp()
        want = torch.stack([torch.tensor(1.0), torch.tensor(1.5), (2 * e + 4) / (e + 1)]).view(3, 1)
        assert_close("O", block_sparse_attention(Q, K, V, 1, 1), want, baseline=want.numpy())

    def test_gradients(self, rng):
        case = sparse_case(rng, n=28, batch=(2,))
        Q, K, V, block, top = case.given.values()
        dO = drawn(rng, *case.want.shape)
        got = gradients(Q, K, V, block, top, dO)
        wanted = {}
        for precise in (torch.float64, torch.float32):
            leaves = [x.to(precise).requires_grad_() for x in (Q, K, V)]
            scores = (leaves[0] @ leaves[1].mT * Q.shape[-1] ** -0.5).masked_fill(~case.seen, -torch.inf)
            attend(scores, leaves[2])[0].backward(dO.to(precise))
            wanted[precise] = [x.grad for x in leaves]
        for i, name in enumerate(("dQ", "dK", "dV")):
            missing = (
                f"{name} is None: O has no gradient\nUsual cause: `no_grad` or `detach` around more than the choice"
            )
            require(got[i] is not None, missing)
            assert_close(name, got[i], wanted[torch.float64][i], baseline=wanted[torch.float32][i].numpy())

    @pytest.mark.cost
    @full_and_half
    def test_memory_and_work(self, rng, dtype):
        for n in (512, 1024):
            Q, K, V = (drawn(rng, n, 8, dtype=dtype) for _ in range(3))
            O, counts = measured("block_sparse_attention", {"Q": Q, "K": K, "V": V}, 32, 2)
            name = f"block_sparse_attention (N = {n:,}, d = 8, blocks of 32, top 2)"
            require(O.shape == V.shape, f"{name} returns the shape {tuple(O.shape)}, expected {tuple(V.shape)}")
            require_own_work(not counts["fused"], f"{name} calls torch's own attention ({', '.join(counts['fused'])})")
            hint = f"half of one N × N tensor of float32 ({4 * n * n:,} bytes): is one made, or many smaller ones kept?"
            assert_at_most(f"the peak of {name}", counts["peak_bytes"], 2 * n * n, hint=hint)
            needed = 2 * n * (3 * 32 * 2 * 8 + n // 32 * 8)
            hint = "blocks that a query did not choose are multiplied with it"
            assert_at_most(f"what {name} multiplies", counts["flops"], 2 * needed, unit="FLOPs", hint=hint)
            require(counts["flops"] > 0, f"{name} makes no matrix product: write products with @")

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=32)
    def test_far_from_a_matrix(self, rng, memory_limit):
        Q, K = (whole_numbers(rng, -3, 3, 4096, 16) for _ in range(2))
        V, tokens = drawn(rng, 4096, 16), torch.arange(4096)
        got = memory_limit(block_sparse_attention, Q, K, V, 64, 2)
        own, means = tokens // 64, K.unflatten(0, (64, 64)).mean(1)
        gate = (Q @ means.T).masked_fill(torch.arange(64) >= own[:, None], -torch.inf)
        chosen = gate.sort(dim=-1, descending=True, stable=True).indices[:, :2]
        some = []
        for rows in tokens.split(64):
            seen = (own == chosen[rows, :, None]).any(1) | (own == own[rows, None])
            scores = (Q[rows] @ K.T / 4).masked_fill(~seen | (tokens > rows[:, None]), -torch.inf)
            some.append(scores.softmax(-1) @ V)
        want = torch.cat(some)
        assert_close("O of 4,096 tokens", got, want, baseline=want.numpy(), tolerance=Tolerance(roundings=100))

    @pytest.mark.refuses
    def test_bad_arguments(self):
        Q, V = torch.zeros(8, 4), torch.zeros(8, 3)
        table = [
            ((Q, Q, V, 0, 1), "for block=0", {"block": 0}),
            ((Q, Q, V, 2, -1), "for top=−1", {"top": -1}),
            ((Q, Q[:7], V[:7], 2, 1), "for Q of 8 tokens and K of 7", ("(8, 4)", "(7, 4)")),
            ((Q, Q, V[:7], 2, 1), "for K of 8 tokens and V of 7", ("(8, 4)", "(7, 3)")),
        ]
        assert_refused(block_sparse_attention, table)


TOKENS = [
    pytest.param({"n_queries": 6, "n_keys": 30}, id="a few queries at the end"),
    pytest.param({"n_queries": 4, "n_keys": 40, "batch": (2, 2)}, id="batch"),
    pytest.param({"n_queries": 1, "n_keys": 50, "top": 9}, id="decoding"),
    pytest.param({"n_queries": 23}, marks=pytest.mark.robust, id="a prompt, fewer than top at its start"),
    pytest.param({"top": 40}, marks=pytest.mark.robust, id="more than there are tokens"),
    pytest.param({"n_queries": 23, "top": 9, "scale": 2.0**40}, marks=pytest.mark.robust, id="scores far below 0"),
    pytest.param({"n_queries": 1, "n_keys": 1}, marks=pytest.mark.robust, id="one token"),
    pytest.param({"n_queries": 70, "n_keys": 130, "heads": 1, "least": -1, "most": 1, "d": 2}, marks=pytest.mark.robust,
                 id="equal scores"),
    pytest.param({"n_queries": 20, "n_keys": 20, "least": 0, "most": 0}, marks=pytest.mark.robust,
                 id="all scores equal"),
    *(pytest.param({"n_queries": 60, "n_keys": 300, "top": 20, "d": 32, "heads": 8, "least": -9, "most": 9,
                    "positive": True, "dtype": dtype}, marks=pytest.mark.robust, id=str(dtype)[6:])
      for dtype in [*HALVES, torch.float64]),
]  # fmt: skip


class TestIndexTopTokens:
    """The best tokens up to each query, by heads that look at one small key per token."""

    @pytest.mark.basic
    @pytest.mark.parametrize("sizes", TOKENS)
    def test_tokens(self, rng, sizes):
        case = tokens_case(rng, **sizes)
        got = call(index_top_tokens, case.given)
        assert_type("tokens", got, torch.Tensor, "a tensor")
        hint = ""
        if sizes.get("dtype") in HALVES:
            hint = "products or sums are kept in half precision: scores that differ become equal there"
        if "scale" in sizes:
            hint = "a large negative number stands for −inf: here scores lie below it"
        require_ascending("tokens", got, case.want)
        assert_rows("tokens", got, case.want, case.mistakes, hint or hint_at_ties(case.scores, got, case.want))

    @pytest.mark.basic
    def test_worked_example(self):
        q, k = torch.ones(1, 1, 1), torch.tensor([[3.0], [-1.0], [2.0]])
        mistakes = {"the query is placed at the first token, and not at the last": torch.tensor([[0, -1]])}
        assert_rows("tokens for w = 1", index_top_tokens(q, torch.ones(1, 1), k, 2), torch.tensor([[0, 2]]), mistakes)
        mistakes = {
            "ReLU is applied after the weights, and not before them": torch.tensor([[0, 1]]),
            "the weights are left out": torch.tensor([[0, 2]]),
            "tokens whose score is not above 0 are dropped": torch.tensor([[-1, -1]]),
        }
        got = index_top_tokens(q, -torch.ones(1, 1), k, 2)
        assert_rows("tokens for w = −1", got, torch.tensor([[1, 2]]), mistakes)

    @pytest.mark.cost
    @full_and_half
    def test_memory(self, rng, dtype):
        peaks = []
        for n in (512, 1024):
            q, w, k = (drawn(rng, n, *shape, dtype=dtype) for shape in ((4, 8), (4,), (8,)))
            got, counts = measured("index_top_tokens", {"q_index": q, "w": w, "k_index": k}, 16)
            name = f"index_top_tokens (N = {n:,}, 4 heads, top 16)"
            require(tuple(got.shape) == (n, 16), f"{name} returns the shape {tuple(got.shape)}, expected {(n, 16)}")
            hint = f"one N × N tensor of float32 is {4 * n * n:,} bytes: take a few queries, or a few keys, at a time"
            assert_at_most(f"the peak of {name}", counts["peak_bytes"], 4 * n * n, hint=hint)
            peaks.append(counts["peak_bytes"])
        hint = "with twice the tokens N × N grows fourfold: the number of queries at a time grows with N?"
        assert_at_most("the peak at N = 1,024", peaks[1], 3 * peaks[0], hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=12)
    def test_far_from_a_matrix(self, rng, memory_limit):
        q, w, k = (whole_numbers(rng, -3, 3, 2048, *shape) for shape in ((2, 8), (2,), (8,)))
        got = memory_limit(index_top_tokens, q, w, k, 16)
        scores = sum(w[:, j, None] * (q[:, j] @ k.T).relu() for j in (0, 1))
        scores.masked_fill_(torch.ones(2048, 2048, dtype=torch.bool).triu(1), -torch.inf)
        want = scores.sort(dim=-1, descending=True, stable=True).indices[:, :16].sort(-1).values
        assert_rows("tokens of the queries 15 to 2,047", got[15:], want[15:])

    @pytest.mark.refuses
    def test_bad_arguments(self):
        q, w, k = torch.zeros(3, 2, 4), torch.zeros(3, 2), torch.zeros(5, 4)
        table = [
            ((q, w, k, 0), "for top=0", {"top": 0}),
            ((q, w[:, :1], k, 2), "for one weight and two heads", ("(3, 1)", "(3, 2, 4)")),
            ((q, w, k[:, :3], 2), "for keys of another width", ("(5, 3)", "(3, 2, 4)")),
            ((q, w, k[:2], 2), "for fewer keys than queries", ("(2, 4)", "(3, 2, 4)")),
        ]
        assert_refused(index_top_tokens, table)


BYTES = [  # method, tokens, bytes of a token, options, what is stored, what is read
    pytest.param("whole", 1000, 512, {}, 512_000, 512_000, id="whole"),
    pytest.param("window", 1000, 512, {"window": 128, "sinks": 4}, 67_584, 67_584, id="window"),
    pytest.param("window", 100, 512, {"window": 128, "sinks": 4}, 51_200, 51_200, id="a window that is not full"),
    pytest.param("quest", 100, 512, {"page": 16, "budget": 3}, 54_784, 22_016, id="quest"),
    pytest.param("quest", 96, 512, {"page": 16, "budget": 3}, 52_224, 27_648, id="quest, last page full"),
    pytest.param("quest", 100, 512, {"page": 16, "budget": 9}, 54_784, 54_784, id="quest, few pages"),
    pytest.param("moba", 100, 512, {"page": 16, "budget": 3}, 52_736, 28_160, id="moba"),
    pytest.param("moba", 96, 512, {"page": 16, "budget": 3}, 50_432, 34_048, id="moba, last page full"),
    pytest.param("moba", 10, 512, {"page": 16, "budget": 3}, 5_120, 5_120, id="moba, one page"),
    pytest.param("dsa", 131_072, 1152, {"budget": 2048, "index_bytes": 132}, 168_296_448, 19_660_800, id="dsa"),
    pytest.param("dsa", 1000, 1152, {"budget": 2048, "index_bytes": 132}, 1_284_000, 1_284_000, id="dsa, few tokens"),
]


class TestSelectionBytes:
    """What reading less costs in storage, to the byte."""

    @pytest.mark.parametrize(("method", "tokens", "token_bytes", "options", "stored", "read"), BYTES)
    def test_bytes(self, method, tokens, token_bytes, options, stored, read):
        got = selection_bytes(method, tokens, token_bytes, **options)
        got = assert_tuple("selection_bytes's result", got, ("stored", "read"))
        what = f"by {method!r} for {tokens:,} tokens of {token_bytes} bytes, {options},"
        usual = byte_mistakes(method, tokens, token_bytes, stored, read, **options)
        assert_equal(f"the bytes stored {what}", got[0], stored, mistakes=usual["stored"])
        assert_equal(f"the bytes read {what}", got[1], read, mistakes=usual["read"])

    def test_drawn_sizes(self, rng):
        """Windows about as long as the cache, at sizes that no table of results can hold."""
        for tokens, token_bytes in rng.integers(5, 5000, (20, 2)).tolist():
            window = int(rng.integers(max(tokens - 5, 0), tokens + 2))
            got = selection_bytes("whole", tokens, token_bytes)
            assert_equal(f"whole, {tokens} tokens of {token_bytes} bytes", tuple(got), (tokens * token_bytes,) * 2)
            got = selection_bytes("window", tokens, token_bytes, window=window, sinks=4)
            assert_equal(f"window {window}, 4 sinks, {tokens} tokens of {token_bytes} bytes", tuple(got),
                         (min(tokens, window + 4) * token_bytes,) * 2)  # fmt: skip

    @pytest.mark.refuses
    def test_bad_arguments(self):
        table = [
            (("h2o", 10, 4), "for the method 'h2o'", ("h2o",)),
            (("whole", 0, 4), "for tokens=0", {"tokens": 0}),
        ]
        assert_refused(selection_bytes, table)
