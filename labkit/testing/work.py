"""Assertions about what a call allocated and computed, as `labkit.meters.calls` counts it, and about its tiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from labkit.testing.compare import assert_at_most, require, require_own_work

WHOLE_MATRIX = (
    "no pass may hold the whole matrix, or a whole row or column of tiles: finish with each tile before the next"
)
MANY_TILES = "many small tensors kept at once weigh as much as one N×N: nothing of a tile may be kept"

Tiles = list[tuple[int, int]]
"""Queries and keys of each tile of scores that was computed."""


def assert_products_seen(name: str, counts: Mapping[str, Any]) -> None:
    """Fail where a call does its work in torch's own attention, or in no matrix product at all."""
    require_own_attention(name, counts)
    require(counts["flops"] > 0, f"{name} makes no matrix product: a tile of scores is one, Q_i times K_j transposed")


def require_own_attention(name: str, counts: Mapping[str, Any]) -> None:
    """Fail, for nothing of the task, where a call does its work in torch's own attention."""
    called = ", ".join(sorted(set(counts["fused"])))
    whose = "torch's own attention" if "attention" in called else "what multiplies matrices unseen"
    require_own_work(not called, f"{name} calls {whose} ({called})\nThe tiles are yours to write")


def assert_small(name: str, counts: Mapping[str, Any], *, largest: int, peak: int, hint: str = "") -> None:
    """Fail where the largest tensor or the peak is above its limit, both in elements of float32."""
    elements = counts["largest_bytes"] // 4
    assert_at_most(f"the largest tensor made by {name}", elements, largest, unit="elements", hint=hint or WHOLE_MATRIX)
    assert_at_most(f"{name}'s peak memory", counts["peak_bytes"], peak * 4, hint=hint or MANY_TILES)


def assert_largest_stays(
    side: str, sizes: list[tuple[int, int]], short: Mapping[str, Any], long: Mapping[str, Any]
) -> None:
    """Fail where the largest tensor of a pass is larger at the second of two sizes, (N_q, N_k), than N · d explains.

    `short` and `long` are what each pass, by its name, took at the two sizes; d is taken for 2.
    """
    n_times = max(large // small for small, large in zip(*sizes, strict=True))
    for name in short:
        assert_at_most(
            f"with {n_times} times the {side}, the largest tensor of {name}",
            long[name]["largest_bytes"],
            max(int(1.4 * short[name]["largest_bytes"]), 4 * 3 * max(sizes[1])),
            hint=f"a tile spans all {side} at once: cut {side} into blocks too, in both passes",
        )


def assert_tile_sizes(
    name: str, tiles: Tiles, n_queries: int, n_keys: int, blocks: tuple[int, int], causal: bool
) -> None:
    """Fail unless the largest tile has the sizes asked for; causal tiles may be trimmed where nothing is seen."""
    largest = max(rows for rows, _ in tiles), max(columns for _, columns in tiles)
    asked = min(blocks[0], n_queries), min(blocks[1], n_keys)
    trimmed = causal and largest[0] <= asked[0] and largest[1] <= asked[1]
    swapped = largest == (min(blocks[1], n_queries), min(blocks[0], n_keys))
    require(
        largest == asked or trimmed,
        f"{name}, N_q = {n_queries}, N_k = {n_keys}, {causal=}, computes tiles of up to {largest[0]} queries and "
        f"{largest[1]} keys, expected {asked[0]} and {asked[1]}\nUsual cause: "
        + ("the two sizes are exchanged" if swapped else "the tiles are not those asked for"),
    )


def assert_entries(name: str, tiles: Tiles, cut: tuple[int, int, int, int], causal: bool) -> None:
    """Fail where more scores are computed than the tiles to visit have; without `causal` all tiles must be visited.

    `cut` is (N_q, N_k, block_q, block_k).
    """
    n_queries, n_keys, *_ = cut
    asked, found = entries_seen(*cut) if causal else n_queries * n_keys, entries(tiles)
    cause = "the scores of a tile are computed before it is skipped, or twice"
    hint = f"The tiles to visit have {asked:,} entries. Usual cause: {cause}"
    assert_at_most(name, found, asked, unit="entries", hint=hint)
    cause = "tiles that the mask hides as a whole are left out: a mask leaves none out"
    require(causal or found == asked, f"{name} are {found:,}, expected {asked:,}\nUsual cause: {cause}")


def entries(tiles: Iterable[tuple[int, int]]) -> int:
    """The scores in `tiles`."""
    return sum(map(math.prod, tiles))


def entries_seen(n_queries: int, n_keys: int, block_q: int, block_k: int, *, nominal: bool = False) -> int:
    """The scores in those tiles of which, when causal, some query sees a key.

    `nominal`: as if the last block of queries, which may be short, saw what a whole one would see.
    """
    found = 0
    for start in range(0, n_queries, block_q):
        end = min(start + block_q, n_queries)
        last = start + block_q if nominal else end
        found += (end - start) * min(-(-last // block_k) * block_k, n_keys)
    return found
