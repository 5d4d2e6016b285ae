"""Lab 09's suite: the bytes of a cache, attention that reads it grouped, split and paged, and its blocks."""

import re
from functools import partial

import numpy as np
import pytest
import torch
from decoding import (
    BlockManager,
    KVCache,
    RollingKVCache,
    grouped_query_attention,
    kv_cache_bytes,
    num_splits_heuristic,
    paged_attention,
    split_kv_decode,
)

from labkit.testing.attention.table import OVERFLOW, SHORT_SUMS, attention_cases, mismatched_shapes
from labkit.testing.compare import (
    NAN_FROM_EMPTY,
    Tolerance,
    assert_at_most,
    assert_close,
    assert_equal,
    assert_raises,
    assert_refused,
    assert_type,
    require,
)
from labkit.testing.decoding.grouped import GroupedCase, split_mistakes
from labkit.testing.decoding.managed import Managed, assert_names_are_known, of_equal_hash, run_random_operations
from labkit.testing.decoding.paging import FOREIGN, PagedBatch
from labkit.testing.decoding.steps import assert_own_products, two_results
from labkit.testing.sessions import Session
from labkit.testing.unchanged import copied, report_mutation_first, unchanged

from .probes import (
    CACHES,
    cache_calls,
    cache_session,
    call_on_nan,
    counted,
    last_after_appends,
    manager_calls,
    random_operations,
    tables_after_theirs_were_changed,
)
from .support import (
    appends,
    assert_appends_write,
    assert_cache_bytes,
    assert_follows,
    assert_held,
    assert_heuristic,
    assert_last_tokens,
    assert_read_once,
    cancelling,
    tokens,
    whole_numbers,
    worked_case,
)

causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
full_and_half = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
by_dtype = pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
HEADS = [(2, 3), (3, 2), (1, 4), (4, 1)]
NO_KEYS = "nothing is seen: the maximum is −inf, −inf − (−inf) is NaN, and so is 0 / 0"

TOKENS = {  # layers, key heads, their width; other arguments; the bytes
    "the handout's example": ((2, 3, 4), {}, 96),
    "Llama-2-7B": ((32, 32, 128), {}, 524_288),
    "Llama-3.1-8B": ((32, 8, 128), {}, 131_072),
    "OPT-13B": ((40, 40, 128), {}, 819_200),
    "DeepSeek-V2": ((60, 128, 128), {"latent_dim": 512, "rope_dim": 64}, 69_120),
    "Llama-3.1-405B": ((126, 8, 128), {}, 516_096),
}
BAD_SIZES = [{"layers": 0}, {"kv_heads": 0}, {"head_dim": -1}, {"tokens": -1}, {"window": 0}, {"dtype_bytes": 0},
             {"latent_dim": -1}, {"rope_dim": 8}]  # fmt: skip


class TestKvCacheBytes:
    """Exact, for every way to keep a token."""

    @pytest.mark.parametrize("model", TOKENS)
    def test_a_token_of_real_models(self, model):
        sizes, options, want = TOKENS[model]
        assert_cache_bytes(kv_cache_bytes, *sizes, **options)
        assert_equal(f"the bytes of a token in {model}", kv_cache_bytes(*sizes, **options), want)

    def test_a_window(self):
        for n_tokens in (0, 5, 4095, 4096, 4097, 10**12):
            assert_cache_bytes(kv_cache_bytes, 32, 8, 128, tokens=n_tokens, window=4096)

    def test_random_sizes(self, rng):
        for _ in range(12):
            *sizes, n_tokens, dtype_bytes, window, latent, rope = rng.integers(2, 60, 8).tolist()
            assert_cache_bytes(kv_cache_bytes, *sizes, tokens=n_tokens, dtype_bytes=dtype_bytes, window=window)
            assert_cache_bytes(kv_cache_bytes, *sizes, tokens=n_tokens, latent_dim=latent, rope_dim=rope)
            assert_cache_bytes(kv_cache_bytes, *sizes, tokens=n_tokens, latent_dim=latent, window=window)

    @pytest.mark.refuses
    @pytest.mark.parametrize("bad", BAD_SIZES)
    def test_bad_arguments(self, bad):
        (name, value), *_ = bad.items()
        given = {"layers": 2, "kv_heads": 2, "head_dim": 4} | bad
        assert_raises(ValueError, lambda: kv_cache_bytes(**given), when=f"for {name}={value}", mentions={name: value})


def attend_grouped(case, hint="", nan_hint="", attend=grouped_query_attention):
    """Call grouped_query_attention with copies of a case's tensors, and compare what it returns."""
    given = dict(zip("qkv", copied(case.Q, case.K, case.V), strict=True))
    with report_mutation_first(given):
        got = attend(*given.values(), case.counted_from_the_end)
        case.check_results(two_results("grouped_query_attention", got), hint=hint, nan_hint=nan_hint)


class TestGroupedQueryAttention:
    """Query heads share key heads, causal counts from the end, and nothing is expanded."""

    @pytest.mark.basic
    def test_worked_example(self):
        attend_grouped(worked_case())

    @pytest.mark.basic
    @pytest.mark.parametrize("row", attention_cases("full", "causal", diagonal="the last query sees the last key"))
    def test_results(self, rng, row):
        attend_grouped(row.draw(GroupedCase, rng), row.hint, row.nan_hint)

    @pytest.mark.parametrize(("kv_heads", "group"), HEADS)
    def test_groups(self, rng, kv_heads, group):
        attend_grouped(GroupedCase(rng, kv_heads=kv_heads, group=group, n_queries=7, n_keys=63, d=16, d_v=5))

    @pytest.mark.parametrize(("scale", "hint"), [
        (0.5, "a scale that is given takes the place of 1/√d"),
        (0.0, "scale=0.0 is a scale that is given: `scale or …` takes it for None"),
    ], ids=["scale0.5", "scale0"])  # fmt: skip
    def test_a_scale_that_is_given(self, rng, scale, hint):
        case = GroupedCase(rng, n_queries=3, n_keys=20, d=16)
        got = grouped_query_attention(*copied(case.Q, case.K, case.V), scale=scale)
        case.Q = 4 * scale * case.Q  # the usual scale is 1/4
        case.check_results(two_results("grouped_query_attention", got), hint=hint)

    @pytest.mark.robust
    @causal_or_not
    def test_uninitialised_memory_is_written_over(self, rng, causal):
        case = GroupedCase(rng, n_queries=37, n_keys=21, d=8, d_v=5, batch=(2,), causal=causal)
        attend_grouped(case, nan_hint=NAN_FROM_EMPTY, attend=partial(call_on_nan, "grouped_query_attention"))

    @pytest.mark.robust
    @pytest.mark.parametrize("far", [1e3, 1e7])
    def test_hidden_keys_do_not_leak(self, rng, far):
        case = GroupedCase(rng, n=24, d=8, causal=True, dtype="float64")
        case.Q[..., 0], case.K[..., 0] = far, -1  # every score is far below 0, by nearly the same amount
        attend_grouped(case, "a large negative number stands for −inf; beside scores that are lower still it is large")

    @pytest.mark.robust
    def test_queries_that_see_nothing_beside_large_logits(self, rng):
        case = GroupedCase(rng, n_queries=43, n_keys=40, d=8, logit_scale=1000, causal=True)
        hint = "a query that sees nothing must leave the others theirs: each takes its own maximum before exp"
        attend_grouped(case, hint, hint)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        case = GroupedCase(rng, n=20, d=8)
        given = dict(zip("qkv", copied(case.Q, case.K, case.V), strict=True))
        with unchanged(given):
            grouped_query_attention(*given.values())

    @pytest.mark.cost
    @full_and_half
    def test_keys_are_read_once_and_never_expanded(self, rng, dtype):
        case = GroupedCase(rng, kv_heads=2, group=4, n_queries=1, n_keys=1024, d=128, dtype=dtype)
        got, counts = counted("grouped_query_attention", *copied(case.Q, case.K, case.V))
        case.check_results(two_results("grouped_query_attention", got))
        name = "grouped_query_attention (8 heads on 2, N_k = 1024, d = 128)"
        hint = "K and V are expanded to H_q heads, by repeat_interleave or by a product that broadcasts them: "
        hint += "let the queries of a group be rows of one product with their K"
        assert_own_products(name, counts)
        in_float32 = 0 if dtype == "float32" else 3 * 2 * case.K.nbytes  # K and V, converted
        assert_at_most(f"the peak of {name}", counts["peak_bytes"], in_float32 + case.K.nbytes // 2, hint=hint)
        hint = "each query head reads its K again: the heads of a group share one read"
        assert_read_once(name, counts, case.K, case.V, hint)

    @pytest.mark.memory_limit(mib=40)
    @pytest.mark.cost
    def test_far_from_expanded(self, rng, memory_limit):
        """Keys and values so long that nobody can hold them once for each head of q."""
        shapes = (16, 1, 64), (1, 65_536, 64), (1, 65_536, 64)
        q, k, v = (torch.from_numpy(rng.standard_normal(shape)).float() for shape in shapes)
        o, _ = memory_limit(grouped_query_attention, q, k, v)
        want = (q[:, 0] @ k[0].T / 8).softmax(-1) @ v[0]
        assert_close("o", o[:, 0], want, baseline=want, tolerance=Tolerance(roundings=1000))

    @pytest.mark.refuses
    def test_shapes_that_do_not_fit(self, rng):
        case = GroupedCase(rng, n_queries=6, n_keys=5, d=8)
        assert_refused(grouped_query_attention, mismatched_shapes(case.Q, case.K, case.V))

    @pytest.mark.refuses
    def test_heads_that_do_not_fit(self):
        q, k, v = torch.zeros(4, 2, 6), torch.zeros(2, 5, 6), torch.zeros(2, 5, 3)
        table = [
            ((torch.zeros(5, 2, 6), k, v), "for 5 query heads on 2 key heads", {"H_q": 5, "H_kv": 2}),
            ((q, k, torch.zeros(1, 5, 3)), "when k and v differ in heads", ("(2, 5, 6)", "(1, 5, 3)")),
        ]
        assert_refused(grouped_query_attention, table)


def run_cache(kind, size, calls, head_dim=3, dtype=torch.float32):
    """What a new cache does, call by call, and the bytes alive at the end; nothing is compared."""
    return cache_session(kind, (size, 2, head_dim, dtype), calls)


def follow(kind, size, calls, **options):
    """The same, compared with a list of all tokens."""
    session, life = run_cache(kind, size, calls, **options)
    assert_follows(kind, size, calls, session)
    return session, life


def assert_sizes_refused(kind, capacity):
    """Expect a ValueError for each size of 0; `capacity` is what the handout calls the first."""
    sizes = {capacity: (0, 2, 3), "kv_heads": (4, 0, 3), "head_dim": (4, 2, 0)}
    table = [((*numbers, torch.float32), f"for {name}=0", {name: 0}) for name, numbers in sizes.items()]
    assert_refused(CACHES[kind], table)


def assert_appends_refused(kind, rng):
    """Expect a ValueError for tokens of another shape or dtype than the cache's, and nothing stored."""
    (k, v), cache = tokens(rng, 2), Session(partial(cache_calls, kind, (4, 2, 3, torch.float32)))
    table = [
        ((k[:1], v), "for keys of one head", {"k": "(1, 2, 3)"}),
        ((k, v[..., :2]), "for values of another width", {"v": "(2, 2, 2)"}),
        ((k, v[:, :1]), "when k and v differ in tokens", {"v": "(2, 1, 3)"}),
        ((k.double(), v), "for keys of another dtype", {"k": "float64"}),
    ]
    assert_refused(cache.append, table)
    assert_equal("len after appends that failed", cache.call("__len__"), 0)


class TestKVCache:
    """One storage for life, written a token at a time."""

    @pytest.mark.basic
    def test_random_calls(self, rng):
        """Appends of few tokens, and truncations: what comes after one takes the place of what was cut off.

        The last place stays free: a test of its own fills it.
        """
        for capacity in rng.integers(10, 40, 4).tolist():
            calls, length = [], 0
            for _ in range(25):
                if length and rng.random() < 0.3:
                    length = int(rng.integers(0, length + 1))
                    calls.append(("truncate", length))
                else:
                    n = int(rng.integers(0, min(6, capacity - 1 - length) + 1))
                    length += n
                    calls += appends(rng, [n])
            follow("KVCache", capacity, calls)

    @pytest.mark.robust
    @by_dtype
    def test_precisions(self, rng, dtype):
        dtype = getattr(torch, dtype)
        follow("KVCache", 10, appends(rng, [2, 1, 1, 5], dtype=dtype), dtype=dtype)

    @pytest.mark.robust
    def test_the_last_place(self, rng):
        follow("KVCache", 4, [*appends(rng, [3, 1, 0]), ("truncate", 0), *appends(rng, [4])])

    @pytest.mark.cost
    def test_an_append_writes_its_tokens_and_nothing_else(self, rng):
        sizes, token_bytes = [500, 1, 1, 7], 2 * 2 * 32 * 4
        session, _ = follow("KVCache", 600, appends(rng, sizes, head_dim=32), head_dim=32)
        hint = "more is written than the new tokens, once each: torch.cat, say, writes the history again"
        assert_appends_write(session, sizes, lambda n: n * token_bytes, lambda n: 0, hint)

    @pytest.mark.cost
    def test_one_storage_for_life(self, rng):
        session, life = follow("KVCache", 64, [*appends(rng, [3, 1, 1]), ("truncate", 2), *appends(rng, [50])])
        moved = "keys or values lie in other memory than before: the storage is made once, and a view of it is returned"
        for one in session:
            require(all(one["stays"]), moved)
            copies = "keys and values are copies: a slice of the storage is a view"
            assert_at_most("the memory that reading keys and values takes", one["reading_bytes"], 0, hint=copies)
        what = "the bytes a cache holds, 64 tokens of 2 heads and 3 numbers, keys and values"
        assert_at_most(what, life, 2 * 64 * 2 * 3 * 4)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=44)
    def test_storage_seen_from_outside(self, rng, memory_limit):
        k, v = whole_numbers(rng)
        got = memory_limit(last_after_appends, KVCache, (65_536, 2, 64, torch.bfloat16), k, v, 64)
        assert_last_tokens(got, k, v, 64, 65_536)

    @pytest.mark.refuses
    def test_no_room(self, rng):
        calls = appends(rng, [5, 4, 3])
        session, _ = run_cache("KVCache", 8, calls)
        error = session[1]["error"]
        wrapped = "\nUsual cause: the index wraps, or a slice is cut off at the end without a word"
        require(error is not None, f"no ValueError when 4 tokens come to 5 with max_len 8{wrapped}")
        require("8" in error or "max_len" in error, f"the ValueError does not name max_len or 8; it says: {error}")
        hint = "the length grew before the space was checked: a call that fails changes nothing"
        assert_equal("len after an append that does not fit", session[1]["len"], 5, hint=hint)
        kept = [torch.cat([calls[0][i], calls[2][i]], 1) for i in (1, 2)]
        assert_held("after 5 tokens, 4 that do not fit, and 3", session[2], *kept)

    @pytest.mark.refuses
    @pytest.mark.parametrize("n", [-1, 4])
    def test_truncating_to_what_is_not_there(self, rng, n):
        calls = [*appends(rng, [3]), ("truncate", n)]
        session, _ = run_cache("KVCache", 8, calls)
        require(session[1]["error"] is not None, f"no ValueError for truncate({n}) of 3 tokens")
        assert_held(f"after a truncate({n}) that failed", session[1] | {"error": None}, *calls[0][1:])

    @pytest.mark.refuses
    def test_bad_arguments(self, rng):
        assert_sizes_refused("KVCache", "max_len")
        assert_appends_refused("KVCache", rng)


class TestRollingKVCache:
    """The last tokens, in order, whatever came at once."""

    @pytest.mark.basic
    @pytest.mark.parametrize("sizes", [[1] * 9, [2, 2, 2, 2], [3, 4, 5], [7, 1], [4, 1], [1, 8, 1]])
    def test_appends(self, rng, sizes):
        follow("RollingKVCache", 4, appends(rng, sizes))

    @pytest.mark.basic
    def test_truncating_before_anything_is_overwritten(self, rng):
        calls = [*appends(rng, [4, 1]), ("truncate", 3), *appends(rng, [2, 1]), ("truncate", 6), ("truncate", 0)]
        follow("RollingKVCache", 6, [*calls, *appends(rng, [7, 1])])

    @pytest.mark.cost
    def test_an_append_writes_its_tokens_and_nothing_else(self, rng):
        sizes, window, token_bytes = [100, 700, 1, 1, 7], 256, 2 * 2 * 32 * 4
        session, life = follow("RollingKVCache", window, appends(rng, sizes, head_dim=32), head_dim=32)
        hint = "what stays is moved, or tokens are written that are overwritten at once: write the last ones, once"

        def once(n):
            return token_bytes * min(n, window)

        assert_appends_write(session, sizes, lambda n: 2 * once(n), once, hint)
        what = f"the bytes a cache with window {window} holds after {sum(sizes)} tokens"
        assert_at_most(what, life, 2 * window * token_bytes, hint="tokens that have left the window are kept")

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=8)
    def test_storage_seen_from_outside(self, rng, memory_limit):
        k, v = whole_numbers(rng)
        got = memory_limit(last_after_appends, RollingKVCache, (1500, 2, 64, torch.bfloat16), k, v, 32)
        assert_last_tokens(got, k, v, 32, 1500)

    @pytest.mark.cost
    def test_tokens_in_one_piece_are_not_copied(self, rng):
        session, _ = follow("RollingKVCache", 8, appends(rng, [3, 2]))
        hint = "keys and values are copies although no token has been overwritten: a slice of the storage is a view"
        for one in session:
            assert_at_most("the memory that reading keys and values takes", one["reading_bytes"], 0, hint=hint)

    @pytest.mark.refuses
    @pytest.mark.parametrize("sizes", [[6], [3, 1, 1, 1]])
    def test_truncating_what_has_wrapped(self, rng, sizes):
        numbers = (2, 4, 5, 6)
        session, _ = run_cache("RollingKVCache", 5, [*appends(rng, sizes), *(("truncate", n) for n in numbers)])
        for n, one in zip(numbers, session[-4:], strict=True):
            why = f"what token {n - 1} could see then has been overwritten, so that what is left is not the beginning"
            if n == sum(sizes):
                why = "a token has been overwritten, and then every truncation is refused, also one that drops nothing"
            done = f"truncate({n}) succeeds after {sum(sizes)} tokens with window 5: {why}"
            require(one["error"] is not None, done)
            assert_equal("len after a truncate that failed", one["len"], 5)

    @pytest.mark.refuses
    def test_bad_arguments(self, rng):
        assert_sizes_refused("RollingKVCache", "window")
        assert_appends_refused("RollingKVCache", rng)


def split_case(rng, *, n=None, n_queries=1, n_keys=None, **sizes):
    """A case of one query for each head, whatever `n_queries` is."""
    return GroupedCase(rng, n_queries=1, n_keys=n if n_keys is None else n_keys, **sizes)


def attend_split(case, num_splits, hint="", nan_hint="", decode=split_kv_decode):
    """Call split_kv_decode with copies of a case's tensors, and compare what it returns."""
    given = dict(zip("qkv", copied(case.Q[..., 0, :], case.K, case.V), strict=True))
    with report_mutation_first(given):
        assert_split(case, num_splits, decode(*given.values(), num_splits), hint, nan_hint)


def assert_split(case, num_splits, got, hint="", nan_hint=""):
    """Compare what split_kv_decode returned, and name a usual mistake in merging where one fits."""
    got = two_results("split_kv_decode", got)
    for name, x in got.items():
        assert_type(name, x, torch.Tensor, "a tensor")
    with_queries = {"o": got["o"][..., None, :], "lse": got["lse"][..., None]}
    case.check_results(with_queries, split_mistakes(case, num_splits), hint=hint, nan_hint=nan_hint)


ONE_QUERY = [row for row in attention_cases("full") if not re.match(r"N\d+x\d+", row.id)]
by_splits = pytest.mark.parametrize("num_splits", [1, 2, 3], ids="splits{}".format)


class TestSplitKvDecode:
    """Parts of the keys, merged exactly."""

    @pytest.mark.basic
    def test_worked_example(self):
        attend_split(worked_case(), 2)  # each key in a split of its own

    @pytest.mark.basic
    @by_splits
    @pytest.mark.parametrize("row", ONE_QUERY)
    def test_results(self, rng, row, num_splits):
        case = row.draw(split_case, rng)
        at_most = case.K.shape[-2]  # more splits than keys have a test of their own
        attend_split(case, min(num_splits, at_most), row.hint, row.nan_hint)

    @pytest.mark.robust
    @by_splits
    def test_uninitialised_memory_is_written_over(self, rng, num_splits):
        case = split_case(rng, n_keys=21, d=8, d_v=5, batch=(2,))
        attend_split(case, num_splits, nan_hint=NAN_FROM_EMPTY, decode=partial(call_on_nan, "split_kv_decode"))

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        case = split_case(rng, n_keys=20, d=8)
        given = dict(zip("qkv", copied(case.Q[..., 0, :], case.K, case.V), strict=True))
        with unchanged(given):
            split_kv_decode(*given.values(), 3)

    @pytest.mark.robust
    @pytest.mark.parametrize(("n_keys", "num_splits"), [(3, 8), (5, 128), (0, 3)])
    def test_more_splits_than_keys(self, rng, n_keys, num_splits):
        hint = "a split without keys must weigh nothing: " + NO_KEYS
        attend_split(split_case(rng, n_keys=n_keys, d=8), num_splits, hint, hint)

    @pytest.mark.robust
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_parts_that_cancel(self, rng, dtype):
        hint = "partial outputs and log-sum-exps of half-precision inputs are float32, rounded once, when merged"
        attend_split(cancelling(split_case(rng, n_keys=64, d=8, dtype=dtype)), 2, hint)

    @pytest.mark.cost
    @full_and_half
    @pytest.mark.parametrize("num_splits", [4, 7])
    def test_keys_are_read_once_a_split_at_a_time(self, rng, num_splits, dtype):
        case = split_case(rng, group=4, n_keys=1000, d=64, d_v=64, dtype=dtype)
        got, counts = counted("split_kv_decode", *copied(case.Q[..., 0, :], case.K, case.V), num_splits)
        assert_split(case, num_splits, got)
        name = f"split_kv_decode (8 heads on 2, N_k = 1000, {num_splits} splits)"
        hint = "keys are read again: once in all, each split its own part"
        assert_read_once(name, counts, case.K, case.V, hint)
        longest, part = max(max(shape) for shape in counts["shapes"]), -(-1000 // num_splits)
        hint = "the keys are not split" if longest == 1000 else "a split takes more than its share"
        hint += f": none has more than ⌈1000 / {num_splits}⌉ keys"
        assert_at_most("the most keys that one product meets", longest, part, unit="keys", hint=hint)
        partials, scores = 4 * num_splits * 8 * 65, 4 * 8 * 1000
        hint = "K or V is copied: a split is a slice; beyond scores there are splits · H_q · (d_v + 1) numbers"
        in_float32 = 0
        if dtype == "bfloat16":
            in_float32 = 3 * 2 * part * 64 * 4  # a split of K and one of V, converted
            hint += "; half precision is converted a split at a time"
        most = 4 * partials + 4 * scores + in_float32
        assert_at_most(f"the peak of {name}", counts["peak_bytes"], most, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=8)
    def test_far_from_a_copy(self, rng, memory_limit):
        case = split_case(rng, group=4, n_keys=32_768, d=64, d_v=64, dtype="bfloat16")
        q, k, v = copied(case.Q[..., 0, :], case.K, case.V)
        assert_split(case, 16, memory_limit(split_kv_decode, q, k, v, 16))

    @pytest.mark.refuses
    def test_shapes_that_do_not_fit(self, rng):
        case = split_case(rng, n_keys=5, d=8)
        table = mismatched_shapes(case.Q[..., 0, :], case.K, case.V, 3)
        # code that calls grouped_query_attention names q with an axis of one query
        as_rows = {str(tuple(case.Q[..., 0, :].shape)): str(tuple(case.Q.shape))}
        either = [(given, when, {s: as_rows.get(s, s) for s in shapes}) for given, when, shapes in table]
        assert_refused(split_kv_decode, either)

    @pytest.mark.refuses
    def test_numbers_that_do_not_fit(self):
        q, k, v = torch.zeros(4, 6), torch.zeros(2, 5, 6), torch.zeros(2, 5, 3)
        table = [
            ((q, k, v, 0), "for 0 splits", {"num_splits": 0}),
            ((torch.zeros(5, 6), k, v, 2), "for 5 query heads on 2", {"H_q": 5, "H_kv": 2}),
            ((q, k, v[:1], 2), "when k and v differ in heads", {"k": "(2, 5, 6)", "v": "(1, 5, 3)"}),
        ]
        assert_refused(split_kv_decode, table)


SPLITS = [(48, 108, 64), (1, 108, 64), (4, 108, 300), (64, 132, 8), (108, 108, 64), (500, 108, 64), (30, 100, 7),
          (20, 132, 11), (110, 100, 64), (1, 108, 1000, 16), (2, 108, 1000, 5), (4, 1, 100), (3, 8, 12),
          (2, 27, 40)]  # fmt: skip


class TestNumSplitsHeuristic:
    """The smallest number near the best."""

    @pytest.mark.basic
    @pytest.mark.parametrize("sizes", SPLITS, ids=lambda sizes: "-".join(map(str, sizes)))
    def test_some_sizes(self, sizes):
        assert_heuristic(num_splits_heuristic, *sizes)

    @pytest.mark.basic
    def test_just_enough_is_enough(self):
        hint = "17 / 20 is 0.85, and that of 20 splits is 1: at least 0.85 times the best is enough"
        assert_equal("num_splits_heuristic(17, 20, 20)", num_splits_heuristic(17, 20, 20), 1, hint=hint)

    def test_random_sizes(self, rng):
        for _ in range(60):
            total, sms, blocks, most = rng.integers((1, 8, 1, 1), (150, 140, 200, 140)).tolist()
            assert_heuristic(num_splits_heuristic, total, sms, blocks, most)

    @pytest.mark.refuses
    def test_bad_arguments(self):
        given = {"total_mblocks": 48, "num_sms": 108, "num_n_blocks": 64, "max_splits": 128}
        table = [((given | {name: 0}).values(), f"for {name}=0", {name: 0}) for name in given]
        assert_refused(num_splits_heuristic, table)


class TestBlockManager:
    """Nothing lost, nothing twice, nothing shared that differs."""

    @pytest.mark.basic
    def test_worked_example(self):
        manager = Session(partial(manager_calls, 4, 2))
        assert_equal("the table of the first sequence", manager.allocate("a", [5, 6, 7]), [0, 1])
        hint = "the block with 5 and 6 is there already"
        assert_equal("the table of the second", manager.allocate("b", [5, 6, 8]), [0, 2], hint=hint)
        assert_equal("num_cached_tokens of the second", manager.num_cached_tokens("b"), 2)

    @pytest.mark.basic
    def test_the_last_block_of_a_prompt_is_found_when_it_is_full(self):
        hint = "the prompt fills its last block, which a longer one finds"
        Managed(manager_calls, 8, 2).after(a=[1, 2, 3, 4]).assert_finds("b", [1, 2, 3, 4, 5], 4, hint)

    def test_tables_are_the_callers_own(self):
        found = tables_after_theirs_were_changed()
        hint = "a list is handed out that is the manager's own: what the caller does with it changes the manager"
        assert_equal("the table after the caller has changed his", found, [[0, 1], [0, 1]], hint=hint)

    def test_a_block_is_what_precedes_it_too(self):
        managed = Managed(manager_calls, 8, 2).after(a=[1, 2, 3, 4, 5])
        hint = "the key of a block leaves out what lies before it: keys and values depend on all of the text"
        managed.assert_finds("b", [3, 4, 7], 0, hint)

    def test_a_partly_filled_block_is_its_owner_s(self):
        hint = "only full blocks are shared: in one that is still being filled the next token of each would cost a copy"
        for longer in ([1, 2, 3, 4], [1, 2, 3, 4, 5]):
            Managed(manager_calls, 8, 2).after(a=[1, 2, 3]).assert_finds("b", longer, 2, hint)

    def test_what_was_freed_is_found_until_it_is_needed(self):
        managed = Managed(manager_calls, 4, 2).after(a=[1, 2, 3, 4, 5], gone="a")
        managed.assert_finds("b", [1, 2, 3, 4, 6], 4, "freed blocks keep what they hold as long as nobody takes them")
        hint = "a block was given to somebody else, and its old content is still found"
        managed.after(gone="b").after(c=[7] * 8, gone="c").assert_finds("d", [1, 2, 3], 0, hint)

    def test_what_is_found_is_not_taken(self):
        managed = Managed(manager_calls, 2, 2).after(a=[1, 2], c=[3, 4], gone="ac")
        hint = "new blocks are taken before those that were found: the longest free is one of these"
        managed.assert_finds("b", [1, 2, 7], 2, hint)

    def test_what_is_found_and_free_counts_once(self):
        Managed(manager_calls, 4, 2).after(c=[9], a=[1, 2, 3, 4, 5], gone="a").allocate("b", [1, 2, 3, 4, 6, 7, 8])

    def test_the_longest_free_goes_first(self):
        managed = Managed(manager_calls, 6, 2).after(a=[1, 2, 3, 4, 5], b=[6, 7, 8], gone="ab")
        what = "when 5 was never used and a sequence with blocks 0, 1 and 2 went before one with 3 and 4"
        hint = "free blocks are taken in the order in which they became free, those of one sequence from its last"
        table = managed.manager.allocate("c", [9] * 3)
        assert_equal(f"the blocks of a new sequence, {what},", table, [5, 2], hint=hint)

    def test_a_twin_does_not_take_the_place_of_what_is_found(self):
        managed = Managed(manager_calls, 8, 2).after(a=[1, 2, 3], b=[1, 2], gone="b")
        managed.after(c=[7] * 12, gone="c")  # takes all that is free, the twin's block too
        hint = (
            "two blocks held the same, and when the second was reused, the first, which lives, was forgotten: the map "
            "named the second, or the entry was removed without a look at whose it is"
        )
        managed.assert_finds("d", [1, 2, 4], 2, hint)

    def test_blocks_that_fill_up_are_shared(self):
        managed = Managed(manager_calls, 5, 3).after(a=[1, 2])
        for token_id in range(3, 11):
            managed.append("a", token_id)
        managed.assert_finds("b", [*range(1, 10), 11], 9, "blocks that fill up token by token are shared as well")

    @pytest.mark.seconds(60)
    def test_random_operations(self, rng):
        run_random_operations(manager_calls, random_operations, rng)

    @pytest.mark.robust
    def test_equal_hashes_are_not_equal_tokens(self):
        managed = Managed(manager_calls, 12, 2).after(a=[1, 2, 3, 4, 5])
        for token, place, want in ((1, 0, 0), (3, 2, 2)):
            text = [1, 2, 3, 4, 5]
            text[place] = of_equal_hash(token)
            same = f"hash({text[place]}) is hash({token}) in Python"
            hint = f"{same}: equal hashes say that tokens may be equal, and then they must be compared"
            managed.assert_finds(token, text, want, hint)

    @pytest.mark.refuses
    def test_unknown_and_known_names(self):
        assert_names_are_known(manager_calls)

    @pytest.mark.refuses
    def test_bad_sizes(self):
        table = [
            ((0, 2), "for num_blocks=0", {"num_blocks": 0}),
            ((2, 0), "for block_size=0", {"block_size": 0}),
        ]
        assert_refused(BlockManager, table)


def assert_paged(batch, hint="", nan_hint=FOREIGN):
    batch.check(paged_attention(*batch.arguments), hint, nan_hint, NO_KEYS)


class TestPagedAttention:
    """Through a table, and no farther."""

    @pytest.mark.basic
    def test_worked_example(self):
        k_cache, v_cache = torch.zeros(4, 2, 1, 1), torch.arange(1.0, 9.0).view(4, 2, 1, 1)
        got = paged_attention(torch.ones(1, 1, 1), k_cache, v_cache, torch.tensor([[2, 0, -1]]), torch.tensor([3]))
        mean = np.full((1, 1, 1), 4.0, np.float32)  # of the values 5, 6 and 1
        mistakes = {
            "the 2 counts as well, and places behind its last token must weigh nothing": mean - 0.5,
            "the blocks of a sequence are taken to lie one behind the other: the table has each": mean + 2,
            "the last block, which is partly filled, is left out": mean + 1.5,
        }
        assert_close("o", got, mean, baseline=mean, mistakes=mistakes)

    @pytest.mark.basic
    @pytest.mark.parametrize("lengths", [(8, 16), (7,), (17, 3, 16, 31)])
    def test_lengths(self, rng, lengths):
        hint = "places behind its last token must weigh nothing" if any(n % 8 for n in lengths) else ""
        assert_paged(PagedBatch(rng, lengths, block_size=8, d_v=5), hint)

    def test_random_sizes(self, rng):
        for _ in range(6):
            size, kv_heads, group, d, d_v, *lengths = rng.integers(1, (9, 4, 4, 20, 20, 40, 40, 40)).tolist()
            assert_paged(PagedBatch(rng, lengths, block_size=size, kv_heads=kv_heads, group=group, d=d, d_v=d_v))

    @pytest.mark.robust
    @pytest.mark.parametrize("lengths", [(5, 0, 9), (0, 0)])
    def test_sequences_without_tokens(self, rng, lengths):
        assert_paged(PagedBatch(rng, lengths, block_size=4), "without tokens the output is 0")

    @pytest.mark.robust
    def test_uninitialised_memory_is_written_over(self, rng):
        batch = PagedBatch(rng, (5, 0, 9), block_size=4)
        batch.check(call_on_nan("paged_attention", *batch.arguments), "", NAN_FROM_EMPTY, NAN_FROM_EMPTY)

    @pytest.mark.robust
    @by_dtype
    def test_precisions(self, rng, dtype):
        for logit_scale in (1, 30):
            batch = PagedBatch(rng, (100, 7), block_size=8, dtype=getattr(torch, dtype), logit_scale=logit_scale)
            assert_paged(batch, SHORT_SUMS)

    @pytest.mark.robust
    def test_integers_of_another_width(self, rng):
        batch = PagedBatch(rng, (9, 4), block_size=4)
        batch.block_table, batch.context_lens = batch.block_table.int(), batch.context_lens.int()
        assert_paged(batch, "an operator that takes int64 read the table's int32 as such: convert the table first")

    @pytest.mark.robust
    def test_large_logits(self, rng):
        assert_paged(PagedBatch(rng, (30, 9), block_size=4, logit_scale=1000), nan_hint=OVERFLOW)

    @pytest.mark.cost
    @full_and_half
    def test_bytes_read_and_held(self, rng, dtype):
        dtype, lengths = getattr(torch, dtype), (128, 120, 128, 97, 128, 128, 3, 0)
        batch = PagedBatch(rng, lengths, block_size=8, kv_heads=2, group=4, d=32, dtype=dtype)
        got, counts = counted("paged_attention", *batch.arguments)
        batch.check(got)
        assert_own_products("paged_attention", counts)
        token_bytes = 2 * 32 * 4  # of keys, or of values, in float32
        hint = (
            "keys are copied for each query head of a group, or those of the whole batch are gathered into one dense "
        )
        hint += "tensor: that is what a table does without"
        name = f"the peak of paged_attention, {len(lengths)} sequences"
        assert_at_most(name, counts["peak_bytes"], 3 * 2 * max(lengths) * token_bytes, hint=hint)
        whole = sum(-(-n // 8) * 8 for n in lengths) * 2 * 32 * dtype.itemsize
        hint = "a sequence reads its own tokens, H_kv · d numbers each, of K and of V: blocks of others, or again?"
        for which in "kv":
            assert_at_most(f"what paged_attention reads of {which}_cache", counts["read"][which], whole, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=8)
    def test_far_from_a_dense_batch(self, rng, memory_limit):
        lengths, options = (1024, *[5] * 63), {"kv_heads": 2, "group": 2, "d": 64, "dtype": torch.bfloat16}
        batch = PagedBatch(rng, lengths, block_size=256, **options)
        batch.check(memory_limit(paged_attention, *batch.arguments))

    @pytest.mark.refuses
    def test_bad_arguments(self, rng):
        q, k_cache, v_cache, table, lens = PagedBatch(rng, (9, 4), block_size=4).arguments
        places = table.shape[1] * 4
        too_long = f"for a context longer than the {places} places of a row"
        table = [
            ((q, k_cache, v_cache, table, lens + places), too_long, {"context_lens": places}),
            ((q[:, :3], k_cache, v_cache, table, lens), "for 3 query heads on 2", {"H_q": 3, "H_kv": 2}),
        ]
        assert_refused(paged_attention, table)
