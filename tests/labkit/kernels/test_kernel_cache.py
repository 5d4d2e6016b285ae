"""Caches of compiled kernels and of the interpreter's types return what Triton would compute."""

from __future__ import annotations

import os
import sys

import pytest

from labkit.kernels import resources
from labkit.meters.kernels import adapter, cache

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Triton exists for Linux alone")
os.environ.setdefault(adapter.SWITCH, "1")  # before anything imports Triton

SCALED = (
    "import torch\nimport triton\nimport triton.language as tl\n\n\n"
    "@triton.jit\n"
    "def scaled_kernel(x, out, BLOCK: tl.constexpr):\n"
    "    places = tl.arange(0, BLOCK)\n"
    "    tl.store(out + places, tl.load(x + places) * FACTOR)\n"
    "\n\n"
    "def scaled(x):\n"
    "    out = torch.empty_like(x)\n"
    "    scaled_kernel[(1,)](x, out, BLOCK=16)\n"
    "    return out\n"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for compiled kernels, named in the environment."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    monkeypatch.setenv(cache.FOLDER, str(folder))
    return folder


def compiled_scaled(tmp_path, factor, archs=(80,), **options):
    """The compiled kernel above with a factor, by architecture, stored under any name."""
    import torch

    from labkit.kernels.table import load_target
    from labkit.meters.kernels.calls import compiled_call

    file = tmp_path / f"of_{factor}.py"
    file.write_text(SCALED.replace("FACTOR", factor), encoding="utf-8")
    return compiled_call(load_target(file, "scaled"), {"x": torch.arange(16.0)}, archs=archs, **options)


def test_is_made_once_in_the_named_folder(tmp_path, monkeypatch):
    monkeypatch.delenv(cache.FOLDER, raising=False)
    with cache.cached_kernels(tmp_path / "mine"):
        made = [cache.made_once(text, lambda number=number: ["ptx", number]) for number, text in enumerate("aba")]
        assert made == [["ptx", 0], ["ptx", 1], ["ptx", 0]]
    assert cache.FOLDER not in os.environ
    assert len(list((tmp_path / "mine").iterdir())) == 2


def test_a_kernel_from_the_folder_is_the_one_that_is_compiled(tmp_path, folder, monkeypatch):
    first, again = (compiled_scaled(tmp_path, "2.0")[80][0] for _ in range(2))
    assert len(list(folder.iterdir())) == 1
    monkeypatch.delenv(cache.FOLDER)
    afresh = compiled_scaled(tmp_path, "2.0")[80][0]
    assert first == again == afresh
    assert "scaled_kernel" in first["ptx"]


def test_another_kernel_architecture_or_option_is_another(tmp_path, folder):
    compiled_scaled(tmp_path, "2.0", archs=(80, 90))
    compiled_scaled(tmp_path, "3.0")
    compiled_scaled(tmp_path, "2.0", num_warps=8)
    assert len(list(folder.iterdir())) == 4


def test_the_assembler_is_asked_once_for_each_text_and_architecture(tmp_path, folder, monkeypatch):
    older, newer = (made[0]["ptx"] for made in compiled_scaled(tmp_path, "2.0", archs=(80, 90)).values())
    said = resources.assembled(older, 80), resources.assembled(newer, 90)
    assert "for 'sm_80'" in said[0]
    assert "for 'sm_90a'" in said[1]
    monkeypatch.setattr(resources, "assembler", None)  # nobody is left to ask
    assert (resources.assembled(older, 80), resources.assembled(newer, 90)) == said
    with pytest.raises(TypeError):
        resources.assembled(older, 90)
