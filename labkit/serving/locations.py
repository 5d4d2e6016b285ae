"""Records for each location of the cache which token of which request was written there, and in which step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from labkit.serving.player import Piece
from labkit.testing.compare import require

NOT_COMPUTED = (
    "the request has not computed this token, and it counts as computed: a block that was found holds its tokens only "
    "when they have been computed, and until it is taken for something new"
)
TAKEN = "a block in use was given away, or a request that gave its blocks up goes on as if it had them"
NOT_COPIED = (
    "completions of one request share the prompt's last block until one of them writes to it: append returns (old, "
    "new) then, and this copy belongs in the plan"
)
ANOTHER_PREFIX = "a block is found by its own tokens alone: keys and values depend on all tokens before, too"


class _Held(NamedTuple):
    """The content of a location: the number of a prefix with its last token, its request, and the step."""

    prefix: int
    id: Any
    position: int
    token: int
    step: int


class Text:
    """A sequence's tokens so far, each with the number of the prefix that it ends.

    `n_shared` is how many tokens it had when other completions of its request began with the same ones; else 0.
    """

    def __init__(self, locations: Locations, tokens: Iterable[int]) -> None:
        self._locations, self.n_shared = locations, 0
        self.tokens: list[int] = []
        self.prefixes: list[int] = []
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Add a token."""
        before = self.prefixes[-1] if self.prefixes else 0
        self.tokens.append(token)
        self.prefixes.append(self._locations.number_of(before, token))


class Locations:
    """The locations in all blocks. Two hold the same keys and values if their prefixes have the same number."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self._numbers: dict[tuple[int, int], int] = {}
        self._held: list[list[_Held | None]] = [[None] * block_size for _ in range(num_blocks)]
        self._computed: dict[tuple[Any, int], tuple[int, int]] = {}  # where a request wrote a position last

    def number_of(self, before: int, token: int) -> int:
        """The number of a prefix: the one with number `before`, and one more token."""
        return self._numbers.setdefault((before, token), len(self._numbers) + 1)

    def copy(self, copies: Iterable[tuple[int, int]]) -> None:
        """Record copies of blocks, in order, each from an old one to a new one."""
        for old, new in copies:
            self._held[new] = list(self._held[old])

    def fork(self, parent: Any, child: Any) -> None:
        """Record that a new sequence has computed what its parent has, in the same blocks."""
        self._computed |= {(child, at): where for (id, at), where in self._computed.items() if id == parent}

    def write(self, work: Sequence[Piece], texts: dict[Any, Text], step: int) -> None:
        """Record the writes of a step; fails if two pieces write different tokens to one location."""
        for piece in work:
            for position in range(piece.start, piece.end):
                block, place = self.place_of(piece, position)
                text = texts[piece.id]
                new = _Held(text.prefixes[position], piece.id, position, text.tokens[position], step)
                old = self._held[block][place]
                clash = old is not None and old.step == step and old.prefix != new.prefix
                require(
                    not clash,
                    f"step {step}: block {block}, place {place} is written twice, as token {position} of request "
                    f"{piece.id!r} and {_describe(old)}: a block that is written belongs to one request alone",
                )
                self._held[block][place] = new
                self._computed[piece.id, position] = block, place

    def assert_readable(self, piece: Piece, text: Text, step: int) -> None:
        """Fail unless, after the step is written, `piece` reads its own prefix from all its locations."""
        for position in range(piece.end):
            block, place = self.place_of(piece, position)
            held = self._held[block][place]
            if held is not None and held.prefix == text.prefixes[position]:
                continue
            read = (
                f"step {step}: block {block}, place {place} is read as token {position} of request {piece.id!r}, "
                f"{text.tokens[position]},"
            )
            if held is None:
                require(False, f"{read} and holds nothing\nUsual cause: {self._why_missing(piece, text, position)}")
            elif held.id != piece.id and held.step == step:
                require(False, f"{read} but the same step writes {_describe(held)} there\nUsual cause: {TAKEN}")
            elif self._has_the_tokens_of(piece, text, block):
                require(False, f"{read} and holds that after another prefix\nUsual cause: {ANOTHER_PREFIX}")
            else:
                cause = self._why_missing(piece, text, position)
                require(False, f"{read} but holds {_describe(held)}, written in step {held.step}\nUsual cause: {cause}")

    def _has_the_tokens_of(self, piece: Piece, text: Text, block: int) -> bool:
        """Whether a block holds, at the same positions, the tokens of the text: two at least, for one may be chance."""
        first = piece.blocks.index(block) * self.block_size
        wanted = range(first, min(first + self.block_size, piece.end))
        held = [(each.position, each.token) for each in self._held[block][: len(wanted)] if each is not None]
        return len(wanted) > 1 and held == [(position, text.tokens[position]) for position in wanted]

    def _why_missing(self, piece: Piece, text: Text, position: int) -> str:
        """Why a location does not hold a position of the text, from where the request wrote it last."""
        written = self._computed.get((piece.id, position))
        if written is None:
            return NOT_COMPUTED
        if written == self.place_of(piece, position):
            return TAKEN
        if text.n_shared and position // self.block_size == (text.n_shared - 1) // self.block_size:
            return NOT_COPIED
        return (
            f"the request computed this token in block {written[0]}, which it has no longer: when its blocks are given "
            "back, all its text is to be computed again, except what is found"
        )

    def place_of(self, piece: Piece, position: int) -> tuple[int, int]:
        """The block and the place in it of a position."""
        return piece.blocks[position // self.block_size], position % self.block_size


def _describe(held: _Held | None) -> str:
    return "nothing" if held is None else f"token {held.position} of request {held.id!r}"
