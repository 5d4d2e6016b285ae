"""Lab 11's cases and references: attention whose tokens are shared by ranks, and what ranks are given."""

import math
from functools import cached_property

import numpy as np
import torch

from labkit.testing.attention.cases import Case
from labkit.testing.attention.table import strided
from labkit.testing.compare import assert_type, require
from labkit.testing.rings import LAYOUTS, cut, owners, positions
from labkit.testing.wording import dtype_name, sizes_of

FORWARD, BACKWARD = ("o", "lse"), ("dq", "dk", "dv")
IN_ONE_CASE = {"o": "O", "lse": "L", "dq": "dQ", "dk": "dK", "dv": "dV"}
QKV, OF_BACKWARD = ("q", "k", "v"), ("dO", "q", "k", "v", "o", "lse")
"""What a rank is given in the forward passes, and in the backward pass."""
DEFAULTS = {"causal": False, "layout": "zigzag"}


class RingCase:
    """Q (..., H, N, d), K (..., H_kv, N, d), V (..., H_kv, N, d_v) and dO, whose tokens are shared by ranks.

    Query head h reads key head h // (H / H_kv). Inputs may be changed until the results are first asked for.
    """

    def __init__(self, Q, K, V, dO, *, world_size, layout, causal=False):
        self.Q, self.K, self.V, self.dO = Q, K, V, dO
        self.n_tokens, self.world_size, self.layout, self.causal = Q.shape[-2], world_size, layout, causal
        self.places = positions(self.n_tokens, world_size, layout)
        self.owner = owners(self.n_tokens, world_size, layout)

    @classmethod
    def drawn(cls, rng, *, n=0, n_queries=0, n_keys=0, world_size=None, layout=None, kv_heads=None, group=None, d=8,
              d_v=None, batch=(), causal=False, logit_scale=1.0, dtype="float32", by_heads=False):  # fmt: skip
        """A case with standard-normal inputs; ranks, layout and numbers of heads are drawn too, unless given.

        The largest of the lengths is rounded up to what the ranks can share. `by_heads` gives each rank a key head at
        least.
        """
        if batch:
            world_size, kv_heads, group = world_size or 2, kv_heads or 2, group or 2
        world_size, layout = world_size or int(rng.integers(2, 5)), layout or str(rng.choice(LAYOUTS))
        kv_heads = kv_heads or (world_size if by_heads else int(rng.integers(1, 4)))
        group = group or int(rng.integers(1, 4))
        n_runs = world_size * (2 if layout == "zigzag" else 1)
        n_tokens = math.ceil(max(n, n_queries, n_keys) / n_runs) * n_runs
        d_v = d if d_v is None else d_v
        shapes = [(kv_heads * group, d), (kv_heads, d), (kv_heads, d_v), (kv_heads * group, d_v)]
        arrays = [rng.standard_normal((*batch, heads, n_tokens, width)) for heads, width in shapes]
        arrays[0] *= logit_scale
        tensors = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in arrays]
        return cls(*tensors, world_size=world_size, layout=layout, causal=causal)

    @property
    def options(self):
        """The keyword arguments of a task, without those that are as by default."""
        return dict({"causal": self.causal, "layout": self.layout}.items() - DEFAULTS.items())

    @cached_property
    def whole(self):
        """The same attention on one device, with keys and values for each query head."""
        n_heads, n_key_heads = self.Q.shape[-3], self.K.shape[-3]
        return self.reading(torch.arange(n_heads) // (n_heads // n_key_heads))

    def reading(self, heads):
        """The same, where query head h reads the key head heads[h]."""
        return Case(self.Q, self.K[..., heads, :, :], self.V[..., heads, :, :], self.dO, causal=self.causal)

    def result(self, name, found):
        """One result by the handout's name, from those of `whole`: dk and dv are sums over the heads of a group."""
        value = found[IN_ONE_CASE[name]]
        if name in ("dk", "dv"):
            value = value.reshape(*value.shape[:-3], self.K.shape[-3], -1, *value.shape[-2:]).sum(-3)
        return value

    def sizes(self):
        """The case in words, as `Case.sizes`."""
        tensors = {name: getattr(self, name) for name in ("Q", "K", "V", "dO")}
        return sizes_of(tensors | {"causal": self.causal, "ranks": self.world_size, "layout": self.layout})

    def shards(self, names):
        """For each rank, its shards of q, k, v, dO, o or lse; those of a tensor that is not contiguous are not."""
        whole = {"q": self.Q, "k": self.K, "v": self.V, "dO": self.dO}
        if "o" in names:
            whole |= dict(zip(FORWARD, self.whole.forward_result, strict=True))
        cuts = []
        for name in names:
            parts = cut(whole[name], self.places, token_axis(name))
            cuts.append(parts if whole[name].is_contiguous() else [strided(part) for part in parts])
        return [list(each) for each in zip(*cuts, strict=True)]

    def in_order(self, name, parts):
        """The ranks' parts of a result put together in the order of the sequence; fails unless each has its shape."""
        like = {"o": self.dO, "lse": self.dO[..., 0], "dq": self.Q, "dk": self.K, "dv": self.V}[name]
        for rank, (part, want) in enumerate(zip(parts, cut(like, self.places, token_axis(name)), strict=True)):
            about = f"rank {rank}'s {name}"
            assert_type(about, part, torch.Tensor, "a tensor")
            shapes = f"{about} has shape {tuple(part.shape)}, expected {tuple(want.shape)}"
            if part.shape[token_axis(name) :][:1] == (self.n_tokens,) and part.numel() == want.numel():
                shapes += "\nUsual cause: nothing is sent back: these are all tokens of a part of the heads"
            require(part.shape == want.shape, shapes)
            dtype = self.whole.precise if name == "lse" else self.Q.dtype
            dtypes = f"{dtype_name(part.dtype)}, expected {dtype_name(dtype)} for inputs in {dtype_name(self.Q.dtype)}"
            require(part.dtype == dtype, f"{about} is {dtypes}")
        order = torch.from_numpy(np.concatenate(self.places).argsort())
        return torch.cat(parts, token_axis(name)).index_select(token_axis(name), order)


def long_inputs(n_tokens, heads):
    """Inputs by the handout's names, (heads, n_tokens, 4) each; o and lse are drawn too, near what a softmax gives."""
    generator = torch.Generator().manual_seed(11)
    given = {name: torch.randn(heads, n_tokens, 4, generator=generator) for name in (*QKV, "dO", "o")}
    given["lse"] = math.log(n_tokens) + torch.rand(heads, n_tokens, generator=generator)
    return given


def some_rows(name, given, tokens):
    """Rows of one result for `long_inputs`; gradients follow from the given o and lse."""
    q, k, v, dO, o, lse = (given[each] for each in (*QKV, "dO", "o", "lse"))
    if name in FORWARD:
        scores = q[:, tokens] @ k.mT / 2
        return scores.softmax(-1) @ v if name == "o" else scores.logsumexp(-1)
    rows, columns = (tokens, slice(None)) if name == "dq" else (slice(None), tokens)
    weights = torch.exp(q[:, rows] @ k[:, columns].mT / 2 - lse[:, rows, None])
    if name == "dv":
        return weights.mT @ dO
    ds = weights * (dO[:, rows] @ v[:, columns].mT - (dO * o).sum(-1, keepdim=True)[:, rows]) / 2
    return ds @ k if name == "dq" else ds.mT @ q


def token_axis(name):
    return -1 if name == "lse" else -2


def alike_on_ranks(names, n, world_size, width, dtype=torch.float32):
    """For each rank the same random tensors of n tokens and one head: what no result depends on."""
    generator = torch.Generator().manual_seed(12)
    given = {name: torch.randn(1, n, width, generator=generator).to(dtype) for name in (*QKV, "dO", "o")}
    given["lse"] = torch.full((1, n), 8.0)
    return [[given[name] for name in names]] * world_size


def numbered(n_tokens):
    """(n_tokens, 2), each row the number of its token."""
    return torch.arange(n_tokens, dtype=torch.float32)[:, None].repeat(1, 2)


def splits(rng, layout):
    """Tokens and ranks: from one rank to six, each with one token in a run and with several."""
    for world_size in range(1, 7):
        n_runs = world_size * (2 if layout == "zigzag" else 1)
        for tokens_of_a_run in (1, int(rng.integers(2, 9))):
            yield n_runs * tokens_of_a_run, world_size


def shards_of(x, dim, layout):
    """The shards of three ranks, and how a message calls what is put together from them."""
    whole = f"the tensor put together along axis {dim} of {tuple(x.shape)}, {layout!r},"
    return cut(x, positions(x.shape[dim], 3, layout), dim), whole
