"""`lab bench` on the command line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from labkit.bench import table
from labkit.bench.commands import parse_bytes
from labkit.bench.rows import COLUMNS, read_csv
from labkit.commands.app import app

SMALL = ("--d-models", "4", "--seq-lens", "8,16")


def lab(*arguments):
    """The result of a command: what it prints, and its exit code."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def measured(monkeypatch):
    """The lengths that were measured, in order; measuring length 32 is interrupted."""
    lengths, measure = [], table.measured_row

    def watch(row, *arguments):
        if row["seq_len"] == 32:
            raise KeyboardInterrupt
        lengths.append(row["seq_len"])
        return measure(row, *arguments)

    monkeypatch.setattr(table, "measured_row", watch)
    return lengths


def test_table_on_the_cpu_has_times(tmp_path):
    plot = tmp_path / "plot.png"
    done = lab("bench", "--device", "cpu", *SMALL, "--steps", 2, "--warmup-steps", 0, "--plot", plot)
    assert done.exit_code == 0, done.output
    header, *rows = done.stdout.splitlines()[:3]
    columns = header.split()
    assert columns[:11] == list(COLUMNS)
    for row in rows:
        values = dict(zip(columns, row.split(), strict=True))
        assert values["status"] == "success"
        assert float(values["fwd_ms"]) > 0 < float(values["bwd_ms"])
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "wrote" in done.stdout


def test_parts_add_up_to_the_measured_row():
    done = lab("bench", "--d-models", 16, "--seq-lens", 256, "--parts")
    assert done.exit_code == 0, done.output
    assert "72.7739" in done.stdout
    totals = [line.split()[1] for line in done.stdout.splitlines() if line.split()[:1] == ["total"]]
    columns = [line.split()[1] for line in done.stdout.splitlines() if line.strip().endswith("(measured)")]
    assert totals == columns == ["76,308,992", "4,218,880"]


def test_an_interrupted_run_continues_with_the_missing_rows(tmp_path, measured):
    csv = tmp_path / "rows.csv"
    options = ("bench", "--d-models", "4", "--csv", csv)
    done = lab(*options, "--seq-lens", "8,32,16")
    assert done.exit_code == 130
    assert "interrupted; finished rows are in" in done.output
    done = lab(*options, "--seq-lens", "8,16")
    assert measured == [8, 16]
    assert [row["seq_len"] for row in read_csv(csv)] == [8, 16]
    assert len([line for line in done.stdout.splitlines() if "success" in line]) == 2


def test_fit():
    done = lab("bench", "--fit", "98GiB", "--d-models", "16")
    rows = {tuple(line.split()[:2]): line.split()[3] for line in done.stdout.splitlines() if "written_out" in line}
    assert rows == {
        ("forward_peak", "written_out"): "28,650",
        ("step_peak", "written_out"): "23,394",
        ("inference_peak", "written_out"): "28,656",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "cuda"), "no CUDA device here"),
        (("--device", "tpu"), "lab bench: "),
        (("--device", "mps"), "device must be cpu, cuda or meta, got 'mps'"),
        (("--warmup-steps", "-1"), "warmup_steps must be at least 0, got -1"),
        (("--impl", "mine"), "impl 'mine' is none of written_out, built_in, sdpa, checkpointed, flash"),
        (("--d-models", "x"), "--d-models takes whole numbers separated by commas, not 'x'"),
        (("--seq-lens", "0"), "seq_lens must be at least 1, got 0"),
        (("--fit", "24"), "'24' is not a size: a number and one of B, KiB"),
        (("--fit", "1.2.3GiB"), "'1.2.3GiB' is not a size"),
    ],
)
def test_errors_are_one_line(arguments, message, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = lab("bench", *arguments)
    assert done.exit_code == 1
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_file_that_cannot_be_written_is_an_error_before_the_first_row(tmp_path, measured):
    done = lab("bench", *SMALL, "--csv", tmp_path / "absent" / "rows.csv")
    assert isinstance(done.exception, FileNotFoundError)
    assert measured == []


def test_ctrl_c_ends_any_command_with_one_line(monkeypatch):
    def pressed(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("labkit.bench.show.show_fit", pressed)
    done = lab("bench", "--fit", "24GiB")
    assert done.exit_code == 130
    assert done.output == "\nlab bench: interrupted\n"


def test_sizes_have_units():
    assert parse_bytes("24GiB") == 24 * 2**30
    assert parse_bytes("24 GB") == 24 * 10**9
    assert parse_bytes("1.5KiB") == 1536
