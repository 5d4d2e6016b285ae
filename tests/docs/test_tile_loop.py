"""The interactive tile loop's bytes and values against Lab 04's solution on the simulated machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.harness import solution_module
from labkit.simulated_memory import Machine, SRAMOverflow
from labkit.testing.attention.reference import attention
from labstaff import io_blocks
from tests.docs.page_script import PageScript

ORDERS = {"queries": "", "keys": "alternatives/flash1_order"}
"""Order of the loops on the page → the module of Lab 04 that has it."""
SHAPES = [
    (8, 8, 4, 4, 4, 2),
    (13, 13, 3, 3, 5, 4),
    (9, 9, 4, 2, 2, 9),
    (7, 7, 1, 1, 16, 3),
    (10, 23, 3, 4, 4, 3),
    (23, 10, 3, 4, 3, 4),
    (1, 1, 1, 1, 1, 1),
]
"""n_queries, n_keys, d, d_v, block_q, block_k."""


@pytest.fixture(scope="module")
def script() -> PageScript:
    return PageScript("tile_loop", "counts.js", "numbers.js")


def settings(order: str, shape: tuple[int, ...], causal: bool = False, sram_bytes: int = 10**9) -> dict[str, Any]:
    names = ("nQueries", "nKeys", "d", "dV", "blockQ", "blockK")
    return dict(zip(names, shape, strict=True)) | {"order": order, "causal": causal, "sramBytes": sram_bytes}


def last_position(script: PageScript, setting: dict[str, Any]) -> dict[str, Any]:
    return script("s => { const loop = tileLoop.makeLoop(s); return {...loop, ...loop.at(loop.last)}; }", setting)


def example(script: PageScript, shape: tuple[int, ...]) -> list[np.ndarray]:
    """The page's Q, K and V."""
    n_queries, n_keys, d, d_v, _, _ = shape
    rows = """(name, n, width) => Array.from({length: n}, (_, row) =>
      Array.from({length: width}, (_, column) => tileLoop.element(name, row, column)))"""
    return [np.array(script(rows, *size)) for size in (("Q", n_queries, d), ("K", n_keys, d), ("V", n_keys, d_v))]


def run_solution(order: str, shape: tuple[int, ...], sram_bytes: int) -> Machine:
    n_queries, n_keys, d, d_v, block_q, block_k = shape
    machine = Machine(sram_bytes)
    inputs = [machine.hbm(np.ones(size, np.float32)) for size in ((n_queries, d), (n_keys, d), (n_keys, d_v))]
    solution_module("04", ORDERS[order]).tiled_traffic(machine, *inputs, block_q, block_k)
    return machine


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bytes_are_those_of_the_machine(script, order, shape):
    machine = run_solution(order, shape, 10**9)
    last = last_position(script, settings(order, shape))
    assert (last["moved"]["loaded"], last["moved"]["stored"]) == (machine.loaded, machine.stored)
    assert last["total"]["total"] == machine.traffic
    assert last["highWater"] == last["needs"] == machine.high_water
    assert last_position(script, settings(order, shape, sram_bytes=machine.high_water))["fits"]
    with pytest.raises(SRAMOverflow):
        run_solution(order, shape, machine.high_water - 4)
    assert last_position(script, settings(order, shape, sram_bytes=machine.high_water - 4))["overflow"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_causal_loop_visits_only_tiles_with_a_visible_key(script, order, shape):
    n_queries, n_keys, d, d_v, block_q, block_k = shape
    loaded = stored = 0
    for i in range(0, n_queries, block_q):
        rows = min(block_q, n_queries - i)
        columns = [min(block_k, n_keys - j) for j in range(0, n_keys, block_k) if j < i + rows]
        if order == "queries":
            loaded += rows * d + sum(columns) * (d + d_v)
            stored += rows * d_v
        else:
            loaded += len(columns) * rows * d + (len(columns) - 1) * rows * (d_v + 2)
            stored += (len(columns) - 1) * rows * (d_v + 2) + rows * d_v
    if order == "keys":
        visited = [min(block_k, n_keys - j) for j in range(0, n_keys, block_k) if j < n_queries]
        loaded += sum(visited) * (d + d_v)
    moved = last_position(script, settings(order, shape, causal=True))["moved"]
    assert (moved["loaded"], moved["stored"]) == (4 * loaded, 4 * stored)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_are_those_of_attention(script, shape, causal):
    n_queries, n_keys, _, _, block_q, block_k = shape
    expected = attention(*example(script, shape), causal=causal).output
    for row in {0, n_queries // 2, n_queries - 1}:
        setting = settings("queries", shape, causal)
        assert script("(s, r) => tileLoop.makeRow(r, s).whole()", setting, row) == pytest.approx(list(expected[row]))
        visible = min((row // block_q + 1) * block_q, n_queries, n_keys) if causal else n_keys
        state = script("(s, r, j) => tileLoop.makeRow(r, s).tile(j)", setting, row, -(-visible // block_k) - 1)
        assert np.array(state["O"]) / state["l"] == pytest.approx(expected[row])


def test_chapter_4s_setting_fills_its_sram(script):
    loop = last_position(script, settings("queries", (4096, 4096, 64, 64, 72, 16), sram_bytes=65_536))
    assert (loop["needs"], loop["fits"], loop["total"]["total"]) == (64_864, True, 121_634_816)
    for order, blocks in (("queries", io_blocks.queries_outside_blocks), ("keys", io_blocks.keys_outside_blocks)):
        for sram_bytes in (512, 65_536, 233_472):
            assert script("(...a) => tileLoop.blocksThatFit(...a)", order, sram_bytes, 4) == list(blocks(sram_bytes, 4))
