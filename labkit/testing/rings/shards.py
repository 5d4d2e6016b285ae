"""Attention over a sequence that ranks share: inputs cut into shards, and their results against the whole's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.attention.tensor_cases import Case, Results
from labkit.testing.attention.tensor_suspects import lse_suspects
from labkit.testing.compare import (
    NAN_HINT,
    as_mapping,
    assert_close,
    assert_dtype,
    assert_tuple,
    assert_type,
    compare_each,
    require,
)
from labkit.testing.decoding.grouped import GroupedCase

LAYOUTS = ("contiguous", "zigzag", "striped")
FORWARD, BACKWARD = ("o", "lse"), ("dq", "dk", "dv")
NAMES = {"o": "O", "lse": "L", "dq": "dQ", "dk": "dK", "dv": "dV"}
"""What the handout calls a result → what the reference calls it."""

Made = Mapping[str, Callable[[], Results]]


def owners(seq_len: int, world_size: int, layout: str) -> npt.NDArray[np.int64]:
    """The rank that holds each token of a sequence."""
    tokens = np.arange(seq_len)
    if layout == "contiguous":
        return tokens // (seq_len // world_size)
    if layout == "striped":
        return tokens % world_size
    run = tokens // (seq_len // (2 * world_size))
    return np.minimum(run, 2 * world_size - 1 - run)


def positions(seq_len: int, world_size: int, layout: str) -> list[npt.NDArray[np.int64]]:
    """The tokens of each rank, in the order in which it holds them: in all layouts their own."""
    owner = owners(seq_len, world_size, layout)
    return [np.flatnonzero(owner == rank) for rank in range(world_size)]


def cut(x: torch.Tensor, places: Sequence[npt.NDArray[np.int64]], dim: int = -2) -> list[torch.Tensor]:
    """The shards of a tensor whose tokens lie at `places`, rank by rank."""
    return [x.index_select(dim, torch.from_numpy(place)) for place in places]


class RingCase(GroupedCase):
    """Inputs of attention with shared key heads, whose `n_tokens` are shared out to ranks; dO besides.

    `shards(names)` are the arguments of each rank, by the handout's names; sizes are those of `GroupedCase`.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        n_tokens: int,
        world_size: int,
        layout: str = "zigzag",
        kv_heads: int = 2,
        group: int = 2,
        d: int = 8,
        **sizes: Any,
    ) -> None:
        super().__init__(rng, kv_heads=kv_heads, group=group, n_queries=n_tokens, n_keys=n_tokens, d=d, **sizes)
        self.world_size, self.layout = world_size, layout
        self.places = positions(n_tokens, world_size, layout)

    @classmethod
    def drawn(cls, rng: np.random.Generator, world_sizes: Sequence[int] = (2, 3, 4), **sizes: Any) -> Self:
        """A case of sizes drawn at random, but for those given."""
        world_size = int(rng.choice(world_sizes))
        kv_heads, group = rng.integers(1, 4, 2).tolist()
        n_tokens = 2 * world_size * int(rng.integers(1, 6))
        d, d_v = rng.integers(2, 12, 2).tolist()
        sizes = {"kv_heads": kv_heads, "group": group, "d": d, "d_v": d_v, **sizes}
        layout, causal = str(rng.choice(LAYOUTS)), bool(rng.integers(2))
        return cls(rng, n_tokens=n_tokens, world_size=world_size, layout=layout, causal=causal, **sizes)

    @property
    def options(self) -> dict[str, Any]:
        """How a task is to be called besides."""
        return {"causal": self.counted_from_the_end, "layout": self.layout}

    @cached_property
    def given_result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The reference's o and lse, in the dtypes in which a forward pass returns them."""
        made = GroupedCase.results(self)
        return torch.from_numpy(made["O"]).to(self.Q.dtype), torch.from_numpy(made["L"]).to(self.precise)

    def shards(self, *names: str) -> list[list[torch.Tensor]]:
        """For each rank, its shards of q, k, v, dO, o or lse."""
        whole = {"q": self.Q, "k": self.k, "v": self.v, "dO": self.dO}
        if "o" in names:
            whole |= dict(zip(FORWARD, self.given_result, strict=True))
        cuts = [cut(whole[name], self.places, -1 if name == "lse" else -2) for name in names]
        return [list(each) for each in zip(*cuts, strict=True)]

    @cached_property
    def whole(self) -> Case:
        """The same attention with keys and values of its own for each query head, whose gradients the reference has."""
        case = Case.of(self.Q, self.K, self.V, self.dO)
        case.mask = self.mask
        return case

    @cached_property
    def gradients_wanted(self) -> Results:
        """dQ, dK and dV in float64."""
        return self.folded(self.whole.want)

    @cached_property
    def gradients_plain(self) -> Results:
        """What a plain computation gets of them."""
        return self.folded(self.whole.plain)

    def folded(self, results: Results) -> Results:
        """`results` with the gradients of keys and values summed over the query heads that share them."""
        found = dict(results)
        for name in {"dK", "dV"} & found.keys():
            x = found[name]
            heads = (self.kv_heads, self.group)
            found[name] = x.reshape(*x.shape[:-3], *heads, *x.shape[-2:]).sum(-3, dtype=x.dtype)
        return found

    def joined(self, name: str, shards: Sequence[Any], rank_shape: Sequence[int]) -> torch.Tensor:
        """A result of all ranks in the order of the sequence; fails where a rank's is no tensor of that shape."""
        axis = -1 if name == "lse" else -2
        for rank, shard in enumerate(shards):
            assert_type(f"rank {rank}'s {name}", shard, torch.Tensor, "a tensor")
            require(
                tuple(shard.shape) == tuple(rank_shape),
                f"rank {rank}'s {name} has shape {tuple(shard.shape)}, expected {tuple(rank_shape)}",
            )
        order = torch.from_numpy(np.argsort(np.concatenate(self.places)))
        return torch.cat(list(shards), axis).index_select(axis, order)

    def check_ranks(
        self,
        told: Mapping[str, Any],
        names: Sequence[str],
        suspects: Made | None = None,
        *,
        hint: str = "",
        nan_hint: str = NAN_HINT,
    ) -> None:
        """Compare the ranks' results with the reference, and name a usual mistake where one fits."""
        require(not told["trouble"], told["trouble"])
        parts: list[tuple[Any, ...]] = []
        for rank, result in enumerate(told["results"]):
            result = tuple(result) if isinstance(result, list) else result
            parts.append(assert_tuple(f"rank {rank}'s result", result, names))
        n = len(self.places[0])

        def check(name: str) -> None:
            place = names.index(name)
            want, plain = self._wanted(NAMES[name])
            shape = [*want.shape[:-1], n] if name == "lse" else [*want.shape[:-2], n, want.shape[-1]]
            got = self.joined(name, [part[place] for part in parts], shape)
            usual: dict[str, Any] = {
                text: partial(_named, made, NAMES[name]) for text, made in (suspects or {}).items()
            }
            if name == "lse":
                usual |= as_mapping(lse_suspects(self))
            with np.errstate(all="ignore"):
                about = f"{name} of all ranks, in the order of the sequence,"
                assert_close(about, got.double(), want, plain=plain, roundings=self.roundings, suspects=usual,
                             hint=hint, nan_hint=nan_hint)  # fmt: skip
            of = {"o": self.Q, "dq": self.Q, "dk": self.k, "dv": self.v}.get(name)
            for rank, part in enumerate(parts):
                assert_dtype(f"rank {rank}'s {name}", part[place], self.precise if of is None else of.dtype)

        compare_each(names, check)

    def _wanted(self, name: str) -> tuple[Any, Any]:
        if name in ("O", "L"):
            return self.want[name], self.plain[name]
        return self.gradients_wanted[name], self.gradients_plain[name]


def _named(results: Callable[[], Results], name: str) -> Any:
    return results()[name]
