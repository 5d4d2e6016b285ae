"""What an answer's text reaches while it runs: nothing that is not its own, whoever spells the name."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
import torch
from hostile_reach import HONEST, REACHING

from labstaff.judge.loading import NotRun, load_answer
from labstaff.judge.sandbox import ALWAYS

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
