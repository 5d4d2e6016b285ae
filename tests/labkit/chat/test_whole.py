"""All finished labs in one engine: which lab is which part, and that the words are right."""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType
from typing import Any

import pytest

from labkit.chat import whole
from labkit.chat.places import ADAPTERS, PARTS, parts_of
from labkit.labs.catalog import find_lab, solution_file
from labkit.model.attention import CachedAttention
from labkit.model.generate import generate
from labkit.model.weights import Model
from tests.labkit.model.tiny import tiny_llama, tiny_text

LLAMA = tiny_llama()
PROMPT = list(range(10, 47))
EXACT = [token for token, _ in generate(LLAMA, PROMPT, CachedAttention(), 6)]


@cache
def solution(number: str) -> ModuleType:
    """The solution of a lab as a module."""
    spec = importlib.util.spec_from_file_location(f"whole_{number}", solution_file(find_lab(number)))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def solutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solutions as the student's files."""
    monkeypatch.setattr(whole, "student_module", solution)


def parts(numbers: str) -> dict[str, Any]:
    """The parts of an engine when these labs are finished."""
    return parts_of({number: find_lab(number) for number in numbers.split()})


def functions(numbers: str) -> dict[str, set[str]]:
    """The functions of each lab that run while an engine generates, whose words are those of torch at first."""
    engine = whole.Engine(parts(numbers), LLAMA.sizes, len(PROMPT) + 6)
    tokens = list(whole.tokens_of(engine, LLAMA, PROMPT, 6))
    assert len(tokens) == 6 and tokens[0] == EXACT[0]
    if not {"12", "13", "14"} & set(numbers.split()):  # those see less
        assert tokens == EXACT
    return {number: set(calls.times) for number, calls in engine.calls.items()}


def test_the_last_lab_for_a_part_is_taken() -> None:
    numbers = {part: lab.number for part, lab in parts(" ".join(ADAPTERS)).items()}
    assert numbers == {"prompt": "05", "cache": "12", "token": "14"}
    assert {part: lab.number for part, lab in parts("03 09 13").items()} == {"prompt": "03", "steps": "13"}
    assert parts("02 06 07") == {}
    assert {number for part in PARTS.values() for number in part} <= {*ADAPTERS, "13"}


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ("01", {"01": {"standard_attention"}}),
        ("03", {"03": {"online_attention"}}),
        ("09", {"09": {"KVCache", "KVCache.append", "grouped_query_attention"}}),
        ("04 09", {"04": {"tiled_attention"}, "09": {"KVCache", "KVCache.append", "grouped_query_attention"}}),
    ],
)
def test_each_part_is_computed_by_its_lab(numbers: str, expected: dict[str, set[str]]) -> None:
    assert functions(numbers) == expected


def test_the_server_plans_and_keeps_what_nobody_selects_from() -> None:
    alone = functions("05 13")
    assert {"Server.plan", "Server.advance", "Server.write", "Server.attend"} <= alone["13"]
    found = functions("05 12 13 14")
    assert found["05"] == {"flash_forward"} and found["12"] == {"quantize_kv", "dequantize_kv"}
    assert {"page_bounds", "page_scores", "select_pages", "selected_decode"} <= found["14"]
    assert {"Server.plan", "Server.write", "Server.attend"} <= found["13"]


def test_an_answer_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = tiny_text()
    said = text.encode("The sky is blue because short waves are scattered. Grüße aus Köln, 3. naïve façade.")
    monkeypatch.setattr(whole, "tokens_of", lambda *arguments: iter(said))
    model = Model("tiny", LLAMA, text)
    engine = whole.Engine(parts("03"), LLAMA.sizes, 60)
    found = whole.sentence_of(engine, model, PROMPT, 60)
    assert text.decode(found) == "The sky is blue because short waves are scattered."
    monkeypatch.setattr(whole, "LEAST_TOKENS", len(found) + 1)
    assert text.decode(whole.sentence_of(engine, model, PROMPT, 60)).endswith("façade.")
    whole.talk(parts("03"), model, PROMPT, 60)
    printed = capsys.readouterr().out
    assert "Lab 03, Online softmax, computes the attention of the prompt" in printed
    assert "tokens of the prompt take about" in printed
