"""The simulated memory: counted bytes, charged buffers, refused operations."""

import copy
import math

import numpy as np
import pytest

from labkit.simulated_memory import HBMArray, Machine, Tile

FLOAT32 = np.dtype(np.float32)


@pytest.fixture
def machine():
    return Machine(10_000, sealed=True)


@pytest.fixture
def values():
    return np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def tile(machine, values):
    return machine.load(machine.hbm(values), np.s_[:])


@pytest.mark.parametrize(
    "function",
    [np.savetxt, np.save, np.savez, np.memmap, np.fromfile, np.load, np.frompyfunc, np.ndarray.tofile, print],
)
def test_a_tile_computes_with_ufuncs_alone(tile, tmp_path, function):
    file = tmp_path / "written"
    with pytest.raises(TypeError, match="not one of NumPy's ufuncs"):
        tile.__array_ufunc__(function, "__call__", file, X=tile, header="text")
    with pytest.raises(TypeError):
        tile.__array_function__(function, (), (file, tile), {})
    assert not file.exists()


def test_a_tile_refuses_ufuncs_of_other_makers(tile, tmp_path):
    own = np.frompyfunc(lambda x: (tmp_path / "written").touch(), 1, 1)
    with pytest.raises(TypeError, match="not one of NumPy's ufuncs"):
        own(tile)
    with pytest.raises(TypeError, match="no method"):
        tile.__array_ufunc__(np.add, "resolve_dtypes", tile, tile)
    with pytest.raises(TypeError):
        np.add(tile, tile, out=str(tmp_path / "written"))
    assert not list(tmp_path.iterdir())


class TestTransfers:
    def test_a_load_counts_and_charges_the_bytes_of_the_part(self, machine, values):
        tile = machine.load(machine.hbm(values), np.s_[0:2])
        assert (machine.loaded, machine.stored, machine.traffic, machine.in_use) == (32, 0, 32, 32)
        assert (tile.shape, tile.dtype) == ((2, 4), FLOAT32)

    def test_every_load_counts_again(self, machine, values):
        handle = machine.hbm(values)
        machine.load(handle, 0)
        machine.load(handle, 0)
        assert machine.loaded == 32

    def test_a_slice_is_cut_at_the_edge(self, machine, values):
        assert machine.load(machine.hbm(values), np.s_[2:10]).shape == (1, 4)
        assert machine.loaded == 16

    def test_a_tile_is_a_copy_of_hbm(self, machine, values):
        handle = machine.hbm(values)
        tile = machine.load(handle, np.s_[:])
        tile += 1
        np.testing.assert_array_equal(handle.numpy(), values)

    def test_hbm_is_a_copy_of_what_was_put_there(self, machine, values):
        handle = machine.hbm(values)
        values[:] = -1
        assert handle.numpy().min() == 0

    def test_a_store_counts_and_writes(self, machine, tile):
        O = machine.allocate((6, 4), np.float32)
        machine.store(O, np.s_[3:6], tile * 2)
        assert (machine.loaded, machine.stored, machine.traffic) == (48, 48, 96)
        np.testing.assert_array_equal(O.numpy()[3:], 2 * np.arange(12).reshape(3, 4))
        assert np.isnan(O.numpy()[:3]).all()

    def test_a_store_counts_the_bytes_written_to_hbm(self, machine, tile):
        machine.store(machine.allocate((3, 4), np.float16), np.s_[:], tile)
        assert machine.stored == 24

    def test_a_store_does_not_broadcast(self, machine, tile):
        O = machine.allocate((6, 4), np.float32)
        with pytest.raises(ValueError, match=r"\(3, 4\).*\(6, 4\)"):
            machine.store(O, np.s_[:], tile)
        assert machine.stored == 0

    def test_bytes_are_told_apart_by_array(self, machine, values):
        Q, K, O = machine.hbm(values), machine.hbm(values), machine.allocate((3, 4), np.float32)
        machine.load(Q, np.s_[:])
        machine.store(O, 0, machine.load(K, 0))
        assert [machine.loaded_from(array) for array in (Q, K, O)] == [48, 16, 0]

    def test_an_open_machine_works_on_plain_arrays(self, values):
        machine = Machine(1000)
        O = machine.allocate((3, 4), np.float32)
        assert isinstance(O, np.ndarray)
        assert np.isnan(O).all()
        machine.store(O, np.s_[:], machine.load(values, np.s_[:]))
        np.testing.assert_array_equal(O, values)
        assert machine.traffic == 96
        assert machine.loaded_from(values) == 48

    @pytest.mark.parametrize("index", [[0, 1], np.array([0, 1]), True, (slice(None), [0])])
    def test_an_index_into_hbm_is_basic(self, machine, values, index):
        with pytest.raises(TypeError, match="integers and slices"):
            machine.load(machine.hbm(values), index)

    @pytest.mark.parametrize("counter", ["loaded", "stored", "traffic", "in_use", "high_water", "host_read"])
    def test_counters_cannot_be_set(self, machine, counter):
        with pytest.raises(AttributeError):
            setattr(machine, counter, 1)

    @pytest.mark.parametrize("size", [0, -1, 1.5, True, "64"])
    def test_sram_has_a_positive_whole_size(self, size):
        with pytest.raises(ValueError, match="sram_bytes"):
            Machine(size)


class TestCharges:
    def test_results_are_tiles_and_are_charged(self, machine, tile):
        S = tile @ tile.T
        assert isinstance(S, Tile)
        assert machine.in_use == 48 + 36

    def test_a_new_tile_is_charged_and_moves_nothing(self, machine):
        tile = machine.new((5, 1), -np.inf, np.float64)
        assert (machine.in_use, machine.traffic) == (40, 0)
        assert bool((tile == -np.inf).all())

    def test_the_high_water_stays_when_the_water_falls(self, machine, tile):
        machine.new((100,), 0, np.float64)
        machine.new((1,), 0, np.float64)
        assert (machine.in_use, machine.high_water) == (48, 848)

    def test_temporaries_of_an_expression_are_charged_while_they_live(self, machine, tile):
        tile = tile * 2 + 1
        assert machine.high_water == 3 * 48

    @pytest.mark.parametrize("release", ["del", "rebind", "return"])
    def test_the_last_reference_gives_the_bytes_back(self, machine, tile, release):
        def inner():
            local = tile + 1
            return local.sum() > 0

        result = tile + 1
        if release == "del":
            del result
        elif release == "rebind":
            result = None
        else:
            result = inner()
        assert machine.in_use == 48 + (release == "return")

    @pytest.mark.parametrize(
        "view",
        [
            lambda t: t.T,
            lambda t: t[1:],
            lambda t: t[:, None],
            lambda t: t.reshape(4, 3),
            lambda t: np.swapaxes(t, 0, 1),
            lambda t: np.broadcast_to(t[:, :1], (3, 100)),
            lambda t: list(t),
        ],
    )
    def test_views_are_free(self, machine, tile, view):
        result = view(tile)
        assert result is not None
        assert machine.in_use == 48

    def test_a_view_keeps_the_whole_buffer(self, machine, values):
        row = machine.load(machine.hbm(values), np.s_[:])[0]
        assert row.nbytes == 16
        assert machine.in_use == 48
        del row
        assert machine.in_use == 0

    def test_in_place_arithmetic_is_free(self, machine, tile):
        tile *= 2
        np.exp(tile, out=tile)
        tile[0] = 3.0
        tile[1] = tile[0]
        assert machine.in_use == 48
        assert machine.high_water == 48

    @pytest.mark.parametrize(
        ("operation", "n_bytes"),
        [
            (lambda t: t > 2, 12),
            (lambda t: t.max(axis=1, keepdims=True), 12),
            (lambda t: np.where(t > 2, t, -np.inf), 48),
            (lambda t: np.concatenate([t, t]), 96),
            (lambda t: np.einsum("ij,kj->ik", t, t), 36),
            (lambda t: np.add.reduce(t, axis=0), 16),
            (lambda t: np.zeros_like(t), 48),
            (lambda t: t.astype(np.float64), 96),
            (lambda t: t * np.float64(1), 96),
            (lambda t: t * 1.0, 48),
            (lambda t: t[t > 5], 24),
            (lambda t: t[0, 0], 4),
            (lambda t: copy.copy(t), 48),
            (lambda t: copy.deepcopy(t), 48),
        ],
    )
    def test_each_result_costs_its_own_bytes(self, machine, tile, operation, n_bytes):
        result = operation(tile)
        assert isinstance(result, Tile)
        assert machine.in_use == 48 + n_bytes

    def test_arithmetic_is_numpys(self, machine, tile, values):
        O = machine.allocate((3, 3), np.float32)
        S = tile @ tile.T
        S -= S.max(axis=1, keepdims=True)
        machine.store(O, np.s_[:], np.exp(S) / np.exp(S).sum(axis=1, keepdims=True))
        want = values @ values.T
        want = np.exp(want - want.max(axis=1, keepdims=True))
        np.testing.assert_allclose(O.numpy(), want / want.sum(axis=1, keepdims=True), rtol=1e-6)

    def test_one_value_may_steer_the_program(self, tile):
        assert (tile > 10).any()
        assert not (tile > 11).any()
        with pytest.raises(ValueError, match="ambiguous"):
            bool(tile)


class TestRefusals:
    @pytest.mark.parametrize(
        "escape",
        [
            lambda t: np.asarray(t),
            lambda t: np.array(t, dtype=object),
            lambda t: np.zeros((3, 4)).__setitem__(slice(None), t),
            lambda t: float(t[0, 0]),
            lambda t: int(t[0, 0]),
            lambda t: math.exp(t[0, 0]),
            lambda t: memoryview(t),
            lambda t: t.astype(object),
            lambda t: np.matmul(t, t.T, out=np.zeros((3, 3), np.float32)),
            lambda t: np.sum(t, axis=0, out=np.zeros(4, np.float32)),
            lambda t: np.copyto(np.zeros((3, 4), np.float32), t),
            lambda t: t[t.astype(int)[0, 0]],
            lambda t: t.__setitem__((0, t.argmax()), 1),
            lambda t: t.reshape(t.astype(int)[0, 0], -1),
            lambda t: np.broadcast_to(t, (t.astype(int)[0, 0], 3, 4)),
        ],
    )
    def test_values_do_not_leave_sram(self, machine, tile, escape):
        with pytest.raises(TypeError):
            escape(tile)
        assert machine.host_read == 0

    @pytest.mark.parametrize("name", ["item", "tolist", "view", "data", "tobytes", "base", "flat", "ctypes"])
    def test_a_tile_has_no_way_out_among_its_attributes(self, tile, name):
        with pytest.raises(AttributeError, match="SRAM"):
            getattr(tile, name)

    @pytest.mark.parametrize(
        "operation",
        [
            lambda t, a: t + a,
            lambda t, a: a + t,
            lambda t, a: t @ a.T,
            lambda t, a: np.add(t, 1, where=a > 2),
            lambda t, a: np.where(a > 2, t, 0),
            lambda t, a: np.concatenate([t, a]),
            lambda t, a: np.einsum("ij,kj->ik", t, a),
            lambda t, a: np.copyto(t, a),
            lambda t, a: t.dot(a.T),
            lambda t, a: t[a[:, 0] > 2],
            lambda t, a: t.__setitem__(slice(None), a),
            lambda t, a: t + a.tolist(),
        ],
    )
    def test_outside_data_does_not_mix_with_tiles(self, tile, values, operation):
        with pytest.raises(TypeError, match="is not in SRAM"):
            operation(tile, values)

    @pytest.mark.parametrize(
        "operation",
        [
            lambda h: h + 1,
            lambda h: h @ h,
            lambda h: h == h,
            lambda h: h[0],
            lambda h: h.__setitem__(0, 1.0),
            lambda h: list(h),
            lambda h: np.exp(h),
            lambda h: np.sum(h),
            lambda h: np.ones((3, 4)) * h,
        ],
    )
    def test_nothing_is_computed_in_hbm(self, machine, values, operation):
        with pytest.raises(TypeError, match="load it first"):
            operation(machine.hbm(values))
        assert machine.host_read == 0

    def test_a_handle_does_not_mix_with_a_tile(self, machine, tile):
        with pytest.raises(TypeError, match="load it first"):
            tile + machine.allocate((3, 4), np.float32)

    def test_a_handle_shows_its_shape_only(self, machine, values):
        handle = machine.hbm(values)
        assert (handle.shape, handle.dtype, handle.ndim, handle.nbytes, len(handle)) == ((3, 4), FLOAT32, 2, 48, 3)
        assert "11" not in repr(handle)

    @pytest.mark.parametrize("read", [HBMArray.numpy, np.asarray, lambda h: np.dot(h, np.eye(4))])
    def test_reading_a_handle_past_the_machine_is_counted(self, machine, values, read):
        np.testing.assert_array_equal(read(machine.hbm(values)), values)
        assert machine.host_read >= 48
        assert machine.traffic == 0

    def test_a_sealed_machine_takes_no_plain_arrays(self, machine, values, tile):
        with pytest.raises(TypeError, match="HBM"):
            machine.load(values, np.s_[:])
        with pytest.raises(TypeError, match="HBM"):
            machine.store(values, np.s_[:], tile)
        assert "11" not in repr(tile)

    def test_only_tiles_are_stored(self, machine, values):
        with pytest.raises(TypeError, match="store takes a tile"):
            machine.store(machine.allocate((3, 4), np.float32), np.s_[:], values)

    def test_a_tile_is_filled_with_a_number(self, machine, values):
        with pytest.raises(TypeError, match="fill"):
            machine.new((3, 4), values, np.float32)

    @pytest.mark.parametrize("function", [np.var, np.linalg.norm, np.tensordot, np.sort])
    def test_calls_with_hidden_buffers_are_not_offered(self, tile, function):
        with pytest.raises(TypeError, match="not offered"):
            function(tile, tile) if function is np.tensordot else function(tile)

    def test_machines_do_not_share(self, machine, values, tile):
        other = Machine(1000, sealed=True)
        for mixed in (
            lambda: tile + other.new((3, 4), 0, np.float32),
            lambda: other.load(machine.hbm(values), 0),
            lambda: other.store(other.allocate((3, 4), np.float32), np.s_[:], tile),
        ):
            with pytest.raises(TypeError, match="another machine"):
                mixed()
