"""Lab 09's solution against torch's own attention: grouped, causal from the bottom right, and through a page table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest
import torch
from torch.nn import functional

from benchmarks.harness import solution_module

SHAPES = [(6, 2, 1, 37), (8, 8, 1, 5), (4, 1, 7, 7), (6, 3, 5, 29)]
"""Query heads, key heads, queries, keys."""
D, D_V = 16, 24
assert_near = partial(torch.testing.assert_close, rtol=1e-5, atol=2e-6)

pytestmark = [
    pytest.mark.slow,  # flex attention imports torch's compiler
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return solution_module("09")


@pytest.fixture
def draw() -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(shape, generator=generator)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "n_queries", "n_keys"), SHAPES)
def test_grouped_is_the_built_in_one(
    lab: ModuleType, draw: Callable, heads: int, kv_heads: int, n_queries: int, n_keys: int, causal: bool
) -> None:
    from torch.nn.attention.bias import causal_lower_right

    q, k, v = draw(2, heads, n_queries, D), draw(2, kv_heads, n_keys, D), draw(2, kv_heads, n_keys, D_V)
    o, _ = lab.grouped_query_attention(q, k, v, causal=causal)
    bias = causal_lower_right(n_queries, n_keys) if causal else None
    assert_near(o, functional.scaled_dot_product_attention(q, k, v, bias, enable_gqa=True))


def test_gradients_of_grouped_are_the_built_in_ones(lab: ModuleType, draw: Callable) -> None:
    from torch.nn.attention.bias import causal_lower_right

    q, k, v = given = [draw(2, heads, n, D).requires_grad_() for heads, n in ((6, 5), (2, 29), (2, 29))]
    o, lse = lab.grouped_query_attention(q, k, v, causal=True)
    wanted = functional.scaled_dot_product_attention(q, k, v, causal_lower_right(5, 29), enable_gqa=True)
    along = draw(*o.shape)
    got, want = (torch.autograd.grad(each, given, along, retain_graph=True) for each in (o, wanted))
    assert_near(got, want)
    assert torch.autograd.grad(lse.sum(), given[0])[0].isfinite().all()


@pytest.mark.parametrize(("heads", "kv_heads", "n_queries", "n_keys"), SHAPES)
def test_grouped_and_split_are_flex_attention_with_its_log_sum_exp(
    lab: ModuleType, draw: Callable, heads: int, kv_heads: int, n_queries: int, n_keys: int
) -> None:
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    q, k, v = draw(2, heads, n_queries, D), draw(2, kv_heads, n_keys, D), draw(2, kv_heads, n_keys, D)
    below = create_block_mask(lambda b, h, i, j: j <= i + n_keys - n_queries, None, None, n_queries, n_keys, "cpu")
    o, aux = flex_attention(q, k, v, block_mask=below, enable_gqa=True, return_aux=AuxRequest(lse=True))
    assert aux.lse is not None
    assert_near(lab.grouped_query_attention(q, k, v, causal=True), (o, aux.lse))
    if n_queries == 1:
        for num_splits in (1, 3, n_keys + 2):
            got = lab.split_kv_decode(q[:, :, 0], k, v, num_splits)
            assert_near(got, (o[:, :, 0], aux.lse[:, :, 0]))


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (5, 1)])
@pytest.mark.parametrize("page", [1, 4, 8])
def test_paged_is_torchs_paged_attention(lab: ModuleType, draw: Callable, heads: int, kv_heads: int, page: int) -> None:
    from torch.nn.attention.experimental._paged_attention import PagedAttention
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    lengths = torch.tensor([5, 17, 1, 24])
    n_pages, batch = 4 + int((-(-lengths // page)).sum()), len(lengths)
    pages = PagedAttention(n_pages, page, batch, device="cpu")
    k, v = (draw(1, kv_heads, n_pages * page, width) for width in (D, D_V))
    for sequence in (3, 0, 2, 1):  # tables that do not go up
        pages.reserve(torch.tensor([sequence]), lengths[sequence : sequence + 1])
    q = draw(batch, heads, 1, D)
    longest = -(-int(lengths.max()) // page) * page
    logical = create_block_mask(lambda b, h, i, j: j < lengths[b], batch, 1, 1, longest, "cpu", BLOCK_SIZE=(1, page))
    physical = pages.convert_logical_block_mask(logical)
    want = flex_attention(q, k, v, block_mask=physical, enable_gqa=True)
    k_cache, v_cache = (x[0].transpose(0, 1).unflatten(0, (n_pages, page)) for x in (k, v))
    got = lab.paged_attention(q[:, :, 0], k_cache, v_cache, pages.page_table, lengths)
    assert_near(got, want[:, :, 0])
