"""What usual mistakes of Lab 15 lead to: the sentence that the student reads, and the value that comes out."""

import torch

from .reference import common_hit, cost, delta_rule, replay_of, speculative

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


def of_rule(name, inputs, state, chunk=None):
    """What each usual mistake of the rule gives for "o" or "state"; and those of chunks, where there are any."""
    part, n = ("o", "state").index(name), inputs[0].shape[-2]
    usual = {text: delta_rule(*inputs, state, variant=variant)[part] for text, variant in RULE.items()}
    if chunk is not None and n > chunk:
        alone = [delta_rule(*cut(inputs, at, at + chunk), state) for at in range(0, n, chunk)]
        text = "every chunk begins with the first state: none hands its own on"
        usual[text] = alone[-1][1] if part else torch.cat([o for o, _ in alone], -2)
    if chunk is not None and part and n % chunk:
        whole = cut(inputs, 0, n // chunk * chunk)
        usual["the last chunk, which is short, is left out"] = delta_rule(*whole, state)[1]
    return usual


def cut(inputs, start, end):
    """Tokens of q, k and v, along the axis before the last, and of beta and g, along the last."""
    return [x[..., start:end, :] if i < 3 else x[..., start:end] for i, x in enumerate(inputs)]


def of_replay(tokens, kept):
    """What wrong counts of the tokens computed again are."""
    above = [min([c for c in [0, *kept] if c >= p], default=tokens) - p for p in range(tokens + 1)]
    return {
        "the state is taken from the checkpoint above the position: it contains tokens that come later": above,
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


def of_sampling(scores, temperature, drafts, u):
    """What each usual mistake gives for scores of target and draft model."""
    warm, cold = ([torch.softmax(x / each, -1).tolist() for x in scores] for each in (temperature, 1))
    usual = {text: speculative(*warm, drafts, u, variant) for text, variant in SAMPLING.items()}
    if temperature != 1:
        usual["the temperature is left out: it belongs to both models"] = speculative(*cold, drafts, u)
        usual["the temperature is left out of the residual"] = speculative(*warm, drafts, u, residual=cold)
    return usual


def of_cost(given):
    """What each usual mistake gives: bytes and tokens."""
    method, tokens, state_bytes, update_bytes, block, chunk, shared, drafts, accepted = given
    stored, again = cost(given)
    by_chunk = method != "all"
    apart = chunk // block * block if by_chunk else block
    replay, rest = shared % apart, again - shared % apart
    uncut = (tokens // chunk - tokens // apart) * state_bytes, shared % chunk - replay
    return {
        "the running state is left out": (stored - state_bytes, again),
        "a state is stored for the last block too, which is not full":
            (stored + (-(-tokens // apart) - tokens // apart) * state_bytes, again),
        "nothing is stored for the drafts": (cost((*given[:7], 0, 0))[0], again),
        "a state is stored for drafts where there are none": (stored + state_bytes * (by_chunk and not drafts), again),
        "what the drafts wrote is left out": (stored - drafts * update_bytes * (method == "ring"), again),
        "a chunk that is no multiple of the block is not cut":
            (stored + uncut[0] * by_chunk, again + uncut[1] * by_chunk),
        "the state is taken from the block above": (stored, -shared % apart + rest),
        "the rejected drafts are counted, and not the accepted ones":
            (stored, replay + (drafts - accepted) * (method == "align")),
        "the accepted drafts are left out: align computes them again": (stored, replay),
        "accepted drafts are counted although the state needs nothing":
            (stored, replay + accepted * (by_chunk and accepted < drafts)),
    }  # fmt: skip
