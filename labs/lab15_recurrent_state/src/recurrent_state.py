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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
        # YOUR CODE HERE
        raise NotImplementedError()

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
        # YOUR CODE HERE
        raise NotImplementedError()

    def rollback(self, seq: str, n_accepted: int) -> None:
        """Keep the first `n_accepted` of the drafts appended last; afterwards they are verified tokens.

        Raises ValueError naming n_accepted outside of 0 to the number of drafts, or seq without drafts.
        """
        # YOUR CODE HERE
        raise NotImplementedError()

    def fork(self, seq: str, new: str) -> None:
        """Begin `new` as a copy of all of `seq`, which shares its blocks until one of them writes.

        Raises ValueError naming seq if it is unknown, drafts if it has any, or new if it exists.
        """
        # YOUR CODE HERE
        raise NotImplementedError()

    def restore(self, seq: str, new: str, position: int) -> int:
        """Begin `new` with the longest prefix of `seq` that has at most `position` tokens and that both layers have.

        The layer with a state has the prefixes that end at a checkpoint, and that of 0 tokens; drafts belong to none.

        Returns:
            The number of its tokens. The caller computes the rest again, and appends it.

        Raises ValueError naming position outside of 0 to length(seq), seq if unknown, or new if it exists.
        """
        # YOUR CODE HERE
        raise NotImplementedError()

    def free(self, seq: str) -> None:
        """Forget a sequence, and give back the blocks that no other one uses; ValueError naming seq if unknown."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def length(self, seq: str) -> int:
        """Tokens of a sequence, drafts included; ValueError naming seq if unknown."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def keys(self, seq: str) -> torch.Tensor:
        """(heads, length, d_k), from the blocks; ValueError naming seq if unknown."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def values(self, seq: str) -> torch.Tensor:
        """(heads, length, d_v), likewise."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def state(self, seq: str) -> torch.Tensor:
        """(heads, d_k, d_v), float32, after the last token, drafts included; ValueError naming seq if unknown.

        No later call changes the tensor that is returned.
        """
        # YOUR CODE HERE
        raise NotImplementedError()

    def num_free(self) -> int:
        """Blocks that no sequence uses."""
        # YOUR CODE HERE
        raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()
