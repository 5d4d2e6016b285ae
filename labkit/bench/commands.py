"""`lab bench`: a table of attention's memory and time."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

D_MODELS = "16,32,64,128"
SEQ_LENS = "256,1024,4096,8192,16384"
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}

Device = Annotated[str, typer.Option(help="meta simulates CUDA and needs no memory; cpu and cuda measure and time")]
Impls = Annotated[
    list[str],
    typer.Option("--impl", help="written_out, built_in, sdpa, checkpointed or flash; may be given several times"),
]
DModels = Annotated[str, typer.Option(help="widths, separated by commas")]
SeqLens = Annotated[str, typer.Option(help="sequence lengths, separated by commas")]
Csv = Annotated[
    Path | None, typer.Option(help="save each row here as it finishes; rows already there are not run again")
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="draw memory, and times if any, over length")]


def bench(
    device: Device = "meta",
    impl: Impls = ["written_out"],  # noqa: B006 (typer copies it)
    d_models: DModels = D_MODELS,
    seq_lens: SeqLens = SEQ_LENS,
    batch_size: Annotated[int, typer.Option(help="attentions at once")] = 8,
    warmup_steps: Annotated[
        int | None, typer.Option(help="steps before the timed ones; 5, on cpu 1", show_default=False)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="timed steps per row; 100, on cpu 5", show_default=False)] = None,
    csv: Csv = None,
    plot: Plot = None,
    parts: Annotated[bool, typer.Option("--parts", help="print the parts of each row's memory, in bytes")] = False,
    fit: Annotated[str | None, typer.Option(metavar="SIZE", help="the longest sequences that fit, e.g. 24GiB")] = None,
) -> None:
    """Print the benchmark table: peak and saved memory of attention, and times on a real device. MB there means MiB."""
    from labkit.bench.show import show_fit, show_parts, show_rows

    widths, lengths = _integers("--d-models", d_models), _integers("--seq-lens", seq_lens)
    if fit is not None:
        show_fit(parse_bytes(fit), batch_size, widths)
        return
    usual_warmup_steps, usual_steps = (1, 5) if device == "cpu" else (5, 100)
    warmup_steps = usual_warmup_steps if warmup_steps is None else warmup_steps
    steps = usual_steps if steps is None else steps
    try:
        rows = _rows(device, impl, widths, lengths, batch_size, warmup_steps, steps, csv)
    except (ValueError, RuntimeError) as error:
        sys.exit(f"lab bench: {error}")
    except KeyboardInterrupt:
        if csv is None:
            raise
        typer.echo(f"\nlab bench: interrupted; finished rows are in {csv}", err=True)
        raise typer.Exit(128 + signal.SIGINT) from None
    show_rows(rows)
    if parts:
        show_parts(rows)
    if plot is not None:
        from labkit.bench.plot import save_plot

        save_plot(rows, plot)
        typer.echo(f"wrote {plot}")


def _rows(
    device: str,
    impls: list[str],
    d_models: list[int],
    seq_lens: list[int],
    batch_size: int,
    warmup_steps: int,
    steps: int,
    csv: Path | None,
) -> list[dict]:
    """The requested rows, after those that `csv` has already; each is saved to `csv` as it finishes."""
    from labkit.bench.rows import append_csv, read_csv, row_key
    from labkit.bench.table import measured_row, requested_rows
    from labkit.bench.variants import attention_form

    forms = {impl: attention_form(impl) for impl in impls}
    rows = []
    if csv is not None:
        csv.open("a").close()  # raises OSError before the first row runs, not after it
        rows = read_csv(csv)
    finished = {row_key(row) for row in rows}
    requested = []
    for impl in impls:
        requested += requested_rows(d_models, seq_lens, batch_size, warmup_steps, steps, device, impl)
    missing = [row for row in requested if row_key(row) not in finished]
    for number, row in enumerate(missing, 1):
        if device != "meta":  # a row can take minutes
            request = f"{row['impl']}, d_model {row['d_model']}, seq_len {row['seq_len']}, {steps} steps"
            typer.echo(f"lab bench: row {number} of {len(missing)} on {device}: {request}", err=True)
        rows.append(measured_row(row, forms[row["impl"]]))
        if csv is not None:
            append_csv(csv, rows[-1])
    return rows


def _integers(option: str, text: str) -> list[int]:
    """`16,32` as numbers; exits with a message for anything else."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        sys.exit(f"lab bench: {option} takes whole numbers separated by commas, not {text!r}")


def parse_bytes(text: str) -> int:
    """`24GiB` in bytes; exits with a message for anything but a number and a unit."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]+)", text.strip())
    if not match or match[2] not in UNITS:
        sys.exit(f"lab bench: {text!r} is not a size: a number and one of {', '.join(UNITS)}, like 24GiB")
    return int(float(match[1]) * UNITS[match[2]])
