"""Lab 15: a recurrent state next to a cache: the gated delta rule, checkpoints, common prefixes, drafts taken back."""

import torch

METHODS = ("align", "all", "ring")


def gated_delta_recurrent(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule token by token (Gated DeltaNet: Yang, Kautz and Hatamizadeh 2024).

    For each token t, with S the state before it: S decays to exp(g_t) · S; the rule reads what the decayed state has
    for the key, r = Sᵀ k_t; it writes the difference, S ← S + β_t · k_t (v_t − r)ᵀ; and the output is o_t = Sᵀ q_t.
    Nothing is scaled or normalised: the caller has done both.

    Args:
        q, k: (..., N, d_k). v: (..., N, d_v). N may be 0.
        beta: (..., N), how much of the difference is written. g: (..., N), the natural log of the decay, finite.
        state: (..., d_k, d_v), before the first token; None stands for zeros. It is not changed.

    Returns:
        (o, state): o (..., N, d_v) in v's dtype, and the state after the last token. The state and all sums are float32
        for half-precision inputs, and in the inputs' dtype otherwise.

    Raises:
        ValueError: naming the shapes, if q and k differ, or v, beta, g or state do not fit k.

    Example:
        d_k = d_v = 1, k = q = 1, v = 4, 4, β = 0.5, g = 0, from no state: S = 2, then 3; o = 2, 3.
    """
    ### BEGIN SOLUTION
    _check_tokens(q, k, v, beta, g, state)
    precise = _precise(v)
    S = _start(k, v, state)
    decay = g.to(precise).exp()
    o = torch.empty_like(v)
    for t in range(k.shape[-2]):
        key = k[..., t, :, None].to(precise)
        S = decay[..., t, None, None] * S
        written = beta[..., t, None, None] * (v[..., t, None, :].to(precise) - (S * key).sum(-2, keepdim=True))
        S = S + key * written
        o[..., t, :] = (S * q[..., t, :, None].to(precise)).sum(-2)
    return o, S
    ### END SOLUTION


def gated_delta_chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor | None,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same result chunk by chunk, each as a few matrix products (the WY form, from the same paper).

    What the tokens of a chunk write depends on what those before them wrote: a triangular system of chunk × chunk.
    When it is solved, the outputs and the next state are matrix products. Chunk c contains the tokens c · chunk to
    (c + 1) · chunk − 1; the last one may be short.

    Args:
        q, k, v, beta, g, state: as in `gated_delta_recurrent`.
        chunk: tokens per chunk, at least 1.

    Returns:
        (o, state), as in `gated_delta_recurrent`. Besides o and its pieces only one chunk's matrices exist at a time.

    Raises:
        ValueError: naming chunk below 1; for shapes, as `gated_delta_recurrent`.

    Example:
        One chunk of two tokens, k = q = 1, v = 4, 4, β = 0.5, g = 0: u_0 = 2 and u_1 + 0.5 · u_0 = 2, so the tokens
        write 2 and 1, and o = 2, 3.
    """
    ### BEGIN SOLUTION
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    _check_tokens(q, k, v, beta, g, state)
    precise = _precise(v)
    S = _start(k, v, state)
    made = [v[..., :0, :]]
    for start in range(0, k.shape[-2], chunk):
        Q, K, V = (x[..., start : start + chunk, :].to(precise) for x in (q, k, v))
        b, logs = (x[..., start : start + chunk].to(precise) for x in (beta, g))
        until = logs.cumsum(-1)
        later = torch.ones(K.shape[-2], K.shape[-2], dtype=torch.bool, device=k.device).triu(1)
        between = (until[..., :, None] - until[..., None, :]).masked_fill(later, -torch.inf).exp()
        system = (b[..., None] * (K @ K.mT) * between).tril(-1)
        right = b[..., None] * (V - until.exp()[..., None] * (K @ S))
        written = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        o = until.exp()[..., None] * (Q @ S) + (Q @ K.mT * between) @ written
        made.append(o.to(v.dtype))
        rest = (until[..., -1:] - until).exp()
        S = until[..., -1, None, None].exp() * S + (K * rest[..., None]).mT @ written
    return torch.cat(made, -2), S
    ### END SOLUTION


def checkpoint_plan(tokens: int, every: int, state_bytes: int, budget_bytes: int) -> tuple[list[int], list[int]]:
    """Which states of a sequence to store, and how many tokens are computed again from there.

    A state can be stored after each `every` tokens: at the positions every, 2 · every, … up to `tokens`. Position p
    means: after p tokens. No more are stored than fit into the budget. They are chosen so that the largest number of
    tokens that is ever computed again is as small as it can be. The state at position 0 is zeros and costs nothing.

    Args:
        tokens: the length of the sequence, at least 0. every: tokens between two possible states, at least 1.
        state_bytes: one stored state, at least 1. budget_bytes: for all of them, at least 0.

    Returns:
        (kept, replay): the positions stored, ascending; and for each position p from 0 to `tokens`, in a list of
        tokens + 1, how many tokens are computed again to get the state at p from the last one stored at or before p.

    Raises:
        ValueError: naming the argument that is too small.

    Example:
        10 tokens, every 2, two states: 4 and 8. The replay is 0 1 2 3 0 1 2 3 0 1 2, at most 3.
    """
    ### BEGIN SOLUTION
    for name, value, least in (
        ("tokens", tokens, 0),
        ("every", every, 1),
        ("state_bytes", state_bytes, 1),
        ("budget_bytes", budget_bytes, 0),
    ):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    n_states = budget_bytes // state_bytes
    best: list[int] = []
    worst = tokens
    for stride in range(every, tokens + 1, every):
        kept = list(range(stride, tokens + 1, stride))[:n_states]
        longest = max(_replay(tokens, kept))
        if longest < worst:
            best, worst = kept, longest
    return best, _replay(tokens, best)
    ### END SOLUTION


def longest_common_hit(groups: list[tuple[str, int, set[int]]], tokens: int, drafts: int = 0) -> int:
    """The longest prefix of a request that every group of layers can take from the cache.

    Group (kind, block, held) has blocks of `block` tokens, and `held` are the numbers of this request's blocks that are
    in the cache: block b contains the tokens b · block to (b + 1) · block − 1. A group of kind "attention" has a prefix
    of h tokens if h is a multiple of its block and *all* blocks of the prefix are held. In a group of kind "state" a
    block is the state after its last token: it has a prefix if h is a multiple of its block and the *last* block of the
    prefix is held. Every group has the prefix of 0 tokens.

    Args:
        groups: of any number and order; their blocks need not be equally large.
        tokens: the request's tokens, drafts included. drafts: how many of them, at the end, are unverified drafts.

    Returns:
        The number of tokens. At least one verified token is left to be computed, since its scores choose the next
        token: the result is at most tokens − drafts − 1, and 0 if that is below 0.

    Raises:
        ValueError: naming an unknown kind, a block below 1, or drafts outside of 0 to tokens.

    Example:
        40 tokens; attention in blocks of 4 holds 0 to 8; states in blocks of 8 are held for blocks 1 and 3. The state
        after 32 tokens is there and so are attention's blocks 0 to 7: 32. Without attention's block 5: 16.
    """
    ### BEGIN SOLUTION
    if not 0 <= drafts <= tokens:
        raise ValueError(f"drafts must be from 0 to {tokens}, got {drafts}")
    for kind, block, _ in groups:
        if kind not in ("attention", "state"):
            raise ValueError(f"kind {kind!r} is neither attention nor state")
        if block < 1:
            raise ValueError(f"block must be at least 1, got {block}")
    for hit in range(tokens - drafts - 1, 0, -1):
        if all(_has_prefix(group, hit) for group in groups):
            return hit
    return 0
    ### END SOLUTION


def accept_drafts(
    target_scores: torch.Tensor, draft_scores: torch.Tensor, drafts: list[int], u: torch.Tensor, temperature: float
) -> list[int]:
    """Speculative sampling: which drafts stay, and one token more (Leviathan et al. 2023, algorithm 1).

    With p and q the probabilities softmax(scores / temperature) of target and draft model, draft i = 0, 1, … stays if
    u[i] · q_i(draft) < p_i(draft). The first one that does not stay is replaced by a token from the residual
    max(0, p_i − q_i), normalised, and the rest is dropped. If all n stay, one more token comes from p_n. That token is
    the smallest one whose cumulative probability is above u[n]. So the tokens have the target's distribution exactly.

    Args:
        target_scores: (n + 1, V), before softmax: after the text, and after each draft. draft_scores: (n, V), those
            from which the drafts were drawn; −inf is allowed.
        drafts: n tokens; n may be 0. u: (n + 1,), uniform in [0, 1).
        temperature: at least 0, of both models; 0 stands for all probability on the largest score, the first of equals.

    Returns:
        The accepted drafts and one token more: 1 to n + 1 tokens, a list of ints.

    Raises:
        ValueError: naming temperature below 0; naming the shapes, if they do not fit the number of drafts.

    Example:
        V = 2, temperature 1, p_0 = (1/4, 3/4), q_0 = (1/2, 1/2), draft 0. u[0] = 0.4: 0.4 · 1/2 < 1/4, it stays. u[0] =
        0.6: it does not, the residual is (0, 1), and the result is [1].
    """
    ### BEGIN SOLUTION
    n = len(drafts)
    if temperature < 0:
        raise ValueError(f"temperature must be at least 0, got {temperature}")
    shapes = tuple(target_scores.shape), tuple(draft_scores.shape), tuple(u.shape)
    if shapes[0][0] != n + 1 or shapes[1] != (n, shapes[0][1]) or shapes[2] != (n + 1,):
        raise ValueError(f"target_scores, draft_scores and u have shapes {shapes} for {n} drafts")
    p, q = _probabilities(target_scores, temperature), _probabilities(draft_scores, temperature)
    for i, token in enumerate(drafts):
        if u[i].double() * q[i, token] >= p[i, token]:
            return [*drafts[:i], _drawn((p[i] - q[i]).clamp(min=0), u[n])]
    return [*drafts, _drawn(p[n], u[n])]
    ### END SOLUTION


class HybridCache:
    """The cache of two layers: one of attention, in blocks that sequences share, and one with a state.

    Both layers get the same keys and values, float32. Tokens may be appended as drafts; `rollback` then keeps some of
    them, and afterwards everything is as if the others had never been appended. How the state is brought back is free:
    the state before the drafts and what they wrote, or a state after each draft. A checkpoint of the state is stored
    after each `every` verified tokens of a sequence, wherever an append begins and ends.

    Example:
        cache = HybridCache(8, 2, 4, 1, 3, 3). After append("a", …) with 5 tokens and append("a", …, True) with 2
        drafts, length("a") is 7. rollback("a", 1): 6. restore("a", "b", 6) returns 4: "b" is the first 4 tokens.
    """

    def __init__(self, num_blocks: int, block: int, every: int, heads: int, d_k: int, d_v: int) -> None:
        """Allocate blocks of `block` tokens; ValueError naming a size below 1, or `every` if no multiple of block."""
        ### BEGIN SOLUTION
        sizes = {"num_blocks": num_blocks, "block": block, "every": every, "heads": heads, "d_k": d_k, "d_v": d_v}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if every % block:
            raise ValueError(f"every = {every} is no multiple of block = {block}")
        self._block, self._every = block, every
        self._keys = torch.empty(num_blocks, heads, block, d_k)
        self._values = torch.empty(num_blocks, heads, block, d_v)
        self._free = list(range(num_blocks))
        self._owners = [0] * num_blocks
        self._sequences: dict[str, _Sequence] = {}
        ### END SOLUTION

    def append(
        self,
        seq: str,
        k: torch.Tensor,
        v: torch.Tensor,
        beta: torch.Tensor,
        g: torch.Tensor,
        drafts: bool = False,
    ) -> None:
        """Add n ≥ 1 tokens to a sequence, which is new if its name is; as drafts if `drafts`.

        k is (heads, n, d_k), v (heads, n, d_v), beta and g (heads, n). No block that another sequence uses is changed.

        Raises ValueError, and changes nothing: naming drafts, if those of the last append have not been through
        `rollback`; num_blocks, if too few blocks are free; the shapes, if they do not fit.
        """
        ### BEGIN SOLUTION
        n, one = k.shape[-2], (self._keys.shape[1], k.shape[-2])
        for name, x, shape in (
            ("k", k, (*one, self._keys.shape[-1])),
            ("v", v, (*one, self._values.shape[-1])),
            ("beta", beta, one),
            ("g", g, one),
        ):
            if tuple(x.shape) != shape:
                raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {shape}")
        heads, d_k, d_v = self._keys.shape[1], self._keys.shape[-1], self._values.shape[-1]
        record = self._sequences.get(seq) or _Sequence(state=torch.zeros(heads, d_k, d_v))
        if record.pending is not None:
            raise ValueError(f"{seq!r} has drafts that are neither accepted nor taken back")
        self._write(record, k, v)
        self._sequences[seq] = record
        if drafts:
            record.pending = record.state, tuple(x.clone() for x in (k, v, beta, g))
            record.state = _advanced(record.state, k, v, beta, g)
        else:
            self._advance(record, record.length - n, k, v, beta, g)
        ### END SOLUTION

    def rollback(self, seq: str, n_accepted: int) -> None:
        """Keep the first `n_accepted` of the drafts appended last; afterwards they are verified tokens.

        Raises ValueError naming n_accepted outside of 0 to the number of drafts, or seq without drafts.
        """
        ### BEGIN SOLUTION
        record = self._record(seq)
        if record.pending is None:
            raise ValueError(f"{seq!r} has no drafts")
        before, inputs = record.pending
        n_drafts = inputs[0].shape[-2]
        if not 0 <= n_accepted <= n_drafts:
            raise ValueError(f"n_accepted must be from 0 to {n_drafts}, got {n_accepted}")
        start = record.length - n_drafts
        record.length = start + n_accepted
        n_blocks = -(-record.length // self._block)
        self._release(record.table[n_blocks:])
        del record.table[n_blocks:]
        record.state, record.pending = before, None
        k, v, beta, g = inputs
        self._advance(record, start, k[:, :n_accepted], v[:, :n_accepted], beta[:, :n_accepted], g[:, :n_accepted])
        ### END SOLUTION

    def fork(self, seq: str, new: str) -> None:
        """Begin `new` as a copy of all of `seq`, which shares its blocks until one of them writes.

        Raises ValueError naming seq if it is unknown, drafts if it has any, or new if it exists.
        """
        ### BEGIN SOLUTION
        record = self._record(seq)
        if record.pending is not None:
            raise ValueError(f"{seq!r} has drafts that are neither accepted nor taken back")
        self._share(new, record.table, record.length, record.state, record.checkpoints)
        ### END SOLUTION

    def restore(self, seq: str, new: str, position: int) -> int:
        """Begin `new` with the longest prefix of `seq` that has at most `position` tokens and that both layers have.

        The layer with a state has the prefixes that end at a checkpoint, and that of 0 tokens; drafts belong to none.

        Returns:
            The number of its tokens. The caller computes the rest again, and appends it.

        Raises ValueError naming position outside of 0 to length(seq), seq if unknown, or new if it exists.
        """
        ### BEGIN SOLUTION
        record = self._record(seq)
        if not 0 <= position <= record.length:
            raise ValueError(f"position must be from 0 to {record.length}, got {position}")
        n_checkpoints = min(position // self._every, len(record.checkpoints))
        length = n_checkpoints * self._every
        states = [torch.zeros_like(record.state), *record.checkpoints]
        table = record.table[: length // self._block]
        self._share(new, table, length, states[n_checkpoints], record.checkpoints[:n_checkpoints])
        return length
        ### END SOLUTION

    def free(self, seq: str) -> None:
        """Forget a sequence, and give back the blocks that no other one uses; ValueError naming seq if unknown."""
        ### BEGIN SOLUTION
        self._release(self._record(seq).table)
        del self._sequences[seq]
        ### END SOLUTION

    def length(self, seq: str) -> int:
        """Tokens of a sequence, drafts included; ValueError naming seq if unknown."""
        ### BEGIN SOLUTION
        return self._record(seq).length
        ### END SOLUTION

    def keys(self, seq: str) -> torch.Tensor:
        """(heads, length, d_k), from the blocks; ValueError naming seq if unknown."""
        ### BEGIN SOLUTION
        return self._gather(self._keys, self._record(seq))
        ### END SOLUTION

    def values(self, seq: str) -> torch.Tensor:
        """(heads, length, d_v), likewise."""
        ### BEGIN SOLUTION
        return self._gather(self._values, self._record(seq))
        ### END SOLUTION

    def state(self, seq: str) -> torch.Tensor:
        """(heads, d_k, d_v), float32, after the last token, drafts included; ValueError naming seq if unknown.

        No later call changes the tensor that is returned.
        """
        ### BEGIN SOLUTION
        return self._record(seq).state
        ### END SOLUTION

    def num_free(self) -> int:
        """Blocks that no sequence uses."""
        ### BEGIN SOLUTION
        return len(self._free)

    def _record(self, seq):
        if seq not in self._sequences:
            raise ValueError(f"seq {seq!r} is unknown")
        return self._sequences[seq]

    def _advance(self, record, start, k, v, beta, g):
        """Take verified tokens into the state, the first at position `start`; store it at each checkpoint passed."""
        end = start + k.shape[-2]
        while start < end:
            stop = min(end, (start // self._every + 1) * self._every)
            n = stop - start
            record.state = _advanced(record.state, k[:, :n], v[:, :n], beta[:, :n], g[:, :n])
            k, v, beta, g = k[:, n:], v[:, n:], beta[:, n:], g[:, n:]
            if stop % self._every == 0:
                record.checkpoints.append(record.state)
            start = stop

    def _write(self, record, k, v):
        """Put n tokens into blocks; a shared last block is copied first."""
        end = record.length + k.shape[-2]
        n_new = -(-end // self._block) - len(record.table)
        copies = bool(record.length % self._block) and self._owners[record.table[-1]] > 1
        if n_new + copies > len(self._free):
            raise ValueError(f"too few of num_blocks = {len(self._owners)} are free: {len(self._free)}")
        if copies:
            old, new = record.table[-1], self._take()
            self._keys[new], self._values[new] = self._keys[old], self._values[old]
            self._owners[old] -= 1
            record.table[-1] = new
        record.table += [self._take() for _ in range(n_new)]
        at = torch.arange(record.length, end)
        blocks = torch.tensor(record.table)[at // self._block]
        self._keys[blocks, :, at % self._block] = k.transpose(0, 1)
        self._values[blocks, :, at % self._block] = v.transpose(0, 1)
        record.length = end

    def _take(self):
        block = self._free.pop()
        self._owners[block] = 1
        return block

    def _release(self, table):
        for block in table:
            self._owners[block] -= 1
            if self._owners[block] == 0:
                self._free.append(block)

    def _share(self, new, table, length, state, checkpoints):
        if new in self._sequences:
            raise ValueError(f"new: {new!r} exists already")
        for block in table:
            self._owners[block] += 1
        self._sequences[new] = _Sequence(state, table, length, checkpoints)

    def _gather(self, blocks, record):
        rows = blocks[torch.tensor(record.table, dtype=torch.int64)]
        return rows.transpose(0, 1).flatten(1, 2)[:, : record.length]

    ### END SOLUTION


def replay_cost(
    method: str,
    tokens: int,
    state_bytes: int,
    update_bytes: int,
    block: int = 16,
    chunk: int = 2048,
    shared: int = 0,
    drafts: int = 0,
    accepted: int = 0,
) -> tuple[int, int]:
    """What one layer's states take, and how many tokens the model computes twice: three ways that engines have.

    The prompt of `tokens` tokens is computed `chunk` tokens at a time. "align" stores a state where a chunk ends, with
    chunks cut to whole blocks: after each ⌊chunk / block⌋ · block tokens. "all" stores a state after each block. "ring"
    stores as "align" does. The running state comes on top, in all three.

    A later request has the first `shared` tokens in common: it starts from the last state stored at or before them, and
    the rest of them is computed twice. Then `drafts` drafts are computed, of which `accepted` stay. "align" stores one
    more state, from before the drafts; if a draft is rejected, the accepted ones are computed twice. "all" stores one
    more state for each draft. "ring" stores one more state, and of each draft what it wrote, `update_bytes`: the state
    is made from these, and nothing is computed twice. Without drafts nothing is stored for them.

    Args:
        method: one of METHODS. tokens: at least 0. shared: from 0 to tokens. accepted: from 0 to drafts.

    Returns:
        (stored, again): bytes, and tokens.

    Raises:
        ValueError: naming an unknown method; block below 1; chunk below block; shared or accepted outside of its range.

    Example:
        1,000 tokens, states of 100 bytes, updates of 10, blocks of 16, chunks of 256, 500 shared, 4 drafts, 2 accepted.
        "align": 3 + 1 + 1 states and 244 + 2 tokens, (500, 246). "all": 62 + 1 + 4, (6700, 4). "ring": (540, 244).
    """
    ### BEGIN SOLUTION
    if method not in METHODS:
        raise ValueError(f"method {method!r} is none of {', '.join(METHODS)}")
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    if chunk < block:
        raise ValueError(f"chunk = {chunk} is below block = {block}")
    if not 0 <= shared <= tokens:
        raise ValueError(f"shared must be from 0 to {tokens}, got {shared}")
    if not 0 <= accepted <= drafts:
        raise ValueError(f"accepted must be from 0 to {drafts}, got {accepted}")
    apart = chunk // block * block
    if method == "all":
        apart = block
    stored = (tokens // apart + 1) * state_bytes
    again = shared % apart
    if method == "all":
        stored += drafts * state_bytes
    elif drafts:
        stored += state_bytes
    if method == "ring":
        stored += drafts * update_bytes
    if method == "align" and accepted < drafts:
        again += accepted
    return stored, again
    ### END SOLUTION


### BEGIN SOLUTION
class _Sequence:
    def __init__(self, state, table=(), length=0, checkpoints=()):
        self.state, self.length = state, length
        self.table, self.checkpoints = list(table), list(checkpoints)
        self.pending = None  # while there are drafts: the state before them, and their k, v, beta and g


def _advanced(state, k, v, beta, g):
    return gated_delta_recurrent(k, k, v, beta, g, state)[1]


def _precise(x):
    return torch.float32 if x.dtype.itemsize == 2 else x.dtype


def _start(k, v, state):
    """The state to begin with, in the precision of sums."""
    if state is None:
        return torch.zeros(*k.shape[:-2], k.shape[-1], v.shape[-1], dtype=_precise(v), device=v.device)
    return state.to(_precise(v), copy=True)


def _check_tokens(q, k, v, beta, g, state):
    wanted = [("q", q, k.shape), ("v", v, (*k.shape[:-1], v.shape[-1])), ("beta", beta, k.shape[:-1])]
    wanted.append(("g", g, k.shape[:-1]))
    if state is not None:
        wanted.append(("state", state, (*k.shape[:-2], k.shape[-1], v.shape[-1])))
    for name, x, shape in wanted:
        if tuple(x.shape) != tuple(shape):
            raise ValueError(f"{name} has shape {tuple(x.shape)} and k {tuple(k.shape)}: expected {tuple(shape)}")


def _replay(tokens, kept):
    again, last = [], 0
    for position in range(tokens + 1):
        if position in kept:
            last = position
        again.append(position - last)
    return again


def _has_prefix(group, hit):
    kind, block, held = group
    if hit % block:
        return False
    n_blocks = hit // block
    if kind == "state":
        return n_blocks - 1 in held
    return all(b in held for b in range(n_blocks))


def _probabilities(scores, temperature):
    scores = scores.double()
    if temperature == 0:
        return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).double()
    return torch.softmax(scores / temperature, -1)


def _drawn(weights, u):
    """The first token whose cumulative weight is above u of the whole."""
    cumulative = weights.cumsum(-1)
    token = int(torch.searchsorted(cumulative, u.double() * cumulative[-1], right=True))
    return min(token, int(weights.nonzero()[-1]))


### END SOLUTION
