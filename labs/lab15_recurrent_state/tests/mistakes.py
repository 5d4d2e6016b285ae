"""What usual mistakes of Lab 15 lead to: the sentence that the student reads, and the value that comes out."""

from __future__ import annotations

import math

import torch

from .reference import common_hit, cost, delta_rule, replay_of

RULE = {
    "the state is not decayed by exp(g)": "decay left out",
    "g is taken for the decay itself: the decay is exp(g)": "g as the decay",
    "the state is read before it decays": "read before the decay",
    "v itself is written, and not its difference to what the state has for the key": "no difference",
    "β is applied to v alone, and not to the difference v − r": "beta for the value alone",
    "β is left out": "beta left out",
    "the output is read before the token is written": "output before the write",
    "the result is scaled by 1/√d, which the handout leaves out": "scaled",
    "the state that is given is ignored: the sequence begins anew": "state ignored",
}


def of_rule(inputs, state):
    """For o and the state, what each usual mistake of the rule gives."""
    made = {text: delta_rule(*inputs, state, variant=variant) for text, variant in RULE.items()}
    names = ("o", "state")
    return {name: {text: pair[i] for text, pair in made.items()} for i, name in enumerate(names)}


def of_chunks(inputs, state, chunk):
    """As `of_rule`, and what comes out if chunks do not hand on their state, or if only whole chunks are computed."""
    usual, n = of_rule(inputs, state), inputs[0].shape[-2]
    alone = "every chunk begins with the first state: none hands its own on"
    starts = range(0, n, chunk)
    o = [delta_rule(*(cut(x, i, at, at + chunk) for i, x in enumerate(inputs)), state) for at in starts]
    if len(o) > 1:
        usual["o"][alone], usual["state"][alone] = torch.cat([x for x, _ in o], -2), o[-1][1]
    if n % chunk:
        whole = n // chunk * chunk
        _, short = delta_rule(*(cut(x, i, 0, whole) for i, x in enumerate(inputs)), state)
        usual["state"]["the last chunk, which is short, is left out"] = short
    return usual


def cut(x, number, start, end):
    """Tokens of q, k, v (along the axis before the last) or of beta and g (along the last)."""
    return x[..., start:end, :] if number < 3 else x[..., start:end]


def of_replay(tokens, kept):
    """What wrong counts of the tokens computed again are."""
    above = [min([c for c in [0, *kept] if c >= p], default=tokens) - p for p in range(tokens + 1)]
    return {
        "the state is taken from the checkpoint above the position: it contains tokens that come later": above,
        "nothing is computed again only at the last checkpoint: those before it are not used":
            [p - (kept[-1] if kept and p >= kept[-1] else 0) for p in range(tokens + 1)],
        "one token too many is computed again": [n + 1 for n in replay_of(tokens, kept)],
    }  # fmt: skip


HITS = {
    "the hit counts the drafts: they are not verified": "drafts counted",
    "nothing is left to be computed: the last verified token's scores are needed": "nothing left to compute",
    "the smallest of the groups' own hits is taken: a group with a state may have none there": "minimum",
    "only the first group is asked: what another one has lost to eviction is ignored": "first group alone",
    "only the states are asked: attention's evicted blocks are ignored": "states alone",
    "of attention only the last block is asked: one before it has been evicted": "last attention block alone",
    "the state is restored at the block above the hit: it contains later tokens": "block above",
    "every block of a state must be held: the last one is enough": "all states",
    "a hit ends inside of a block": "part of a block",
}


def of_hit(asked):
    """What each usual mistake gives for (groups, tokens, drafts)."""
    return {text: common_hit(asked, variant) for text, variant in HITS.items()}


def recurring(usual, asked, function, right, cases):
    """Of `usual(asked)` what fits best to all of the cases, and to most wrong results: one number may be chance."""
    made, seen = usual(asked), [(function(case), right(case), usual(case)) for case in cases]
    half = sum(got != want for got, want, _ in seen) / 2
    often = [text for text in made if sum(other[text] == got != want for got, want, other in seen) > half]
    fits = [sum(other[text] == got for got, _, other in seen) for text in often]
    return {text: made[text] for text, fit in zip(often, fits, strict=True) if fit == max(fits)}


SAMPLING = {
    "the replacement comes from p, and not from the residual max(0, p − q)": "no residual",
    "the replacement is drawn with the u that has rejected the draft: take u[n]": "same u",
    "drafts stay if u · p < q: the ratio is turned round": "ratio turned",
    "every draft stays": "all accepted",
    "no token is drawn after n accepted drafts": "no bonus",
}


def of_cost(given):
    """What each usual mistake gives, for bytes and for tokens."""
    method, tokens, state_bytes, update_bytes, block, chunk, shared, drafts, accepted = given
    stored, again = cost(given)
    apart = block if method == "all" else chunk // block * block
    rounded = (math.ceil(tokens / apart) + 1) * state_bytes + stored - (tokens // apart + 1) * state_bytes
    other = "all" if method == "align" else "align"
    bytes_ = {
        "the running state is left out": stored - state_bytes,
        "a state is stored for the last block too, which is not full": rounded,
        "nothing is stored for the drafts": cost((*given[:7], 0, 0))[0],
        "a state is stored for drafts where there are none": stored + state_bytes * (method != "all" and not drafts),
        "what the drafts wrote is left out": stored - (drafts * update_bytes if method == "ring" else 0),
        f"that is {other!r}": cost((other, *given[1:]))[0],
        "a chunk that is no multiple of the block is not cut":
            stored + (tokens // chunk - tokens // apart) * state_bytes * (method != "all"),
    }  # fmt: skip
    tokens_ = {
        "the state is taken from the block above": (-shared) % apart,
        "a chunk that is no multiple of the block is not cut":
            again - shared % apart + shared % (block if method == "all" else chunk),
        "all of the prefix is computed again": shared + again - shared % apart,
        "the rejected drafts are counted, and not the accepted ones":
            shared % apart + (drafts - accepted) * (accepted < drafts),
        "the accepted drafts are left out: align computes them again": shared % apart,
        "accepted drafts are counted although the state needs nothing": shared % apart + accepted,
    }  # fmt: skip
    return bytes_, tokens_
