"""A real model's prompt through Lab 05 and its decoding through Lab 09, against torch's own attention.

SmolLM2 in float32 on one thread. The prompt is a part of a chapter; decoding continues it by a token in each round,
in caches that hold the whole prompt. Beside it, what no decoding can beat: every weight and every cached number is
read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import torch

from benchmarks.harness import Table, made, solution_module, time_in_turn
from labkit.chat.adapters.lab05 import FlashAttention
from labkit.chat.adapters.lab09 import CachedDecoding
from labkit.chat.setting import Setting
from labkit.model.attention import CachedAttention
from labkit.model.generate import next_scores
from labkit.model.llama import Attend, Llama
from labkit.model.perplexity import sample_text
from labkit.model.weights import read_model

PAGE = "labs/lab09_decoding/README.md"
OWN = "torch's own attention"
BOUND = "every weight and cached number read once"
PROMPT_ROUNDS = 5
"""At most: a prompt takes seconds, a decoding step a fraction of one."""


def tables(*, n: int = 2048, rounds: int = 15) -> Iterator[Table]:
    """The speed of a prompt of `n` tokens, and of the tokens after it, as a multiple of that with torch's attention."""
    torch.set_num_threads(1)
    model = read_model()
    text = model.text.encode(sample_text()) * (1 + n // 1000)
    llama, tokens = model.llama, text[:n]
    setting = Setting(llama.sizes, n + rounds + 1)
    flash, grouped = (solution_module(number) for number in ("05", "09"))
    described = f"{model.name}, N={n}, float32, one thread, torch {torch.__version__}"
    with torch.no_grad():
        prompts = {
            OWN: lambda: next_scores(llama, tokens, 0, CachedAttention()),
            "Lab 05, `flash_forward`": lambda: next_scores(llama, tokens, 0, FlashAttention(flash, setting)),
        }
        times = time_in_turn(prompts, min(rounds, PROMPT_ROUNDS))
        columns = {"tokens per second": lambda name: round(n / times.ms(name) * 1e3, 1), "×": times.times_as_fast(OWN)}
        yield made("prompt", PAGE, described, "a prompt through", prompts, columns)
        steps = {
            OWN: _decoding(llama, tokens, CachedAttention()),
            "Lab 09, `KVCache`, `grouped_query_attention`": _decoding(llama, tokens, CachedDecoding(grouped, setting)),
            BOUND: _reading(llama, n),
        }
        each = time_in_turn(steps, rounds)
        columns = {"tokens per second": lambda name: round(1e3 / each.ms(name), 1), "×": each.times_as_fast(OWN)}
        yield made("decoding", PAGE, described, "a token through", steps, columns)


def _decoding(llama: Llama, tokens: list[int], attend: Attend) -> Callable[[], object]:
    """A function that decodes one more token at each call; the prompt is in the cache before the first."""
    next_scores(llama, tokens, 0, attend)
    places = count(len(tokens))
    return lambda: next_scores(llama, tokens[-1:], next(places), attend)


def _reading(llama: Llama, n_tokens: int) -> Callable[[], object]:
    """A function that reads as many bytes as one decoding step must: the weights and a cache of so many tokens."""
    cache = torch.ones(llama.sizes.cache_bytes(n_tokens) // 4)
    arrays = [*llama.weights.values(), cache]
    return lambda: [array.sum() for array in arrays]
