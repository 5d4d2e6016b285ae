"""The interactive ring's numbers against Lab 11's solution: tokens, pairs, waiting, and bytes sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from labkit.labs.catalog import find_lab, solution_file
from labkit.ranks.processes import load_function
from labkit.ranks.threads import run_ranks
from labkit.testing.rings import LAYOUTS
from tests.docs.page_script import PageScript

TOKEN_BYTES = 512
POSITIONS = """s => {
  const ring = ringPage.makeRing(s);
  return {...ring, positions: Array.from({ length: ring.last + 1 }, (_, p) => ring.at(p))};
}"""


@pytest.fixture(scope="module")
def ring() -> Callable[[int, int, str, bool], dict[str, Any]]:
    script = PageScript("ring", "counts.js")

    def make(ranks: int, tokens_per_rank: int, layout: str, causal: bool) -> dict[str, Any]:
        sizes = {"ranks": ranks, "nTokens": ranks * tokens_per_rank, "tokenBytes": TOKEN_BYTES}
        return script(POSITIONS, sizes | {"layout": layout, "causal": causal})

    return make


def solution(name: str) -> Callable[..., Any]:
    return load_function(solution_file(find_lab("11")), name)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("ranks", "tokens_per_rank"), [(2, 2), (3, 6), (4, 4), (7, 2), (8, 4)])
def test_every_number_is_the_solutions(ring, ranks, tokens_per_rank, layout, causal):
    page, n_tokens = ring(ranks, tokens_per_rank, layout, causal), ranks * tokens_per_rank
    assert page["tokens"] == [x.tolist() for x in solution("shard")(torch.arange(n_tokens), ranks, layout, dim=0)]
    pairs = np.full((ranks, ranks), tokens_per_rank**2)
    if causal:
        pairs = solution("causal_work")(n_tokens, ranks, layout).numpy()
    assert page["work"] == pairs.tolist()
    slowest = pairs.max(0)
    assert page["last"] == ranks + 1
    for number, position in enumerate(page["positions"]):
        n_done, step = min(number, ranks), number - 1
        assert position["takes"] == slowest[:n_done].sum()
        for rank, of_rank in enumerate(position["of"]):
            assert of_rank["pairsDone"] == pairs[rank, :n_done].sum()
            assert of_rank["waited"] == (slowest[:n_done] - pairs[rank, :n_done]).sum()
            assert of_rank["sentBytes"] == min(n_done, ranks - 1) * tokens_per_rank * TOKEN_BYTES
            if 0 <= step < ranks:
                assert (of_rank["holds"], of_rank["pairs"]) == ((rank - step) % ranks, pairs[rank, step])
        assert len(position["underWay"]) == (ranks if 0 <= step < ranks - 1 else 0)
        for block in position["underWay"]:
            assert block["to"] == (block["from"] + 1) % ranks
            assert block["block"] == position["of"][block["from"]]["holds"]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_bytes_are_those_of_a_run(ring, ranks):
    """A key and a value of one head, width 64, float32, are 512 bytes."""
    forward = solution("ring_attention_forward")
    shards = [(torch.zeros(1, 4, 64),) * 3] * ranks
    sent = {each.sent_bytes for each in run_ranks(lambda comm, *shard: forward(comm, *shard), shards).traffic}
    assert sent == {ring(ranks, 4, "zigzag", False)["positions"][-1]["of"][0]["sentBytes"]}
    assert sent == {solution("communication_bytes")("ring", ranks, 4 * ranks, 1, 1, 64, 4)}
