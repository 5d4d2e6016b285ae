"""`lab ring`: a student's ring in real processes over gloo, against attention in one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch

LARGEST_ERROR = 1e-4
"""What float32 loses here is a hundredth of it; a wrong answer is off by far more."""
LAYOUTS = ("contiguous", "zigzag", "striped")
FORWARD = {"ring": "ring_attention_forward", "all_gather": "all_gather_attention", "ulysses": "ulysses_attention"}
MIB = 2**20


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
        sys.exit(f"lab ring: {found.label} has no ring: it is lab 11's")
    if layout not in LAYOUTS or seq_len % (2 * ranks) or heads % kv_heads:
        sys.exit(
            f"lab ring: {seq_len} tokens, {ranks} ranks, {heads} heads on {kv_heads}, {layout!r}: tokens must be "
            f"a multiple of {2 * ranks}, heads of key heads, and the layout one of {', '.join(LAYOUTS)}"
        )
    setting = Setting(ranks, seq_len, heads, kv_heads, head_dim, layout, not full)
    file = src / f"{found.module}.py" if src else found.answer_file
    if not file.is_file():
        sys.exit(f"lab ring: there is no {file}")
    typer.echo(setting.in_words())
    all_right = True
    for row in rows(file, setting):
        typer.echo(row.line())
        all_right = all_right and row.is_right
    raise typer.Exit(0 if all_right else 1)


@dataclass(frozen=True)
class Setting:
    """The attention that ranks share."""

    ranks: int
    seq_len: int
    heads: int
    kv_heads: int
    head_dim: int
    layout: str
    causal: bool

    def options(self, ranks: int) -> dict[str, Any]:
        """How so many ranks are to be told what to do: one alone holds the sequence in its order."""
        return {"causal": self.causal, "layout": self.layout if ranks > 1 else "contiguous"}

    def in_words(self) -> str:
        """Two lines: what runs, and what the columns of the lines below are."""
        return (
            f"{self.seq_len:,} tokens, {self.heads} heads on {self.kv_heads}, width {self.head_dim}, float32, "
            f"{'causal' if self.causal else 'no mask'}, {self.layout}; {self.ranks} processes over gloo\n"
            f"{'':24}{'ranks':>6}{'largest error':>15}{'bytes a rank sends':>20}{'by formula':>14}"
            f"{'peak of a rank':>16}{'of one rank':>13}"
        )


@dataclass
class Row:
    """What one function did: `problem` says why it did nothing. Peaks count a rank's own shards."""

    name: str
    ranks: int
    error: float = 0.0
    sent_bytes: int = 0
    formula_bytes: int = 0
    peak_bytes: int = 0
    alone_bytes: int = 0
    problem: str = ""

    @property
    def is_right(self) -> bool:
        """Whether its results and its bytes are as they must be."""
        return not self.problem and self.error <= LARGEST_ERROR and self.sent_bytes == self.formula_bytes

    def line(self) -> str:
        """The row, in the columns of `Setting.in_words`."""
        if self.problem:
            return f"{self.name:24}{self.ranks:>6}  {self.problem}"
        share = f"{self.peak_bytes / self.alone_bytes:.2f}" if self.alone_bytes and self.ranks > 1 else ""
        wrong = "" if self.is_right else "   ✗"
        return (
            f"{self.name:24}{self.ranks:>6}{self.error:>15.1e}{self.sent_bytes:>20,}{self.formula_bytes:>14,}"
            f"{self.peak_bytes / MIB:>12.2f} MiB{share:>13}{wrong}"
        )


def rows(file: Path, setting: Setting) -> Iterator[Row]:
    """One after the other: each function with one rank and with all."""
    from labkit.ranks.processes import Job

    whole = Whole(setting)
    for method, function in FORWARD.items():
        if method == "ulysses" and setting.kv_heads % setting.ranks:
            yield Row(
                function, setting.ranks, problem=f"{setting.kv_heads} key heads are not shared out to {setting.ranks}"
            )
            continue
        alone = 0
        for ranks in sorted({1, setting.ranks}):
            row = whole.run(
                Job(file, function, setting.options(ranks)), ranks, ("q", "k", "v"), ("o", "lse"), method, False
            )
            row.alone_bytes = alone = alone or row.peak_bytes
            yield row
    given = ("dO", "q", "k", "v", "o", "lse")
    alone = 0
    for ranks in sorted({1, setting.ranks}):
        job = Job(file, "ring_attention_backward", setting.options(ranks))
        row = whole.run(job, ranks, given, ("dq", "dk", "dv"), "ring", True)
        row.alone_bytes = alone = alone or row.peak_bytes
        yield row


class Whole:
    """Attention over the whole sequence in one process, in float64, and inputs for it."""

    def __init__(self, setting: Setting) -> None:
        import torch

        self.setting = setting
        generator = torch.Generator().manual_seed(11)
        shape = (setting.seq_len, setting.head_dim)

        def drawn(heads: int) -> torch.Tensor:
            return torch.randn(heads, *shape, generator=generator)

        self.tensors = {"q": drawn(setting.heads), "dO": drawn(setting.heads)}
        self.tensors |= {"k": drawn(setting.kv_heads), "v": drawn(setting.kv_heads)}
        self.want = self._computed()
        self.tensors |= {name: self.want[name].float() for name in ("o", "lse")}

    def run(
        self, job: Any, ranks: int, given: Sequence[str], results: Sequence[str], method: str, backward: bool
    ) -> Row:
        """What a job does on so many ranks."""
        import numpy as np
        import torch

        from labkit.ranks.processes import RankFailed, run_processes
        from labkit.testing.rings import Sizes, cut, positions, sent_bytes

        s = self.setting
        places = positions(s.seq_len, ranks, job.options["layout"])
        cuts = [cut(self.tensors[name], places, -1 if name == "lse" else -2) for name in given]
        try:
            ran = run_processes(job, [list(shards) for shards in zip(*cuts, strict=True)])
        except RankFailed as error:
            return Row(job.function, ranks, problem=str(error))
        order, worst_error = torch.from_numpy(np.argsort(np.concatenate(places))), 0.0
        for number, name in enumerate(results):
            axis = -1 if name == "lse" else -2
            got = torch.cat([result[number] for result in ran.results], axis).index_select(axis, order)
            if got.shape != self.want[name].shape:
                return Row(job.function, ranks, problem=f"{name} has shape {tuple(got.shape)}, in the whole sequence")
            errors = (got.double() - self.want[name]).abs().nan_to_num(nan=float("inf"))
            worst_error = max(worst_error, float(errors.max()))
        sizes = Sizes(method, ranks, s.seq_len, s.heads, s.kv_heads, s.head_dim, 4)
        formula = sent_bytes(sizes, backward)
        sent = [each.sent_bytes for each in ran.traffic]
        worst = max(sent, key=lambda n_bytes: abs(n_bytes - formula))
        return Row(job.function, ranks, worst_error, worst, formula, max(ran.peak_bytes))

    def _computed(self) -> dict[str, torch.Tensor]:
        """o, lse and the gradients, head by head: all scores of one head are there at once."""
        import torch

        s = self.setting
        q, k, v, dO = (self.tensors[name].double() for name in ("q", "k", "v", "dO"))
        made = {"o": torch.empty_like(dO), "lse": torch.empty(q.shape[:-1], dtype=q.dtype), "dq": torch.empty_like(q)}
        made |= {"dk": torch.zeros_like(k), "dv": torch.zeros_like(v)}
        later = torch.ones(s.seq_len, s.seq_len, dtype=torch.bool).triu(1) if s.causal else None
        for head in range(s.heads):
            group = head * s.kv_heads // s.heads
            scores = q[head] @ k[group].T * s.head_dim**-0.5
            if later is not None:
                scores.masked_fill_(later, -torch.inf)
            made["lse"][head] = scores.logsumexp(-1)
            p = scores.sub_(made["lse"][head][:, None]).exp_()
            made["o"][head] = p @ v[group]
            made["dv"][group] += p.T @ dO[head]
            slopes = dO[head] @ v[group].T - (dO[head] * made["o"][head]).sum(-1, keepdim=True)
            ds = p.mul_(slopes).mul_(s.head_dim**-0.5)
            made["dq"][head] = ds @ k[group]
            made["dk"][group] += ds.T @ q[head]
        return made
