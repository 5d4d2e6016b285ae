"""A block manager under test, driven deed by deed, and by deeds that hypothesis invents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from labkit.testing.compare import assert_equal, require
from labkit.testing.paging import WrittenBlocks

any_deeds = settings(derandomize=True, deadline=None, database=None, max_examples=25, stateful_step_count=25,
                     phases=(Phase.generate,), suppress_health_check=list(HealthCheck), print_blob=False,
                     report_multiple_bugs=False)  # fmt: skip


class Managed:
    """A block manager under test, and beside it what its blocks hold; every deed is checked as soon as it is done."""

    def __init__(self, make: Callable[[int, int], Any], num_blocks: int, block_size: int) -> None:
        self.manager = make(num_blocks, block_size)
        self.written = WrittenBlocks(num_blocks, block_size)

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


def assert_found(managed: Managed, seq_id: Any, token_ids: list[int], want: int, hint: str) -> None:
    """Fail unless a new sequence finds so many of its tokens; `hint` says why it may not."""
    got = managed.allocate(seq_id, token_ids, hint)
    require(got is not None, f"no room for {token_ids} after {managed.written.story}: {hint}")
    assert_equal(f"the tokens found after {managed.written.story}", got, want, hint=hint)


def follow_any_deeds(make: Callable[[int, int], Any]) -> None:
    """Have hypothesis invent deeds for a manager, the same in every run."""

    class AnyDeeds(RuleBasedStateMachine):
        """Sequences come, grow, fork and go; blocks and tokens are few, so that beginnings meet and blocks run out."""

        tokens = st.lists(st.integers(0, 1), min_size=1, max_size=9)
        which = st.integers(0, 10**6)

        def __init__(self):
            super().__init__()
            self.managed, self.n_named = Managed(make, 7, 2), 0

        def one_of(self, which):
            living = sorted(self.managed.written.texts)
            return living[which % len(living)]

        def some_live(self):
            return bool(self.managed.written.texts)

        @rule(tokens=tokens)
        def allocate(self, tokens):
            self.n_named += 1
            self.managed.allocate(self.n_named, tokens)

        @precondition(some_live)
        @rule(which=which, token=st.integers(0, 1), times=st.integers(1, 3))
        def append(self, which, token, times):
            seq_id = self.one_of(which)
            for _ in range(times):
                self.managed.append(seq_id, token)

        @precondition(some_live)
        @rule(which=which)
        def fork(self, which):
            self.n_named += 1
            self.managed.fork(self.one_of(which), self.n_named)

        @precondition(some_live)
        @rule(which=which)
        def free(self, which):
            self.managed.free(self.one_of(which))

    run_state_machine_as_test(AnyDeeds, settings=any_deeds)
