"""A paged cache as tests see it: what lies in each place of each block, and batches of sequences laid out in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from labkit.testing.compare import assert_type, require
from labkit.testing.decoding.grouped import GroupedCase

FOREIGN = "the table is ignored, or −1 is used as an index: a block that no sequence owns was read"


class WrittenBlocks:
    """What an engine would have written into each place of each block, at the word of a block manager under test.

    Keys and values depend on a token and on all tokens before it, so a place holds the whole text up to its token.
    Every sequence is kept beside it, as if no block were ever shared: `assert_intact` compares.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.places: dict[tuple[int, int], tuple[int, ...]] = {}
        self.texts: dict[Any, list[int]] = {}
        self.deeds: list[str] = []

    def compute_prompt(self, seq_id: Any, token_ids: Sequence[int], table: Any, n_cached: Any, hint: str = "") -> None:
        """A prompt came: what was not found is written. Fails where it cannot be used: `hint` is why."""
        self.deeds.append(f"allocate({seq_id!r}, {list(token_ids)})")
        n_blocks = -(-len(token_ids) // self.block_size)
        require(
            isinstance(table, list) and len(table) == n_blocks and len(set(table)) == n_blocks,
            f"{self.story} gives the table {table}: {len(token_ids)} tokens take {n_blocks} different blocks of "
            f"{self.block_size} places",
        )
        outside = [block for block in table if type(block) is not int or not 0 <= block < self.num_blocks]
        require(not outside, f"{self.story} gives the table {table}: there are blocks 0 to {self.num_blocks - 1}")
        require(
            type(n_cached) is int and 0 <= n_cached < len(token_ids),
            f"after {self.story} num_cached_tokens is {n_cached} of {len(token_ids)} tokens\nUsual cause: a prompt "
            "that is found whole leaves no token to compute, and nothing to take the next token from",
        )
        self.texts[seq_id] = list(token_ids)
        for position in range(n_cached, len(token_ids)):
            self._write(seq_id, table, position)
        self.assert_holds(seq_id, table, hint)

    def compute_token(self, seq_id: Any, token_id: int, table: list[int], copy: Any) -> None:
        """A token came: a block is copied where that was asked for, and the token's place is written."""
        self.deeds.append(f"append({seq_id!r}, {token_id})")
        if copy is not None:
            require(
                isinstance(copy, tuple) and len(copy) == 2,
                f"{self.story} gives {copy!r}: expected None, or (old, new), the block to copy and where to",
            )
            old, new = copy
            for offset in range(self.block_size):
                if (old, offset) in self.places:
                    self.places[new, offset] = self.places[old, offset]
        self.texts[seq_id].append(token_id)
        n_tokens = len(self.texts[seq_id])
        require(
            len(table) == -(-n_tokens // self.block_size),
            f"after {self.story} the table of {seq_id!r} is {table}: {n_tokens} tokens take "
            f"{-(-n_tokens // self.block_size)} blocks of {self.block_size}\nUsual cause: a block is asked for one "
            "token too late or too early: it must be there before its first token is written",
        )
        self._write(seq_id, table, n_tokens - 1)

    def fork(self, parent: Any, child: Any) -> None:
        """A sequence was forked."""
        self.deeds.append(f"fork({parent!r}, {child!r})")
        self.texts[child] = list(self.texts[parent])

    def free(self, seq_id: Any) -> None:
        """A sequence has gone; what it wrote still lies there."""
        self.deeds.append(f"free({seq_id!r})")
        del self.texts[seq_id]

    def assert_intact(self, tables: dict[Any, list[int]], n_free: Any) -> None:
        """Fail unless every sequence still finds its own text, and every block is free or belongs to somebody."""
        for seq_id, table in tables.items():
            self.assert_holds(seq_id, table)
        used = {block for table in tables.values() for block in table}
        require(
            n_free + len(used) == self.num_blocks,
            f"after {self.story} {n_free} blocks are free and {len(used)} belong to sequences, together "
            f"{n_free + len(used)}, of {self.num_blocks}\nUsual cause: a block "
            + (
                "is free and in use at once: freed twice, or while somebody else owns it"
                if n_free + len(used) > self.num_blocks
                else "is lost: nobody owns it, and it is not given back"
            ),
        )

    def assert_holds(self, seq_id: Any, table: list[int], hint: str = "") -> None:
        """Fail unless the blocks of a sequence hold its text; `hint` is the usual cause of that, where it is known."""
        text = self.texts[seq_id]
        for position in range(len(text)):
            place = table[position // self.block_size], position % self.block_size
            want, found = tuple(text[: position + 1]), self.places.get(place)
            if found == want:
                continue
            why = "nothing was written there, and it counts as found"
            if found is not None and found[-1:] == want[-1:]:
                why = "its keys and values were computed after another beginning: a block is what precedes it, too"
            elif found is not None:
                why = f"somebody wrote token {found[-1]} there: the block is shared, or was reused, and should not be"
            require(
                False,
                f"after {self.story} token {position} of sequence {seq_id!r}, {text[position]}, is not in block "
                f"{place[0]}, place {place[1]}: {why}" + (f"\nUsual cause: {hint}" if hint else ""),
            )

    @property
    def story(self) -> str:
        """What was done, the last few operations."""
        return ("…, " if len(self.deeds) > 4 else "") + ", ".join(self.deeds[-4:])

    def _write(self, seq_id: Any, table: list[int], position: int) -> None:
        place = table[position // self.block_size], position % self.block_size
        self.places[place] = tuple(self.texts[seq_id][: position + 1])


class PagedBatch:
    """Sequences of different lengths, their keys and values scattered over blocks that a table names.

    Blocks that belong to nobody hold NaN, places behind a sequence's last token large numbers; the last block of all
    belongs to nobody. `cases` holds a GroupedCase for each sequence, with one query.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        lengths: Sequence[int],
        *,
        block_size: int,
        kv_heads: int = 2,
        group: int = 2,
        d: int = 8,
        d_v: int | None = None,
        dtype: torch.dtype = torch.float32,
        **sizes: Any,
    ) -> None:
        widths: dict[str, Any] = {"d": d, "d_v": d if d_v is None else d_v}
        heads: dict[str, Any] = {"kv_heads": kv_heads, "group": group, "n_queries": 1, "dtype": dtype}
        self.cases = [GroupedCase(rng, n_keys=n, **heads, **widths, **sizes) for n in lengths]
        per_sequence = [-(-n // block_size) for n in lengths]
        n_blocks = sum(per_sequence) + 3
        order = rng.permutation(n_blocks - 1)[: sum(per_sequence)].tolist()
        shape = (n_blocks, block_size, kv_heads)
        self.k_cache, self.v_cache = (torch.full((*shape, width), torch.nan, dtype=dtype) for width in widths.values())
        self.block_table = torch.full((len(lengths), max(per_sequence, default=0) + 1), -1)
        self.context_lens = torch.tensor(list(lengths))
        for row, (case, count) in enumerate(zip(self.cases, per_sequence, strict=True)):
            blocks, order = order[:count], order[count:]
            self.block_table[row, :count] = torch.tensor(blocks, dtype=torch.int64)
            for cache, x in ((self.k_cache, case.k), (self.v_cache, case.v)):
                for place, block in enumerate(blocks):
                    piece = x[:, place * block_size : (place + 1) * block_size].transpose(0, 1)
                    cache[block] = 100
                    cache[block, : len(piece)] = piece
        self.q = torch.stack([case.Q[:, 0] for case in self.cases])

    @classmethod
    def of_any_sizes(cls, rng: np.random.Generator) -> PagedBatch:
        """A batch of three sequences, all sizes drawn at random."""
        size, kv_heads, group, d, d_v, *lengths = rng.integers(1, (9, 4, 4, 20, 20, 40, 40, 40)).tolist()
        return cls(rng, lengths, block_size=size, kv_heads=kv_heads, group=group, d=d, d_v=d_v)

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        """What the student is given."""
        return self.q, self.k_cache, self.v_cache, self.block_table, self.context_lens

    def check(self, got: Any, hint: str = "", nan_hint: str = FOREIGN, empty_hint: str = "") -> None:
        """Compare an output with every sequence's own; `empty_hint` says why one without tokens may be NaN."""
        assert_type("o", got, torch.Tensor, "a tensor")
        want = (*self.q.shape[:-1], self.v_cache.shape[-1])
        require(tuple(got.shape) == want, f"o has shape {tuple(got.shape)}, expected {want}")
        for number, (case, o) in enumerate(zip(self.cases, got, strict=True)):
            n = case.k.shape[-2]
            try:
                case.check_results({"o": o[:, None]}, hint=hint, nan_hint=nan_hint if n else empty_hint)
            except AssertionError as error:
                error.args = (f"in sequence {number}, of {n} tokens, seen as (H_q, 1, d_v), {error}",)
                raise
