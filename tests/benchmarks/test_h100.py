"""What `python -m benchmarks h100` would measure on a device, as far as a CPU can tell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer
from torch.nn import functional
from typer.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.h100 import DRY, H100, Weights, flash_attention_3, tables

INTERFACE = """\
from torch.nn.functional import scaled_dot_product_attention

def flash_attn_func(q, k, v, causal):
    q, k, v = (x.half(){}for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
    return out, "log-sum-exp"
"""


@pytest.fixture
def interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be imported instead of FlashAttention-3's, to be written."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "flash_attn_interface.py"
    sys.modules.pop("flash_attn_interface", None)


def test_llama_3_8b_reads_its_weights_and_131_072_bytes_a_token() -> None:
    """8,030,261,248 parameters, less the table of 128,256 words that a step does not read, and less 65 norms."""
    weights = Weights(H100._replace(device="meta"))
    assert weights.nbytes == 2 * (8_030_261_248 - 128_256 * 4096 - 65 * 4096)
    assert weights.cache_bytes(batch=2, tokens=3) == 2 * 3 * 131_072
    cache = Weights(DRY).cache(2, 3)
    assert cache.nbytes == Weights(DRY).cache_bytes(2, 3)


def test_flash_attention_3_is_measured_where_it_is_installed(interface: Path) -> None:
    """An interface with its layout, (batch, N, heads, d), stands for it."""
    q, k, v = torch.randn(3, 2, 4, 48, 16).half()
    assert flash_attention_3(q, k, v) == {}
    interface.write_text(INTERFACE.format(".transpose(1, 2) "))
    calls = flash_attention_3(q, k, v)
    assert list(calls) == ["FlashAttention-3", "FlashAttention-3, FP8"]
    want = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    errors = [(call()[0] - want).abs().mean() for call in calls.values()]
    assert errors[0] < 1e-3 < errors[1], "the second call gets FP8"


def test_flash_attention_3_with_another_layout_is_refused(interface: Path) -> None:
    q, k, v = torch.randn(3, 2, 4, 4, 16).half()
    interface.write_text(INTERFACE.format(" "))
    with pytest.raises(AssertionError, match="FlashAttention-3"):
        flash_attention_3(q, k, v)


@pytest.mark.slow
def test_a_dry_run_makes_every_table_on_a_cpu() -> None:
    attention, product, decode, labs = tables(dry=True)
    assert set(attention.rows) >= {"built-in", "built-in, flash"}
    assert attention.columns == ["N = 32", "N = 64"]
    assert set(product.rows) == {"bfloat16", "FP8 (E4M3)"}
    assert list(decode.rows) == [f"batch {batch}, {tokens} tokens" for batch in (1, 2) for tokens in (16, 32)]
    assert {name[:2] for name in labs.rows} == {"02", "05", "06", "07", "08", "09", "12", "14"}
    for name, (ms, peak, counted) in labs.rows.items():
        assert ms is not None
        assert name.startswith("02") or counted in (peak, None), f"{name}: meta counts another peak than the CPU"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(tables()) == []
    assert "not run, since it needs a CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["h100", "--dry", "--save"], ["flash", "--dry"], ["--dry"]])
def test_a_dry_run_is_never_saved(arguments: list[str]) -> None:
    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "its numbers are not saved" in " ".join(result.output.split()).replace("│ ", "")
