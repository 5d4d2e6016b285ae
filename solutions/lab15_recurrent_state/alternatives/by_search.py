"""The plan by a search over the largest replay; sampling by exponential races of sums; the rule by matrix products."""

import torch


def gated_delta_recurrent(q, k, v, beta, g, state):
    _check_tokens(q, k, v, beta, g, state)
    kind = _precise(v)
    S, rows = _start(k, v, state), [v[..., :0, :]]
    for Q, K, V, b, log in zip(*(x.to(kind).unbind(-2) for x in (q, k, v)), beta.to(kind).unbind(-1),
                               g.to(kind).unbind(-1), strict=True):  # fmt: skip
        S = S * log.exp()[..., None, None]
        read = (K[..., None, :] @ S)[..., 0, :]
        S = S + K[..., :, None] @ (b[..., None] * (V - read))[..., None, :]
        rows.append((Q[..., None, :] @ S).to(v.dtype))
    return torch.cat(rows, -2), S


def checkpoint_plan(tokens, every, state_bytes, budget_bytes):
    given = {"tokens": tokens, "every": every - 1, "state_bytes": state_bytes - 1, "budget_bytes": budget_bytes}
    for name, value in given.items():
        if value < 0:
            raise ValueError(f"{name} is too small: {value + (name in ('every', 'state_bytes'))}")
    n_states = budget_bytes // state_bytes
    for largest in range(tokens + 1):
        kept, last = [], 0
        while tokens - last > largest and len(kept) < n_states:
            last += (largest + 1) // every * every
            if last > tokens or (kept and last == kept[-1]) or last == 0:
                break
            kept.append(last)
        if tokens - (kept[-1] if kept else 0) <= largest:
            break
    replay, at = [], 0
    for position in range(tokens + 1):
        at = 0 if position in kept else at + (position > 0)
        replay.append(at)
    return kept, replay


def accept_drafts(target_scores, draft_scores, drafts, u, temperature):
    if temperature < 0:
        raise ValueError(f"temperature {temperature}")
    n, vocab = len(drafts), target_scores.shape[1]
    if len(target_scores) != n + 1 or tuple(draft_scores.shape) != (n, vocab) or len(u) != n + 1:
        raise ValueError(f"{tuple(target_scores.shape)}, {tuple(draft_scores.shape)}, {tuple(u.shape)} for {n} drafts")

    def shares(scores):
        scores = scores.double().tolist()
        most = max(scores)
        if temperature == 0:
            return [float(i == scores.index(most)) for i in range(vocab)]
        powers = torch.exp((torch.tensor(scores, dtype=torch.float64) - most) / temperature)
        return (powers / powers.sum()).tolist()

    tokens, weights = [], None
    for i in range(n):
        p, q = shares(target_scores[i]), shares(draft_scores[i])
        if float(u[i]) * q[drafts[i]] >= p[drafts[i]]:
            weights = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
            break
        tokens.append(drafts[i])
    weights = shares(target_scores[n]) if weights is None else weights
    left, last = float(u[n]) * sum(weights), 0
    for token, weight in enumerate(weights):
        if weight > 0:
            last = token
            if left < weight:
                break
        left -= weight
    return [*tokens, last]


def replay_cost(method, tokens, state_bytes, update_bytes, block=16, chunk=2048, shared=0, drafts=0, accepted=0):
    if method not in ("align", "all", "ring"):
        raise ValueError(f"method {method}")
    if block < 1 or chunk < block:
        raise ValueError(f"chunk {chunk}, block {block}")
    if shared not in range(tokens + 1):
        raise ValueError(f"shared {shared} of {tokens}")
    if accepted not in range(drafts + 1):
        raise ValueError(f"accepted {accepted} of {drafts}")
    distance = block if method == "all" else chunk - chunk % block
    extra = {"align": min(drafts, 1), "all": drafts, "ring": min(drafts, 1)}[method]
    updates = update_bytes * drafts if method == "ring" else 0
    twice = accepted if method == "align" and accepted != drafts else 0
    return (1 + extra + tokens // distance) * state_bytes + updates, shared - shared // distance * distance + twice
