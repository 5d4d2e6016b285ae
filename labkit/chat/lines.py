"""The lines after an answer: whose functions ran, how fast, how many bytes, and whether the tokens are right."""

from __future__ import annotations

from labkit.chat.adapters.base import Adapter
from labkit.chat.answer import Answer, Comparison
from labkit.chat.calls import Calls, MeteredCalls
from labkit.labs.manifest import Lab
from labkit.model.llama import Sizes
from labkit.model.tokenizer import Text

LONG_SECONDS = 10.0
"""A wait that is announced."""
CACHE_LAB = "09"
"""The lab in which a student writes a cache: a later one that uses the course's says so."""


def wait_line(found: Answer, max_new: int, *, sees_whole_text: bool) -> str:
    """How long an answer may still take, if that is long, by the time that its second token took; "" otherwise."""
    seconds = (max_new - 2) * found.writing_seconds
    if sees_whole_text:  # the time of a token grows with the text
        seconds *= 1 + max_new / len(found.prompt) / 2
    if seconds < LONG_SECONDS:
        return ""
    about = f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
    return f"{found.writing_seconds:.1f} s for a token: about {about} for {max_new}, if the answer is that long"


def limit_line(max_new: int) -> str:
    """That an answer was cut, and how to get more of it."""
    return f"The answer stops here, at its limit of {max_new} tokens: --tokens {2 * max_new} allows more."


def call_line(calls: Calls, sizes: Sizes | None) -> str:
    """How often each of the student's functions ran, in the layers of a model of these sizes if it is in them."""
    where = f" in {sizes.layers} layers" if sizes else ""
    return f"your code{where}: {calls.line()}"


def speed_line(found: Answer) -> str:
    """Tokens per second of the prompt, and of the answer."""
    n_prompt, n_new = len(found.prompt), len(found.tokens)
    line = f"speed: {n_prompt:,} tokens of the prompt in {found.prompt_seconds:.2f} s, "
    line += f"{n_prompt / max(found.prompt_seconds, 1e-9):,.0f} per second"
    if n_new > 1:
        line += f"; then {(n_new - 1) / max(found.writing_seconds, 1e-9):.1f} tokens per second"
    return line


def memory_line(calls: MeteredCalls, sizes: Sizes, n_tokens: int) -> str:
    """The most memory that one of the student's functions needs for a prompt, against the textbook's weights."""
    square = 4 * sizes.heads * n_tokens**2
    largest = f", the largest tensor {calls.largest_bytes:,}" if calls.largest_bytes else ""
    return (
        f"memory: for {n_tokens:,} tokens, {calls.function} holds up to {calls.peak_bytes:,} bytes in a layer{largest};"
        f" a matrix of all weights has 4 · {sizes.heads} · {n_tokens:,}² = {square:,}"
    )


def cache_line(adapter: Adapter, n_tokens: int, found_bytes: int, number: str) -> str:
    """The cache in a lab: its bytes by the formula, and if it is the student's, as found in memory after the prompt."""
    if getattr(adapter, "sees_whole_text", False):
        return "cache: none; the keys and values of the whole text are computed again for each token"
    formula = adapter.cache_bytes(n_tokens)
    line = f"cache: {formula:,} bytes for {n_tokens:,} tokens by the formula, {formula / n_tokens:,.0f} per token"
    if adapter.has_own_cache:
        return f"{line}; yours holds {found_bytes:,} bytes"
    if adapter.cache_note:
        return f"{line} ({adapter.cache_note})"
    yours = "yours comes in" if number < CACHE_LAB else "not that of"
    return f"{line} (the course's own cache: {yours} Lab {CACHE_LAB})"


def plain_cache_line(sizes: Sizes, n_tokens: int) -> str:
    """The cache of torch's own attention."""
    formula = f"2 · {sizes.layers} · {sizes.kv_heads} · {sizes.head_dim} · 4"
    return f"cache: {formula} = {sizes.cache_bytes():,} bytes per token, {sizes.cache_bytes(n_tokens):,} for the prompt"


def comparison_line(compared: Comparison, found: Answer, text: Text, lab: Lab, adapter: Adapter) -> str:
    """Whether what the adapter is compared with says the same."""
    n, other_way = len(found.tokens), adapter.compared_with
    if compared.at is None:
        return f"the same {n} tokens as with {other_way}; no score differs by more than {compared.largest:.1g}"
    mine, other = (text.decode([token]) for token in (found.tokens[compared.at], compared.other))
    line = (
        f"token {compared.at + 1} of {n} is {mine!r}: {other_way} says {other!r}, {compared.lead:.2f} of a "
        f"score ahead; scores differ by up to {compared.largest:.2g}"
    )
    if adapter.sees_less:
        return line
    return f"{line}\nThat is more than rounding: uv run lab check {lab.number} finds what is wrong"
