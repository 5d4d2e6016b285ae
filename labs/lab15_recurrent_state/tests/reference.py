"""Lab 15's references: each task in float64 or in plain loops, independent of the solution, and drawn inputs."""

import itertools

import torch

from labkit.testing.compare import Tolerance

OF_RULE, OF_STATE = Tolerance(), Tolerance(largest=1.0)
OF_CHUNKS = OF_RULE.times(2)  # the baseline goes token by token: a triangular system loses more


def drawn_tokens(rng, *shape, n, d_k, d_v, dtype=torch.float32, decay=1.0, offset=0.0):
    """q, k (normalised), v, beta and g of n tokens; g is between −decay and 0."""

    def normal(*more):
        return torch.from_numpy(rng.standard_normal((*shape, n, *more)))

    q, k = (torch.nn.functional.normalize(normal(d_k), dim=-1) for _ in range(2))
    beta = torch.from_numpy(rng.uniform(0.1, 1, (*shape, n)))
    g = -decay * torch.from_numpy(rng.uniform(0, 1, (*shape, n)))
    return tuple(x.to(dtype) for x in (q, k, normal(d_v) + offset, beta, g))


def delta_rule(q, k, v, beta, g, state, precise=torch.float64, variant=""):
    """The rule token by token, as vectors; `variant` names a mistake to make. Returns (o, state)."""
    q, k, v, beta, g = (x.to(precise) for x in (q, k, v, beta, g))
    S = torch.zeros(*k.shape[:-2], k.shape[-1], v.shape[-1], dtype=precise)
    if state is not None and variant != "state ignored":
        S = S + state.to(precise)
    decays = {"g as the decay": g, "decay left out": torch.ones_like(g)}.get(variant, g.exp())
    strengths = torch.ones_like(beta) if variant == "beta left out" else beta
    rows = [v[..., :0, :]]
    for t in range(k.shape[-2]):
        key, value, strength = k[..., t, :, None], v[..., t, None, :], strengths[..., t, None, None]
        decayed = decays[..., t, None, None] * S
        read = key.mT @ (S if variant == "read before the decay" else decayed)
        if variant == "no difference":
            read = 0 * read
        written = strength * (value - read)
        if variant == "beta for the value alone":
            written = strength * value - read
        S = decayed + key @ written
        rows.append(q[..., t, None, :] @ (decayed if variant == "output before the write" else S))
    return torch.cat(rows, -2) * (q.shape[-1] ** -0.5 if variant == "scaled" else 1), S


def best_worst_replay(tokens, every, n_states):
    """The least possible largest replay, over all choices of at most n_states positions: by exhaustion."""
    positions = range(every, tokens + 1, every)
    choices = itertools.combinations(positions, min(n_states, len(positions)))
    return min(max(replay_of(tokens, kept)) for kept in choices)


def replay_of(tokens, kept):
    """Tokens from the last kept position to each position."""
    return [p - max([0, *(c for c in kept if c <= p)]) for p in range(tokens + 1)]


def common_hit(asked, variant=""):
    """The longest common prefix of (groups, tokens, drafts), by trying all; `variant` names a mistake to make."""
    groups, tokens, drafts = asked
    limit = tokens - 1 - drafts * (variant != "drafts counted") + (variant == "nothing left to compute")
    if variant == "minimum":
        return min((common_hit(([group], tokens, drafts)) for group in groups), default=max(limit, 0))
    asked_groups = groups[:1] if variant == "first group alone" else groups
    hits = [hit for hit in range(1, limit + 1) if all(has(group, hit, variant) for group in asked_groups)]
    return max(hits, default=0)


def has(group, hit, variant):
    """Whether a group has a prefix of `hit` tokens."""
    kind, block, held = group
    blocks = range(-(-hit // block))
    if hit % block and variant != "part of a block":
        return False
    if kind == "attention" and variant in ("last attention block alone", "states alone"):
        return variant == "states alone" or blocks[-1] in held
    if kind == "state" and variant == "block above":
        return blocks[-1] + 1 in held
    if kind == "state" and variant != "all states":
        return blocks[-1] in held
    return all(b in held for b in blocks)


def drawn_groups(rng, n_groups=3, tokens=60):
    """Groups with blocks of 2 to 6 tokens, where a few blocks have been evicted."""
    groups = []
    for i in range(n_groups):
        block = int(rng.choice([2, 3, 4, 6]))
        kind, lost = ("attention", 0.03) if i == 0 or rng.random() < 0.5 else ("state", 0.5)
        groups.append((kind, block, {b for b in range(tokens // block + 1) if rng.random() > lost}))
    return groups


def speculative(p, q, drafts, u, variant="", residual=None):
    """Algorithm 1 on lists; `variant` names a mistake to make, `residual` is a pair (p, q) to make the residual of."""
    n = len(drafts)
    for i, token in enumerate(drafts):
        stays = u[i] * q[i][token] < p[i][token]
        if variant == "ratio turned":
            stays = u[i] * p[i][token] < q[i][token]
        if not stays and variant != "all accepted":
            weights = [max(0.0, float(a - b)) for a, b in zip(*(x[i] for x in residual or (p, q)), strict=True)]
            if variant == "no residual":
                weights = p[i]
            return [*drafts[:i], inverse(weights, u[i] if variant == "same u" else u[n])]
    return list(drafts) if variant == "no bonus" else [*drafts, inverse(p[n], u[n])]


def inverse(weights, u):
    """The first token whose cumulative share is above u."""
    total, reached = sum(weights), 0.0
    for token, weight in enumerate(weights):
        reached += weight
        if reached > u * total:
            return token
    return max(token for token, weight in enumerate(weights) if weight > 0)


def cost(given):
    """Bytes and tokens by counting positions one by one; `given` is what `replay_cost` takes, in one tuple."""
    method, tokens, state_bytes, update_bytes, block, chunk, shared, drafts, accepted = given
    apart = block if method == "all" else max(n for n in range(block, chunk + 1) if n % block == 0)
    kept = [p for p in range(1, tokens + 1) if p % apart == 0]
    n_states = len(kept) + 1 + (drafts if method == "all" else min(drafts, 1))
    second_pass = range(accepted) if method == "align" and drafts != accepted else ()
    n_updates = drafts if method == "ring" else 0
    return n_states * state_bytes + n_updates * update_bytes, replay_of(tokens, kept)[shared] + len(second_pass)


REJECTED = "the rejected drafts are still in the state"
ACCEPTED = "the accepted drafts are not in the state: it is that of before the drafts"


def contents(calls, every):
    """What each sequence holds after calls of a cache, what `restore` returns, and the position that it may look up to.

    Tokens are numbered as they are appended. A sequence is a dict: "" leads to the numbers of its tokens, the name of a
    mistake to those of the tokens that are then in its state.
    """
    held, lengths, asked, n_drafts, n_tokens = {}, [], [], {}, 0
    for name, (seq, *args), _ in filter(lambda call: not call[2], calls):
        mine = held.setdefault(seq, {"": [], REJECTED: [], ACCEPTED: []})
        right = mine[""]
        if name == "append":
            n = args[0].shape[1]
            for numbers in mine.values():
                numbers += range(n_tokens, n_tokens + n)
            n_drafts[seq], n_tokens = n if args[-1] else 0, n_tokens + n
        elif name == "rollback":
            n = n_drafts.pop(seq)
            for text, numbers in mine.items():
                del numbers[len(numbers) - {REJECTED: 0, ACCEPTED: n}.get(text, n - args[0]) :]
        elif name == "fork":
            held[args[0]] = {text: list(numbers) for text, numbers in mine.items()}
        elif name == "restore":
            asked.append(min(args[1], len(right)))
            length = min(args[1], len(right) - n_drafts.get(seq, 0)) // every * every
            lengths.append(length)
            others = [each[""][:length] for each in held.values() if each[""][:length] != right[:length]]
            held[args[0]] = {
                "": right[:length],
                REJECTED: right[:length],
                ACCEPTED: right[:length],
                "the checkpoint is the state where the append ended, and not where the block ends": list(right),
                "the state is that of the checkpoint above: it contains later tokens": right[: length + every],
                "the checkpoint contains drafts that were rejected": mine[REJECTED][:length],
                "the checkpoint is that of the other sequence: a fork has a list of checkpoints of its own":
                    [*others, right[:length]][0],
            }  # fmt: skip
        else:
            del held[seq]
    return held, lengths, asked
