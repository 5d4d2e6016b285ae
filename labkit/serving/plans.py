"""The check of a plan before it is believed: its form, whose tokens it computes, how many, and in which blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.serving.places import Piece, Text
from labkit.testing.compare import assert_keys, require
from labkit.testing.wording import kind, none_hint, show

COPIES = "a list of (old, new)"
WORK = "a list of dicts with id, start, tokens and blocks"


def read_plan(plan: Any, num_blocks: int, step: int) -> tuple[list[tuple[int, int]], list[Piece]]:
    """The copies and the work of a plan, if it has the form that the handout gives; blocks are those that there are."""
    told = f"step {step}: plan()"
    found = assert_keys(f"what {told} returns", plan, ("copies", "work"))
    copies = [_copy(each, told) for each in _list(f"copies of {told}", found["copies"], COPIES)]
    work = [_piece(each, told) for each in _list(f"work of {told}", found["work"], WORK)]
    named = [block for pair in copies for block in pair] + [block for piece in work for block in piece.blocks]
    outside = [block for block in named if not 0 <= block < num_blocks]
    require(not outside, f"{told} names the blocks {outside[:5]}: there are blocks 0 to {num_blocks - 1}")
    return copies, work


def check_work(work: Sequence[Piece], texts: dict[Any, Text], block_size: int, max_tokens: int, step: int) -> None:
    """Fail unless the work computes known tokens of requests that are served, in enough blocks, and not too many."""
    n_tokens = sum(len(piece.tokens) for piece in work)
    require(
        n_tokens <= max_tokens,
        f"step {step} computes {n_tokens} tokens, more than max_tokens, {max_tokens}\nUsual cause: a long prompt is "
        "computed at once: take as much of it as the step has room for, and go on in the next",
    )
    seen = set()
    for piece in work:
        told = f"step {step}: the work for request {piece.id!r}"
        require(piece.id in texts, f"{told}: there is no such request, or it is done")
        require(piece.id not in seen, f"{told} comes twice in one step")
        seen.add(piece.id)
        _check_tokens(piece, texts[piece.id], told)
        _check_table(piece, block_size, told)


def _check_tokens(piece: Piece, text: Text, told: str) -> None:
    known = len(text.tokens)
    require(len(piece.tokens) > 0, f"{told} has no tokens: leave it out, or compute at least its last one")
    require(
        piece.start >= 0 and piece.end <= known,
        f"{told} computes tokens {piece.start} to {piece.end - 1}, and {known} are known: 0 to {known - 1}",
    )
    off = next((i for i, token in enumerate(piece.tokens) if token != text.tokens[piece.start + i]), None)
    if off is None:
        return
    position = piece.start + off
    require(
        False,
        f"{told} has {piece.tokens[off]} at position {position}, where its text has {text.tokens[position]}\nUsual "
        "cause: start is not the position of the first token; or what was generated is not appended to the prompt",
    )


def _check_table(piece: Piece, block_size: int, told: str) -> None:
    needed = -(-piece.end // block_size)
    require(
        len(piece.blocks) >= needed,
        f"{told} has {len(piece.blocks)} blocks of {block_size} places for {piece.end} tokens: {needed} are needed",
    )
    require(len(set(piece.blocks)) == len(piece.blocks), f"{told} has a block twice: {show(list(piece.blocks))}")


def _list(name: str, value: Any, what: str) -> Sequence[Any]:
    require(isinstance(value, list | tuple), f"{name} is {kind(value)}, expected {what}{none_hint(value)}")
    return value


def _copy(value: Any, told: str) -> tuple[int, int]:
    is_pair = isinstance(value, list | tuple) and len(value) == 2 and all(type(each) is int for each in value)
    require(is_pair, f"{told} asks for the copy {show(value)}, expected (old, new), two blocks")
    return value[0], value[1]


def _piece(value: Any, told: str) -> Piece:
    found = assert_keys(f"a piece of work of {told}", value, Piece._fields)
    hashable = isinstance(found["id"], int | str)
    require(hashable, f"{told} has the id {show(found['id'])}, expected that of a request")
    require(type(found["start"]) is int, f"{told} has the start {show(found['start'])}, expected a position")
    lists = []
    for name in ("tokens", "blocks"):
        numbers = _list(f"{name} of {told}", found[name], "a list of ints")
        require(all(type(each) is int for each in numbers), f"{name} of {told} holds other things than ints")
        lists.append(tuple(numbers))
    return Piece(found["id"], found["start"], *lists)
