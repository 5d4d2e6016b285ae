"""Lab 11's cases, references and known mistakes: attention shared by ranks, its traffic, memory and closed forms."""

from functools import cached_property, partial

import numpy as np
import torch

from labkit.testing.attention.tensor_mistakes import lse_mistakes
from labkit.testing.compare import (
    NAN_HINT,
    ROUNDINGS,
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_tuple,
    assert_type,
    compare_each,
    require,
    require_own_work,
)
from labkit.testing.rings import LAYOUTS, Sizes, cut, owners, positions, sent_bytes, work

# Attention

FORWARD, BACKWARD = ("o", "lse"), ("dq", "dk", "dv")


class RingCase:
    """Inputs of attention with shared key heads, whose tokens are shared by ranks; its results, and those of mistakes.

    Query head h reads key head h // `group`. Nothing is hidden unless `causal`; then key j is hidden from query i < j.
    """

    def __init__(self, rng, *, n_tokens, world_size, layout="zigzag", kv_heads=2, group=2, d=8, d_v=None, batch=(),
                 causal=False, logit_scale=1.0, dtype=torch.float32):  # fmt: skip
        def normal(heads, width):
            return torch.from_numpy(rng.standard_normal((*batch, heads, n_tokens, width)))

        heads, d_v = kv_heads * group, d if d_v is None else d_v
        drawn = logit_scale * normal(heads, d), normal(kv_heads, d), normal(kv_heads, d_v), normal(heads, d_v)
        self.q, self.k, self.v, self.dO = (x.to(dtype) for x in drawn)
        self.n_tokens, self.world_size, self.layout, self.causal = n_tokens, world_size, layout, causal
        self.places, self.owner = positions(n_tokens, world_size, layout), owners(n_tokens, world_size, layout)
        self.later = torch.ones(n_tokens, n_tokens, dtype=torch.bool).triu(1) & causal

    @classmethod
    def drawn(cls, rng, world_sizes=(2, 3, 4), **sizes):
        """A case of random sizes, but for those given."""
        world_size = int(rng.choice(world_sizes))
        kv_heads, group, half, d, d_v = rng.integers((1, 1, 1, 2, 2), (4, 4, 6, 12, 12)).tolist()
        sizes = {"kv_heads": kv_heads, "group": group, "d": d, "d_v": d_v, **sizes}
        layout, causal = str(rng.choice(LAYOUTS)), bool(rng.integers(2))
        return cls(rng, n_tokens=2 * world_size * half, world_size=world_size, layout=layout, causal=causal, **sizes)

    @property
    def options(self):
        """The keyword arguments of a task."""
        return {"causal": self.causal, "layout": self.layout}

    @property
    def precise(self):
        """The dtype of sums and of lse."""
        return torch.float32 if self.q.dtype.itemsize == 2 else self.q.dtype

    @cached_property
    def want(self):
        """All results in float64: o, lse, dq, dk and dv; and m, the largest score of each row."""
        found = self.forward(torch.float64)
        return found | self.backward(torch.float64, found)

    @cached_property
    def given(self):
        """o and lse as a forward pass returns them, which is what the backward pass is given."""
        return {"o": self.want["o"].to(self.q.dtype), "lse": self.want["lse"].to(self.precise)}

    def plain(self, names):
        """The results computed plainly in the precision of sums, and rounded once."""
        found = self.forward(self.precise) if names == FORWARD else self.backward(self.precise, self.given)
        return {name: found[name] if name == "lse" else found[name].to(self.q.dtype) for name in names}

    def forward(self, dtype, hidden=None, heads=None):
        """o, lse and m in `dtype`; with other pairs hidden, or with query head h reading key head heads[h]."""
        scores, _, values = self._scores(dtype, hidden, heads)
        lse = scores.logsumexp(-1)
        weights = torch.exp(scores - lse.masked_fill(lse.isneginf(), 0)[..., None])
        return {"o": weights @ values, "lse": lse, "m": scores.amax(-1)}

    def backward(self, dtype, result, *, hidden=None, with_d=True, scaled=True, own_lse=False):
        """dq, dk and dv in `dtype` from a forward pass's o and lse; with a mistake where asked for.

        Other pairs hidden, D left out, dS not scaled, or the weights of each block from that block's own lse.
        """
        scores, keys, values = self._scores(dtype, hidden)
        q, dO = self.q.to(dtype), self.dO.to(dtype)
        lse = result["lse"].to(dtype)[..., None]
        if own_lse:
            owner = torch.from_numpy(self.owner)
            blocks = [scores.masked_fill(owner != rank, -torch.inf).logsumexp(-1) for rank in range(self.world_size)]
            lse = torch.stack(blocks, -1)[..., owner]
            lse = lse.masked_fill(lse.isneginf(), 0)
        weights = torch.exp(scores - lse)
        D = (dO * result["o"].to(dtype)).sum(-1, keepdim=True)
        slopes = weights * (dO @ values.mT - (D if with_d else 0))
        slopes = slopes * q.shape[-1] ** -0.5 if scaled else slopes
        dk, dv = (x.unflatten(-3, (self.k.shape[-3], -1)).sum(-3) for x in (slopes.mT @ q, weights.mT @ dO))
        return {"dq": slopes @ keys, "dk": dk, "dv": dv}

    def _scores(self, dtype, hidden=None, heads=None):
        """Scores, with keys and values for each query head."""
        q, k, v = (x.to(dtype) for x in (self.q, self.k, self.v))
        if heads is None:
            heads = torch.arange(q.shape[-3]) // (q.shape[-3] // k.shape[-3])
        keys, values = k[..., heads, :, :], v[..., heads, :, :]
        scores = q @ keys.mT * q.shape[-1] ** -0.5
        return scores.masked_fill(self.later if hidden is None else hidden, -torch.inf), keys, values

    def shards(self, names):
        """For each rank, its shards of q, k, v, dO, o or lse."""
        whole = {"q": self.q, "k": self.k, "v": self.v, "dO": self.dO}
        if "o" in names:
            whole |= self.given
        cuts = [cut(whole[name], self.places, -1 if name == "lse" else -2) for name in names]
        return [list(each) for each in zip(*cuts, strict=True)]

    def check(self, found, names, hint="", nan_hint=""):
        """Compare the ranks' results with the reference, and name a usual mistake where one fits."""
        require(not found["trouble"], found["trouble"])
        parts = [
            assert_tuple(f"rank {rank}'s result", tuple(result) if isinstance(result, list) else result, names)
            for rank, result in enumerate(found["results"])
        ]
        plain, peaks = self.plain(names), self.want["m"].abs().max().item()
        known = self.mistakes() if names == FORWARD else self.backward_mistakes()
        like = {"o": self.dO, "lse": self.dO[..., 0], "dq": self.q, "dk": self.k, "dv": self.v}

        def check(name):
            place, axis = names.index(name), -1 if name == "lse" else -2
            dtype = self.precise if name == "lse" else self.q.dtype
            shapes = [x.shape for x in cut(like[name], self.places, axis)]
            for rank, part in enumerate(parts):
                about = f"rank {rank}'s {name}"
                assert_type(about, part[place], torch.Tensor, "a tensor")
                told = f"{about} has shape {tuple(part[place].shape)}, expected {tuple(shapes[rank])}"
                require(part[place].shape == shapes[rank], told)
                assert_dtype(about, part[place], dtype)
            order = torch.from_numpy(np.argsort(np.concatenate(self.places)))
            got = torch.cat([part[place] for part in parts], axis).index_select(axis, order)
            usual = {text: partial(_named, made, name) for text, made in known.items()}
            if name == "lse":
                usual |= lse_mistakes(self.want["lse"].numpy(), self.want["m"].numpy())
            with np.errstate(all="ignore"):
                assert_close(
                    f"{name} of all ranks, in the order of the sequence,",
                    got.double(),
                    self.want[name],
                    plain=plain[name].float() if dtype.itemsize == 2 else plain[name],
                    roundings=ROUNDINGS + (0 if name == "lse" else peaks),
                    mistakes=usual,
                    hint=hint,
                    nan_hint=nan_hint or NAN_HINT,
                )

        compare_each(names, check)

    def mistakes(self):
        """Usual mistakes of a forward pass, and what computes the results of each."""
        found = {text: partial(self.forward, torch.float64, hidden) for text, hidden in self._hidden().items()}
        heads = torch.arange(self.q.shape[-3]) % self.k.shape[-3]
        found["query head h reads key head h % H_kv instead of h // group"] = partial(
            self.forward, torch.float64, heads=heads
        )
        found["the outputs of the blocks are averaged: each weighs as much as its keys do"] = self._averaged
        return found

    def backward_mistakes(self):
        """Usual mistakes of a backward pass that is given the right o and lse, and what computes the results."""
        back = partial(self.backward, torch.float64, self.want)
        found = {text: partial(back, hidden=hidden) for text, hidden in self._hidden().items()}
        alone = self.later | torch.from_numpy(self.owner != self.owner[:, None])
        return found | {
            "D is left out: dS = P ∘ (dP − D)": partial(back, with_d=False),
            "dS is not multiplied by 1/√d on its way into it": partial(back, scaled=False),
            "dK and dV come home one hop short: a rank returns those of the next rank's keys": partial(self._moved, 1),
            "dK and dV go one hop too far: a rank returns those of the rank before": partial(self._moved, -1),
            "a rank returns dK and dV from its own queries alone: the sums must travel with their block": lambda: (
                back(hidden=alone) | {"dq": self.want["dq"]}
            ),
            "each block has weights of its own, from its own log-sum-exp: it is that of the whole row": partial(
                back, own_lse=True
            ),
        }

    def _hidden(self):
        """Usual mistakes with what a query sees: the pairs hidden then, in the order of the sequence."""
        owner, token = self.owner, np.arange(self.n_tokens)
        mine, later, P = owner[:, None], self.later.numpy(), self.world_size
        found = {
            "one block is missing: all P blocks count, the own one and those of P − 1 hops": later
            | (owner == (mine + 1) % P),
            "a rank sees its own keys alone": later | (owner != mine),
        }
        if self.causal:
            local = np.argsort(np.concatenate(self.places)) % (self.n_tokens // P)
            held = np.stack(self.places)
            found["causal is ignored"] = np.zeros_like(later)
            found["positions are compared inside the shards, not in the whole sequence"] = local > local[:, None]
            text = "after t hops the keys are taken for rank r + t's: a block that comes from r − 1 was rank r − t's"
            found[text] = held[(2 * mine - owner) % P, local] > token[:, None]
            for other in LAYOUTS:
                if other != self.layout and self.n_tokens % (2 * P) == 0:
                    theirs = np.stack(positions(self.n_tokens, P, other))[owner, local]
                    text = f"positions are those of the layout {other!r}, and the shards are {self.layout!r}"
                    found[text] = theirs > theirs[:, None]
        return {text: torch.from_numpy(hidden) for text, hidden in found.items()}

    def _averaged(self):
        others = [self.later | torch.from_numpy(self.owner != rank) for rank in range(self.world_size)]
        blocks = [self.forward(torch.float64, hidden)["o"] for hidden in others]
        return {"o": sum(blocks) / self.world_size, "lse": self.want["lse"] * torch.nan}

    def _moved(self, by):
        """dk and dv of another rank's tokens."""
        others = torch.from_numpy(np.concatenate([*self.places[by:], *self.places[:by]]))
        order = torch.from_numpy(np.argsort(np.concatenate(self.places)))
        return {"dq": self.want["dq"]} | {name: self.want[name][..., others[order], :] for name in ("dk", "dv")}


def _named(made, name):
    return made()[name]


def random_ranks(names, n, world_size, width):
    """For each rank the same random tensors of n tokens and one head: what no result depends on."""
    generator = torch.Generator().manual_seed(12)
    given = {name: torch.randn(1, n, width, generator=generator) for name in ("q", "k", "v", "dO", "o")}
    given["lse"] = torch.full((1, n), 8.0)
    return [[given[name] for name in names]] * world_size


# What attention sends, holds and computes


def assert_traffic(case, found, method, backward=False):
    """Fail unless every rank sends the bytes of the closed form."""
    P, batch, e = case.world_size, int(np.prod(case.q.shape[:-3])), case.q.itemsize
    sizes = Sizes(method, P, case.n_tokens, case.q.shape[-3], case.k.shape[-3], case.q.shape[-1], e)
    want = batch * sent_bytes(sizes, backward)
    block, sums = (case.k.numel() + case.v.numel()) // P, max(e, 4)
    wide = batch * sent_bytes(sizes._replace(dtype_bytes=4), backward)
    usual = {"keys and values are converted to float32 before they travel": wide}
    if method == "ring":
        usual[f"K and V make P = {P} hops: the last one carries them home, where they are already"] = want + block * e
    if backward:
        text = "dK and dV travel in the inputs' dtype: they are sums, of 4 bytes a number at least"
        usual[text] = want - P * block * (sums - e)
    usual = {text: value for text, value in usual.items() if value != want}
    for rank, sent in enumerate(found["sent_bytes"]):
        about = f"what rank {rank} of {P} sends in the {'backward' if backward else 'forward'} pass, in bytes,"
        assert_equal(about, sent, want, mistakes=usual)


def assert_no_hidden_pair(case, found, name, numbers_a_pair):
    """Fail where a rank computes pairs of a tile that is hidden as a whole, or fewer than are seen.

    `numbers_a_pair` is the multiplications for a pair and query head: d + d_v in a forward pass.
    """
    heads = int(np.prod(case.q.shape[:-2]))
    least, most = work(case.n_tokens, case.world_size, case.layout).sum(1), _pairs_of_tiles(case)
    require_own_work(not any(found["fused"]), f"{name} calls torch's own attention: write it")
    for rank, flops in enumerate(found["flops"]):
        pairs = flops / (2 * heads * numbers_a_pair)
        about = f"the pairs that rank {rank} of {case.world_size} computes ({case.layout})"
        hint = "tiles in which no query sees any key are computed and masked: leave them out"
        assert_at_most(about, round(pairs, 2), int(most[rank]), unit="pairs a head", hint=hint)
        told = f"{about} are {pairs:,.0f}, and {least[rank]:,} are seen: write products with @, so that they count"
        require(pairs >= least[rank] - 1e-6, told)


def _pairs_of_tiles(case):
    """Pairs of each rank in tiles, a run by a run, of which some pair is seen; a striped shard counts as one run."""
    P, n = case.world_size, case.n_tokens // case.world_size
    if case.layout == "contiguous":
        return [(rank + 1) * n * n for rank in range(P)]
    if case.layout == "striped":
        return [P * n * n] * P
    return [(2 * P + 1) * (n // 2) ** 2] * P


def assert_held(case, found, blocks):
    """Fail where a rank holds more than so many of the blocks that it receives."""
    block = (case.k.nbytes + case.v.nbytes) // case.world_size
    hint = (
        "every block that passed by is kept: the ring needs the one at hand and the one that comes (a third may still "
        "have a name)"
    )
    for rank, held in enumerate(found["held_bytes"]):
        about = f"what rank {rank} of {case.world_size} holds of what it received, a block is {block:,},"
        assert_at_most(about, held, blocks * block, hint=hint)


def assert_overlap(found, hops):
    """Fail where a rank multiplies matrices during fewer of its transfers."""
    cause = "the next block is waited for before the one at hand is computed: ask, compute, wait"
    for rank, (hidden, asked) in enumerate(zip(found["hidden_transfers"], found["messages_asked"], strict=True)):
        told = f"rank {rank} computes during {hidden} of its {asked} transfers, expected {hops} at least"
        require(hidden >= hops, f"{told}\nUsual cause: {cause}")


def assert_strips(name, found, n):
    """Fail where a rank of n tokens and one head makes a tensor as large as all its scores."""
    require(not found["trouble"], found["trouble"])
    hint = "a rank's own n × n scores grow with n²: let its queries meet the keys of a block in strips"
    for rank, largest in enumerate(found["largest_bytes"]):
        about = f"the largest tensor of {name} on rank {rank}, {n} tokens there and one head,"
        assert_at_most(about, largest // 4, n * 512 + 4096, unit="numbers", hint=hint)


def assert_peak(found, n, world_size, widths, strips):
    """Fail where a rank of n tokens, one head, needs more than `widths` tensors of n rows and `strips` of scores."""
    require(not found["trouble"], found["trouble"])
    hint = "what a rank holds must be its own rows, the two blocks at hand, and strips of scores, whatever P is"
    for rank, peak in enumerate(found["peak_bytes"]):
        about = f"the peak memory of rank {rank} of {world_size}, {n} tokens there, in float32 numbers,"
        assert_at_most(about, peak // 4, n * (64 * widths + strips * min(n, 512)) + 4096, unit="", hint=hint)


# Layouts


def numbered(n_tokens):
    """(n_tokens, 2), each row the number of its token."""
    return torch.arange(n_tokens, dtype=torch.float32)[:, None].repeat(1, 2)


def assert_layout(shards, n_tokens, world_size, layout):
    """Fail unless shards of a tensor whose rows are their own numbers give every rank its tokens."""
    assert_type("shard's result", shards, (list, tuple), "a list of tensors, one for each rank")
    held = []
    for rank, part in enumerate(shards):
        assert_type(f"rank {rank}'s shard", part, torch.Tensor, "a tensor")
        fits = part.dim() == 2 and part.shape[-1] == 2
        held.append([int(row) for row in part[:, 0]] if fits else tuple(part.shape))
    about = f"the tokens of each rank, {n_tokens} in all, {world_size} ranks, {layout!r},"
    usual = {}
    if layout != "contiguous":
        text = f"the layout is 'contiguous', asked for was {layout!r}"
        usual[text] = positions(n_tokens, world_size, "contiguous")
    if layout == "zigzag":
        runs, ranks = np.arange(n_tokens).reshape(2 * world_size, -1), range(world_size)
        usual["runs r and r + P are taken: the sequence folds back, to run 2P − 1 − r"] = [
            [*runs[r], *runs[r + world_size]] for r in ranks
        ]
        text = "the later run is reversed: its tokens keep their order"
        usual[text] = [[*runs[r], *runs[-1 - r][::-1]] for r in ranks]
        usual["the later run comes first"] = [[*runs[-1 - r], *runs[r]] for r in ranks]
    want = [place.tolist() for place in positions(n_tokens, world_size, layout)]
    assert_equal(about, held, want, mistakes={text: [list(part) for part in parts] for text, parts in usual.items()})


def assert_whole(got, n_tokens, world_size, layout):
    """Fail unless the tokens of all ranks are back in order."""
    assert_type("unshard's result", got, torch.Tensor, "a tensor")
    shape = (n_tokens, 2)
    require(tuple(got.shape) == shape, f"unshard's result has shape {tuple(got.shape)}, expected {shape}")
    joined = np.concatenate(positions(n_tokens, world_size, layout))
    usual = {
        "shards are put behind one another, and not back in order": joined.tolist(),
        "the order is applied once more instead of its inverse: argsort of where each token came from": (
            joined[joined].tolist()
        ),
    }
    about = f"the order of {n_tokens} tokens from {world_size} ranks, {layout!r},"
    assert_equal(about, [int(row) for row in got[:, 0]], list(range(n_tokens)), mistakes=usual)


def assert_work(got, seq_len, world_size, layout):
    """Compare what `causal_work` returned with the pairs counted."""
    about, want = f"causal_work({seq_len}, {world_size}, {layout!r})", work(seq_len, world_size, layout)
    assert_type(about, got, torch.Tensor, "a tensor")
    assert_dtype(about, got, torch.int64)
    n, ranks = seq_len // world_size, np.arange(world_size)
    own_keys = np.zeros_like(want)
    own_keys[:, 0] = n
    usual = {
        "columns are the ranks that keys come from: column t is step t, in which they come from rank r − t": want[
            ranks[:, None], (ranks[:, None] - ranks) % world_size
        ],
        "keys come from rank r + t in step t: a ring that sends to r + 1 receives from r − 1": want[
            ranks[:, None], -ranks % world_size
        ],
        "rows are steps and columns ranks: it is the other way round": want.T,
        "a query does not see the key at its own position": want - own_keys,
        "a tile that is partly hidden is counted whole": np.where(want > 0, n * n, 0),
    }
    assert_equal(about, got.tolist(), want.tolist(), mistakes={text: each.tolist() for text, each in usual.items()})


# Closed forms


def assert_bytes(function, *given, backward=False):
    """Compare `communication_bytes` with the closed form."""
    call = f"communication_bytes({', '.join(map(repr, given))}{', backward=True' if backward else ''})"
    sizes = Sizes(*given)
    assert_equal(call, function(*given, backward=backward), sent_bytes(sizes, backward),
                 mistakes=_usual_bytes(sizes, backward))  # fmt: skip


def _usual_bytes(sizes, backward):
    """Usual mistakes with the bytes, and what they lead to; of mistakes that lead to the same, one text for all."""
    method, P, seq_len, heads, kv_heads, d, e = sizes
    right, n, hops, sums = sent_bytes(sizes, backward), seq_len // P, P - 1, max(e, 4)
    block = 2 * n * kv_heads * d
    found = {
        "the bytes of all ranks are counted: those that one rank sends are asked for": right * P,
        "query heads are counted for keys and values, where H_kv is meant": sent_bytes(
            sizes._replace(kv_heads=heads), backward
        ),
        "the whole sequence is counted where a rank sends its own N / P tokens": right * P,
        "what stays with the rank is counted: it sends to P − 1 others": right * P // max(hops, 1),
    }
    if method == "ulysses":
        rows = n * heads // P
        text = "numbers that each row has one of are left out: lse, and D in the backward pass"
        found[text] = right - hops * rows * sums * (2 if backward else 1)
        back = rows * d * e + (block // P * e if backward else rows * sums)
        found["nothing comes back: o and lse, or the gradients, travel too"] = right - hops * back
    else:
        found["K is counted and V forgotten"] = right // 2
    if backward and method != "ulysses":
        found["forward and backward are added up"] = right + sent_bytes(sizes, False)
        n_sums = P if method == "ring" else hops
        found["dK and dV travel as sums, of 4 bytes a number at least"] = right - n_sums * block * (sums - e)
    if backward and method == "ring":
        found["dK and dV make P hops: the last brings them home"] = right - block * sums
    texts = {}
    for text, value in found.items():
        texts.setdefault(value, []).append(text)
    return {"; or when ".join(several): value for value, several in texts.items() if value != right}


def assert_block(minimal_block, flops, bandwidth):
    """Compare `minimal_block` with the quotient, rounded up."""
    usual = {
        "the quotient is rounded down: then sending takes longer": flops // bandwidth,
        "FLOPs and bytes have changed places": -(-bandwidth // flops),
    }
    about, got, want = (
        f"minimal_block({flops:g}, {bandwidth:g})",
        minimal_block(flops, bandwidth),
        -(-flops // bandwidth),
    )
    assert_type(about, got, int, "an int")
    assert_equal(about, got, want, mistakes={text: value for text, value in usual.items() if value != want})
