"""Traces of requests: two that are drawn from a seed, and one that a real service recorded."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from labkit.serving.dense import dense_completion, least_margin
from labkit.serving.model import SPEC
from labkit.serving.player import Request
from labkit.serving.sampling import GREEDY, Sampling

MARGIN = 0.01
"""By how much, in spreads of the scores, every token of a completion must lead: a request that is nearer to a tie, with
whole keys and values or with 8 bits a number, is drawn again."""

MAX_DRAWS = 200

REAL = "real"
REAL_FILE = Path(__file__).with_name("conversations.csv")
"""Its source, its licence and what was changed are in the file `.md` next to it."""
DIVISOR, BLOCK, STEP_MS = 64, 512, 3_000
"""By what the lengths of the real trace are divided; its tokens in a block, before that; its milliseconds in a step."""

LIMITS = {
    "chat": {"nbytes": 28_000, "max_tokens": 48},
    "documents": {"nbytes": 28_000, "max_tokens": 48},
    REAL: {"nbytes": 512_000, "max_tokens": 1024},
}
"""Bytes of the cache and tokens a step for each kind of trace, in the table of `lab check`."""


def make_trace(kind: str, seed: int) -> list[Request]:
    """The requests of a trace, in order of arrival.

    "chat": a few system prompts, conversations that begin with one of them, and second turns that begin with the first
    one and its answer. "documents": long documents, each with several short questions that come together. "real": what
    a real service recorded, with the requests that come together in an order drawn from the seed; it is served without
    a model, see `labkit.serving.drive.serve_plans`.

    Raises:
        ValueError: naming the kinds, for another one.
    """
    if kind not in LIMITS:
        raise ValueError(f"kind must be one of {', '.join(LIMITS)}; got {kind!r}")
    if kind == REAL:
        return _real_requests(seed)
    rng = np.random.default_rng([seed, *kind.encode()])
    drawn = sorted(KINDS[kind](rng), key=lambda request: request[0])
    return [Request(number, arrival, prompt, max_new) for number, (arrival, prompt, max_new) in enumerate(drawn)]


def clear_prompt(
    rng: np.random.Generator,
    prefix: tuple[int, ...],
    more: tuple[int, int],
    max_new: int,
    n: int = 1,
    sampling: Sampling = GREEDY,
) -> tuple[int, ...]:
    """A prompt, `prefix` and some random tokens, whose completions do not depend on rounding.

    Args:
        more: the least number of tokens that follow the prefix, and the first that is too large.
        max_new: the tokens of a completion.
        n: how many completions. sampling: what draws them.
    """
    for _ in range(MAX_DRAWS):
        prompt = (*prefix, *_text(rng, *more))
        if all(least_margin(prompt, max_new, 8, sampling, number) > MARGIN for number in range(n)):
            return prompt
    raise RuntimeError(f"no prompt among {MAX_DRAWS} leads to a completion that is clear")


def any_requests(
    rng: np.random.Generator,
    n: int,
    *,
    longest: int = 40,
    most_new: int = 8,
    every: int = 2,
    n_prefixes: int = 3,
    most_completions: int = 1,
) -> list[Request]:
    """Requests for plans without a model, many with the same prefix, at most `every` steps apart."""
    prefixes = [_text(rng, 1, longest // 2 + 1) for _ in range(n_prefixes)]
    found, step = [], 0
    for number in range(n):
        prompt = (*prefixes[int(rng.integers(n_prefixes))], *_text(rng, 1, longest // 2 + 1))
        max_new, several = int(rng.integers(1, most_new + 1)), int(rng.integers(most_completions)) + 1
        found.append(Request(number, step, prompt, max_new, several))
        step += int(rng.integers(0, every + 1))
    return found


def describe(trace: Sequence[Request], answers: bool = True) -> str:
    """A trace in one sentence: its requests, their tokens, and the share that came before, in `answers` too or not."""
    n_prompt, n_new = (sum(each) for each in zip(*((len(r.prompt), r.max_new) for r in trace), strict=True))
    share = prefix_tokens(trace, answers) / n_prompt
    return (
        f"{len(trace)} requests in {trace[-1].arrival + 1} steps, {n_prompt:,} tokens of prompts and {n_new:,} to "
        f"follow; {share:.0%} of the prompts' tokens are in a prefix that came before"
    )


def prefix_tokens(trace: Sequence[Request], answers: bool = True) -> int:
    """How many tokens of prompts are in a prefix of an earlier request's prompt and completion.

    Without `answers` those that are in a prefix of earlier prompts.
    """
    numbers: dict[tuple[int, int], int] = {}  # of a prefix: by that of the one before it, and its last token
    found = 0
    for request in trace:
        text = request.prompt + (tuple(dense_completion(request.prompt, request.max_new)) if answers else ())
        number = 0
        for position, token in enumerate(text):
            found += position < len(request.prompt) and (number, token) in numbers
            number = numbers.setdefault((number, token), len(numbers) + 1)
    return found


def _real_requests(seed: int) -> list[Request]:
    with REAL_FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    order = np.random.default_rng([seed, *REAL.encode()]).permutation(len(rows))
    rows = sorted((rows[number] for number in order), key=lambda row: int(row["timestamp"]))
    return [
        Request(number, int(row["timestamp"]) // STEP_MS, _real_prompt(row), -(-int(row["output_length"]) // DIVISOR))
        for number, row in enumerate(rows)
    ]


def _real_prompt(row: dict[str, str]) -> tuple[int, ...]:
    """The tokens of a prompt, drawn from the numbers of its blocks."""
    ends = [[int(end) for end in run.split("-")] for run in row["hash_ids"].split()]
    blocks = [block for run in ends for block in range(run[0], run[-1] + 1)]
    size = BLOCK // DIVISOR
    tokens = [token for block in blocks for token in _text(np.random.default_rng(block), size, size + 1)]
    return tuple(tokens[: -(-int(row["input_length"]) // DIVISOR)])


def _chat(rng: np.random.Generator) -> Iterator[tuple[int, tuple[int, ...], int]]:
    systems = [_text(rng, 24, 56) for _ in range(3)]
    step = 0
    for _ in range(11):
        system, max_new = systems[int(rng.choice(3, p=[0.5, 0.3, 0.2]))], int(rng.integers(6, 14))
        prompt = clear_prompt(rng, system, (6, 24), max_new)
        yield step, prompt, max_new
        if rng.random() < 0.7:
            later, more = int(rng.integers(14, 40)), int(rng.integers(4, 12))
            said = (*prompt, *dense_completion(prompt, max_new))
            yield step + later, clear_prompt(rng, said, (4, 14), more), more
        step += int(rng.integers(0, 5))


def _documents(rng: np.random.Generator) -> Iterator[tuple[int, tuple[int, ...], int]]:
    documents = [_text(rng, 64, 100) for _ in range(4)]
    step = 0
    for number in (0, 1, 0, 2, 3, 1):
        for _ in range(int(rng.integers(3, 5))):
            max_new = int(rng.integers(3, 9))
            yield step, clear_prompt(rng, documents[number], (3, 10), max_new), max_new
        step += int(rng.integers(2, 12))


KINDS: dict[str, Callable[[np.random.Generator], Iterator[tuple[int, tuple[int, ...], int]]]] = {
    "chat": _chat,
    "documents": _documents,
}
"""The invented traces' requests as (arrival, prompt, max_new), in any order."""


def _text(rng: np.random.Generator, least: int, end: int) -> tuple[int, ...]:
    return tuple(rng.integers(0, SPEC["vocab"], int(rng.integers(least, end))).tolist())
