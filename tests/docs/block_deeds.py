"""Deeds on the course's BlockManager, with all that can be seen of it written down after each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.harness import answer_module

Deed = Sequence[Any]
Done = tuple[list[int], tuple[int, int] | None]
NAMES = "ABCDE"
ENDING = object()
"""A token that no text has: with it at its end, all full blocks of a text may be found."""


@dataclass(frozen=True)
class Expected:
    """One position: what the deed came to, and how things stand after it."""

    refused: str | None
    missing: int
    copied: tuple[int, int] | None
    tables: dict[str, list[int]]
    found: dict[str, int]
    texts: dict[str, list[Any]]
    owners: list[list[str]]
    findable: list[bool]
    contents: list[list[Any]]
    free: list[int]
    counts: dict[str, int]
    sums: dict[str, int]


def run(deeds: Sequence[Deed], num_blocks: int, block_size: int) -> list[Expected]:
    """The position before the first deed, and that after each."""
    runner = _Runner(num_blocks, block_size)
    return [runner.position(None, 0, None), *(runner.do(deed) for deed in deeds)]


def random_deeds(rng: Random, count: int = 60) -> list[Deed]:
    """Deeds that often begin alike, and now and then ask for what cannot be."""
    deeds: list[Deed] = []
    for _ in range(count):
        what = rng.choices(["allocate", "append", "fork", "free"], [3, 8, 2, 3])[0]
        name = rng.choice(NAMES)
        given: list[Any] = []
        if what == "allocate":
            given = [[rng.choice(["x", "x", "y"]) for _ in range(rng.randint(1, 9))]]
        elif what == "append":
            given = [rng.choice(["x", "x", "y"])]
        elif what == "fork":
            given = [rng.choice(NAMES)]
        deeds.append([what, name, *given])
    return deeds


class _Runner:
    """A manager, the texts that an engine would have written by its tables, and sums over all deeds."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.manager = answer_module("09").BlockManager(num_blocks, block_size)
        self.num_blocks, self.size = num_blocks, block_size
        self.contents: list[list[Any]] = [[] for _ in range(num_blocks)]
        self.texts: dict[str, list[Any]] = {}
        self.ever: set[tuple[Any, ...]] = set()
        self.sums = dict.fromkeys(("copies", "forgotten", "asked", "found", "refused"), 0)

    def do(self, deed: Deed) -> Expected:
        what, name, *given = deed
        before = self.findable()
        free = self.manager.num_free_blocks()
        roomy = what != "allocate" or self.manager.can_allocate(*given)
        try:
            taken, copied = getattr(self, what)(name, *given)
        except ValueError as error:
            self.sums["refused"] += 1
            return self.position("unknown" if "no sequence" in str(error) else "there already", 0, None)
        except RuntimeError as error:
            assert what == "append" or not roomy
            self.sums["refused"] += 1
            missing = re.match(r"(\d+) blocks are missing", str(error))
            return self.position("full", int(missing[1]) if missing else 1, None)
        assert roomy
        assert self.manager.num_free_blocks() <= free or what == "free"
        forgotten = [b for b, can in enumerate(self.findable()) if before[b] and (b in taken or not can)]
        self.sums["forgotten"] += len(forgotten)
        return self.position(None, 0, copied)

    # Each deed returns the blocks that it took, and (old, new) where one was copied.

    def allocate(self, name: str, tokens: list[Any]) -> Done:
        table = self.manager.allocate(name, tokens)
        found = self.manager.num_cached_tokens(name)
        taken = table[found // self.size :]
        for k, block in enumerate(taken):
            start = found + k * self.size
            self.contents[block] = tokens[start : start + self.size]
        self.texts[name] = list(tokens)
        self.sums["asked"] += len(tokens)
        self.sums["found"] += found
        return taken, None

    def append(self, name: str, token: Any) -> Done:
        copied = self.manager.append(name, token)
        last = self.manager.block_table(name)[-1]
        new = copied is not None or len(self.texts[name]) % self.size == 0
        if new:
            self.contents[last] = list(self.contents[copied[0]]) if copied else []
        self.sums["copies"] += copied is not None
        self.texts[name].append(token)
        self.contents[last].append(token)
        return [last] if new else [], copied

    def fork(self, parent: str, child: str) -> Done:
        self.manager.fork(parent, child)
        self.texts[child] = list(self.texts[parent])
        return [], None

    def free(self, name: str) -> Done:
        self.manager.free(name)
        del self.texts[name]
        return [], None

    def findable(self) -> list[bool]:
        """Whether some text that there ever was would find each block now."""
        self.ever |= {tuple(text) for text in self.texts.values()}
        found = {block for text in self.ever for block in self.manager._pool.find([*text, ENDING])}
        return [block in found for block in range(self.num_blocks)]

    def position(self, refused: str | None, missing: int, copied: tuple[int, int] | None) -> Expected:
        tables = {name: self.manager.block_table(name) for name in self.texts}
        for name, table in tables.items():
            written = [token for block in table for token in self.contents[block]]
            assert written == self.texts[name], "the course's manager mixes texts"
        owners = [sorted(name for name in tables if block in tables[name]) for block in range(self.num_blocks)]
        findable = self.findable()
        shown = [list(content) if owners[b] or findable[b] else [] for b, content in enumerate(self.contents)]
        return Expected(
            refused, missing, copied, tables,
            found={name: self.manager.num_cached_tokens(name) for name in tables},
            texts={name: list(text) for name, text in self.texts.items()},
            owners=owners, findable=findable, contents=shown,
            free=list(self.manager._pool.free),
            counts=self.counts(tables, owners, findable),
            sums=dict(self.sums),
        )  # fmt: skip

    def counts(self, tables: dict[str, list[int]], owners: list[list[str]], findable: list[bool]) -> dict[str, int]:
        """The page's counts, from tables and texts alone."""
        owned = {block for table in tables.values() for block in table}
        assert self.manager.num_free_blocks() == self.num_blocks - len(owned)
        filled = len({
            (table[at // self.size], at % self.size)
            for name, table in tables.items()
            for at in range(len(self.texts[name]))
        })  # fmt: skip
        cached = sum(can for b, can in enumerate(findable) if b not in owned)
        return {
            "owned": len(owned),
            "shared": sum(len(names) > 1 for names in owners),
            "cached": cached,
            "blank": self.num_blocks - len(owned) - cached,
            "references": sum(map(len, tables.values())),
            "apart": sum(-(-len(text) // self.size) for text in self.texts.values()),
            "filled": filled,
            "wasted": len(owned) * self.size - filled,
            "tokens": sum(map(len, self.texts.values())),
        }
