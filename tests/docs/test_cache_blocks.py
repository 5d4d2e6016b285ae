"""The page of a cache's blocks: tables, free blocks, refusals and copies against Lab 09's BlockManager."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from benchmarks.harness import solution_module
from labkit.labs.catalog import ROOT
from tests.docs.page_script import PageScript

SCENARIOS = ("tour", "four", "full", "twins")
LLAMA_3_8B = (32, 8, 128)
NAMES = "ABCDE"


@pytest.fixture(scope="module")
def script() -> PageScript:
    return PageScript("cache_blocks", "blocks.js", "scenarios.js")


def positions(script: PageScript, operations: list[list[Any]], num_blocks: int, block_size: int) -> list[dict]:
    settings = {"numBlocks": num_blocks, "blockSize": block_size}
    return script("(operations, s) => cacheBlocks.run(operations, s)", operations, settings)


def scenario_positions(script: PageScript, name: str) -> list[dict]:
    scenario = script("name => cacheBlocks.SCENARIOS[name]", name)
    return positions(script, scenario["operations"], scenario["blocks"], scenario["size"])


def random_operations(rng: random.Random, count: int = 60) -> list[list[Any]]:
    """Random operations on sequences with common beginnings; the manager refuses a few."""
    operations: list[list[Any]] = []
    for _ in range(count):
        kind = rng.choices(["allocate", "append", "fork", "free"], [3, 8, 2, 3])[0]
        arguments: list[Any] = []
        if kind == "allocate":
            arguments = [[rng.choice(["x", "x", "y"]) for _ in range(rng.randint(1, 9))]]
        elif kind == "append":
            arguments = [rng.choice(["x", "x", "y"])]
        elif kind == "fork":
            arguments = [rng.choice(NAMES)]
        operations.append([kind, rng.choice(NAMES), *arguments])
    return operations


def assert_same_as_the_manager(found: list[dict], operations: list[list[Any]], num_blocks: int, size: int) -> None:
    """Run the operations on the solution's manager and compare every position after an operation."""
    manager = solution_module("09").BlockManager(num_blocks, size)
    lengths: dict[str, int] = {}
    for (kind, name, *arguments), position in zip(operations, found[1:], strict=True):
        outcome, refused, copied = position["outcome"], None, None
        try:
            result = getattr(manager, kind)(name, *arguments)
        except ValueError as error:
            refused = "unknown" if "no sequence" in str(error) else "there already"
        except RuntimeError as error:
            missing = re.match(r"(\d+) blocks are missing", str(error))
            refused = f"full, {missing[1] if missing else 1} missing"
        if refused is None and kind == "allocate":
            lengths[name] = len(arguments[0])
        elif refused is None and kind == "append":
            copied, lengths[name] = result, lengths[name] + 1
        elif refused is None and kind == "fork":
            lengths[arguments[0]] = lengths[name]
        elif refused is None:
            del lengths[name]
        shown = f"full, {outcome['missing']} missing" if outcome["refused"] == "full" else outcome["refused"]
        assert shown == refused
        assert outcome.get("copied") == (list(copied) if copied else None)
        tables = {each["name"]: each["table"] for each in position["sequences"]}
        assert tables == {name: manager.block_table(name) for name in lengths}
        assert {each["name"]: len(each["tokens"]) for each in position["sequences"]} == lengths
        cached = {each["name"]: each["found"] for each in position["sequences"]}
        assert cached == {name: manager.num_cached_tokens(name) for name in lengths}
        assert num_blocks - position["counts"]["owned"] == len(position["free"]) == manager.num_free_blocks()
        assert position["counts"]["references"] == sum(map(len, tables.values()))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenarios_are_what_the_manager_does(script, scenario):
    operations = script("name => cacheBlocks.SCENARIOS[name].operations", scenario)
    for num_blocks, size in [(4, 1), (5, 3), (8, 16), (10, 4), (16, 1)]:
        found = positions(script, operations, num_blocks, size)
        assert_same_as_the_manager(found, operations, num_blocks, size)


@pytest.mark.parametrize("seed", range(8))
def test_random_operations_are_what_the_manager_does(script, seed):
    rng = random.Random(seed)
    operations, num_blocks, size = random_operations(rng), rng.randint(3, 12), rng.randint(1, 4)
    found = positions(script, operations, num_blocks, size)
    assert_same_as_the_manager(found, operations, num_blocks, size)


def test_numbers_in_the_text(script):
    tour, four = scenario_positions(script, "tour"), scenario_positions(script, "four")[-1]
    assert tour[-1]["sums"] == {"copies": 1, "forgotten": 3, "asked": 66, "found": 20, "refused": 1}
    assert max(position["counts"]["shared"] for position in tour) == 4
    assert (four["counts"]["owned"], four["sums"]["copies"], four["counts"]["apart"]) == (6, 3, 12)


def test_bytes_are_those_of_the_models_cache(script):
    cache_bytes = solution_module("09").kv_cache_bytes
    token_bytes = cache_bytes(*LLAMA_3_8B)
    settings = (ROOT / "docs/_static/cache_blocks/settings.js").read_text(encoding="utf-8")
    assert f"const TOKEN_BYTES = {token_bytes};" in settings
    last = scenario_positions(script, "tour")[-1]
    sizes = {"numBlocks": 10, "blockSize": 4, "longest": 32, "tokenBytes": token_bytes}
    tables = [each["table"] for each in last["sequences"]]
    shown = script("(p, s) => cacheBlocks.bytesOf(p, s)", last, sizes)
    assert shown["kept"] == cache_bytes(*LLAMA_3_8B, tokens=4 * len(set().union(*tables)))
    assert shown["read"] == cache_bytes(*LLAMA_3_8B, tokens=4 * sum(map(len, tables)))
    assert shown["keptInRuns"] == shown["readInRuns"] == len(tables) * cache_bytes(*LLAMA_3_8B, tokens=32)
