"""What every right profiling.py does, and no wrong one."""

import matplotlib.pyplot as plt
import numpy as np
import profiling
import pytest

from labkit.meters.arrays import measure_arrays


def plain(Q, K, V, hidden=False):
    S = np.where(hidden, -np.inf, np.float64(Q) @ np.float64(K).swapaxes(-1, -2) / Q.shape[-1] ** 0.5)
    powers = np.exp(S - S.max(-1, keepdims=True).clip(min=-1e300))
    weights = powers / powers.sum(-1, keepdims=True).clip(min=1e-300)
    return weights @ np.float64(V), weights


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-11), (np.float32, 1e-3), (np.float16, 2e-2)])
@pytest.mark.parametrize(("batch", "n_q", "n_k"), [((), 5, 7), ((2, 3), 5, 7), ((2,), 6, 6), ((3, 3), 4, 4)])
@pytest.mark.parametrize("far", [0, 1e3, -1e3])
def test_standard_attention(rng, dtype, tolerance, batch, n_q, n_k, far):
    Q, K, V = (rng.normal(size=(*batch, n, d)).astype(dtype) for n, d in ((n_q, 4), (n_k, 4), (n_k, 3)))
    if far and dtype != np.float16:
        Q[..., 0], K[..., 0] = far * np.linspace(1, 3, n_q), 1
    some, rows = rng.random((*batch, n_q, n_k)) < 0.4, np.arange(n_k) % 3 == 0
    some[(0,) * len(batch) + (1,)] = True
    for mask in ([], [some], [rows], [rows | (np.arange(n_q)[:, None] == 2)]):
        given = [Q, K, V, *mask]
        before = [x.copy() for x in given]
        got = profiling.standard_attention(*given)
        assert all(map(np.array_equal, given, before))
        for value, right in zip(got, plain(*given), strict=True):
            assert value.dtype == dtype and value.shape == right.shape
            assert np.allclose(value, right, rtol=tolerance, atol=tolerance)


def test_standard_attention_limits(rng):
    Q, K, V = (rng.normal(size=size) for size in ((40, 64), (50, 64), (50, 64)))
    for wrong in ((Q[:, :3], K, V), (Q, K[:7], V)):
        with pytest.raises(ValueError, match=r"\d+, \d+.*\d+, \d+"):
            profiling.standard_attention(*wrong)
    hidden = np.arange(50) == 0
    K = np.where(hidden[:, None], 1e5, np.full((50, 64), -1e5))  # the hidden key alone has a large score
    weights = profiling.standard_attention(np.abs(Q), K, V, hidden)[1]
    assert not weights[:, 0].any() and np.allclose(weights[:, 1:], 1 / 49)
    assert measure_arrays(profiling.standard_attention, *rng.normal(size=(3, 200, 64))).peak_bytes < 12.2 * 8 * 200**2


def check_measured(stats, n, d, batch, dtype=np.float32):
    size = np.dtype(dtype).itemsize * batch * n
    parts = {"input_memory": 3 * size * d, "attention_matrix_memory": size * n, "output_memory": size * d}
    assert stats == {**parts, "total_memory": sum(parts.values()), "seq_len": n, "d_model": d}


def test_measure_attention_memory():
    first = profiling.measure_attention_memory(9, 5, 3, np.float64)
    check_measured(profiling.measure_attention_memory(20, 6), 20, 6, 1)
    check_measured(profiling.measure_attention_memory(30, 7, 2, np.float16), 30, 7, 2, np.float16)
    check_measured(first, 9, 5, 3, np.float64)
    assert measure_arrays(profiling.measure_attention_memory, 300, 8, 2).peak_bytes > 2 * 300 * 300 * 4


def test_profile_memory_scaling():
    found = profiling.profile_memory_scaling(iter([30, 10, 20]), 5, 2)
    assert list(found) == [30, 10, 20]
    for n, stats in found.items():
        check_measured(stats, n, 5, 2)
    assert measure_arrays(profiling.profile_memory_scaling, [10, 300, 20], 8).peak_bytes > 300 * 300 * 4


def test_estimate_attention_memory():
    for n, d, size, batch in [(20, 6, 4, 1), (9, 5, 2, 3), (10**6, 64, 8, 50)]:
        rows = n * size * batch
        parts = {f"{name}_memory": rows * d for name in ("Q", "K", "V", "output")} | {
            "attention_matrix_memory": rows * n
        }
        assert profiling.estimate_attention_memory(n, d, size, batch) == {**parts, "total_memory": sum(parts.values())}


def test_analyze_scaling():
    memory = {40: 170, 10: 20, 15: 31, 90: 800}
    results = {n: {"attention_matrix_memory": bytes_, "total_memory": 7 * n} for n, bytes_ in memory.items()}
    found = profiling.analyze_scaling(results)
    slope = np.polyfit(np.log(list(memory)), np.log(list(memory.values())), 1)[0]
    assert len(results) == 4 and found.pop("scaling_factor") == pytest.approx(2**slope)
    assert found["seq_lengths"] == [10, 15, 40, 90] and found["attention_memory"] == [20, 31, 170, 800]
    assert found["total_memory"] == [70, 105, 280, 630]
    with pytest.raises(ValueError, match=r"."):
        profiling.analyze_scaling({10: results[10]})


@pytest.mark.parametrize("is_given", [True, False])
def test_plot_memory_scaling(is_given):
    results = {n: {"attention_matrix_memory": n << 20, "input_memory": n << 18} for n in (40, 10, 20)}
    given, other = (plt.figure().subplots() for _ in range(2))
    ax = profiling.plot_memory_scaling(results, given) if is_given else profiling.plot_memory_scaling(results)
    assert (ax is given) if is_given else ax not in (given, other)
    assert not other.lines and other.get_xscale() == "linear" and not other.get_xlabel() and not other.get_legend()
    lines = {line.get_label(): line for line in ax.lines}
    for label, scale in (("attention weights", 1), ("Q, K, V", 0.25)):
        assert np.allclose(lines[label].get_xydata(), [(n, n * scale) for n in (10, 20, 40)])
    assert all(axis.get_scale() == "log" and axis.get_transform().base == 2 for axis in (ax.xaxis, ax.yaxis))
    assert "MiB" in ax.get_ylabel() and ax.get_xlabel() and ax.get_legend()
