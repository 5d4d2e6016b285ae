"""The interactive ring's counts are those of Lab 11's solution: who holds what, pairs, waiting, and bytes sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from labkit.labs.catalog import ROOT, find_lab, solution_file
from labkit.ranks.processes import load_function
from labkit.ranks.threads import run_ranks
from labkit.testing.rings import LAYOUTS, positions, work

FOLDER = ROOT / "docs" / "_static" / "ring"
TOKEN_BYTES = 512
SETTINGS = [
    (ranks, each, layout, causal)
    for ranks in (2, 3, 4, 7, 8)
    for each in (2, 4, 6)
    for layout in LAYOUTS
    for causal in (True, False)
]
TRACE = """s => {
  const ring = ringPage.makeRing(s);
  const all = [];
  for (let p = 0; p <= ring.last; p++) all.push(ring.at(p));
  const steps = ring.owner.map((_, query) => ring.owner.map((_, key) => ring.stepOf(query, key)));
  return {...ring, all, steps, beyond: ring.at(ring.last + 5)};
}"""
MISTAKES = {
    "the ring turns the other way": ("rank - step) % ranks", "rank + step) % ranks"),
    "zigzag without folding": ("Math.min(run, 2 * ranks - 1 - run)", "run % ranks"),
    "a query does not see its own key": ("key <= query", "key < query"),
    "a hop too many": ("Math.min(done, ranks - 1)", "done"),
    "the fastest rank counts": ("Math.max(...work", "Math.min(...work"),
    "blocks of all tokens": ("(nTokens / ranks) * tokenBytes", "nTokens * tokenBytes"),
}


class Page:
    """The page's functions without a browser; `change` edits their source first."""

    def __init__(self, change: Callable[[str], str] = str) -> None:
        import quickjs

        self._context = quickjs.Context()
        self._context.eval(change((FOLDER / "counts.js").read_text(encoding="utf-8")))

    def trace(self, ranks: int, each: int, layout: str, causal: bool) -> dict[str, Any]:
        """All positions of a setting."""
        setting = {
            "ranks": ranks,
            "nTokens": ranks * each,
            "layout": layout,
            "causal": causal,
            "tokenBytes": TOKEN_BYTES,
        }
        return json.loads(self._context.eval(f"JSON.stringify(({TRACE})({json.dumps(setting)}))"))


def solution(name: str) -> Callable[..., Any]:
    return load_function(solution_file(find_lab("11")), name)


def check(page: Page, ranks: int, each: int, layout: str, causal: bool) -> None:
    """Fail unless every number of a setting is the course's."""
    trace, n_tokens = page.trace(ranks, each, layout, causal), ranks * each
    held = [x.tolist() for x in solution("shard")(torch.arange(n_tokens), ranks, layout, dim=0)]
    assert trace["tokens"] == held == [place.tolist() for place in positions(n_tokens, ranks, layout)]
    pairs = solution("causal_work")(n_tokens, ranks, layout).numpy() if causal else np.full((ranks, ranks), each * each)
    assert trace["work"] == pairs.tolist()
    if causal:
        assert np.array_equal(pairs, work(n_tokens, ranks, layout))
    owner = np.array(trace["owner"])
    assert trace["steps"] == ((owner[:, None] - owner) % ranks).tolist()
    slowest = pairs.max(0)
    assert trace["last"] == ranks + 1
    assert trace["beyond"] == trace["all"][-1]
    for position, told in enumerate(trace["all"]):
        n_done = min(position, ranks)
        assert told["takes"] == slowest[:n_done].sum()
        share = 1 - pairs[:, :n_done].sum() / (ranks * told["takes"]) if told["takes"] else 0
        assert told["waitingShare"] == pytest.approx(share, abs=1e-12)
        step = position - 1
        travels = 0 <= step < ranks - 1
        assert len(told["underWay"]) == (ranks if travels else 0)
        for rank, of in enumerate(told["of"]):
            assert of["pairsDone"] == pairs[rank, :n_done].sum()
            assert of["waited"] == (slowest[:n_done] - pairs[rank, :n_done]).sum()
            assert of["sentBytes"] == min(n_done, ranks - 1) * each * TOKEN_BYTES
            if 0 <= step < ranks:
                assert (of["holds"], of["pairs"]) == ((rank - step) % ranks, pairs[rank, step])
                assert of["waits"] == slowest[step] - pairs[rank, step]
        for way in told["underWay"]:
            assert way["to"] == (way["from"] + 1) % ranks
            assert way["block"] == told["of"][way["from"]]["holds"]


def check_all(page: Page) -> None:
    """`check` for all settings."""
    for setting in SETTINGS:
        check(page, *setting)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page()


@pytest.mark.parametrize(("ranks", "each", "layout", "causal"), SETTINGS)
def test_every_number_is_the_courses(page, ranks, each, layout, causal):
    check(page, ranks, each, layout, causal)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_bytes_are_those_of_a_real_run(page, ranks):
    """A key and a value of one head, width 64, float32, are 512 bytes."""
    forward = solution("ring_attention_forward")
    shards = [(torch.zeros(1, 4, 64),) * 3] * ranks
    sent = {each.sent_bytes for each in run_ranks(lambda comm, *given: forward(comm, *given), shards).traffic}
    assert sent == {page.trace(ranks, 4, "zigzag", False)["all"][-1]["of"][0]["sentBytes"]}
    formula = solution("communication_bytes")
    assert sent == {formula("ring", ranks, 4 * ranks, 1, 1, 64, 4)}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_page_is_found(name):
    old, new = MISTAKES[name]

    def change(source: str) -> str:
        assert source.count(old) == 1
        return source.replace(old, new)

    broken = Page(change)
    with pytest.raises(AssertionError):
        check_all(broken)
