"""Lab 15's references: each task in float64 or in plain loops, independent of the solution, and drawn inputs."""

from __future__ import annotations

import itertools

import torch


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
    rows = [v[..., :0, :]]
    for t in range(k.shape[-2]):
        alpha = g[..., t].exp()[..., None, None]
        if variant == "g as the decay":
            alpha = g[..., t][..., None, None]
        key, value = k[..., t, :, None], v[..., t, None, :]
        decayed = S if variant == "decay left out" else alpha * S
        read = key.mT @ (S if variant == "read before the decay" else decayed)
        if variant == "no difference":
            read = 0 * read
        strength = beta[..., t, None, None]
        if variant == "beta for the value alone":
            written = key @ (strength * value - read)
        elif variant == "beta left out":
            written = key @ (value - read)
        else:
            written = key @ (strength * (value - read))
        S = decayed + written
        seen = decayed if variant == "output before the write" else S
        row = q[..., t, None, :] @ seen
        rows.append(row * q.shape[-1] ** -0.5 if variant == "scaled" else row)
    return torch.cat(rows, -2), S


def in_chunks(q, k, v, beta, g, state, chunk, precise):
    """The same in chunks, with the triangular system solved row by row: what plain code in this form loses."""
    q, k, v, beta, g = (x.to(precise) for x in (q, k, v, beta, g))
    S = torch.zeros(*k.shape[:-2], k.shape[-1], v.shape[-1], dtype=precise)
    if state is not None:
        S = S + state.to(precise)
    pieces = [v[..., :0, :]]
    for start in range(0, k.shape[-2], chunk):
        at = slice(start, start + chunk)
        K, sums = k[..., at, :], g[..., at].cumsum(-1)
        decays = (sums[..., :, None] - sums[..., None, :]).tril().exp().tril()
        right = beta[..., at, None] * (v[..., at, :] - sums.exp()[..., None] * (K @ S))
        rows = []
        for i in range(K.shape[-2]):
            row = right[..., i, :]
            for j in range(i):
                weight = beta[..., start + i] * decays[..., i, j] * (K[..., i, :] * K[..., j, :]).sum(-1)
                row = row - weight[..., None] * rows[j]
            rows.append(row)
        written = torch.stack(rows, -2)
        Q = q[..., at, :]
        pieces.append(sums.exp()[..., None] * (Q @ S) + (Q @ K.mT * decays) @ written)
        S = sums[..., -1, None, None].exp() * S + (K * (sums[..., -1:] - sums).exp()[..., None]).mT @ written
    return torch.cat(pieces, -2), S


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
    limit = tokens - 1 if variant == "drafts counted" else tokens - drafts - 1
    if variant == "nothing left to compute":
        limit = tokens - drafts
    if variant == "minimum":
        return min((common_hit(([group], tokens, drafts)) for group in groups), default=max(limit, 0))
    if variant == "first group alone":
        groups = groups[:1]
    best = 0
    for hit in range(1, limit + 1):
        if all(has(group, hit, variant) for group in groups):
            best = hit
    return best


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


def speculative(p, q, drafts, u, variant=""):
    """Algorithm 1 on probabilities, as plain loops over lists; `variant` names a mistake to make."""
    n = len(drafts)
    for i, token in enumerate(drafts):
        stays = u[i] * q[i][token] < p[i][token]
        if variant == "ratio turned":
            stays = u[i] * p[i][token] < q[i][token]
        if variant == "all accepted":
            stays = True
        if not stays:
            weights = [max(0.0, a - b) for a, b in zip(p[i], q[i], strict=True)]
            if variant == "no residual":
                weights = p[i]
            number = u[i] if variant == "same u" else u[n]
            return [*drafts[:i], inverse(weights, number)]
    if variant == "no bonus":
        return list(drafts)
    return [*drafts, inverse(p[n], u[n])]


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
    n_states = len(kept) + 1 + {"align": min(drafts, 1), "all": drafts, "ring": min(drafts, 1)}[method]
    updates = drafts if method == "ring" else 0
    again = replay_of(tokens, kept)[shared]
    second_pass = range(accepted) if method == "align" and drafts != accepted else ()
    return n_states * state_bytes + updates * update_bytes, again + len(second_pass)
