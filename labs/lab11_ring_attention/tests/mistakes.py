"""Lab 11's usual mistakes, and the results, the bytes or the counts that each leads to."""

from functools import partial

import numpy as np
import torch

from labkit.testing.attention.backward_mistakes import gradients_by_formulas, lse_mistakes_of
from labkit.testing.attention.cases import Case
from labkit.testing.rings import LAYOUTS, positions, sent_bytes
from labkit.testing.wording import dtype_name

from .reference import FORWARD

OF_NEIGHBOURS = "what comes back is taken for that of heads r · H / P and those that follow"


def of_result(case, names, name):
    """One result of a case as usual mistakes have it; `names` are those of its pass."""
    known = forward_mistakes(case) if names == FORWARD else backward_mistakes(case)
    found = {text: partial(_result, case, made, name) for text, made in known.items()}
    if name == "lse":
        found |= lse_mistakes_of(case.whole)
        if case.Q.dtype != case.whole.precise:
            rounded = torch.as_tensor(case.whole.want["L"]).to(case.Q.dtype).double()
            found[f"lse is right and was {dtype_name(case.Q.dtype)} on its way"] = lambda: rounded
    return found


def _result(case, made, name):
    return case.result(name, made())


def forward_mistakes(case):
    """Usual mistakes of a forward pass, and what computes the results of each."""
    found = {text: partial(case.whole.results, hidden=hidden) for text, hidden in _hidden_mistakes(case).items()}
    modulo = case.reading(torch.arange(case.Q.shape[-3]) % case.K.shape[-3])
    found["query head h reads key head h % H_kv instead of h // group"] = modulo.results
    found["the outputs of the blocks are averaged, each with the same weight"] = partial(_averaged, case)
    found["the outputs of the blocks are added, each with the weight 1"] = partial(_averaged, case, case.world_size)
    found["what was summed before is not rescaled when the next block comes"] = partial(_not_rescaled, case)
    text = "a block's output is added with the weight 1: its weight is exp(its lse − the lse so far)"
    found[text] = partial(_not_rescaled, case, forgotten=True)
    found["the keys of all ranks are met, and each with a value of the rank's own"] = partial(_own_values, case)
    if case.layout != "contiguous":
        order, want = np.concatenate(case.places).argsort(), case.whole.want
        text = "the rows are cut for the ranks as if the layout were 'contiguous'"
        found[text] = lambda: {"O": want["O"][..., order, :], "L": want["L"][..., order]}
        text = "the ranks' tokens are put behind one another and taken for the sequence"
        found[text] = partial(_behind_one_another, case)
    n_heads, n_key_heads, P = case.Q.shape[-3], case.K.shape[-3], case.world_size
    if P > 1 and n_key_heads % P == 0:
        mine = torch.arange(n_heads).view(-1, P).T.flatten()
        text = f"each rank attends with every P-th head, and {OF_NEIGHBOURS}"
        found[text] = partial(_of_heads, case, mine, mine % P + P * (mine // P // (n_heads // n_key_heads)))
    return found


def _own_values(case):
    """The results where key number l of a block comes with the value number l of the query's own rank."""
    weights, V = case.whole.want["P"], case.whole.exact_inputs[2]
    O = np.empty_like(case.whole.want["O"])
    local = np.concatenate(case.places).argsort() % (case.n_tokens // case.world_size)
    for mine in case.places:
        O[..., mine, :] = weights[..., mine, :] @ V[..., mine, :][..., local, :]
    return case.whole.want | {"O": O}


def _behind_one_another(case):
    """The results where place p of the sequence holds token p of the ranks' tokens, one rank after the other."""
    order = torch.from_numpy(np.concatenate(case.places))
    whole = case.whole
    Q, K, V, dO = (x.index_select(-2, order) for x in (whole.Q, whole.K, whole.V, whole.dO))
    return Case(Q, K, V, dO, causal=case.causal).want


def _of_heads(case, queries, keys):
    """The results where place h has those of the query head queries[h] on the key head keys[h]."""
    Q, K, V, dO = case.Q[..., queries, :, :], case.K[..., keys, :, :], case.V[..., keys, :, :], case.dO
    return Case(Q, K, V, dO, causal=case.causal).want


def backward_mistakes(case):
    """Usual mistakes of a backward pass that is given the right o and lse, and what computes the results."""
    back = partial(gradients_by_formulas, case.whole)
    others = (case.owner != case.owner[:, None]) | case.whole.hidden
    found = {text: partial(back, hidden=hidden) for text, hidden in _hidden_mistakes(case).items()}
    if case.layout == "zigzag" and case.causal:
        n_runs = 2 * case.world_size
        early = np.arange(case.n_tokens) // (case.n_tokens // n_runs) < case.world_size
        text = "what a rank's second run of queries gives replaces what the first has given to dK and dV"
        found[text] = lambda: back(hidden=case.whole.hidden | early[:, None]) | {"dQ": case.whole.want["dQ"]}
    if case.Q.shape == case.K.shape == case.V.shape:
        want = case.whole.want
        turned = {"dQ": want["dK"], "dK": want["dV"], "dV": want["dQ"]}
        found["the gradients come in another order: the result is (dq, dk, dv)"] = lambda: turned
    group = case.Q.shape[-3] // case.K.shape[-3]
    if group > 1:
        found["dK and dV are means over the query heads of a group: they are sums"] = lambda: (
            case.whole.want | {name: case.whole.want[name] / group for name in ("dK", "dV")}
        )
    return found | {
        "D is left out: dS = P ∘ (dP − D)": partial(back, D=np.zeros(())),
        "dS is not multiplied by 1/√d on its way into it": partial(back, in_dS=1.0),
        "dK and dV come home one hop short: a rank returns those of the next rank's keys": partial(_moved, case, 1),
        "dK and dV go one hop too far: a rank returns those of the rank before": partial(_moved, case, -1),
        "a rank returns dK and dV from its own queries alone: the sums must travel with their block": lambda: (
            back(hidden=others) | {"dQ": case.whole.want["dQ"]}
        ),
        "each block has weights of its own, from its own log-sum-exp: it is that of the whole row": (
            partial(_block_by_block, case)
        ),
        "dK and dV are sent to rank r − 1, and their blocks go to r + 1": partial(_sums_sent_back, case),
    }


def _hidden_mistakes(case):
    """Usual mistakes with what a query sees: the pairs hidden then, in the order of the sequence."""
    owner, mine, token, P = case.owner, case.owner[:, None], np.arange(case.n_tokens), case.world_size
    later = case.whole.hidden
    found = {
        "one block is missing: all P blocks count, the own one and those of P − 1 hops": later
        | (owner == (mine + 1) % P),
        "a rank sees its own keys alone": later | (owner != mine),
    }
    if not case.causal:
        found["causal is True where it is left out: its default is False"] = token > token[:, None]
    else:
        local, held = np.concatenate(case.places).argsort() % (case.n_tokens // P), np.stack(case.places)
        found["causal is ignored"] = np.zeros_like(later)
        found["a query does not see the key at its own position: it sees j ≤ i"] = token >= token[:, None]
        found["positions are compared inside the shards, not in the whole sequence"] = local > local[:, None]
        text = "after t hops the keys are taken for another rank's: "
        text += "r − 1 sends those of rank r − t, and r + 1 those of rank r + t"
        found[text] = held[(2 * mine - owner) % P, local] > token[:, None]
        text = "the block of rank s is masked as that of rank r − s: a step's number is taken for a rank's"
        found[text] = held[(mine - owner) % P, local] > token[:, None]
        for other in LAYOUTS:
            if other != case.layout and (other != "zigzag" or case.n_tokens % (2 * P) == 0):
                theirs = np.stack(positions(case.n_tokens, P, other))[owner, local]
                text = f"positions are those of the layout {other!r}, and the shards are {case.layout!r}"
                found[text] = theirs > theirs[:, None]
    return found


def _blocks(case):
    """For each rank, what is hidden where its keys alone are seen, and the results then."""
    others = [case.whole.hidden | (case.owner != rank) for rank in range(case.world_size)]
    return [(hidden, case.whole.results(hidden=hidden)) for hidden in others]


def _not_rescaled(case, forgotten=False):
    """Block by block in the order of the steps: each output weighs exp(its lse − the lse so far), for good.

    With `forgotten` what was summed before is rescaled, and a block's output weighs 1.
    """
    blocks, P = _blocks(case), case.world_size
    so_far, total = -np.inf, 0.0
    for step in range(P):
        sources = (case.owner - step) % P
        lse = np.choose(sources, [results["L"] for _, results in blocks])
        output = np.choose(sources[:, None], [results["O"] for _, results in blocks])
        before, so_far = so_far, np.logaddexp(so_far, lse)
        if forgotten:
            total = total * np.nan_to_num(np.exp(before - so_far))[..., None] + output
        else:
            total = total + np.nan_to_num(output * np.exp(lse - so_far)[..., None])
    return {"O": total, "L": case.whole.want["L"]}


def _averaged(case, times=1):
    outputs = [results["O"] for _, results in _blocks(case)]
    return {"O": np.mean(outputs, 0) * times, "L": case.whole.want["L"] * np.nan}


def _block_by_block(case):
    """The gradients added up over blocks whose weights come from their own log-sum-exp."""
    parts = []
    for hidden, results in _blocks(case):
        lse = np.where(np.isneginf(results["L"]), 0, results["L"])
        parts.append(gradients_by_formulas(case.whole, hidden=hidden, L=lse))
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def _sums_sent_back(case):
    """The gradients where the sums go from rank to rank against their blocks.

    Rank r gets from r + 1 what that had after its step before, and adds its own of the block at hand: what comes home
    holds, for each t, what rank r + 1 + t has computed for the block of rank r + 2 + 2t.
    """
    P, found = case.world_size, {name: x.copy() for name, x in case.whole.want.items()}
    of_rank = [
        gradients_by_formulas(case.whole, hidden=case.whole.hidden | (case.owner != rank)[:, None]) for rank in range(P)
    ]
    for rank, mine in enumerate(case.places):
        for name in ("dK", "dV"):
            found[name][..., mine, :] = sum(
                of_rank[(rank + 1 + t) % P][name][..., case.places[(rank + 2 + 2 * t) % P], :] for t in range(P)
            )
    return found


def _moved(case, by):
    """The gradients, with dK and dV of another rank's tokens."""
    others = np.concatenate([*case.places[by:], *case.places[:by]])[np.concatenate(case.places).argsort()]
    want = case.whole.want
    return want | {name: want[name][..., others, :] for name in ("dK", "dV")}


def traffic_mistakes(case, sizes, want, method, backward):
    """Usual mistakes with what a rank sends, and the bytes of each."""
    P, batch, e = case.world_size, int(np.prod(case.Q.shape[:-3])), case.Q.itemsize
    n_numbers = (case.K.numel() + case.V.numel()) // P
    mistakes = {
        f"keys and values are converted to float{8 * width} before they travel": batch
        * sent_bytes(sizes._replace(dtype_bytes=width), backward)
        for width in (4, 8)
    }
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
    return mistakes


def layout_mistakes(n_tokens, world_size, layout):
    """Usual mistakes with who holds which tokens."""
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
    return mistakes


def work_mistakes(want, seq_len, world_size):
    """Usual mistakes of `causal_work`, and the counts of each."""
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
    return mistakes


def byte_mistakes(sizes, want, backward):
    """Usual mistakes of `communication_bytes`, and the bytes of each."""
    method, P, seq_len, heads, kv_heads, d, e = sizes
    n, hops, sums = seq_len // P, P - 1, max(e, 4)
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
    return mistakes
