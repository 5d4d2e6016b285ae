"""What an answer's text reaches while it runs: nothing that is not its own, whoever spells the name."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from labkit.labs.catalog import ROOT
from labstaff.judge.guarded_parts import TYPES_ALONE
from labstaff.judge.loading import NotRun, load_answer
from labstaff.judge.sandbox import ALWAYS
from tests.labstaff.judge.hostile_reach import HONEST, REACHING

MODULE = "linear_attention"


@pytest.fixture(scope="module", autouse=True)
def all_that_a_box_has_imported():
    for name in ALWAYS:
        importlib.import_module(name)


@pytest.mark.parametrize("way", REACHING)
def test_nothing_of_others_is_reached(way: str) -> None:
    answer = ModuleType(MODULE)
    with pytest.raises((NotRun, AttributeError, TypeError, NameError)):
        load_answer(answer, f"{MODULE}.py", f"GOT = []\n{REACHING[way]}\n")
    assert not getattr(answer, "GOT", [])
    assert torch.ops.aten.mm.default._schema.name == "aten::mm"


@pytest.mark.parametrize("way", HONEST)
def test_an_answer_does_what_it_likes_with_its_own(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, answer)
    load_answer(answer, f"{MODULE}.py", HONEST[way])


def test_libraries_that_are_imported_later_have_their_annotations() -> None:
    lines = (
        "from labstaff.judge.guarded_parts import evaluates_names_alone",
        "evaluates_names_alone()",
        "import torch",
    )
    done = subprocess.run([sys.executable, "-c", "; ".join(lines)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "text", ["f()", "torch.os", "f.__globals__", "torch.Tensor.mro", "collections.abc.__builtins__"]
)
def test_a_text_that_computes_names_no_types(text: str) -> None:
    assert not TYPES_ALONE.fullmatch(text)
