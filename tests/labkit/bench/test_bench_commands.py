"""`lab bench` and `lab plot` as a reader meets them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labkit.bench import table
from labkit.bench.columns import COLUMNS
from labkit.bench.commands import bytes_of
from labkit.bench.record import read_csv
from labkit.commands.app import app

SMALL = ("--d-models", "4", "--seq-lens", "8,16")


def lab(*arguments):
    """What a command prints, and how it ends."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def measured(monkeypatch):
    """The lengths that were really measured, in order."""
    seen, measure = [], table._measured

    def watch(run, row):
        seen.append(row["seq_len"])
        return measure(run, row)

    monkeypatch.setattr(table, "_measured", watch)
    return seen


def test_table_on_the_cpu_is_timed():
    done = lab("bench", "--device", "cpu", *SMALL, "--steps", 2, "--warmup-steps", 0)
    assert done.exit_code == 0, done.output
    header, *rows = done.stdout.splitlines()[:3]
    columns = header.split()
    assert columns[:11] == list(COLUMNS)
    for row in rows:
        cells = dict(zip(columns, row.split(), strict=True))
        assert cells["status"] == "success"
        assert float(cells["fwd_ms"]) > 0 < float(cells["bwd_ms"])


def test_parts_add_up_to_the_measured_row():
    done = lab("bench", "--d-models", 16, "--seq-lens", 256, "--parts")
    assert done.exit_code == 0, done.output
    assert "72.7739" in done.stdout
    totals = [line.split()[1] for line in done.stdout.splitlines() if line.split()[:1] == ["total"]]
    said = [line.split()[1] for line in done.stdout.splitlines() if line.strip().endswith("(measured)")]
    assert totals == said == ["76,308,992", "4,218,880"]


def test_finished_rows_are_kept_and_not_run_again(tmp_path, measured):
    csv = tmp_path / "rows.csv"
    options = ("bench", "--d-models", "4", "--csv", csv)
    assert lab(*options, "--seq-lens", "8").exit_code == 0
    done = lab(*options, "--seq-lens", "8,16")
    assert measured == [8, 16]
    assert [row["seq_len"] for row in read_csv(csv)] == [8, 16]
    assert len([line for line in done.stdout.splitlines() if "success" in line]) == 2


def test_an_interrupted_run_keeps_its_rows(tmp_path, monkeypatch):
    csv, measure = tmp_path / "rows.csv", table._measured

    def stop(run, row):
        if row["seq_len"] == 16:
            raise KeyboardInterrupt
        return measure(run, row)

    monkeypatch.setattr(table, "_measured", stop)
    done = lab("bench", *SMALL, "--csv", csv)
    assert done.exit_code != 0
    assert "interrupted; finished rows are in" in done.output
    assert [row["seq_len"] for row in read_csv(csv)] == [8]


def test_fit():
    done = lab("bench", "--fit", "98GiB", "--d-models", "16")
    rows = {tuple(line.split()[:2]): line.split()[3] for line in done.stdout.splitlines() if "written_out" in line}
    assert rows == {
        ("forward_peak", "written_out"): "28,650",
        ("step_peak", "written_out"): "23,394",
        ("inference_peak", "written_out"): "28,656",
    }


def test_claims():
    done = lab("bench", "--claims")
    assert done.exit_code == 0
    assert "39,800" in done.stdout
    assert "40,535" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--device", "cuda"), "no CUDA device here"),
        (("--device", "tpu"), "lab bench: "),
        (("--impl", "mine"), "impl 'mine' is none of written_out, built_in, sdpa, checkpointed, flash"),
        (("--d-models", "x"), "--d-models takes whole numbers with commas between them, not 'x'"),
        (("--seq-lens", "0"), "seq_lens must be at least 1, got 0"),
        (("--fit", "24"), "'24' is no size: a number and one of B, KiB"),
        (("--fit", "24Gb"), "'24Gb' is no size"),
        (("--fit", "1.2.3GiB"), "'1.2.3GiB' is no size"),
        (("--fit", ".GiB"), "'.GiB' is no size"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, says, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = lab("bench", *arguments)
    assert done.exit_code == 1
    assert says in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_file_that_cannot_be_written_is_told_before_a_row_runs(tmp_path):
    done = lab("bench", *SMALL, "--csv", tmp_path / "absent" / "rows.csv")
    assert isinstance(done.exception, FileNotFoundError)
    assert done.output == ""


def test_a_line_cut_off_goes_and_whole_ones_stay(tmp_path, monkeypatch):
    csv = tmp_path / "rows.csv"
    lab("bench", *SMALL, "--csv", csv)
    whole = csv.read_bytes()
    csv.write_bytes(whole + b"written_out,me")

    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    done = lab("bench", *SMALL, "--seq-lens", "32", "--csv", csv)
    assert done.exit_code == 0
    assert csv.read_bytes().startswith(whole)


@pytest.mark.parametrize(
    ("command", "place"),
    [("bench --claims", "labkit.bench.show.show_claims"), ("kernel", "labkit.commands.kernel.numbers")],
)
def test_ctrl_c_in_any_command(monkeypatch, command, place):
    def pressed(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(place, pressed)
    done = lab(*command.split())
    assert done.exit_code == 130
    assert done.output == f"\nlab {command.split(' --')[0]}: interrupted\n"


def test_sizes_say_which_unit():
    assert bytes_of("24GiB") == 24 * 2**30
    assert bytes_of("24 GB") == 24 * 10**9
    assert bytes_of("1.5KiB") == 1536


def test_plots_of_a_timed_run(tmp_path):
    csv, out = tmp_path / "rows.csv", tmp_path / "figures"
    lab("bench", "--device", "cpu", *SMALL, "--steps", 1, "--warmup-steps", 0, "--csv", csv)
    done = lab("plot", csv, "--out", out)
    assert done.exit_code == 0, done.output
    for name in ("memory_over_length.png", "time_over_length.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
        assert f"wrote {out / name}" in done.stdout.replace("\n", "")


def test_plot_of_nothing(tmp_path):
    done = lab("plot", tmp_path / "absent.csv")
    assert done.exit_code == 1
    assert "there is no" in done.output
