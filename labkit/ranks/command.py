"""`lab ring`: a student's ring in real processes over gloo, against attention in one process."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

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
    try:
        unwritten = unwritten_functions(file)
    except SyntaxError as error:
        sys.exit(f"lab ring: {file.name}:{error.lineno}: {error.msg}")
    typer.echo(
        f"{seq_len:,} tokens, {heads} heads on {kv_heads}, width {head_dim}, float32, "
        f"{'no mask' if full else 'causal'}, {layout}; {ranks} processes over gloo\n"
        f"{'':24}{'ranks':>6}{'largest error':>15}{'bytes a rank sends':>20}{'by formula':>14}"
        f"{'peak of a rank':>16}{'of one rank':>13}"
    )
    all_right = True
    setting = Setting(ranks, seq_len, heads, kv_heads, head_dim, layout, not full)
    for line, is_right in rows(file, setting, unwritten):
        typer.echo(line)
        all_right = all_right and is_right
    raise typer.Exit(0 if all_right else 1)


class Setting(NamedTuple):
    """The shapes and options of the attention that the ranks compute."""

    ranks: int
    seq_len: int
    heads: int
    kv_heads: int
    head_dim: int
    layout: str
    causal: bool


def unwritten_functions(file: Path) -> set[str]:
    """The functions of a file that still end in the stub's `raise NotImplementedError()`; SyntaxError if it is none."""
    defined = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]
    return {each.name for each in defined if ast.unparse(each.body[-1]) == "raise NotImplementedError()"}


def rows(file: Path, setting: Setting, unwritten: Collection[str] = ()) -> Iterator[tuple[str, bool]]:
    """Each function's line with one rank, then with all, and whether its results and its bytes are right.

    Peaks include a rank's own shards. Those that are `unwritten` are not called.
    """
    from labkit.ranks.processes import RankFailed
    from labkit.testing.rings import Sizes, sent_bytes

    expected: dict[str, torch.Tensor] = {}
    for name, (method, (arguments, _)) in FUNCTIONS.items():
        if name in unwritten:
            yield f"{name:24}{'':>6}  not implemented yet", False
            continue
        if name == "ulysses_attention" and setting.kv_heads % setting.ranks:
            problem = f"{setting.kv_heads} key heads cannot be divided among {setting.ranks}"
            yield f"{name:24}{setting.ranks:>6}  {problem}", False
            continue
        one_rank_bytes, expected = 0, expected or whole_sequence(setting)
        for ranks in sorted({1, setting.ranks}):
            sizes = Sizes(method, ranks, setting.seq_len, setting.heads, setting.kv_heads, setting.head_dim, 4)
            formula = sent_bytes(sizes, backward="dO" in arguments)
            try:
                error, all_sent, peak_bytes = measured(file, name, ranks, setting, expected)
            except RankFailed as failed:
                yield f"{name:24}{ranks:>6}  {failed}", False
                break  # what fails with one rank fails with more
            sent = max(all_sent, key=lambda n_bytes: abs(n_bytes - formula))
            one_rank_bytes = one_rank_bytes or peak_bytes
            share = f"{peak_bytes / one_rank_bytes:.2f}" if ranks > 1 else ""
            is_right = error <= LARGEST_ERROR and sent == formula
            line = (
                f"{name:24}{ranks:>6}{error:>15.1e}{sent:>20,}{formula:>14,}{peak_bytes / 2**20:>12.2f} MiB{share:>13}"
            )
            yield line + ("" if is_right else "   ✗"), is_right


def whole_sequence(setting: Setting) -> dict[str, torch.Tensor]:
    """Inputs q, k, v and dO, and in float64 o, lse, dq, dk and dv of attention in one process, by their names."""
    import torch

    from labkit.testing.attention.cases import Case

    generator = torch.Generator().manual_seed(11)
    n_heads = {"q": setting.heads, "dO": setting.heads, "k": setting.kv_heads, "v": setting.kv_heads}
    shape = (setting.seq_len, setting.head_dim)
    found = {name: torch.randn(n, *shape, generator=generator) for name, n in n_heads.items()}
    for name, like in {"o": "q", "dq": "q", "dk": "k", "dv": "v"}.items():
        found[name] = torch.zeros_like(found[like], dtype=torch.float64)
    found["lse"] = found["o"][..., 0].clone()
    for head in range(setting.heads):  # one at a time: all scores of a head are in memory at once
        group = head * setting.kv_heads // setting.heads
        given = (found["q"][head], found["k"][group], found["v"][group], found["dO"][head])
        want = {name: torch.from_numpy(x) for name, x in Case(*given, causal=setting.causal).want.items()}
        found["o"][head], found["lse"][head], found["dq"][head] = want["O"], want["L"], want["dQ"]
        found["dk"][group] += want["dK"]
        found["dv"][group] += want["dV"]
    return found


def measured(
    file: Path, name: str, ranks: int, setting: Setting, expected: dict[str, torch.Tensor]
) -> tuple[float, list[int], int]:
    """The largest error of a function on so many ranks, the bytes that each rank sent, and the largest peak.

    Raises:
        RankFailed: there are no numbers; the message is why.
    """
    import torch

    from labkit.ranks.processes import RankFailed, run_processes
    from labkit.testing.rings import cut, positions

    _, (arguments, results) = FUNCTIONS[name]
    layout = setting.layout if ranks > 1 else "contiguous"  # one rank holds the sequence in its order
    places = positions(setting.seq_len, ranks, layout)
    shards = [cut(expected[each].float(), places, _token_axis(each)) for each in arguments]
    options = {"causal": setting.causal, "layout": layout}
    ran = run_processes(file, name, options, list(zip(*shards, strict=True)))
    order = torch.cat([torch.from_numpy(each) for each in places]).argsort()
    largest_error = 0.0
    for number, each in enumerate(results):
        axis = _token_axis(each)
        found = torch.cat([rank.tensors[number] for rank in ran], axis).index_select(axis, order)
        if found.shape != expected[each].shape:
            raise RankFailed(f"{each} has shape {tuple(found.shape)}, in the whole sequence")
        errors = (found.double() - expected[each]).abs().nan_to_num(nan=float("inf"))
        largest_error = max(largest_error, float(errors.max()))
    return largest_error, [rank.traffic.sent_bytes for rank in ran], max(rank.peak_bytes for rank in ran)


def _token_axis(name: str) -> int:
    return -1 if name == "lse" else -2
