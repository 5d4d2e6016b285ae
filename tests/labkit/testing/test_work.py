"""What is said of a call's memory, products and tiles."""

from __future__ import annotations

import pytest

from labkit.testing import work
from labkit.testing.compare import BorrowedWork

COUNTS = {"flops": 8, "fused": [], "largest_bytes": 400, "peak_bytes": 4000}


def test_elements_and_peak_are_counted_in_float32():
    work.assert_small("f", COUNTS, largest=100, peak=1000)
    with pytest.raises(AssertionError, match=r"the largest tensor made by f is 100 elements, at most 99 are allowed"):
        work.assert_small("f", COUNTS, largest=99, peak=1000)
    with pytest.raises(AssertionError, match=r"f's peak memory is 4,000 bytes, at most 3,996 are allowed") as caught:
        work.assert_small("f", COUNTS, largest=100, peak=999)
    assert work.MANY_TILES in str(caught.value)


def test_a_librarys_attention_is_borrowed_work_and_no_product_is_named():
    with pytest.raises(BorrowedWork, match=r"f calls torch's own attention \(attention\)"):
        work.assert_products_seen("f", COUNTS | {"fused": ["attention"]})
    with pytest.raises(AssertionError, match="f makes no matrix product"):
        work.assert_products_seen("f", COUNTS | {"flops": 0})
    work.assert_products_seen("f", COUNTS)


def test_what_grows_with_a_side_is_named_with_the_side():
    short = {"forward": {"largest_bytes": 1000}}
    work.assert_largest_stays("keys", [(8, 8), (8, 32)], short, {"forward": {"largest_bytes": 1400}})
    with pytest.raises(AssertionError, match="with 4 times the keys, the largest tensor of forward") as caught:
        work.assert_largest_stays("keys", [(8, 8), (8, 32)], short, {"forward": {"largest_bytes": 1401}})
    assert "a tile spans all keys at once" in str(caught.value)


def test_sizes_of_tiles_are_those_asked_for_and_exchanged_ones_are_named():
    work.assert_tile_sizes("f", [(4, 2), (1, 2)], 5, 6, (4, 2), causal=False)
    work.assert_tile_sizes("f", [(4, 1)], 5, 6, (4, 2), causal=True)
    with pytest.raises(AssertionError, match="the two sizes are exchanged"):
        work.assert_tile_sizes("f", [(2, 4)], 5, 6, (4, 2), causal=False)
    with pytest.raises(AssertionError, match="the tiles are not those asked for"):
        work.assert_tile_sizes("f", [(4, 1)], 5, 6, (4, 2), causal=False)


def test_scores_are_counted_in_the_tiles_that_are_seen():
    """Four queries and four keys in blocks of two: a causal call sees three tiles of four."""
    assert work.entries_seen(4, 4, 2, 2) == 12
    assert work.entries_seen(3, 6, 2, 1) == 7
    assert work.entries_seen(3, 6, 2, 1, nominal=True) == 8
    work.assert_entries("scores", [(2, 2)] * 3, (4, 4, 2, 2), causal=True)
    with pytest.raises(AssertionError, match="computed before it is skipped, or twice"):
        work.assert_entries("scores", [(2, 2)] * 4, (4, 4, 2, 2), causal=True)
    with pytest.raises(AssertionError, match="a mask leaves none out"):
        work.assert_entries("scores", [(2, 2)] * 3, (4, 4, 2, 2), causal=False)
