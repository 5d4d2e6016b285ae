"""A block manager under test, driven operation by operation, and by operations that hypothesis draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from labkit.testing.any_inputs import any_inputs
from labkit.testing.compare import assert_equal, assert_raises, require
from labkit.testing.decoding.paging import WrittenBlocks

any_deeds = any_inputs(15, stateful_step_count=25, print_blob=False)


class Managed:
    """A block manager under test, and what its blocks hold; every operation is checked when it is done."""

    def __init__(self, make: Callable[[int, int], Any], num_blocks: int, block_size: int) -> None:
        self.manager = make(num_blocks, block_size)
        self.written = WrittenBlocks(num_blocks, block_size)

    def after(self, *, gone: str = "", **prompts: list[int]) -> Managed:
        """This manager, after sequences came with these prompts, in order, and those named by `gone` went, likewise."""
        for seq_id, token_ids in prompts.items():
            self.allocate(seq_id, token_ids)
        for seq_id in gone:
            self.free(seq_id)
        return self

    @staticmethod
    def of_equal_hash(token_id: int) -> int:
        """Another token, and the same hash in Python."""
        return token_id + 2**61 - 1

    def tables(self) -> dict[Any, list[int]]:
        """The tables of all sequences."""
        found = {seq_id: self.manager.block_table(seq_id) for seq_id in self.written.texts}
        for seq_id, table in found.items():
            require(isinstance(table, list), f"block_table({seq_id!r}) is {table!r}, expected a list")
        return found

    def check(self) -> None:
        """Fail unless every sequence finds its text, and no block is lost."""
        self.written.assert_intact(self.tables(), self.manager.num_free_blocks())

    def allocate(self, seq_id: Any, token_ids: list[int], hint: str = "") -> int | None:
        """Allocates if can_allocate says so, and sees that it is right in that; the tokens found, or None."""
        fits = self.manager.can_allocate(token_ids)
        try:
            table = self.manager.allocate(seq_id, token_ids)
        except RuntimeError as error:
            if isinstance(error, NotImplementedError):
                raise
            require(not fits, f"can_allocate says that {token_ids} fit after {self.written.story or 'nothing'}, and "
                    f"allocate raises: {error}\nUsual cause: a block that is found, and free, counts as found and as "
                    "free")  # fmt: skip
            self.check()
            return None
        require(
            fits,
            f"can_allocate says that {token_ids} do not fit after {self.written.story or 'nothing'}, and allocate "
            "finds room for them\nUsual cause: blocks shared with living sequences are counted as needed",
        )
        n_cached = self.manager.num_cached_tokens(seq_id)
        self.written.compute_prompt(seq_id, token_ids, table, n_cached, hint)
        self.check()
        return n_cached

    def assert_finds(self, seq_id: Any, token_ids: list[int], want: int, hint: str) -> None:
        """Fail unless a new sequence finds so many of its tokens; `hint` says why it may not."""
        got = self.allocate(seq_id, token_ids, hint)
        require(got is not None, f"no room for {token_ids} after {self.written.story}: {hint}")
        assert_equal(f"the tokens found after {self.written.story}", got, want, hint=hint)

    def append(self, seq_id: Any, token_id: int) -> Any:
        """The copy that was asked for; False where there was no block."""
        before = self.manager.block_table(seq_id)
        try:
            copy = self.manager.append(seq_id, token_id)
        except RuntimeError as error:
            if isinstance(error, NotImplementedError):
                raise
            assert_equal(f"the free blocks where append({seq_id!r}, …) finds none,", self.manager.num_free_blocks(), 0)
            assert_equal(
                f"the table of {seq_id!r} after an append that failed", self.manager.block_table(seq_id), before
            )
            return False
        self.written.compute_token(seq_id, token_id, self.manager.block_table(seq_id), copy)
        self.check()
        return copy

    def assert_copies(
        self, what: str, seq_ids: Sequence[Any], token_ids: Sequence[int], want: list[Any], hint: str = ""
    ) -> None:
        """Append these tokens to these sequences by turns, and compare the copies that are asked for."""
        copies = [self.append(seq_id, token_id) for seq_id, token_id in zip(seq_ids, token_ids, strict=True)]
        assert_equal(what, copies, want, hint=hint)

    def blocks_while_growing(self, seq_id: Any, token_ids: Iterable[int]) -> list[int]:
        """How many blocks a sequence has after each of these tokens."""
        found = []
        for token_id in token_ids:
            self.append(seq_id, token_id)
            found.append(len(self.manager.block_table(seq_id)))
        return found

    def fork(self, parent: Any, child: Any) -> None:
        """Forks."""
        self.manager.fork(parent, child)
        self.written.fork(parent, child)
        self.check()

    def free(self, seq_id: Any) -> None:
        """Frees."""
        self.manager.free(seq_id)
        self.written.free(seq_id)
        self.check()


def assert_names_are_known(make: Callable[[int, int], Any]) -> None:
    """Fail unless a sequence that is not there, one that is there already and an empty one are refused, by name."""
    manager = make(6, 2)
    manager.allocate("a", [1, 2, 3])
    manager.allocate("gone", [4])
    manager.free("gone")
    for what, call in {
        "free a second time": partial(manager.free, "gone"),
        "append to": partial(manager.append, "gone", 1),
        "fork": partial(manager.fork, "gone", "new"),
        "ask for the table of": partial(manager.block_table, "gone"),
        "ask what was found of": partial(manager.num_cached_tokens, "gone"),
    }.items():
        assert_raises(ValueError, call, when=f"to {what} a sequence that is not there", mentions=["gone"])
    assert_raises(ValueError, partial(manager.allocate, "a", [1]), when="to allocate 'a' twice", mentions=["a"])
    assert_raises(ValueError, partial(manager.fork, "a", "a"), when="to fork 'a' to itself", mentions=["a"])
    assert_raises(ValueError, partial(manager.allocate, "b", []), when="for a prompt without tokens")
    assert_equal("the free blocks after all that was refused", manager.num_free_blocks(), 4)


def follow_random_deeds(make: Callable[[int, int], Any], rng: np.random.Generator) -> None:
    """Drive three managers through operations that are drawn one by one."""
    for _ in range(3):
        size = int(rng.integers(2, 5))
        managed = Managed(make, 12, size)
        for step in range(40):
            living = sorted(managed.written.texts)
            deed = rng.random()
            if deed < 0.3 or not living:
                managed.allocate(step, rng.integers(0, 2, int(rng.integers(1, 4 * size))).tolist())
            elif deed < 0.7:
                managed.append(living[int(rng.integers(len(living)))], int(rng.integers(2)))
            elif deed < 0.8:
                managed.fork(living[int(rng.integers(len(living)))], step)
            else:
                managed.free(living[int(rng.integers(len(living)))])


def follow_any_deeds(make: Callable[[int, int], Any]) -> None:
    """Have hypothesis draw operations for a manager, the same in every run."""

    class AnyDeeds(RuleBasedStateMachine):
        """Sequences come, grow, fork and go; blocks and tokens are few, so that beginnings meet and blocks run out.

        What a deed is done to follows from a number and from how many deeds came before: small numbers, of which
        hypothesis is fond, do not choose the same sequence every time.
        """

        number = st.integers(0, 2**32 - 1)

        def __init__(self) -> None:
            super().__init__()
            self.managed, self.n_deeds = Managed(make, 8, 2), 0
            self.texts: list[list[int]] = [[]]

        def chance(self, number: int) -> Random:
            self.n_deeds += 1
            return Random(number * 1000 + self.n_deeds)

        def living(self) -> list[Any]:
            return sorted(self.managed.written.texts)

        def some_live(self) -> bool:
            return bool(self.managed.written.texts)

        @rule(number=number)
        def come(self, number: int) -> None:
            chance = self.chance(number)
            earlier = chance.choice(self.texts)
            text = earlier[: chance.randint(0, len(earlier))] + chance.choices((0, 1), k=chance.randint(1, 5))
            while self.managed.allocate(self.n_deeds, text) is None and self.living():
                self.leave(chance.choice(self.living()))
            self.texts.append(text)

        @precondition(some_live)
        @rule(number=number)
        def grow(self, number: int) -> None:
            chance = self.chance(number)
            seq_id = chance.choice(self.living())
            for token in chance.choices((0, 1), k=chance.randint(1, 3)):
                self.managed.append(seq_id, token)

        @precondition(some_live)
        @rule(number=number)
        def fork(self, number: int) -> None:
            chance = self.chance(number)
            parent = chance.choice(self.living())
            self.managed.fork(parent, self.n_deeds)
            for seq_id in chance.sample([parent, self.n_deeds], 2):
                self.managed.append(seq_id, chance.randint(0, 1))

        @precondition(some_live)
        @rule(number=number)
        def go(self, number: int) -> None:
            chance = self.chance(number)
            self.leave(chance.choice(self.living()))

        def leave(self, seq_id: Any) -> None:
            self.texts.append(list(self.managed.written.texts[seq_id]))
            self.managed.free(seq_id)

    run_state_machine_as_test(AnyDeeds, settings=any_deeds)
