"""Which blocks fit the simulated SRAM, and closed forms of attention's traffic against its counters."""

import numpy as np
import pytest

from benchmarks.harness import solution_module
from labkit.simulated_memory import Machine, SRAMOverflow
from labkit.testing.tiles import io_formulas as forms
from labstaff import io_blocks

FLOAT32 = np.dtype(np.float32)


class TestOverflow:
    def test_sram_can_be_filled_to_the_last_byte(self):
        machine = Machine(100)
        tile = machine.new((25,), 0, np.float32)
        assert machine.high_water == machine.in_use == tile.nbytes == 100

    @pytest.mark.parametrize(
        "asking",
        [
            lambda machine, tile, handle: machine.new((4,), 0, np.float32),
            lambda machine, tile, handle: machine.load(handle, np.s_[:4]),
            lambda machine, tile, handle: tile + 1,
            lambda machine, tile, handle: tile[:4].copy(),
        ],
    )
    def test_one_byte_more_overflows_and_changes_nothing(self, asking):
        machine = Machine(115)
        handle = machine.hbm(np.zeros(25, np.float32))
        tile = machine.load(handle, np.s_[:])
        with pytest.raises(SRAMOverflow):
            asking(machine, tile, handle)
        assert (machine.loaded, machine.high_water) == (100, 100)

    def test_temporaries_overflow(self):
        machine = Machine(250)
        tile = machine.new((25,), 1, np.float32)
        assert (tile + 1).shape == (25,)
        with pytest.raises(SRAMOverflow):
            (tile + 1) * 2

    def test_the_message_names_the_request_and_the_largest_buffers(self):
        machine = Machine(1000)
        tiles = [machine.new((k, 7), 0, np.float32) for k in (3, 20)]
        with pytest.raises(SRAMOverflow, match=r"multiply needs 560 B.*644 B of 1,000 B.*\(20, 7\) float32, \(3, 7\)"):
            tiles[1] * 2

    def test_too_much_is_refused_before_it_is_allocated(self):
        with pytest.raises(SRAMOverflow, match="new needs"):
            Machine(1000).new((10**9, 10**9), 0, np.float64)


SHAPES = [(8, 8, 4, 4, 4, 2), (63, 129, 5, 7, 16, 10), (129, 63, 8, 3, 200, 1), (20, 30, 4, 4, 1, 1)]
ORDERS = {
    None: (forms.queries_outside_traffic, io_blocks.queries_outside_blocks),
    "flash1_order": (forms.keys_outside_traffic, io_blocks.keys_outside_blocks),
}


class TestForms:
    @pytest.fixture
    def count(self):
        def run(function, n_queries, n_keys, d, d_v, block_q, block_k, dtype):
            machine = Machine(10**6)
            Q, K, V = np.ones((n_queries, d), dtype), np.ones((n_keys, d), dtype), np.ones((n_keys, d_v), dtype)
            function(machine, Q, K, V, block_q, block_k)
            return machine.loaded, machine.stored

        return run

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("right", ORDERS)
    def test_the_tiled_forms_equal_the_count(self, count, right, shape, dtype):
        form = ORDERS[right][0](*shape, np.dtype(dtype).itemsize)
        assert count(solution_module("04", right and f"alternatives/{right}").tiled_traffic, *shape, dtype) == form

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_the_naive_form_equals_the_count(self, count, shape, dtype):
        form = forms.naive_traffic(*shape, np.dtype(dtype).itemsize)
        assert count(solution_module("04").naive_traffic, *shape, dtype) == form

    @pytest.mark.parametrize("d", [3, 16, 64])
    @pytest.mark.parametrize("sram_bytes", [2_000, 8_192, 30_000])
    @pytest.mark.parametrize("right", ORDERS)
    def test_the_blocks_fit_and_one_row_more_does_not(self, right, sram_bytes, d):
        answer, blocks = solution_module("04", right and f"alternatives/{right}"), ORDERS[right][1]
        block_q, block_k = blocks(sram_bytes, d)
        assert answer.choose_blocks(sram_bytes, d) == (block_q, block_k)
        more = (block_q, block_k + 1) if right else (block_q + 1, block_k)
        N = max(more)
        Q = np.ones((N, d), np.float32)
        answer.tiled_traffic(Machine(sram_bytes), Q, Q, Q, block_q, block_k)
        with pytest.raises(SRAMOverflow):
            answer.tiled_traffic(Machine(sram_bytes), Q, Q, Q, *more)

    def test_the_naive_blocks_fit_and_one_row_more_does_not(self):
        block_q, block_k = io_blocks.naive_blocks(8_192, 16)
        Q = np.ones((block_q + 1, 16), np.float32)
        solution_module("04").naive_traffic(Machine(8_192), Q, Q, Q, block_q, block_k)
        with pytest.raises(SRAMOverflow):
            solution_module("04").naive_traffic(Machine(8_192), Q, Q, Q, block_q + 1, block_k)

    @pytest.mark.parametrize(
        "blocks",
        [io_blocks.queries_outside_blocks, io_blocks.keys_outside_blocks, io_blocks.naive_blocks],
        ids=lambda f: f.__name__,
    )
    def test_too_small_an_sram_is_refused(self, blocks):
        with pytest.raises(ValueError, match="too small for d=64"):
            blocks(512, 64)

    @pytest.mark.parametrize(("keys_outside", "want"), [(False, 10_880), (True, 9_552)])
    def test_the_crossover_at_common_sizes(self, keys_outside, want):
        assert io_blocks.crossover_bytes(4096, 64, keys_outside=keys_outside) == want

    @pytest.mark.parametrize(("keys_outside", "want"), [(False, 896), (True, 1128)])
    def test_the_crossover_is_where_tiled_starts_to_move_less(self, keys_outside, want):
        assert io_blocks.crossover_bytes(1024, 16, keys_outside=keys_outside) == want
        form, blocks = ORDERS["flash1_order" if keys_outside else None]

        def tiled_over_naive(sram_bytes):
            naive = forms.naive_traffic(1024, 1024, 16, 16, *io_blocks.naive_blocks(sram_bytes, 16))
            return form(1024, 1024, 16, 16, *blocks(sram_bytes, 16)).total / naive.total

        assert tiled_over_naive(want - 4) >= 1
        assert all(tiled_over_naive(sram_bytes) < 1 for sram_bytes in range(want, 20 * want, 4))
