"""Rows of the benchmark: the published table to the digit, rows that do not fit, times, and the CSV file."""

import csv
from pathlib import Path

import pytest

from labkit.bench import table
from labkit.bench.accounting import GIB, MIB, account_for, attention_memory
from labkit.bench.rows import COLUMNS, EXTRA_COLUMNS, append_csv, format_value, read_csv
from labkit.bench.table import benchmark_rows
from labkit.labs.catalog import ROOT

D_MODELS, SEQ_LENS = (16, 32, 64, 128), (256, 1024, 4096, 8192, 16384)
PUBLISHED = list(csv.DictReader((Path(__file__).parent / "data" / "published_benchmark.csv").open()))


@pytest.fixture(scope="module")
def simulated():
    return benchmark_rows(D_MODELS, SEQ_LENS)


class TestPublishedTable:
    def test_has_twenty_rows_in_the_same_order(self, simulated):
        request = ("d_model", "seq_len", "batch_size", "warmup_steps", "steps")
        assert len(PUBLISHED) == 20
        assert [[str(row[name]) for name in request] for row in simulated] == [
            [row[name] for name in request] for row in PUBLISHED
        ]
        assert tuple(PUBLISHED[0]) == COLUMNS
        assert {frozenset(row) for row in simulated} == {frozenset(COLUMNS + EXTRA_COLUMNS)}

    def test_memory_equals_every_printed_digit(self, simulated):
        for row, published in zip(simulated, PUBLISHED, strict=True):
            for name in ("mem_max_MB", "add_mem_MB"):
                digits = len(published[name].replace(".", ""))
                assert f"{row[name]:.{digits}g}" == published[name]
                assert format_value(row[name]) == published[name]

    def test_parts_add_up_to_every_row(self, simulated):
        for row in simulated:
            assert sum(account_for(row).values()) == row["mem_max_MB"] * MIB
            assert sum(account_for(row, "saved").values()) == row["add_mem_MB"] * MIB

    def test_a_simulation_has_no_times(self, simulated):
        assert {(row["fwd_ms"], row["bwd_ms"], row["status"]) for row in simulated} == {(None, None, "success")}

    @pytest.mark.slow
    def test_an_h100_measured_the_simulated_bytes(self):
        measured = read_csv(ROOT / "docs/figures/02_h100.csv")
        assert len(measured) == 80
        for row in measured:
            (simulated,) = benchmark_rows([row["d_model"]], [row["seq_len"]], impl=row["impl"])
            n = row["seq_len"]
            masks_mb = (8 * n * n + 8 * n + 512) / MIB if row["impl"] == "sdpa" else 0  # within one operator
            assert row["add_mem_MB"] == simulated["add_mem_MB"]
            assert row["mem_max_MB"] == simulated["mem_max_MB"] + masks_mb


class TestMeasuredRows:
    def test_continues_after_a_row_that_does_not_fit(self, monkeypatch):
        need = sum(attention_memory(8, 128, 16, definition="step_peak", round_to=1, workspace_bytes=0).values())
        monkeypatch.setattr(table, "available_bytes", lambda: need - 1)
        rows = benchmark_rows([16, 8], [64, 128], device="cpu", warmup_steps=0, steps=1)
        assert [row["status"] for row in rows] == ["success", "oom", "success", "success"]
        assert (rows[1]["mem_max_MB"], rows[1]["add_mem_MB"]) == (None, None)
        monkeypatch.setattr(table, "available_bytes", lambda: need)
        assert benchmark_rows([16], [128], device="cpu", steps=1)[0]["status"] == "success"

    @pytest.mark.parametrize("impl", ["written_out", "built_in"])
    def test_the_cpu_has_no_workspace_and_no_rounding(self, impl):
        (row,) = benchmark_rows([17], [63], batch_size=3, warmup_steps=0, steps=1, device="cpu", impl=impl)
        exact = {"softmax": impl, "round_to": 1, "workspace_bytes": 0}
        assert row["mem_max_MB"] * MIB == sum(attention_memory(3, 63, 17, **exact).values())
        assert row["add_mem_MB"] * MIB == sum(attention_memory(3, 63, 17, definition="saved", **exact).values())
        assert sum(account_for(row).values()) == row["mem_max_MB"] * MIB

    @pytest.mark.parametrize("impl", ["sdpa", "flash", "checkpointed"])
    def test_other_forms_take_less_than_written_out(self, impl):
        (row,) = benchmark_rows([16], [64], device="cpu", impl=impl, warmup_steps=0, steps=1)
        (written_out,) = benchmark_rows([16], [64], device="cpu", warmup_steps=0, steps=1)
        assert row["add_mem_MB"] < written_out["add_mem_MB"]

    def test_medians_and_spread_leave_out_the_warm_up(self, monkeypatch):
        seconds = []
        for forward in (9.0, 9.0, 0.001, 0.002, 0.003, 0.004, 0.010):
            start = seconds[-1] if seconds else 0.0
            seconds += [start, start + forward, start + forward + 0.005]
        ticks = iter(seconds)
        monkeypatch.setattr(table.time, "perf_counter", lambda: next(ticks))
        (row,) = benchmark_rows([4], [8], batch_size=1, warmup_steps=2, steps=5, device="cpu")
        assert row["fwd_ms"] == pytest.approx(3)
        assert row["fwd_ms_iqr"] == pytest.approx(2)
        assert row["bwd_ms"] == pytest.approx(5)
        assert row["bwd_ms_iqr"] == pytest.approx(0, abs=1e-9)

    def test_a_row_too_large_for_the_cpu_is_not_tried(self, monkeypatch):
        monkeypatch.setattr(table, "available_bytes", lambda: GIB)
        assert benchmark_rows([128], [16384], device="cpu")[0]["status"] == "oom"
        monkeypatch.setattr(table, "available_bytes", lambda: 1024)
        assert benchmark_rows([16], [64], device="cpu", impl="sdpa")[0]["status"] == "oom"

    def test_only_out_of_memory_errors_are_caught(self):
        def cannot_allocate(q, k, v):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")

        def has_a_bug(q, k, v):
            raise RuntimeError("shapes cannot be multiplied")

        assert benchmark_rows([16], [64], device="cpu", impl=cannot_allocate)[0]["status"] == "oom"
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            benchmark_rows([16], [64], device="cpu", impl=has_a_bug)

    @pytest.mark.gpu
    def test_a_gpu_saves_the_simulated_bytes(self):
        here = [benchmark_rows([64], [256, 4096], device=device, steps=2) for device in ("cuda", "meta")]
        for measured, simulated in zip(*here, strict=True):
            assert measured["fwd_ms"] > 0
            assert measured["add_mem_MB"] == pytest.approx(simulated["add_mem_MB"], abs=2)  # blocks that were not split
        assert benchmark_rows([64], [256], device="cuda:0", steps=1)[0]["status"] == "success"


def test_csv_keeps_rows_as_they_are(tmp_path):
    path = tmp_path / "rows.csv"
    rows = benchmark_rows([16], [64, 128]) + benchmark_rows([16], [64], device="cpu", steps=2, batch_size=1)
    for row in rows:
        append_csv(path, row)
    assert read_csv(path) == rows


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("name,points\nlab01,40\n")
    with pytest.raises(ValueError, match="holds no rows of the benchmark"):
        read_csv(path)
