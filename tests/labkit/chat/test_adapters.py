"""Each lab's functions as attention of a tiny model: the tokens of torch's own, and the bytes of the cache."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.harness import solution_module
from labkit.chat.adapters.base import Adapter, adapter_of
from labkit.chat.adapters.lab09 import PagedDecoding
from labkit.chat.adapters.lab11 import RingAttention
from labkit.chat.adapters.lab15 import text_drafts
from labkit.chat.answer import Answer, answer, compare
from labkit.chat.calls import Calls, Counted
from labkit.chat.places import ADAPTERS, NO_PLACE, SERVING
from labkit.chat.session import bytes_in
from labkit.chat.setting import Setting
from labkit.labs.catalog import find_labs
from labkit.model.attention import CachedAttention
from labkit.model.hybrid import CachedHybrid, Hybrid
from labkit.model.llama import Llama
from labkit.model.perplexity import perplexity
from labkit.model.weights import random_weights
from tests.labkit.model.tiny import SIZES, tiny_llama

PROMPT = [7, 3, 150, 220, 41, 99, 8, 260, 17, 30, 4, 5, 77]
EXACT = ["01", "03", "04", "05", "09", "09 paged", "11", "14", "15"]


def adapter(name: str, **options: Any) -> Any:
    number, _, paged = name.partition(" ")
    setting = Setting(SIZES, 200, paged=bool(paged), **options)
    student = Counted(solution_module(number), Calls())
    return adapter_of(number).chosen(setting)(student, setting)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("n_prompt", [1, 13])
def test_tokens_are_those_of_torch(name: str, n_prompt: int) -> None:
    llama = tiny_llama()
    found = answer(llama, PROMPT[:n_prompt], adapter(name), 20, ())
    compared = compare(llama, found)
    assert compared is not None
    assert compared.at is None
    assert compared.largest < 1e-2


def test_window_as_long_as_the_text_changes_nothing() -> None:
    llama = tiny_llama()
    for attend in (adapter("08", window=64), adapter("12", window=64), adapter("12", window=29, sinks=4)):
        compared = compare(llama, answer(llama, PROMPT, attend, 20, ()))
        assert compared is not None
        assert (compared.at, compared.largest < 1e-2) == (None, True)


def test_one_token_at_a_time_sees_what_a_whole_text_sees() -> None:
    llama, text = tiny_llama(), torch.arange(70) * 37 % SIZES.vocab
    for options in ({"window": 6, "sinks": 2}, {"window": 6, "sinks": 0}):
        whole, stepwise = adapter("12", **options), adapter("12", **options)
        want = llama.hidden(text, whole)
        found = torch.cat([llama.hidden(part, stepwise) for part in text.split([1] * 70)])
        torch.testing.assert_close(found, want, atol=1e-3, rtol=1e-3)
        assert bytes_in(stepwise) == stepwise.cache_bytes(70)
    whole, stepwise = adapter("08", window=6), adapter("08", window=6)
    want = llama.hidden(text, whole, torch.arange(70))
    found = torch.cat([llama.hidden(part, stepwise, part_at) for part, part_at in _singly(text)])
    torch.testing.assert_close(found, want, atol=1e-3, rtol=1e-3)


def _singly(text: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(text[at : at + 1], torch.tensor([at])) for at in range(len(text))]


def test_fewer_bits_lose_more() -> None:
    llama = tiny_llama()
    tokens = (torch.arange(150) * 37 % SIZES.vocab).tolist()
    hidden = llama.hidden(torch.tensor(tokens), CachedAttention(), torch.arange(150))
    errors = []
    for bits in (8, 4, 2):
        attend = adapter("12", bits=bits)
        errors.append(float((llama.hidden(torch.tensor(tokens), attend, torch.arange(150)) - hidden).norm()))
        assert bytes_in(attend) == attend.cache_bytes(150)
    assert errors == sorted(errors)
    assert errors[0] < 0.05 * errors[2]
    assert perplexity(llama, tokens, adapter("12", bits=8)) == pytest.approx(perplexity(llama, tokens), rel=0.02)


def test_cache_bytes_of_lab_09() -> None:
    llama = tiny_llama()
    for name, n_places in (("09", 200), ("09 paged", 208)):
        attend = adapter(name)
        answer(llama, PROMPT, attend, 3, ())
        assert bytes_in(attend) == SIZES.cache_bytes(n_places)
    assert adapter("09 paged").cache_bytes(33) == SIZES.cache_bytes(48)


def test_bytes_sent_by_a_rank_follow_the_formula() -> None:
    attend = adapter("11")
    assert isinstance(attend, RingAttention)
    answer(tiny_llama(), PROMPT, attend, 1, ())
    (line,) = attend.notes()
    assert "4 ranks with 4 tokens" in line
    assert line.endswith(f"by the formula {attend.sent_bytes[0]:,}")


def test_calls_are_counted_by_the_names_in_the_file() -> None:
    calls = Calls()
    setting = Setting(SIZES, 50)
    attend = PagedDecoding(Counted(solution_module("09"), calls), setting)
    answer(tiny_llama(), PROMPT, attend, 4, ())
    assert calls.times["paged_attention"] == 3 * SIZES.layers
    assert calls.times["BlockManager.append"] == 3
    assert calls.times["BlockManager"] == 1


def test_drafts_are_verified_and_taken_back() -> None:
    llama, attend, text = tiny_llama(sizes=replace(SIZES, vocab=8)), adapter("15"), [7, 3, 1, 5, 7, 3]
    found = answer(llama, text, attend, 40, ())
    assert found.tokens == answer(llama, text, CachedAttention(), 40, ()).tokens
    assert len(found.tokens) == attend.written == 40
    n_stayed = attend.drafts - attend.rejected
    assert attend.passes + n_stayed == 40
    assert n_stayed > 0
    assert attend.rejected > 0
    assert {cache.length for cache in attend.caches.values()} == {len(text) + 39}
    (line,) = attend.notes()
    assert line.endswith(f"{attend.rejected} of {attend.drafts} drafts were taken back")


def test_drafts_follow_the_last_place_with_the_same_tokens() -> None:
    assert text_drafts([1, 2, 3, 4, 9, 2, 3, 5, 7, 1, 2, 3], 2) == [4, 9]
    assert text_drafts([8, 2, 3, 4, 9, 2, 3, 5, 7, 1, 2, 3], 3) == [5, 7, 1]
    assert text_drafts([6, 6, 6, 6], 4) == [6]
    assert text_drafts([1, 2, 3, 4], 4) == text_drafts([5], 4) == []


def test_a_function_that_keeps_every_draft_changes_the_words() -> None:
    llama, attend = tiny_llama(), adapter("15")
    attend.student = SimpleNamespace(accept_drafts=lambda scores, _, drafts, *__: [*drafts, int(scores[-1].argmax())])
    compared = compare(llama, answer(llama, PROMPT + PROMPT[:6], attend, 20, ()))
    assert compared is not None
    assert compared.at is not None
    attend = adapter("15")
    attend.student = SimpleNamespace(accept_drafts=lambda scores, _, drafts, *__: [*drafts, 1, 1])
    with pytest.raises(AssertionError, match=r"accept_drafts returns \[1, 1\] for the drafts \[\], expected some"):
        answer(llama, PROMPT, attend, 3, ())


HYBRID = replace(SIZES, layers=4, vocab=8, attention_every=4)


def hybrid_answer() -> tuple[Llama, Any, Answer]:
    """A tiny random model with states, the adapter of Lab 15's solution after an answer, and the answer."""
    llama, setting = Hybrid(HYBRID, random_weights(HYBRID)), Setting(HYBRID, 60)
    attend = adapter_of("15").chosen(setting)(Counted(solution_module("15"), Calls()), setting)
    return llama, attend, answer(llama, [7, 3, 1, 5, 7, 3], attend, 40, ())


def test_a_hybrid_writes_the_same_with_drafts_from_a_fork_and_in_one_pass() -> None:
    llama, attend, found = hybrid_answer()
    plain = CachedHybrid(solution_module("15").gated_delta_recurrent)
    assert found.tokens == answer(llama, found.prompt, plain, 40, ()).tokens
    assert 0 < attend.rejected < attend.drafts
    assert {cache.length("text") for cache in attend.layers} == {45}
    assert attend.notes()[1] == f"from a fork, without drafts: the same {45 - attend.fork_length} tokens"
    compared = compare(llama, found, attend.reference())
    assert compared is not None
    assert (compared.at, compared.largest < 1e-3) == (None, True)


def test_drafts_that_stay_in_the_state_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cache_class = solution_module("15").HybridCache
    rollback = cache_class.rollback

    def without_state(cache: Any, seq: str, n_accepted: int) -> None:
        state = cache.state(seq)
        rollback(cache, seq, n_accepted)
        cache._sequences[seq].state = state

    monkeypatch.setattr(cache_class, "rollback", without_state)
    llama, attend, found = hybrid_answer()
    compared = compare(llama, found, attend.reference())
    assert compared is not None
    assert compared.at is not None or compared.largest > 1e-2
    assert re.fullmatch(r"from a fork, without drafts: token \d+ of the text is another one", attend.notes()[1])


def test_other_attention_is_noticed() -> None:
    llama = tiny_llama()

    def half_scale(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return CachedAttention()(layer, q / 2, k, v)

    half_scale.sees_whole_text = True  # type: ignore[attr-defined]
    compared = compare(llama, answer(llama, PROMPT, half_scale, 20, ()))
    assert compared is not None
    assert compared.at is not None
    assert compared.lead > 0


def test_every_lab_has_an_adapter_or_a_reason() -> None:
    numbers = {lab.number for lab in find_labs()}
    assert numbers <= {*ADAPTERS, *NO_PLACE, SERVING}
    assert not set(ADAPTERS) & NO_PLACE.keys()
    assert all(issubclass(adapter_of(number), Adapter) for number in ADAPTERS)
