"""The benchmark's rows: what becomes of a row that does not fit, of a GPU, of bad arguments, and of a run cut short."""

import pytest
import torch

from labkit.bench import table
from labkit.bench.accounting import (
    GIB,
    MIB,
    account_for,
    attention_memory,
)
from labkit.bench.columns import format_cell, row_key
from labkit.bench.record import append_csv, read_csv
from labkit.bench.table import benchmark_rows
from labkit.labs.catalog import ROOT


class TestRows:
    def test_goes_on_after_a_row_that_does_not_fit(self):
        need = sum(attention_memory(8, 1024, 16, definition="step_peak").values())
        rows = benchmark_rows([16, 8], [256, 1024], capacity_bytes=need - 1)
        assert [row["status"] for row in rows] == ["success", "oom", "success", "success"]
        assert (rows[1]["mem_max_MB"], rows[1]["add_mem_MB"]) == (None, None)
        assert benchmark_rows([16], [1024], capacity_bytes=need)[0]["status"] == "success"

    @pytest.mark.parametrize("impl", ["written_out", "built_in"])
    def test_the_cpu_has_no_workspace_and_no_rounding(self, impl):
        (row,) = benchmark_rows([17], [63], batch_size=3, warmup_steps=0, steps=1, device="cpu", impl=impl)
        exact = {"softmax": impl, "round_to": 1, "workspace_bytes": 0}
        assert row["mem_max_MB"] * MIB == sum(attention_memory(3, 63, 17, **exact).values())
        assert row["add_mem_MB"] * MIB == sum(attention_memory(3, 63, 17, definition="saved", **exact).values())
        assert sum(account_for(row).values()) == row["mem_max_MB"] * MIB

    def test_other_forms(self):
        (fused,) = benchmark_rows([16], [64], device="cpu", impl="sdpa", warmup_steps=0, steps=1)
        (written_out,) = benchmark_rows([16], [64], device="cpu", warmup_steps=0, steps=1)
        assert fused["mem_max_MB"] < written_out["mem_max_MB"]

        def values_only(q, k, v):
            return v * 2

        (row,) = benchmark_rows([16], [64], impl=values_only)
        assert (row["impl"], row["add_mem_MB"]) == ("values_only", 0)

    def test_medians_and_spread_leave_the_warm_up_out(self, monkeypatch):
        forward_seconds = iter([9.0, 9.0, 0.001, 0.002, 0.003, 0.004, 0.010])
        ticks = [0.0]

        def clock():
            position = len(ticks) % 3  # before the forward pass, between, after the backward pass
            step = {1: 0.0, 2: next(forward_seconds) if position == 2 else 0.0, 0: 0.005}[position]
            ticks.append(ticks[-1] + step)
            return ticks[-1]

        monkeypatch.setattr(table.time, "perf_counter", clock)
        (row,) = benchmark_rows([4], [8], batch_size=1, warmup_steps=2, steps=5, device="cpu")
        assert row["fwd_ms"] == pytest.approx(3)
        assert row["fwd_ms_iqr"] == pytest.approx(2)
        assert row["bwd_ms"] == pytest.approx(5)
        assert row["bwd_ms_iqr"] == pytest.approx(0, abs=1e-9)

    def test_the_cpu_is_not_asked_for_what_it_has_not(self):
        (row,) = benchmark_rows([128], [16384], device="cpu", capacity_bytes=GIB)
        assert row["status"] == "oom"
        (row,) = benchmark_rows([16], [64], device="cpu", impl="sdpa", capacity_bytes=1024)
        assert row["status"] == "oom"

    def test_what_is_free_bounds_the_cpu(self, monkeypatch):
        monkeypatch.setattr(table, "available_bytes", lambda: 1024)
        assert benchmark_rows([16], [64], device="cpu")[0]["status"] == "oom"
        assert benchmark_rows([16], [64], device="cpu", steps=1, capacity_bytes=GIB)[0]["status"] == "success"

    def test_only_running_out_of_memory_is_survived(self):
        def fails(q, k, v):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")

        def is_wrong(q, k, v):
            raise RuntimeError("shapes cannot be multiplied")

        assert benchmark_rows([16], [64], device="cpu", impl=fails)[0]["status"] == "oom"
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            benchmark_rows([16], [64], device="cpu", impl=is_wrong)

    def test_no_gpu_is_an_error_and_not_a_row(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(RuntimeError, match="no CUDA device here"):
            benchmark_rows([16], [256], device="cuda")

    def test_an_h100_measured_what_the_simulation_says(self):
        measured = read_csv(ROOT / "docs/figures/02_h100.csv")
        assert len(measured) == 80
        for row in measured:
            (simulated,) = benchmark_rows([row["d_model"]], [row["seq_len"]], impl=row["impl"])
            n = row["seq_len"]
            masks_MB = (8 * n * n + 8 * n + 512) / MIB if row["impl"] == "sdpa" else 0  # within one operator
            assert row["add_mem_MB"] == simulated["add_mem_MB"]
            assert row["mem_max_MB"] == simulated["mem_max_MB"] + masks_MB

    @pytest.mark.gpu
    def test_a_gpu_saves_what_the_simulation_says(self):
        here = [benchmark_rows([64], [256, 4096], device=device, steps=2) for device in ("cuda", "meta")]
        for measured, simulated in zip(*here, strict=True):
            assert measured["fwd_ms"] > 0
            assert measured["add_mem_MB"] == pytest.approx(simulated["add_mem_MB"], abs=2)  # blocks that were not split
        (row,) = benchmark_rows([64], [4096], device="cuda", steps=1, capacity_bytes=GIB // 2)
        assert row["status"] == "oom"
        assert benchmark_rows([64], [256], device="cuda:0", steps=1)[0]["status"] == "success"

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match="impl 'mine' is none of written_out, built_in, sdpa"):
            benchmark_rows([16], [256], impl="mine")
        with pytest.raises(ValueError, match="device must be cpu, cuda or meta, got 'mps'"):
            benchmark_rows([16], [256], device="mps")
        with pytest.raises(ValueError, match="seq_lens must be at least 1, got 0"):
            benchmark_rows([16], [256, 0])
        with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
            benchmark_rows([16], [256], steps=0)
        with pytest.raises(ValueError, match="warmup_steps must be at least 0, got -1"):
            benchmark_rows([16], [256], warmup_steps=-1)


class TestRecord:
    def test_an_interrupted_run_keeps_its_rows_and_goes_on(self, tmp_path):
        path = tmp_path / "rows.csv"

        def interrupted(row):
            append_csv(path, row)
            if len(read_csv(path)) == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            benchmark_rows([16, 32], [256, 1024], on_row=interrupted)
        assert len(read_csv(path)) == 3

        rest = benchmark_rows(
            [16, 32],
            [256, 1024],
            on_row=lambda row: append_csv(path, row),
            skip={row_key(row) for row in read_csv(path)},
        )
        assert [(row["d_model"], row["seq_len"]) for row in rest] == [(32, 1024)]
        assert read_csv(path) == benchmark_rows([16, 32], [256, 1024])

    def test_another_form_or_another_count_is_another_row(self):
        rows = benchmark_rows([16], [256])
        skip = {row_key(row) for row in rows}
        assert benchmark_rows([16], [256], skip=skip) == []
        assert len(benchmark_rows([16], [256], impl="built_in", skip=skip)) == 1
        assert len(benchmark_rows([16], [256], steps=3, skip=skip)) == 1

    def test_a_line_cut_off_half_way_is_dropped(self, tmp_path):
        path = tmp_path / "rows.csv"
        rows = benchmark_rows([16], [64, 128], batch_size=1)
        append_csv(path, rows[0])
        whole = path.read_text()
        path.write_text(whole + "16,128,1,5,10")
        assert read_csv(path) == rows[:1]
        append_csv(path, rows[1])
        assert read_csv(path) == rows
        path.write_text("d_mo")
        assert read_csv(path) == []
        append_csv(path, rows[0])
        assert path.read_text() == whole

    def test_a_file_of_something_else_is_left_alone(self, tmp_path):
        path = tmp_path / "other.csv"
        path.write_text("name,points\nlab01,40\n")
        with pytest.raises(ValueError, match="has the columns name, points"):
            append_csv(path, benchmark_rows([16], [64])[0])
        assert path.read_text() == "name,points\nlab01,40\n"

    def test_no_file_is_no_rows(self, tmp_path):
        assert read_csv(tmp_path / "none.csv") == []

    def test_cells(self):
        assert [format_cell(value) for value in (None, 72.77392578125, 16, "cuda", 0.0)] == [
            "-",
            "72.7739",
            "16",
            "cuda",
            "0",
        ]
