"""Checks a plan: its form, the requests and tokens that it computes, and their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.serving.locations import Text
from labkit.serving.player import Piece
from labkit.testing.compare import assert_keys, require
from labkit.testing.wording import none_hint, show, type_name

COPIES = "a list of (old, new)"
WORK = "a list of dicts with id, start, tokens and blocks"


def read_plan(plan: Any, num_blocks: int, step: int) -> tuple[list[tuple[int, int]], list[Piece]]:
    """The copies and the work of a plan; fails unless it has the form in the handout and names existing blocks."""
    where = f"step {step}: plan()"
    found = assert_keys(f"what plan() returns in step {step}", plan, ("copies", "work"))
    copies = [_copy(each, where) for each in _list(f"copies of {where}", found["copies"], COPIES)]
    work = [_piece(each, where) for each in _list(f"work of {where}", found["work"], WORK)]
    named = [block for pair in copies for block in pair] + [block for piece in work for block in piece.blocks]
    outside = [block for block in named if not 0 <= block < num_blocks]
    require(not outside, f"{where} names the blocks {outside[:5]}: there are blocks 0 to {num_blocks - 1}")
    return copies, work


def check_work(work: Sequence[Piece], texts: dict[Any, Text], block_size: int, max_tokens: int, step: int) -> None:
    """Fail unless the work computes known tokens of active requests, in enough blocks, at most `max_tokens` of them."""
    n_tokens = sum(len(piece.tokens) for piece in work)
    require(
        n_tokens <= max_tokens,
        f"step {step} computes {n_tokens} tokens, more than max_tokens, {max_tokens}\nUsual cause: a long prompt is "
        "computed at once: take as much of it as the step has room for, and go on in the next",
    )
    seen = set()
    for piece in work:
        where = f"step {step}: the work for request {piece.id!r}"
        require(piece.id in texts, f"{where}: there is no such request, or it is done")
        require(piece.id not in seen, f"{where} comes twice in one step")
        seen.add(piece.id)
        _check_tokens(piece, texts[piece.id], where)
        _check_table(piece, block_size, where)


def _check_tokens(piece: Piece, text: Text, where: str) -> None:
    known = len(text.tokens)
    require(len(piece.tokens) > 0, f"{where} has no tokens: leave it out, or compute at least its last one")
    require(
        piece.start >= 0 and piece.end <= known,
        f"{where} computes tokens {piece.start} to {piece.end - 1}, and {known} are known: 0 to {known - 1}",
    )
    off = next((i for i, token in enumerate(piece.tokens) if token != text.tokens[piece.start + i]), None)
    if off is None:
        return
    position = piece.start + off
    require(
        False,
        f"{where} has {piece.tokens[off]} at position {position}, where its text has {text.tokens[position]}\nUsual "
        "cause: start is not the position of the first token; or what was generated is not appended to the prompt",
    )


def _check_table(piece: Piece, block_size: int, where: str) -> None:
    needed = -(-piece.end // block_size)
    require(
        len(piece.blocks) >= needed,
        f"{where} has {len(piece.blocks)} blocks of {block_size} places for {piece.end} tokens: {needed} are needed",
    )
    require(len(set(piece.blocks)) == len(piece.blocks), f"{where} has a block twice: {show(list(piece.blocks))}")


def _list(name: str, value: Any, what: str) -> Sequence[Any]:
    require(isinstance(value, list | tuple), f"{name} is {type_name(value)}, expected {what}{none_hint(value)}")
    return value


def _copy(value: Any, where: str) -> tuple[int, int]:
    is_pair = isinstance(value, list | tuple) and len(value) == 2 and all(type(each) is int for each in value)
    require(is_pair, f"{where} asks for the copy {show(value)}, expected (old, new), two blocks")
    return value[0], value[1]


def _piece(value: Any, where: str) -> Piece:
    found = assert_keys(f"a piece of work of {where}", value, Piece._fields)
    id = found["id"]
    first = id[0] if isinstance(id, tuple) and len(id) == 2 and type(id[1]) is int else id  # or a further completion
    require(isinstance(first, int | str), f"{where} has the id {show(id)}, expected that of a request")
    require(type(found["start"]) is int, f"{where} has the start {show(found['start'])}, expected a position")
    lists = []
    for name in ("tokens", "blocks"):
        numbers = _list(f"{name} of {where}", found[name], "a list of ints")
        require(all(type(each) is int for each in numbers), f"{name} of {where} holds other things than ints")
        lists.append(tuple(numbers))
    return Piece(id, found["start"], *lists)
