"""Lab 11's cases, references and known mistakes: attention shared by ranks, its traffic, memory and closed forms."""

import math
from functools import cached_property, partial

import numpy as np
import torch

from labkit.testing.attention.backward_mistakes import gradients_by_formulas, lse_mistakes_of
from labkit.testing.attention.cases import Case
from labkit.testing.attention.table import strided
from labkit.testing.compare import (
    NAN_HINT,
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_raises,
    assert_tuple,
    assert_type,
    compare_each,
    require,
    require_own_work,
)
from labkit.testing.rings import LAYOUTS, Sizes, cut, owners, positions, sent_bytes, work
from labkit.testing.unchanged import report_mutation_first, unchanged
from labkit.testing.wording import dtype_name

from .probes import on_ranks, on_silent_rank

# Attention

FORWARD, BACKWARD = ("o", "lse"), ("dq", "dk", "dv")
IN_ONE_CASE = {"o": "O", "lse": "L", "dq": "dQ", "dk": "dK", "dv": "dV"}
QKV, OF_BACKWARD = ("q", "k", "v"), ("dO", "q", "k", "v", "o", "lse")
"""What a rank is given in the forward passes, and in the backward pass."""
DEFAULTS = {"causal": False, "layout": "zigzag"}
POISON = (
    "a buffer holds NaN until its wait() has returned: it was read before; or a row saw nothing in a block, and "
    "−inf − (−inf) is NaN"
)


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
        return self._reading(torch.arange(n_heads) // (n_heads // n_key_heads))

    def _reading(self, heads):
        """The same, where query head h reads the key head heads[h]."""
        return Case(self.Q, self.K[..., heads, :, :], self.V[..., heads, :, :], self.dO, causal=self.causal)

    def result(self, name, found):
        """One result by the handout's name, from those of `whole`: dk and dv are sums over the heads of a group."""
        value = found[IN_ONE_CASE[name]]
        if name in ("dk", "dv"):
            value = value.reshape(*value.shape[:-3], self.K.shape[-3], -1, *value.shape[-2:]).sum(-3)
        return value

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

    def check(self, found, names, hint="", nan_hint=""):
        """Compare the ranks' results with the reference, and name a known mistake where one fits."""
        require(not found["trouble"], found["trouble"])
        ranks = [
            assert_tuple(f"rank {rank}'s result", tuple(result) if isinstance(result, list) else result, names)
            for rank, result in enumerate(found["results"])
        ]

        def mistakes(name):
            known = self.forward_mistakes() if names == FORWARD else self.backward_mistakes()
            found = {text: partial(self._result_of, made, name) for text, made in known.items()}
            if name == "lse":
                found |= lse_mistakes_of(self.whole)
                if self.Q.dtype != self.whole.precise:
                    rounded = torch.as_tensor(self.whole.want["L"]).to(self.Q.dtype).double()
                    found[f"lse is right and was {dtype_name(self.Q.dtype)} on its way"] = lambda: rounded
            return found

        def check(name):
            with np.errstate(all="ignore"):
                assert_close(
                    f"{name} of all ranks, in the order of the sequence,",
                    self.in_order(name, [results[names.index(name)] for results in ranks]).double(),
                    self.result(name, self.whole.want),
                    baseline=self.result(name, self.whole.baseline),
                    tolerance=self.whole.tolerance,
                    mistakes=partial(mistakes, name),
                    hint=hint,
                    nan_hint=nan_hint or NAN_HINT,
                )

        compare_each(names, check)

    def _result_of(self, made, name):
        return self.result(name, made())

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

    def forward_mistakes(self):
        """Usual mistakes of a forward pass, and what computes the results of each."""
        found = {text: partial(self.whole.results, hidden=hidden) for text, hidden in self._hidden().items()}
        modulo = self._reading(torch.arange(self.Q.shape[-3]) % self.K.shape[-3])
        found["query head h reads key head h % H_kv instead of h // group"] = modulo.results
        found["the outputs of the blocks are averaged, each with the same weight"] = self._averaged
        found["the outputs of the blocks are added, each with the weight 1"] = partial(self._averaged, self.world_size)
        found["what was summed before is not rescaled when the next block comes"] = self._not_rescaled
        if self.layout != "contiguous":
            order, want = np.concatenate(self.places).argsort(), self.whole.want
            text = "the rows are cut for the ranks as if the layout were 'contiguous'"
            found[text] = lambda: {"O": want["O"][..., order, :], "L": want["L"][..., order]}
        n_heads, n_key_heads, P = self.Q.shape[-3], self.K.shape[-3], self.world_size
        if P > 1 and n_key_heads % P == 0:
            mine = torch.arange(n_heads).view(-1, P).T.flatten()
            text = f"each rank attends with every P-th head, and {OF_NEIGHBOURS}"
            found[text] = partial(self._heads, mine, mine % P + P * (mine // P // (n_heads // n_key_heads)))
        return found

    def _heads(self, queries, keys):
        """The results where place h has those of the query head queries[h] on the key head keys[h]."""
        Q, K, V, dO = self.Q[..., queries, :, :], self.K[..., keys, :, :], self.V[..., keys, :, :], self.dO
        return Case(Q, K, V, dO, causal=self.causal).want

    def backward_mistakes(self):
        """Usual mistakes of a backward pass that is given the right o and lse, and what computes the results."""
        back = partial(gradients_by_formulas, self.whole)
        others = (self.owner != self.owner[:, None]) | self.whole.hidden
        found = {text: partial(back, hidden=hidden) for text, hidden in self._hidden().items()}
        if self.layout == "zigzag" and self.causal:
            n_runs = 2 * self.world_size
            early = np.arange(self.n_tokens) // (self.n_tokens // n_runs) < self.world_size
            text = "what a rank's second run of queries gives replaces what the first has given to dK and dV"
            found[text] = lambda: back(hidden=self.whole.hidden | early[:, None]) | {"dQ": self.whole.want["dQ"]}
        if self.Q.shape == self.K.shape == self.V.shape:
            want = self.whole.want
            turned = {"dQ": want["dK"], "dK": want["dV"], "dV": want["dQ"]}
            found["the gradients come in another order: the result is (dq, dk, dv)"] = lambda: turned
        group = self.Q.shape[-3] // self.K.shape[-3]
        if group > 1:
            found["dK and dV are means over the query heads of a group: they are sums"] = lambda: (
                self.whole.want | {name: self.whole.want[name] / group for name in ("dK", "dV")}
            )
        return found | {
            "D is left out: dS = P ∘ (dP − D)": partial(back, D=np.zeros(())),
            "dS is not multiplied by 1/√d on its way into it": partial(back, in_dS=1.0),
            "dK and dV come home one hop short: a rank returns those of the next rank's keys": partial(self._moved, 1),
            "dK and dV go one hop too far: a rank returns those of the rank before": partial(self._moved, -1),
            "a rank returns dK and dV from its own queries alone: the sums must travel with their block": lambda: (
                back(hidden=others) | {"dQ": self.whole.want["dQ"]}
            ),
            "each block has weights of its own, from its own log-sum-exp: it is that of the whole row": (
                self._block_by_block
            ),
        }

    def _hidden(self):
        """Usual mistakes with what a query sees: the pairs hidden then, in the order of the sequence."""
        owner, mine, token, P = self.owner, self.owner[:, None], np.arange(self.n_tokens), self.world_size
        later = self.whole.hidden
        found = {
            "one block is missing: all P blocks count, the own one and those of P − 1 hops": later
            | (owner == (mine + 1) % P),
            "a rank sees its own keys alone": later | (owner != mine),
        }
        if not self.causal:
            found["causal is True where it is left out: its default is False"] = token > token[:, None]
        else:
            local, held = np.concatenate(self.places).argsort() % (self.n_tokens // P), np.stack(self.places)
            found["causal is ignored"] = np.zeros_like(later)
            found["positions are compared inside the shards, not in the whole sequence"] = local > local[:, None]
            text = "after t hops the keys are taken for another rank's: "
            text += "r − 1 sends those of rank r − t, and r + 1 those of rank r + t"
            found[text] = held[(2 * mine - owner) % P, local] > token[:, None]
            text = "the block of rank s is masked as that of rank r − s: a step's number is taken for a rank's"
            found[text] = held[(mine - owner) % P, local] > token[:, None]
            for other in LAYOUTS:
                if other != self.layout and (other != "zigzag" or self.n_tokens % (2 * P) == 0):
                    theirs = np.stack(positions(self.n_tokens, P, other))[owner, local]
                    text = f"positions are those of the layout {other!r}, and the shards are {self.layout!r}"
                    found[text] = theirs > theirs[:, None]
        return found

    def _blocks(self):
        """For each rank, what is hidden where its keys alone are seen, and the results then."""
        others = [self.whole.hidden | (self.owner != rank) for rank in range(self.world_size)]
        return [(hidden, self.whole.results(hidden=hidden)) for hidden in others]

    def _not_rescaled(self):
        """Block by block in the order of the steps: each output weighs exp(its lse − the lse so far), for good."""
        blocks, P = self._blocks(), self.world_size
        so_far, total = -np.inf, 0.0
        for step in range(P):
            sources = (self.owner - step) % P
            lse = np.choose(sources, [results["L"] for _, results in blocks])
            output = np.choose(sources[:, None], [results["O"] for _, results in blocks])
            so_far = np.logaddexp(so_far, lse)
            total = total + np.nan_to_num(output * np.exp(lse - so_far)[..., None])
        return {"O": total, "L": self.whole.want["L"]}

    def _averaged(self, times=1):
        outputs = [results["O"] for _, results in self._blocks()]
        return {"O": np.mean(outputs, 0) * times, "L": self.whole.want["L"] * np.nan}

    def _block_by_block(self):
        """The gradients added up over blocks whose weights come from their own log-sum-exp."""
        parts = []
        for hidden, results in self._blocks():
            lse = np.where(np.isneginf(results["L"]), 0, results["L"])
            parts.append(gradients_by_formulas(self.whole, hidden=hidden, L=lse))
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def _moved(self, by):
        """The gradients, with dK and dV of another rank's tokens."""
        others = np.concatenate([*self.places[by:], *self.places[:by]])[np.concatenate(self.places).argsort()]
        want = self.whole.want
        return want | {name: want[name][..., others, :] for name in ("dK", "dV")}


OF_NEIGHBOURS = "what comes back is taken for that of heads r · H / P and those that follow"


def token_axis(name):
    return -1 if name == "lse" else -2


def alike_on_ranks(names, n, world_size, width):
    """For each rank the same random tensors of n tokens and one head: what no result depends on."""
    generator = torch.Generator().manual_seed(12)
    given = {name: torch.randn(1, n, width, generator=generator) for name in ("q", "k", "v", "dO", "o")}
    given["lse"] = torch.full((1, n), 8.0)
    return [[given[name] for name in names]] * world_size


def attend(task, case, names=QKV, hint="", nan_hint=""):
    """Run a task on ranks, compare its results with attention over the whole sequence; returns what it took."""
    shards = case.shards(names)
    with report_mutation_first(_by_rank(names, shards)):
        found = on_ranks(task, shards, **case.options)
        case.check(found, BACKWARD if names == OF_BACKWARD else FORWARD, hint=hint, nan_hint=nan_hint or POISON)
    return found


def assert_arguments_left_alone(task, case, names=QKV):
    """Fail if a rank changes what it is given."""
    shards = case.shards(names)
    given = _by_rank(names, shards)
    with unchanged(given):
        on_ranks(task, shards, **case.options)


def _by_rank(names, shards):
    return {f"rank {rank}'s {name}": x for rank, mine in enumerate(shards) for name, x in zip(names, mine, strict=True)}


def assert_refuses(task, table, names=QKV):
    """Fail unless a rank raises a ValueError before it sends anything: what differs, when that is, what is named."""
    fitting = {"q": torch.zeros(4, 6, 5), "k": torch.zeros(2, 6, 5), "v": torch.zeros(2, 6, 3)}
    fitting |= {"dO": torch.zeros(4, 6, 3), "o": torch.zeros(4, 6, 3), "lse": torch.zeros(4, 6)}
    for change, when, mentions in table:
        given = {**fitting, "layout": "zigzag", **change}
        call = partial(on_silent_rank, task, [given[name] for name in names], layout=given["layout"])
        assert_raises(ValueError, call, when=f"{when} and before anything is sent", mentions=mentions)


# What attention sends and computes


def assert_each_rank_at_most(what, values, limit, *, hint, unit="bytes"):
    """Fail where a rank takes more of something than `limit`; `values` are those of all ranks."""
    for rank, value in enumerate(values):
        assert_at_most(f"{what}, on rank {rank} of {len(values)},", value, limit, hint=hint, unit=unit)


def assert_traffic(case, found, method, backward):
    """Fail unless every rank sends the bytes of the closed form."""
    P, batch, e = case.world_size, int(np.prod(case.Q.shape[:-3])), case.Q.itemsize
    sizes = Sizes(method, P, case.n_tokens, case.Q.shape[-3], case.K.shape[-3], case.Q.shape[-1], e)
    want = batch * sent_bytes(sizes, backward)
    n_numbers = (case.K.numel() + case.V.numel()) // P
    in_float32 = batch * sent_bytes(sizes._replace(dtype_bytes=4), backward)
    mistakes = {"keys and values are converted to float32 before they travel": in_float32}
    if method == "ring":
        text = f"K and V make P = {P} hops: the last one carries them home, where they are already"
        mistakes[text] = want + n_numbers * e
    if method == "ulysses":
        text = "all keys and values are sent to every rank, not those of its heads alone"
        mistakes[text] = want + (P - 1) ** 2 * n_numbers * e // P
    else:
        mistakes["queries travel too"] = want + (P - 1) * case.Q.nbytes // P
    of_query_heads = sent_bytes(sizes._replace(kv_heads=sizes.heads), backward)
    mistakes["keys and values are repeated for all query heads before they travel"] = batch * of_query_heads
    if backward:
        text = "dK and dV travel in the inputs' dtype: they are sums, of 4 bytes a number at least"
        mistakes[text] = want - P * n_numbers * (max(e, 4) - e)
    for rank, sent in enumerate(found["sent_bytes"]):
        about = f"what rank {rank} of {P} sends in the {'backward' if backward else 'forward'} pass, in bytes,"
        assert_equal(about, sent, want, mistakes=mistakes)


def assert_no_hidden_pair(case, found, name, numbers_a_pair):
    """Fail where a rank computes pairs of a tile that is hidden as a whole, or fewer than are seen.

    A tile is a run of queries by a run of keys; a striped shard counts as one run. `numbers_a_pair` is the
    multiplications for a pair and query head: d + d_v in a forward pass.
    """
    require_own_work(not any(found["fused"]), f"{name} calls torch's own attention: write it")
    P, n, heads = case.world_size, case.n_tokens // case.world_size, int(np.prod(case.Q.shape[:-2]))
    seen = work(case.n_tokens, P, case.layout).sum(1)
    of_zigzag, of_striped = (2 * P + 1) * (n // 2) ** 2, P * n * n
    for rank, flops in enumerate(found["flops"]):
        pairs = flops / (2 * heads * numbers_a_pair)
        about = f"the pairs that rank {rank} of {P} computes ({case.layout})"
        most = {"contiguous": (rank + 1) * n * n, "zigzag": of_zigzag, "striped": of_striped}[case.layout]
        hint = "tiles in which no query sees any key are computed and masked: leave them out"
        assert_at_most(about, math.ceil(pairs), most, unit="pairs a head", hint=hint)
        told = f"{about} are {pairs:,.0f}, and {seen[rank]:,} are seen: write products with @, so that they count"
        require(pairs >= seen[rank] - 1e-6, told)


def assert_transfers_overlap(found, least=3):
    """Fail unless each of four ranks computes during so many transfers."""
    cause = "the next block is waited for before the one at hand is computed: ask, compute, wait"
    for rank, (hidden, asked) in enumerate(zip(found["hidden_transfers"], found["messages_asked"], strict=True)):
        message = f"rank {rank} computes during {hidden} of its {asked} transfers, expected {least} at least"
        require(hidden >= least, f"{message}\nUsual cause: {cause}")


def assert_blocks_let_go(case, found, blocks_held):
    """Fail where a rank holds more received blocks at once than it may."""
    block = (case.K.nbytes + case.V.nbytes) // case.world_size
    hint = "the ring needs the block at hand and the one that comes (a third may still have a name)"
    if min(found["held_bytes"]) >= (case.world_size - 1) * block:
        hint = f"every block that passed by is kept: {hint}"
    what = f"what is held of what was received, a block is {block:,} bytes"
    assert_each_rank_at_most(what, found["held_bytes"], blocks_held * block, hint=hint)


def assert_strips(task, n, causal, names=QKV):
    """Fail where a tensor has more numbers than n · 512, with n tokens on each of two ranks."""
    found = on_ranks(task, alike_on_ranks(names, n, 2, 4), causal=causal, layout="zigzag")
    require(not found["trouble"], found["trouble"])
    hint = "a rank's own n × n scores grow with n²: let its queries meet the keys of a block in strips"
    what = f"the largest tensor of {task}, {n} tokens and one head"
    assert_each_rank_at_most(what, found["largest_bytes"], 4 * (n * 512 + 4096), hint=hint)


def assert_peak(task, world_size, n_rows, n_strips, names=QKV):
    """Fail where a rank's peak memory is more than `n_rows` tensors of its tokens and `n_strips` strips of scores."""
    n = 1536 // world_size
    found = on_ranks(task, alike_on_ranks(names, n, world_size, 64), causal=False, layout="zigzag")
    require(not found["trouble"], found["trouble"])
    hint = "what a rank holds must be its own rows, the two blocks at hand, and strips of scores, whatever P is"
    limit = 4 * (n * (64 * n_rows + n_strips * min(n, 512)) + 4096)
    assert_each_rank_at_most(f"the peak memory, {n} tokens", found["peak_bytes"], limit, hint=hint)


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
    contiguous = positions(n_tokens, world_size, "contiguous")
    mistakes = {f"the layout is 'contiguous', asked for was {layout!r}": [place.tolist() for place in contiguous]}
    if layout == "zigzag":
        runs, ranks = np.arange(n_tokens).reshape(2 * world_size, -1).tolist(), range(world_size)
        unfolded = [runs[r] + runs[r + world_size] for r in ranks]
        mistakes |= {
            "runs r and r + P are taken: the sequence folds back, to run 2P − 1 − r": unfolded,
            "the later run is reversed: its tokens keep their order": [runs[r] + runs[-1 - r][::-1] for r in ranks],
            "the later run comes first": [runs[-1 - r] + runs[r] for r in ranks],
        }
    about = f"the tokens of each rank, {n_tokens} in all, {world_size} ranks, {layout!r},"
    want = [place.tolist() for place in positions(n_tokens, world_size, layout)]
    assert_equal(about, held, want, mistakes=mistakes)


def assert_whole(got, n_tokens, world_size, layout):
    """Fail unless the tokens of all ranks are back in order."""
    assert_type("unshard's result", got, torch.Tensor, "a tensor")
    shape = (n_tokens, 2)
    require(tuple(got.shape) == shape, f"unshard's result has shape {tuple(got.shape)}, expected {shape}")
    joined = np.concatenate(positions(n_tokens, world_size, layout))
    mistakes = {
        "shards are put behind one another, and not back in order": joined.tolist(),
        "the order is applied once more instead of its inverse: argsort of where each token came from": (
            joined[joined].tolist()
        ),
    }
    about = f"the order of {n_tokens} tokens from {world_size} ranks, {layout!r},"
    assert_equal(about, [int(row) for row in got[:, 0]], list(range(n_tokens)), mistakes=mistakes)


def splits(rng, layout):
    """Tokens and ranks: from one rank to six, each with one token in a run and with several."""
    for world_size in range(1, 7):
        n_runs = world_size * (2 if layout == "zigzag" else 1)
        for tokens_of_a_run in (1, int(rng.integers(2, 9))):
            yield n_runs * tokens_of_a_run, world_size


def assert_cut(shards, x, dim, layout):
    """Fail unless `shards` are those of three ranks, cut from `x` along `dim`."""
    for rank, (got, want) in enumerate(zip(shards, cut(x, positions(x.shape[dim], 3, layout), dim), strict=True)):
        assert_same(f"rank {rank}'s shard along axis {dim} of {tuple(x.shape)}, {layout!r},", got, want)


def shards_of(x, dim, layout):
    """The shards of three ranks, and how a message calls what is put together from them."""
    whole = f"the tensor put together along axis {dim} of {tuple(x.shape)}, {layout!r},"
    return cut(x, positions(x.shape[dim], 3, layout), dim), whole


def assert_same(name, got, want):
    """Fail unless a tensor has the shape, the dtype and the numbers of another."""
    require(got.shape == want.shape, f"{name} has shape {tuple(got.shape)}, expected {tuple(want.shape)}")
    assert_dtype(name, got, want.dtype)
    require(torch.equal(got, want), f"{name} does not hold the tokens that it should, in their order")


def assert_work(got, seq_len, world_size, layout):
    """Compare what `causal_work` returned with the pairs counted."""
    about, want = f"causal_work({seq_len}, {world_size}, {layout!r})", work(seq_len, world_size, layout)
    assert_type(about, got, torch.Tensor, "a tensor")
    n, ranks = seq_len // world_size, np.arange(world_size)
    by_source = want[ranks[:, None], (ranks[:, None] - ranks) % world_size]
    own_keys = np.where(ranks == 0, n, 0)  # in step 0
    mistakes = {
        "columns are the ranks that keys come from: column t is step t, in which they come from rank r − t": by_source,
        "keys come from rank r + t in step t: a ring that sends to r + 1 receives from r − 1": want[:, -ranks],
        "rows are steps and columns ranks: it is the other way round": want.T,
        "a query does not see the key at its own position": want - own_keys,
        "a tile that is partly hidden is counted whole": np.where(want > 0, n * n, 0),
        "every step is counted like step 0, that of a rank's own keys": np.full_like(want, n * (n + 1) // 2),
        "step 0 is counted with n² / 2 pairs": np.where(ranks > 0, want, n * n // 2),
    }
    nearly = got.shape == want.shape and np.allclose(got.numpy(), want, rtol=1e-6, atol=0)
    hint = "the counts pass through float32, which has 24 bits" if nearly else ""
    known = {text: each.tolist() for text, each in mistakes.items()}
    assert_equal(about, got.tolist(), want.tolist(), mistakes=known, hint=hint)


# Closed forms


def assert_bytes(function, *given, backward=False):
    """Compare `communication_bytes` with the closed form."""
    sizes = Sizes(*given)
    method, P, seq_len, heads, kv_heads, d, e = sizes
    want, n, hops, sums = sent_bytes(sizes, backward), seq_len // P, P - 1, max(e, 4)
    block, of_query_heads = 2 * n * kv_heads * d, sent_bytes(sizes._replace(kv_heads=heads), backward)
    mistakes = {
        "the bytes of all ranks are counted, or the whole sequence is counted: a rank sends its N / P tokens": want * P,
        "query heads are counted for keys and values, where H_kv is meant": of_query_heads,
        "what stays with the rank is counted: it sends to P − 1 others": want * P // max(hops, 1),
    }
    if method == "ulysses":
        rows = n * heads // P
        text = "numbers that each row has one of are left out: lse, and D in the backward pass"
        mistakes[text] = want - hops * rows * sums * (2 if backward else 1)
        if backward:
            mistakes["one of lse and D is counted: each row has both"] = want - hops * rows * sums
        text = "lse, or lse and D, are counted in the inputs' dtype: they take 4 bytes a number at least"
        mistakes[text] = want - hops * rows * (sums - e) * (2 if backward else 1)
        back = rows * d * e + (block // P * e if backward else rows * sums)
        mistakes["nothing comes back: o and lse, or the gradients, travel too"] = want - hops * back
        text = f"{'the gradients come' if backward else 'o comes'} back with 4 bytes a number at least, as sums do"
        mistakes[text] = want + hops * (rows * d + (block // P if backward else 0)) * (sums - e)
    else:
        mistakes["K is counted and V forgotten"] = want // 2
    if backward and method != "ulysses":
        mistakes["forward and backward are added up"] = want + sent_bytes(sizes, False)
        n_sums = P if method == "ring" else hops
        mistakes["dK and dV are counted in the inputs' dtype: they travel as sums, of 4 bytes a number at least"] = (
            want - n_sums * block * (sums - e)
        )
    if e > 1:
        mistakes["numbers are counted, and not their bytes"] = want // e
    if backward:
        mistakes["backward=True is ignored"] = sent_bytes(sizes, False)
    if backward and method == "all_gather":
        mistakes["dK and dV make P hops, as in the ring: here each part is sent to its owner"] = want + block * sums
    if backward and method == "ring":
        mistakes["a single rank sends its sums to itself"] = block * sums if P == 1 else want
        mistakes["dK and dV are counted for P − 1 hops: they make P, and the last brings them home"] = (
            want - block * sums
        )
    if e > 4:
        n_sums = hops * n * heads // P * (2 if backward else 1)
        if method != "ulysses":
            n_sums = block * (P if method == "ring" else hops) if backward else 0
        mistakes["sums are counted with 4 bytes a number, where the inputs have 8"] = want - n_sums * (e - 4)
    call = f"communication_bytes({', '.join(map(repr, given))}{', backward=True' if backward else ''})"
    got = function(*given, backward=backward)
    assert_type(call, got, int, "an int: bytes")
    assert_equal(call, got, want, mistakes={text: value for text, value in mistakes.items() if value != want})


def assert_block(minimal_block, flops, bandwidth):
    """Compare `minimal_block` with the quotient, rounded up."""
    mistakes = {
        "the quotient is rounded down: then sending takes longer": flops // bandwidth,
        "one is added even where the quotient is whole": flops // bandwidth + 1,
        "FLOPs and bytes have changed places": -(-bandwidth // flops),
    }
    about, got = f"minimal_block({flops:g}, {bandwidth:g})", minimal_block(flops, bandwidth)
    assert_type(about, got, int, "an int")
    assert_equal(about, got, -(-flops // bandwidth), mistakes=mistakes)
