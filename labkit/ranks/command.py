"""`lab ring`: a student's ring in real processes over gloo, against attention in one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

LARGEST_ERROR = 1e-4
"""float32 loses a hundredth of it here; a wrong result is off by far more."""
LAYOUTS = ("contiguous", "zigzag", "striped")
FORWARD = (("q", "k", "v"), ("o", "lse"))
BACKWARD = (("dO", "q", "k", "v", "o", "lse"), ("dq", "dk", "dv"))
"""Arguments and results."""
FUNCTIONS = {
    "ring_attention_forward": ("ring", FORWARD),
    "all_gather_attention": ("all_gather", FORWARD),
    "ulysses_attention": ("ulysses", FORWARD),
    "ring_attention_backward": ("ring", BACKWARD),
}


def ring(
    lab: Annotated[str, typer.Argument(metavar="LAB", help="the lab's number: 11")] = "11",
    ranks: Annotated[int, typer.Option(help="processes", min=1, max=16)] = 4,
    seq_len: Annotated[int, typer.Option(help="tokens of the whole sequence", min=1)] = 4096,
    heads: Annotated[int, typer.Option(help="query heads", min=1)] = 4,
    kv_heads: Annotated[int, typer.Option(help="heads of keys and values", min=1)] = 4,
    head_dim: Annotated[int, typer.Option(help="width of a head", min=1)] = 64,
    layout: Annotated[str, typer.Option(help="contiguous, zigzag or striped")] = "zigzag",
    full: Annotated[bool, typer.Option("--full", help="without the causal mask")] = False,
    src: Annotated[Path | None, typer.Option(metavar="DIR", help="the module in DIR instead of your own")] = None,
) -> None:
    """Run your Lab 11 in real processes over gloo: results against one process, bytes and peak memory of a rank."""
    from labkit.labs.catalog import find_lab

    found = find_lab(lab)
    if found.module != "ring_attention":
        sys.exit(f"lab ring: {found.label} has no ring: use lab 11")
    if layout not in LAYOUTS or seq_len % (2 * ranks) or heads % kv_heads:
        sys.exit(
            f"lab ring: {seq_len} tokens, {ranks} ranks, {heads} heads on {kv_heads}, {layout!r}: tokens must be "
            f"a multiple of {2 * ranks}, heads of key heads, and the layout one of {', '.join(LAYOUTS)}"
        )
    file = src / f"{found.module}.py" if src else found.student_file
    if not file.is_file():
        sys.exit(f"lab ring: there is no {file}")
    typer.echo(
        f"{seq_len:,} tokens, {heads} heads on {kv_heads}, width {head_dim}, float32, "
        f"{'no mask' if full else 'causal'}, {layout}; {ranks} processes over gloo\n"
        f"{'':24}{'ranks':>6}{'largest error':>15}{'bytes a rank sends':>20}{'by formula':>14}"
        f"{'peak of a rank':>16}{'of one rank':>13}"
    )
    all_right = True
    for row in rows(file, Setting(ranks, seq_len, heads, kv_heads, head_dim, layout, not full)):
        typer.echo(row.line())
        all_right = all_right and row.is_right
    raise typer.Exit(0 if all_right else 1)


@dataclass(frozen=True)
class Setting:
    """The shapes and options of the attention that the ranks compute."""

    ranks: int
    seq_len: int
    heads: int
    kv_heads: int
    head_dim: int
    layout: str
    causal: bool


@dataclass
class Row:
    """One function on a number of ranks; `problem` is why there are no numbers. Peaks include a rank's own shards."""

    name: str
    ranks: int
    error: float = 0.0
    sent_bytes: int = 0
    formula_bytes: int = 0
    peak_bytes: int = 0
    one_rank_bytes: int = 0
    problem: str = ""

    @property
    def is_right(self) -> bool:
        """Whether its results and its bytes are right."""
        return not self.problem and self.error <= LARGEST_ERROR and self.sent_bytes == self.formula_bytes

    def line(self) -> str:
        """The row, in the columns that `ring` prints."""
        if self.problem:
            return f"{self.name:24}{self.ranks:>6}  {self.problem}"
        share = f"{self.peak_bytes / self.one_rank_bytes:.2f}" if self.one_rank_bytes and self.ranks > 1 else ""
        wrong = "" if self.is_right else "   ✗"
        return (
            f"{self.name:24}{self.ranks:>6}{self.error:>15.1e}{self.sent_bytes:>20,}{self.formula_bytes:>14,}"
            f"{self.peak_bytes / 2**20:>12.2f} MiB{share:>13}{wrong}"
        )


def rows(file: Path, setting: Setting) -> Iterator[Row]:
    """Each function with one rank, then with all."""
    expected = whole_sequence(setting)
    for name in FUNCTIONS:
        if name == "ulysses_attention" and setting.kv_heads % setting.ranks:
            problem = f"{setting.kv_heads} key heads cannot be divided among {setting.ranks}"
            yield Row(name, setting.ranks, problem=problem)
            continue
        one_rank_bytes = 0
        for ranks in sorted({1, setting.ranks}):
            row = _row(file, name, ranks, setting, expected)
            row.one_rank_bytes = one_rank_bytes = one_rank_bytes or row.peak_bytes
            yield row


def whole_sequence(setting: Setting) -> dict[str, torch.Tensor]:
    """Inputs q, k, v and dO, and in float64 o, lse, dq, dk and dv of attention in one process, by their names."""
    import torch

    from labkit.testing.attention.tensor_reference import attention, gradients

    generator = torch.Generator().manual_seed(11)
    n_heads = {"q": setting.heads, "dO": setting.heads, "k": setting.kv_heads, "v": setting.kv_heads}
    shape = (setting.seq_len, setting.head_dim)
    found = {name: torch.randn(n, *shape, generator=generator) for name, n in n_heads.items()}
    found["dk"], found["dv"] = (torch.zeros(setting.kv_heads, *shape, dtype=torch.float64) for _ in range(2))
    heads = []
    for head in range(setting.heads):  # one at a time: all scores of a head are in memory at once
        group = head * setting.kv_heads // setting.heads
        given = (found["q"][head], found["k"][group], found["v"][group])
        o, _, lse = attention(*given, causal=setting.causal)
        dq, dk, dv = gradients(*given, found["dO"][head], causal=setting.causal)
        heads.append((o, lse, dq))
        found["dk"][group] += dk
        found["dv"][group] += dv
    stacked = (torch.stack(parts) for parts in zip(*heads, strict=True))
    return found | dict(zip(("o", "lse", "dq"), stacked, strict=True))


def _row(file: Path, name: str, ranks: int, setting: Setting, expected: dict[str, torch.Tensor]) -> Row:
    import torch

    from labkit.ranks.processes import RankFailed, run_processes
    from labkit.testing.rings import Sizes, cut, positions, sent_bytes

    method, (arguments, results) = FUNCTIONS[name]
    layout = setting.layout if ranks > 1 else "contiguous"  # one rank holds the sequence in its order
    places = positions(setting.seq_len, ranks, layout)
    shards = [cut(expected[each].float(), places, _token_axis(each)) for each in arguments]
    try:
        options = {"causal": setting.causal, "layout": layout}
        ran = run_processes(file, name, options, list(zip(*shards, strict=True)))
    except RankFailed as error:
        return Row(name, ranks, problem=str(error))
    order = torch.cat([torch.from_numpy(each) for each in places]).argsort()
    largest_error = 0.0
    for number, each in enumerate(results):
        axis = _token_axis(each)
        found = torch.cat([rank.tensors[number] for rank in ran], axis).index_select(axis, order)
        if found.shape != expected[each].shape:
            return Row(name, ranks, problem=f"{each} has shape {tuple(found.shape)}, in the whole sequence")
        errors = (found.double() - expected[each]).abs().nan_to_num(nan=float("inf"))
        largest_error = max(largest_error, float(errors.max()))
    sizes = Sizes(method, ranks, setting.seq_len, setting.heads, setting.kv_heads, setting.head_dim, 4)
    formula = sent_bytes(sizes, backward="dO" in arguments)
    sent = max((rank.traffic.sent_bytes for rank in ran), key=lambda n_bytes: abs(n_bytes - formula))
    return Row(name, ranks, largest_error, sent, formula, max(rank.peak_bytes for rank in ran))


def _token_axis(name: str) -> int:
    return -1 if name == "lse" else -2
