"""A block manager under test, and the text that its blocks would hold: every operation is checked when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from labkit.meters.blocks import RANDOM_SIZES, random_operations
from labkit.testing.compare import assert_equal, assert_raises, require
from labkit.testing.sessions import Session


class Managed:
    """A block manager, and what an engine would have written into its blocks.

    Keys and values depend on a token and on all tokens before it, so a place, (block, offset), holds the whole text up
    to its token. `texts` keeps every sequence as if no block were ever shared; after each operation both are compared.

    Args:
        run: a probe that makes a manager of so many blocks of so many tokens, and makes a list of calls.
        num_blocks: of the manager. block_size: tokens in a block.
        record: of its calls, where they have been made before.
    """

    def __init__(
        self, run: Callable[..., Any], num_blocks: int, block_size: int, record: Sequence[tuple[str, Any, Any]] = ()
    ) -> None:
        self.manager = Session(partial(run, num_blocks, block_size), record)
        self.num_blocks, self.block_size = num_blocks, block_size
        self.places: dict[tuple[int, int], tuple[int, ...]] = {}
        self.texts: dict[Any, list[int]] = {}
        self.found: dict[Any, int] = {}
        self.operations: list[str] = []
        self.refused: set[Any] = set()

    def after(self, *, gone: str = "", **prompts: list[int]) -> Managed:
        """This manager, after `prompts` were allocated in order, and the sequences in `gone`, a letter each, freed."""
        for seq_id, token_ids in prompts.items():
            self.allocate(seq_id, token_ids)
        for seq_id in gone:
            self.free(seq_id)
        return self

    def allocate(self, seq_id: Any, token_ids: list[int], hint: str = "") -> int | None:
        """Allocates if can_allocate says so, and sees that it is right in that; the tokens found, or None."""
        before, fits = self.story or "nothing", self.manager.can_allocate(token_ids)
        self.operations.append(f"allocate({seq_id!r}, {list(token_ids)})")
        try:
            table = self.manager.allocate(seq_id, token_ids)
        except (RuntimeError, LookupError, StopIteration) as error:
            if isinstance(error, NotImplementedError) or not (fits or isinstance(error, RuntimeError)):
                raise
            cause = "a block that is found, and free, counts as found and as free"
            raised = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            message = f"can_allocate says that {token_ids} fit after {before}, and allocate raises {raised}"
            require(not fits, f"{message}\nUsual cause: {cause}")
            self.operations.pop()
            self.check()
            return None
        cause = "blocks shared with living sequences are counted as needed"
        message = f"can_allocate says that {token_ids} do not fit after {before}, and allocate finds room for them"
        require(fits, f"{message}\nUsual cause: {cause}")
        self.assert_table(table, len(token_ids))
        n_cached = self.manager.num_cached_tokens(seq_id)
        require(
            type(n_cached) is int and 0 <= n_cached < len(token_ids),
            f"after {self.story} num_cached_tokens is {n_cached} of {len(token_ids)} tokens\nUsual cause: a prompt "
            "that is found whole leaves no token to compute, and nothing to take the next token from",
        )
        self.texts[seq_id], self.found[seq_id] = list(token_ids), n_cached
        for position in range(n_cached, len(token_ids)):
            self.write(seq_id, table, position)
        self.assert_holds(seq_id, table, hint)
        self.check()
        return n_cached

    def assert_finds(self, seq_id: Any, token_ids: list[int], want: int, hint: str) -> None:
        """Fail unless a new sequence finds so many of its tokens; `hint` says why it may not."""
        got = self.allocate(seq_id, token_ids, hint)
        require(got is not None, f"no room for {token_ids} after {self.story}: {hint}")
        assert_equal(f"the tokens found after {self.story}", got, want, hint=hint)

    def append(self, seq_id: Any, token_id: int) -> bool:
        """Appends a token, and copies a block if that is asked for; False where there was no block."""
        before = self.manager.block_table(seq_id)
        try:
            copy = self.manager.append(seq_id, token_id)
        except RuntimeError as error:
            if isinstance(error, NotImplementedError):
                raise
            name = f"the free blocks where append({seq_id!r}, …) finds none,"
            assert_equal(name, self.manager.num_free_blocks(), 0)
            name = f"the table of {seq_id!r} after an append that failed"
            assert_equal(name, self.manager.block_table(seq_id), before)
            self.refused.add(seq_id)
            return False
        self.operations.append(f"append({seq_id!r}, {token_id})")
        if copy is not None:
            form = isinstance(copy, tuple) and len(copy) == 2
            require(form, f"{self.story} gives {copy!r}: expected None, or (old, new), the block to copy and where to")
            for offset in range(self.block_size):
                if (copy[0], offset) in self.places:
                    self.places[copy[1], offset] = self.places[copy[0], offset]
        self.texts[seq_id].append(token_id)
        n_tokens, table = len(self.texts[seq_id]), self.manager.block_table(seq_id)
        cause = (
            "a block is asked for one token too late or too early: it must be there before its first token is written"
        )
        if seq_id in self.refused:
            cause = "an append that raised RuntimeError has changed the sequence: its token counts already"
        self.assert_table(table, n_tokens, cause)
        self.write(seq_id, table, n_tokens - 1)
        self.check()
        return True

    def fork(self, parent: Any, child: Any) -> None:
        """Forks; all of the parent's tokens count as found."""
        self.manager.fork(parent, child)
        self.operations.append(f"fork({parent!r}, {child!r})")
        self.texts[child], self.found[child] = list(self.texts[parent]), len(self.texts[parent])
        name = f"num_cached_tokens of a fork, after {self.story},"
        mistakes = {
            "what the parent found is handed on: a fork finds all of its parent's tokens": self.found[parent],
            "nothing counts as found: a fork finds all of its parent's tokens": 0,
        }
        assert_equal(name, self.manager.num_cached_tokens(child), self.found[child], mistakes=mistakes)
        self.check()

    def free(self, seq_id: Any) -> None:
        """Frees; what the sequence wrote stays in its blocks."""
        self.manager.free(seq_id)
        self.operations.append(f"free({seq_id!r})")
        del self.texts[seq_id]
        self.check()

    def write(self, seq_id: Any, table: list[int], position: int) -> None:
        """The engine writes the keys and values of a token."""
        place = table[position // self.block_size], position % self.block_size
        self.places[place] = tuple(self.texts[seq_id][: position + 1])

    @property
    def story(self) -> str:
        """The last few operations."""
        return ("…, " if len(self.operations) > 4 else "") + ", ".join(self.operations[-4:])

    def check(self) -> None:
        """Fail unless every sequence still finds its own text, and every block is free or belongs to a sequence."""
        used: set[int] = set()
        for seq_id in self.texts:
            table = self.manager.block_table(seq_id)
            self.assert_holds(seq_id, table)
            used.update(table)
        n_free = self.manager.num_free_blocks()
        cause = "a block is lost: nobody owns it, and it is not given back"
        if n_free + len(used) > self.num_blocks:
            cause = "a block is free and in use at once: freed twice, or while another sequence owns it"
        require(
            n_free + len(used) == self.num_blocks,
            f"after {self.story} {n_free} blocks are free and {len(used)} belong to sequences, together "
            f"{n_free + len(used)}, of {self.num_blocks}\nUsual cause: {cause}",
        )

    def assert_table(self, table: Any, n_tokens: int, cause: str = "") -> None:
        """Fail unless a table lists as many different blocks as so many tokens take."""
        n_blocks = -(-n_tokens // self.block_size)
        message = f"after {self.story} the table is {table}: {n_tokens} tokens take {n_blocks} different blocks of "
        message += f"{self.block_size} places" + (f"\nUsual cause: {cause}" if cause else "")
        require(isinstance(table, list) and len(table) == n_blocks and len(set(table)) == n_blocks, message)
        outside = [block for block in table if type(block) is not int or not 0 <= block < self.num_blocks]
        require(not outside, f"after {self.story} the table is {table}: there are blocks 0 to {self.num_blocks - 1}")

    def assert_holds(self, seq_id: Any, table: list[int], hint: str = "") -> None:
        """Fail unless the blocks of a sequence hold its text; `hint` is the usual cause of that, where it is known."""
        text = self.texts[seq_id]
        for position in range(len(text)):
            place = table[position // self.block_size], position % self.block_size
            want, found = tuple(text[: position + 1]), self.places.get(place)
            if found == want:
                continue
            why = "nothing was written there, and it counts as found"
            if found is not None and self._has_the_tokens_of(text, place[0], position):
                why = "its keys and values were computed after another prefix: a block is what precedes it, too"
            elif found is not None:
                why = f"somebody wrote token {found[-1]} there: the block is shared, or was reused, and should not be"
            message = f"after {self.story} token {position} of sequence {seq_id!r}, {text[position]}, is not in block "
            message += f"{place[0]}, place {place[1]}: {why}" + (f"\nUsual cause: {hint}" if hint else "")
            require(False, message)

    def _has_the_tokens_of(self, text: list[int], block: int, position: int) -> bool:
        """Whether a block holds the tokens of the text around `position`, all of them, computed after whatever."""
        first = position // self.block_size * self.block_size
        wanted = text[first : first + self.block_size]
        return [self.places.get((block, at), (None,))[-1] for at in range(len(wanted))] == wanted


def of_equal_hash(token_id: int) -> int:
    """Another token, and the same hash in Python."""
    return token_id + 2**61 - 1


def run_random_operations(run: Callable[..., Any], record: Callable[[int], Any], rng: np.random.Generator) -> None:
    """Check managers that are driven at random; `record` is a probe that drives one, from a seed."""
    for seed in rng.integers(2**32, size=12).tolist():
        random_operations(Managed(run, *RANDOM_SIZES, record(seed)), np.random.default_rng(seed))


def assert_names_are_known(run: Callable[..., Any]) -> None:
    """Fail unless a sequence that is not there, one that is there already and an empty one are refused, by name."""
    manager = Session(partial(run, 6, 2))
    manager.allocate("s1", [1, 2, 3])
    manager.allocate("s0", [4])
    manager.free("s0")
    for what, call in {
        "free a second time": partial(manager.free, "s0"),
        "append to": partial(manager.append, "s0", 1),
        "fork": partial(manager.fork, "s0", "new"),
        "ask for the table of": partial(manager.block_table, "s0"),
        "ask what was found of": partial(manager.num_cached_tokens, "s0"),
    }.items():
        assert_raises(ValueError, call, when=f"to {what} a sequence that is not there", mentions=["s0"])
    assert_raises(ValueError, partial(manager.allocate, "s1", [1]), when="to allocate 's1' twice", mentions=["s1"])
    assert_raises(ValueError, partial(manager.fork, "s1", "s1"), when="to fork 's1' to itself", mentions=["s1"])
    assert_raises(ValueError, partial(manager.allocate, "s2", []), when="for a prompt without tokens", mentions=())
    assert_equal("the free blocks after all that was refused", manager.num_free_blocks(), 4)
