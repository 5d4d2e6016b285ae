"""The page of a cache's blocks: each deed, with its tables, counts and bytes, is the course's BlockManager's."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.harness import answer_module
from labkit.labs.catalog import ROOT
from labkit.meters.moved import MovedBytes
from tests.docs.block_deeds import Deed, Expected, random_deeds, run

FOLDER = ROOT / "docs" / "_static" / "cache_blocks"
SCENARIOS = ("tour", "four", "full", "twins")
POOLS = [(4, 1), (4, 4), (5, 3), (6, 2), (8, 16), (10, 4), (12, 2), (16, 1), (16, 3)]
LLAMA_3_8B = (32, 8, 128)
MISTAKES = {
    "the last token's block is shared too": ("end < tokens.length", "end <= tokens.length"),
    "a block without what stands before it": ("JSON.stringify([before, ...tokens])", "JSON.stringify(tokens)"),
    "a name that outlives its content": ("      loseName(b);\n      blocks[b].tokens", "      blocks[b].tokens"),
    "the second twin takes the name": ("if (!named.has(key)) {", "{"),
    "found blocks counted among the free ones": ("(free.length - revived.length)", "free.length"),
    "no copy on write": ("const copies = place > 0 && blocks[old].owners > 1", "const copies = false"),
    "a copy for a sole owner": ("blocks[old].owners > 1", "blocks[old].owners > 0"),
    "a block one token late": ("place = tokens.length % blockSize", "place = (tokens.length - 1) % blockSize"),
    "the last block not shared by a fork": ("table.forEach(share)", "table.slice(0, -1).forEach(share)"),
    "freed from the first to the last": ("[...sequence.table].reverse()", "[...sequence.table]"),
    "the newest free block first": ("free.shift()", "free.pop()"),
    "a full block that nobody names": ("if (full) giveNames(sequence);", ""),
    "a refused prompt that shares all the same": ("if (missing > 0)", "found.forEach(share);\n      if (missing > 0)"),
    "a shared block wasted for each owner": ("wasted: owned.length", "wasted: sum(sequences, (s) => s.table.length)"),
    "a copy not counted": ("sums.copies += outcome.copied ? 1 : 0", "sums.copies += 0"),
}  # fmt: skip


class Page:
    """The page's functions without a browser; `change` edits their source first."""

    def __init__(self, change: Callable[[str], str] = str) -> None:
        import quickjs

        self._context = quickjs.Context()
        for name in ("blocks.js", "scenarios.js"):
            self._context.eval(change((FOLDER / name).read_text(encoding="utf-8")))

    def __call__(self, function: str, *arguments: Any) -> Any:
        """What the JavaScript `function` returns for arguments that JSON can hold."""
        given = ", ".join(json.dumps(argument) for argument in arguments)
        return json.loads(self._context.eval(f"JSON.stringify(({function})({given}))"))

    def deeds(self, scenario: str) -> list[Deed]:
        return self("name => cacheBlocks.SCENARIOS[name].deeds", scenario)

    def positions(self, deeds: list[Deed], num_blocks: int, block_size: int) -> list[dict[str, Any]]:
        settings = {"numBlocks": num_blocks, "blockSize": block_size}
        return self("(deeds, s) => cacheBlocks.run(deeds, s)", deeds, settings)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page()


def check(page: Page, deeds: list[Deed], num_blocks: int, block_size: int) -> None:
    """Fail unless each position of the page is what the course's manager makes of the same deeds."""
    told = page.positions(deeds, num_blocks, block_size)
    wanted = run(deeds, num_blocks, block_size)
    assert len(told) == len(wanted)
    for k, (position, want) in enumerate(zip(told, wanted, strict=True)):
        assert as_expected(position) == want, f"position {k}, after {deeds[k - 1] if k else 'nothing'}"


def as_expected(position: dict[str, Any]) -> Expected:
    """A position of the page in the form that the course's manager is written down in."""
    outcome = position["outcome"] or {}
    shown = [b["tokens"] if b["owners"] or b["findable"] else [] for b in position["blocks"]]
    return Expected(
        refused=outcome.get("refused"),
        missing=outcome.get("missing", 0),
        copied=tuple(outcome["copied"]) if outcome.get("copied") else None,
        tables={each["name"]: each["table"] for each in position["sequences"]},
        found={each["name"]: each["found"] for each in position["sequences"]},
        texts={each["name"]: each["tokens"] for each in position["sequences"]},
        owners=[sorted(block["owners"]) for block in position["blocks"]],
        findable=[block["findable"] for block in position["blocks"]],
        contents=shown,
        free=position["free"],
        counts=position["counts"],
        sums=position["sums"],
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_deed_of_a_scenario_is_what_the_manager_does(page: Page, scenario: str) -> None:
    deeds = page.deeds(scenario)
    written_for = page("name => cacheBlocks.SCENARIOS[name]", scenario)
    for num_blocks, block_size in [*POOLS, (written_for["blocks"], written_for["size"])]:
        check(page, deeds, num_blocks, block_size)


@pytest.mark.parametrize("seed", range(40))
def test_each_deed_drawn_at_random_is_what_the_manager_does(page: Page, seed: int) -> None:
    rng = random.Random(seed)
    check(page, random_deeds(rng), num_blocks=rng.randint(3, 12), block_size=rng.randint(1, 4))


def test_the_random_deeds_meet_everything_that_can_happen() -> None:
    seen = [each for seed in range(40) for each in run(random_deeds(random.Random(seed)), 7, 2)]
    assert {each.refused for each in seen} == {None, "full", "unknown", "there already"}
    for what in ("copies", "forgotten", "found"):
        assert sum(each.sums[what] > 0 for each in seen) > 50, what
    assert any(each.counts["cached"] for each in seen)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_manager_is_found(mistake: str) -> None:
    right, wrong = MISTAKES[mistake]
    assert (FOLDER / "blocks.js").read_text(encoding="utf-8").count(right) == 1
    page = Page(lambda source: source.replace(right, wrong))
    with pytest.raises(AssertionError):
        check_some(page)


def check_some(page: Page) -> None:
    """All scenarios, and some deeds drawn at random, on one pool each."""
    for scenario in SCENARIOS:
        check(page, page.deeds(scenario), 10, 4)
    for seed in range(20):
        check(page, random_deeds(random.Random(seed)), 7, 2)


def test_the_same_check_passes_without_a_mistake(page: Page) -> None:
    check_some(page)


class TestScenarios:
    """What the page and chapter 9 say of the scenarios."""

    @pytest.mark.parametrize("scenario", SCENARIOS)
    def test_no_text_is_longer_than_its_run(self, page: Page, scenario: str) -> None:
        written_for = page("name => cacheBlocks.SCENARIOS[name]", scenario)
        roomy = page.positions(written_for["deeds"], 64, 4)
        assert max(len(each["tokens"]) for here in roomy for each in here["sequences"]) <= written_for["longest"]

    def test_the_tour_meets_everything(self, page: Page) -> None:
        told = page.positions(page.deeds("tour"), 10, 4)
        assert told[-1]["sums"] == {"copies": 1, "forgotten": 3, "asked": 66, "found": 20, "refused": 1}
        assert max(here["counts"]["shared"] for here in told) == 4
        assert max(here["counts"]["cached"] for here in told) == 3

    def test_four_answers_are_chapter_9s_exercise(self, page: Page) -> None:
        last = page.positions(page.deeds("four"), 8, 16)[-1]
        assert (last["counts"]["owned"], last["sums"]["copies"], last["counts"]["apart"]) == (6, 3, 12)


class TestBytes:
    """Bytes are those of `kv_cache_bytes`, and what `paged_attention` reads by the meter."""

    def test_bytes_are_those_of_the_models_cache(self, page: Page) -> None:
        lab = answer_module("09")
        token = lab.kv_cache_bytes(*LLAMA_3_8B)
        told = page.positions(page.deeds("tour"), 10, 4)
        for here in told:
            given = {"numBlocks": 10, "blockSize": 4, "longest": 32, "tokenBytes": token}
            of = page("(p, s) => cacheBlocks.bytesOf(p, s)", here, given)
            tables = [each["table"] for each in here["sequences"]]
            runs = len(tables) * lab.kv_cache_bytes(*LLAMA_3_8B, tokens=32)
            assert of == {
                "kept": lab.kv_cache_bytes(*LLAMA_3_8B, tokens=4 * len(set().union(*tables))),
                "keptInRuns": runs,
                "read": lab.kv_cache_bytes(*LLAMA_3_8B, tokens=4 * sum(map(len, tables))),
                "readInRuns": runs,
                "runsThatFit": 1,
            }

    def test_the_page_names_the_models_bytes(self) -> None:
        token = answer_module("09").kv_cache_bytes(*LLAMA_3_8B)
        assert f"const TOKEN_BYTES = {token};" in (FOLDER / "settings.js").read_text(encoding="utf-8")

    def test_the_next_token_reads_what_the_meter_sees(self, page: Page) -> None:
        lab = answer_module("09")
        kv_heads, width = 2, 3
        for here in page.positions(page.deeds("tour"), 10, 4)[1:]:
            tables = [each["table"] for each in here["sequences"]]
            lengths = [len(each["tokens"]) for each in here["sequences"]]
            rows = torch.full((len(tables), 10), -1)
            for row, table in zip(rows, tables, strict=True):
                row[: len(table)] = torch.tensor(table)
            k, v = (torch.zeros(10, 4, kv_heads, width) for _ in "kv")
            q = torch.zeros(len(tables), 2 * kv_heads, width)
            with MovedBytes(q=q, k=k, v=v) as moved:
                lab.paged_attention(q, k, v, rows, torch.tensor(lengths))
            token = 2 * kv_heads * width * k.itemsize
            given = {"numBlocks": 10, "blockSize": 4, "longest": 32, "tokenBytes": token}
            of = page("(p, s) => cacheBlocks.bytesOf(p, s)", here, given)
            assert of["read"] == moved.read["k"] + moved.read["v"]
