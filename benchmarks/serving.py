"""Chapter 13: SmolLM2 with Lab 13's server, several requests at once against the same ones one after the other.

One thread, and every plan is checked as in `lab chat 13`. The prompts are short, so most of the time makes new tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from benchmarks.harness import Table, made, solution_module, time_in_turn
from labkit.chat.together import PROMPTS, serve
from labkit.model.llama import Llama
from labkit.model.weights import read_model

PAGE = "labs/lab13_serving/README.md"
AT_ONCE = (1, 4, 16)
MAX_NEW = 16
"""New tokens of each request."""
CACHE_BYTES = 64 * 2**20


def tables(*, rounds: int = 3) -> Iterator[Table]:
    """Tokens per second and the gain over one after the other, by the number of requests."""
    model = read_model(None)
    prompts = [model.text.chat(f"{each} {number}") for number in range(4) for each in PROMPTS]
    calls = {}
    for n in AT_ONCE:
        calls[f"{n} at once"] = partial(serve_groups, model.llama, [prompts[:n]])
        calls[f"{n} in turn"] = partial(serve_groups, model.llama, [[each] for each in prompts[:n]])
    times = time_in_turn(calls, rounds)
    rows = [f"{n} at once" for n in AT_ONCE]
    columns = {
        "new tokens per second": lambda row: round(1e3 * MAX_NEW * int(row.split()[0]) / times.ms(row), 2),
        "× one after the other": lambda row: times.times_as_fast(row.replace("at once", "in turn"))(row),
    }
    shape = f"SmolLM2-135M, {MAX_NEW} new tokens each"
    setting = f"{shape}, CPU time, one thread, {rounds} rounds, torch {torch.__version__}"
    yield made("serving", PAGE, setting, "requests", rows, columns)


def serve_groups(llama: Llama, groups: Sequence[Sequence[Sequence[int]]]) -> None:
    """Serve the prompts of each group together, by a new server."""
    for prompts in groups:
        serve(solution_module("13"), llama, prompts, MAX_NEW, CACHE_BYTES)
