"""`lab train`: a step with each attention is the same step, and what is written can be read and talked to."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.harness import solution_module
from labkit.commands.app import app
from labkit.model.hybrid import CachedHybrid, WholeText
from labkit.model.weights import read_model
from labkit.training import peaks, steps
from labkit.training.peaks import step_peaks
from labkit.training.steps import Way, checkpointed, fused, in_order, loss_of, new_model, textbook
from tests.labkit.chat.students import student_lab


@pytest.fixture(scope="module")
def ways() -> list[Way]:
    flash, lab06 = solution_module("05").FlashAttention, solution_module("06")

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flash.apply(q, k, v, True)

    return [
        Way("textbook", textbook, in_order),
        Way("torch", fused, in_order),
        Way("flash", attend, in_order),
        Way("checkpoints", attend, checkpointed(lab06)),
    ]


def hybrid_ways() -> list[Way]:
    """Lab 15's rule token by token and in chunks, in the model with states."""
    lab15 = solution_module("15")
    rules = (lab15.gated_delta_recurrent, partial(lab15.gated_delta_chunked, chunk=32))
    return [Way("rule", WholeText(rule), in_order, partial(CachedHybrid, rule), hybrid=True) for rule in rules]


@pytest.mark.parametrize("hybrid", [False, True])
def test_every_way_has_the_same_loss_and_gradients(ways: list[Way], hybrid: bool) -> None:
    rows = torch.randint(256, (1, 70), generator=torch.Generator().manual_seed(0))
    found = []
    for way in hybrid_ways() if hybrid else ways:
        llama = new_model(hybrid=hybrid)
        loss = loss_of(llama, rows, way)
        loss.backward()
        found.append((loss.detach(), {name: weight.grad for name, weight in llama.weights.items()}))
    for loss, gradients in found[1:]:
        torch.testing.assert_close(loss, found[0][0])
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, found[0][1][name], atol=1e-5, rtol=1e-3)


def test_a_hybrid_in_pieces_is_the_same_as_a_whole_text() -> None:
    llama, (_, way) = new_model(hybrid=True), hybrid_ways()
    tokens, attend = torch.arange(40), way.cached()
    want = llama.hidden(tokens, way.attend, tokens)
    found = torch.cat([llama.hidden(part, attend, part) for part in tokens.split([7, 1, 20, 12])])
    torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_peaks_fall_from_way_to_way(ways: list[Way], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "ROWS", 1)
    monkeypatch.setattr(peaks, "LENGTH", 512)
    found = step_peaks([ways[0], ways[2], ways[3]])
    assert found["textbook"] > 1.5 * found["flash"]
    assert found["flash"] > 1.2 * found["checkpoints"]


@pytest.mark.slow
def test_loss_falls_and_the_weights_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "BATCH", 2)
    monkeypatch.setattr(peaks, "ROWS", 1)
    monkeypatch.setattr(peaks, "LENGTH", 64)
    out = tmp_path / "new" / "trained.gguf"
    result = CliRunner().invoke(app, ["train", "--plain", "--steps", "8", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert float(re.search(r"step +8  loss (\S+)", result.output)[1]) < 4.5  # 5.55, ln 256, before the first step
    assert out.with_suffix(".png").stat().st_size > 10_000
    model = read_model(out)
    assert model.llama.sizes.cache_bytes(9) == steps.SIZES.cache_bytes(9)
    assert model.text.encode("ab ä") == list("ab ä".encode())
    said = CliRunner().invoke(app, ["chat", "--plain", "--model", str(out), "--tokens", "3", "The memory of "])
    assert said.exit_code == 0, said.output


@pytest.mark.slow
def test_a_hybrid_learns_and_answers_through_lab_15(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "BATCH", 2)
    monkeypatch.setattr(peaks, "ROWS", 1)
    monkeypatch.setattr(peaks, "LENGTH", 64)
    student_lab(monkeypatch, tmp_path, "15")
    out = tmp_path / "hybrid.gguf"
    result = CliRunner().invoke(app, ["train", "--hybrid", "--steps", "8", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert float(re.search(r"step +8  loss (\S+)", result.output)[1]) < 4.5
    by_token, in_chunks = re.findall(r"peak of one step, your rule .*: (\S+) MiB", result.output)
    assert float(by_token) > 1.5 * float(in_chunks)
    sizes = read_model(out, hybrid=True).llama.sizes
    assert sizes.cache_bytes(9) == steps.HYBRID_SIZES.cache_bytes(9)
    said = CliRunner().invoke(app, ["chat", "15", "--model", str(out), "--tokens", "30", "the cache, the cache, the "])
    assert said.exit_code == 0, said.output
    assert re.search(r"from a fork, without drafts: the same \d\d tokens", said.output), said.output
    assert "tokens as with gated_delta_chunked in one pass" in said.output
    for command in (["chat", "--plain"], ["serve", "--plain"]):
        refused = CliRunner().invoke(app, [*command, "--model", str(out)])
        assert "most of its layers have a state: uv run lab chat 15 --model" in str(refused.exception)


def test_unwritten_labs_are_named() -> None:
    for options, name in (
        ([], "lab05 · FlashAttention.forward"),
        (["--plain", "--checkpoint"], "lab06 · checkpoint_sequential"),
        (["--hybrid"], "lab15 · gated_delta_chunked"),
    ):
        result = CliRunner().invoke(app, ["train", "--steps", "1", *options])
        assert result.exit_code == 1
        assert f"{name} · not implemented yet" in result.output


def test_a_hybrid_excludes_other_attention() -> None:
    result = CliRunner().invoke(app, ["train", "--hybrid", "--plain"])
    assert "--hybrid excludes --plain and --checkpoint" in str(result.exception)


def test_other_ending_is_refused() -> None:
    result = CliRunner().invoke(app, ["train", "-o", "weights.bin"])
    assert "weights are written as .gguf" in str(result.exception)
