"""Labs 14 and 15 against code of others: PyTorch's FlexAttention, plain versions in fla-core, and Qwen3-Next."""

from __future__ import annotations

import warnings
from inspect import unwrap

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.harness import solution_module

pytestmark = pytest.mark.slow

LAB, STATES = solution_module("14"), solution_module("15")


def drawn(*shape: int, seed: int) -> torch.Tensor:
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("n_tokens", "block", "top"), [(96, 16, 2), (70, 8, 3), (64, 16, 0)])
def test_block_sparse_attention_is_flex_attention_with_its_mask(n_tokens, block, top):
    q, k, v = (drawn(1, 2, n_tokens, 8, seed=seed) for seed in range(3))
    blocks = torch.arange(n_tokens) // block
    means = torch.stack([k[..., blocks == b, :].mean(-2) for b in range(blocks.max() + 1)], -2)
    gates = (q @ means.mT).masked_fill(torch.arange(means.shape[-2]) >= blocks[:, None], -torch.inf)
    best = gates.topk(min(top, means.shape[-2]), -1)
    chosen = torch.zeros_like(gates, dtype=torch.bool).scatter(-1, best.indices, ~best.values.isneginf())

    def is_seen(_batch, head, query, key):
        own = blocks[query] == blocks[key]
        return (key <= query) & (own | chosen[0, head, query, blocks[key]])

    mask = create_block_mask(is_seen, 1, 2, n_tokens, n_tokens, device="cpu", BLOCK_SIZE=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without torch.compile it computes the whole matrix, which is what is wanted
        want = flex_attention(q, k, v, block_mask=mask)
    torch.testing.assert_close(LAB.block_sparse_attention(q, k, v, block, top), want)


@pytest.mark.filterwarnings("ignore:Triton is not supported")
def test_decoding_from_pages_is_nsa_of_its_last_query():
    from fla.ops.nsa.naive import naive_nsa_selection

    page, n_tokens, heads, kv_heads = 8, 61, 4, 2
    q, k, v = drawn(heads, 16, seed=3), drawn(kv_heads, n_tokens, 16, seed=4), drawn(kv_heads, n_tokens, 5, seed=5)
    pages = torch.tensor([[0, 3, 7], [1, 5, 7]])
    queries = torch.zeros(1, n_tokens, heads, 16, dtype=torch.float64)
    queries[0, -1] = q
    chosen = pages.expand(1, n_tokens, *pages.shape)
    theirs = naive_nsa_selection(queries, k.transpose(0, 1)[None], v.transpose(0, 1)[None], chosen, page)
    got, _ = LAB.selected_decode(q, k, v, pages, page)
    torch.testing.assert_close(got, theirs[0, -1], rtol=1e-5, atol=1e-6)  # theirs computes in float32


@pytest.mark.parametrize("top", [1, 5, 40])
@pytest.mark.filterwarnings("ignore:Triton is not supported")
def test_the_indexer_is_dsas(top):
    from fla.ops.dsa.naive import naive_dsa_indexer

    q, w, k = drawn(30, 16, 8, seed=6).float(), drawn(30, 16, seed=7).float(), drawn(30, 8, seed=8).float()  # no ties
    theirs = naive_dsa_indexer(q[None], k[None], w[None], topk=top, activation="relu")[0]
    last = torch.iinfo(torch.int64).max
    ascending = theirs.masked_fill(theirs < 0, last).sort(-1).values
    assert torch.equal(LAB.index_top_tokens(q, w, k, top), ascending.masked_fill(ascending == last, -1))


def tokens_and_state(n_tokens: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """q, k (normalised), v, beta and g of 2 sequences with 3 heads, (2, 3, N, …), and a state (2, 3, 16, 8)."""
    q, k = (torch.nn.functional.normalize(drawn(2, 3, n_tokens, 16, seed=seed), dim=-1) for seed in (9, 10))
    beta, g = drawn(2, 3, n_tokens, seed=11).sigmoid(), -drawn(2, 3, n_tokens, seed=12).exp()
    return [q, k, drawn(2, 3, n_tokens, 8, seed=13), beta, g], drawn(2, 3, 16, 8, seed=14)


@pytest.mark.parametrize("n_tokens", [1, 64, 131])
@pytest.mark.parametrize("rule", ["fla, recurrent", "fla, chunks", "Qwen3-Next, recurrent", "Qwen3-Next, chunks"])
@pytest.mark.filterwarnings("ignore:Triton is not supported")
def test_gated_delta_rule_is_that_of_others(rule, n_tokens):
    from fla.ops.gated_delta_rule import naive
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    theirs = {
        "fla, recurrent": naive.naive_recurrent_gated_delta_rule,
        "fla, chunks": naive.naive_chunk_gated_delta_rule,
        "Qwen3-Next, recurrent": unwrap(qwen.torch_recurrent_gated_delta_rule),  # and not fla's kernels
        "Qwen3-Next, chunks": unwrap(qwen.torch_chunk_gated_delta_rule),
    }[rule]
    inputs, state = tokens_and_state(n_tokens)
    q, k, v, beta, g = (x.transpose(1, 2) for x in inputs)  # tokens before heads
    scaled = q * q.shape[-1] ** 0.5  # they divide by √d
    want, want_state = theirs(scaled, k, v, beta=beta, g=g, initial_state=state, output_final_state=True)
    mine = STATES.gated_delta_recurrent(*inputs, state), STATES.gated_delta_chunked(*inputs, state, 32)
    for o, last in mine:
        torch.testing.assert_close(o.transpose(1, 2), want.double(), rtol=1e-4, atol=1e-5)  # theirs are in float32
        torch.testing.assert_close(last, want_state.double(), rtol=1e-4, atol=1e-5)
