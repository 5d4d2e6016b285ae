"""`lab bench`, `lab plot` and `lab model`: what a reader asks about memory."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.bench.model_command import model

D_MODELS = "16,32,64,128"
SEQ_LENS = "256,1024,4096,8192,16384"
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}

Device = Annotated[str, typer.Option(help="meta simulates CUDA and needs no memory; cpu and cuda measure and time")]
Impls = Annotated[
    list[str],
    typer.Option("--impl", help="written_out, built_in, sdpa, checkpointed or flash; may be given several times"),
]
DModels = Annotated[str, typer.Option(help="widths, with commas")]
SeqLens = Annotated[str, typer.Option(help="sequence lengths, with commas")]
Csv = Annotated[
    Path | None, typer.Option(help="keep each row here as it is finished; rows already there are not run again")
]


def add_commands(app: typer.Typer, group: str) -> None:
    """Add the reader's commands to `lab`, in a group of its help."""
    for command in (bench, plot, model):
        app.command(rich_help_panel=group)(command)


def bench(
    device: Device = "meta",
    impl: Impls = ["written_out"],  # noqa: B006 (typer copies it)
    d_models: DModels = D_MODELS,
    seq_lens: SeqLens = SEQ_LENS,
    batch_size: Annotated[int, typer.Option(help="attentions at once")] = 8,
    warmup_steps: Annotated[
        int | None, typer.Option(help="steps before the clock counts; 5, on cpu 1", show_default=False)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="timed steps a row; 100, on cpu 5", show_default=False)] = None,
    csv: Csv = None,
    parts: Annotated[bool, typer.Option("--parts", help="say what each row's memory is made of, to the byte")] = False,
    fit: Annotated[str | None, typer.Option(metavar="SIZE", help="the longest sequences that fit, e.g. 24GiB")] = None,
    claims: Annotated[bool, typer.Option("--claims", help="the published claims beside what comes out")] = False,
) -> None:
    """Print the benchmark table: peak and saved memory of attention, and times on a real device. MB there means MiB."""
    from labkit.bench.show import show_claims, show_fit, show_parts, show_rows

    widths = whole_numbers("--d-models", d_models)
    if fit is not None:
        show_fit(bytes_of(fit), batch_size, widths)
    elif claims:
        show_claims()
    else:
        usual_warmup_steps, usual_steps = (1, 5) if device == "cpu" else (5, 100)
        warmup_steps = usual_warmup_steps if warmup_steps is None else warmup_steps
        steps = usual_steps if steps is None else steps
        rows = run(device, impl, widths, whole_numbers("--seq-lens", seq_lens), batch_size, warmup_steps, steps, csv)
        show_rows(rows)
        if parts:
            show_parts(rows)


def plot(
    csv: Annotated[
        Path | None, typer.Argument(metavar="[CSV]", help="rows from `lab bench --csv`; simulated when left out")
    ] = None,
    out: Annotated[Path, typer.Option(help="the folder for the figures")] = Path("plots"),
) -> None:
    """Draw the benchmark: memory over length, and times where a device was timed."""
    from labkit.bench.plots import save_plots

    if csv is not None and not csv.exists():
        sys.exit(f"lab plot: there is no {csv}")
    out.mkdir(parents=True, exist_ok=True)  # an error comes before the work
    rows = (
        rows_kept("plot", csv)
        if csv
        else run("meta", ["written_out", "built_in"], [64], whole_numbers("", SEQ_LENS), 8, 0, 1, None)
    )
    for path in save_plots(rows, out):
        typer.echo(f"wrote {path}")


def run(
    device: str,
    impls: list[str],
    d_models: list[int],
    seq_lens: list[int],
    batch_size: int,
    warmup_steps: int,
    steps: int,
    csv: Path | None,
) -> list[dict]:
    """The rows asked for, with progress on the terminal; those that `csv` holds already are taken from there."""
    from rich.console import Console
    from rich.progress import Progress

    from labkit.bench.columns import row_key
    from labkit.bench.record import append_csv, require_writable
    from labkit.bench.table import benchmark_rows

    kept = rows_kept("bench", csv) if csv else []
    if csv:
        require_writable(csv)
    bars = Console(stderr=True, highlight=False)
    n_rows = len(impls) * len(d_models) * len(seq_lens)
    with Progress(console=bars, transient=True, disable=not bars.is_terminal) as progress:
        bar = progress.add_task(f"{device}", total=n_rows)
        begun: list[dict] = []

        def begins(row: dict) -> None:
            begun.append(row)
            if not bars.is_terminal:  # nobody sees the bar, and a row can take minutes
                what = ", ".join(f"{name} {row[name]}" for name in ("impl", "d_model", "seq_len", "steps"))
                of_all = "" if kept else f" of {n_rows}"
                bars.print(f"lab bench: row {len(begun)}{of_all} on {device}: {what}", soft_wrap=True)

        def finished(row: dict) -> None:
            progress.advance(bar)
            if csv:
                append_csv(csv, row)

        try:
            rows = [
                row
                for name in impls
                for row in benchmark_rows(
                    d_models,
                    seq_lens,
                    batch_size,
                    warmup_steps,
                    steps,
                    device,
                    name,
                    on_row=finished,
                    before_row=begins,
                    skip={row_key(row) for row in kept},
                )
            ]
        except (ValueError, RuntimeError) as error:
            sys.exit(f"lab bench: {error}")
        except KeyboardInterrupt:
            if csv is None:
                raise
            typer.echo(f"\nlab bench: interrupted; finished rows are in {csv}", err=True)
            raise typer.Exit(128 + signal.SIGINT) from None
    return [*kept, *rows]


def rows_kept(command: str, csv: Path) -> list[dict]:
    """The rows of a file; ends the program with a message when it holds something else."""
    from labkit.bench.record import read_csv

    try:
        return read_csv(csv)
    except (ValueError, TypeError) as error:
        sys.exit(f"lab {command}: {error}")


def whole_numbers(option: str, text: str) -> list[int]:
    """`16,32` as numbers; ends the program with a message when it reads otherwise."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        sys.exit(f"lab bench: {option} takes whole numbers with commas between them, not {text!r}")


def bytes_of(text: str) -> int:
    """`24GiB` in bytes; ends the program with a message when it has no unit that says which."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]+)", text.strip())
    if not match or match[2] not in UNITS:
        sys.exit(f"lab bench: {text!r} is no size: a number and one of {', '.join(UNITS)}, like 24GiB")
    return int(float(match[1]) * UNITS[match[2]])
