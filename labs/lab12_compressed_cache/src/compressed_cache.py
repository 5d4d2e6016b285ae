"""Lab 12: a smaller cache of keys and values: latent vectors, few bits, a window with sinks, and which to choose."""

import torch

KINDS = ("full", "grouped", "window", "latent", "quantized")


def rotate(x: torch.Tensor, positions: torch.Tensor, base: float = 10_000.0) -> torch.Tensor:
    """Rotary positions. Given. x (..., N, d), token n rotated to `positions[n]`; d must be even.

    Numbers i and i + d/2 are a pair, rotated by position · base^(−2i/d). The product of a rotated query and a rotated
    key depends only on the difference of their positions. Angles are computed in float64; the result has x's dtype.
    """
    half = x.shape[-1] // 2
    speeds = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angles = positions.double()[:, None] * speeds
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def mla_decode(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    c_kv: torch.Tensor,
    k_rope: torch.Tensor,
    W_UK: torch.Tensor,
    W_UV: torch.Tensor,
) -> torch.Tensor:
    """One query per head over a cache of latent vectors, without ever making a key or a value of a head.

    For head h, token n has the key (W_UK[h] c_kv[n], k_rope[n]) and the value W_UV[h] c_kv[n]; the query is
    (q_nope[h], q_rope[h]). Scores are divided by √(d_n + d_r), the width of these keys. A block of the cache is copied
    once and serves as keys and as values; never more than one block is copied at a time.

    Args:
        q_nope: the queries' part without positions, (..., H, d_n).
        q_rope: their part with positions, already rotated, (..., H, d_r).
        c_kv: the latent vectors, (..., N, d_c), which all heads share; N may be 0.
        k_rope: the keys' part with positions, already rotated, (..., N, d_r), which all heads share.
        W_UK: (H, d_n, d_c). W_UV: (H, d_v, d_c).

    Returns:
        o (..., H, d_v), in q_nope's dtype; sums of half-precision inputs are kept in float32. Without tokens it is 0.

    Raises:
        ValueError: naming the argument whose shape does not fit those before it (c_kv fits), and the shape.

    Example:
        H = 1, all widths 1, W_UK = 2, W_UV = 3, c_kv = 0 and 1, k_rope = 0, q_rope = 0, q_nope = ln 3 / √2: the scores
        are 0 and ln 3, the weights 1/4 and 3/4, and o = 3 · 3/4 = 2.25.
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def quantize_kv(k: torch.Tensor, v: torch.Tensor, bits: int, group: int) -> dict[str, torch.Tensor | int]:
    """Keys and values in a few bits per number, keys by channel and values by token.

    A group is `group` numbers that share a scale and a zero: of K, neighbouring tokens in one channel; of V,
    neighbouring channels in one token. Its zero is its minimum and its scale (maximum − minimum) / (2^bits − 1), both
    rounded to float16 and stored that way. The code of x is the nearest whole number to (x − zero) / scale, with the
    rounded zero and scale, clipped to 0 … 2^bits − 1; where the scale is 0 all codes are 0. 8 / bits codes, of
    neighbouring channels, share a byte: the first is in its lowest bits.

    Args:
        k: keys, (..., N, d). v: values, (..., N, d_v).
        bits: 2, 4 or 8.
        group: numbers that share a scale; it divides N and d_v.

    Returns:
        "k" uint8 (..., N, d · bits / 8), "k_scale" and "k_zero" float16 (..., N / group, d), "v" uint8
        (..., N, d_v · bits / 8), "v_scale" and "v_zero" float16 (..., N, d_v / group), "bits" and "group". No tensor
        keeps more memory alive than its own numbers: in all, bits + 32 / group bits per number.

    Raises:
        ValueError: naming `bits`, when it is not 2, 4 or 8, or `group`, when it does not divide N and d_v; naming k or
            v, when 8 / bits does not divide its width, the two differ in tokens, or a scale or a zero is not finite in
            float16.

    Example:
        bits 2, and a token's values 1, 2, 4 and 2.4 as a group: zero 1, scale 1, codes 0, 1, 3 and 1, and the byte
        0 + 1 · 4 + 3 · 16 + 1 · 64 = 116.
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def dequantize_kv(cache: dict[str, torch.Tensor | int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values from what `quantize_kv` returns: code · scale + zero, computed in float32.

    Returns:
        k (..., N, d) and v (..., N, d_v), float32.

    Example:
        bits 2, the byte 116, scale 1 and zero 1: the values 1, 2, 4 and 2.
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def attention_with_sinks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, num_sinks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over a cache of the first `num_sinks` tokens and the last `window`, with positions in the cache.

    The queries are the last N_q of the N_k tokens: query i has position p = i + N_k − N_q and sees its own key, the
    `window` − 1 before it, and the sinks, which are kept besides the window and never evicted (none of them counts
    twice, and a sink after p is not seen). q and k are not rotated yet. A query and its keys are rotated (`rotate`) to
    their *places in the cache* as the query finds it, 0, 1, 2, … from the oldest, its own key in the last place.

    Args:
        q: (..., N_q, d), d even. k: (..., N_k, d). v: (..., N_k, d_v).
        window: number of tokens, the query's own included; at least 1. num_sinks: at least 0.

    Returns:
        (o, lse): (..., N_q, d_v) in q's dtype, and (..., N_q), float32 for half-precision inputs, whose sums are kept
        in it, else q's dtype. The scale is 1/√d. A query that sees no key: 0 and −inf. Only the tokens of k and v that
        some query sees are read.

    Raises:
        ValueError: naming `window`, `num_sinks` or an odd d; both shapes, when k and v differ in N_k or q and k in d.

    Example:
        10 tokens, window 3, two sinks: the last query, position 9, sees the tokens 0, 1, 7, 8 and 9, which have the
        places 0 to 4. Token 0 is 4 places away from it, not 9.
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def attention_sink_logit(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention with one learned number per head in the denominator: a key without a value, which is in no cache.

    With scores s_j = q · k_j / √d, o = Σ exp(s_j) v_j / (exp(sink) + Σ exp(s_j)) and lse is the logarithm of that
    denominator. The sink is not scaled and does not depend on the keys; −inf gives ordinary attention.

    Args:
        q: (..., H, N_q, d). k: (..., H, N_k, d). v: (..., H, N_k, d_v). sink: (H,). Every query sees every key.

    Returns:
        (o, lse): (..., H, N_q, d_v) in q's dtype, and (..., H, N_q), dtypes as of `attention_with_sinks`. Without keys
        o is 0 and lse is the sink.

    Raises:
        ValueError: naming sink, when it is not one number for each of q's heads; both shapes, when k and v differ in
            N_k or q and k in d.

    Example:
        Scores 0 and 0, values 2 and 4, sink 0: three equal exponentials, two of them with values: o = (2 + 4) / 3 = 2,
        and lse = ln 3.
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def cache_under_budget(model: dict, nbytes: int, tokens: int) -> dict:
    """The scheme for a cache of `tokens` tokens in at most `nbytes` bytes that changes attention's output least.

    Args:
        model: "layers" and "dtype_bytes"; a sample of one layer, "q" (H, N_q, d), "k" and "v" (H, N, d), in which every
            query sees every key; and "schemes", the list to choose from; each has a "kind" and its numbers. The handout
            defines what each kind keeps, and its bytes.
        nbytes: the most bytes of the cache in all layers.
        tokens: the number of tokens in the cache.

    Returns:
        The chosen scheme as a new dict: its entry in "schemes", and "bytes" (int, for `tokens` tokens in all layers)
        and "error" (float): ‖o' − o‖ / ‖o‖ over all heads and queries, o' from what the scheme keeps of the sample,
        computed in float64 and rounded to nine decimals. Of those that need at most `nbytes` it has the least error;
        for equal errors the fewest bytes; for equal bytes it is the first.

    Raises:
        ValueError: naming the fewest bytes that any scheme needs, when none fits; naming an unknown kind; naming
            `tokens` below 1.

    Example:
        1 layer, 2 heads of 4 numbers, 2 bytes per number, 8 tokens: "full" takes 2 · 2 · 4 · 8 · 2 = 256 bytes, and
        "quantized" with 4 bits and groups of 4 takes 2 · 2 · 4 · 8 · (4 + 32/4) / 8 = 192.
    """
    # YOUR CODE HERE
    raise NotImplementedError()
