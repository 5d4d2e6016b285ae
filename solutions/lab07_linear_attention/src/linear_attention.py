"""Lab 07: linear attention, causal by four routes, with the memory of each measured and predicted."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def standard_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Softmax attention with all scores in memory, for comparison. Given. `(..., N, d)` each; not causal."""
    scores = q @ k.mT
    scores = scores / q.shape[-1] ** 0.5
    weights = F.softmax(scores, dim=-1)
    return weights @ v


class _Watch(TorchDispatchMode):
    """Live and peak bytes of the storages that operators make; `outside` existed before."""

    def __init__(self, outside: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.outside = {tensor.untyped_storage()._cdata for tensor in outside}
        self.alive: dict[int, Any] = {}
        self.live_bytes = self.peak_bytes = 0

    _should_skip_dynamo = classmethod(lambda cls: False)

    def __torch_dispatch__(self, operator: Any, _types: Any, operands: Any = (), options: Any = None) -> Any:
        made = operator(*operands, **(options or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self.alive or key in self.outside:
            return

        def release(_: Any) -> None:
            del self.alive[key]
            self.live_bytes -= nbytes

        self.alive[key] = weakref.ref(storage, release)
        self.live_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


def measure_peak(fn: Callable[..., Any], *args: torch.Tensor) -> int:
    """Peak bytes of `fn(*args)` on meta, CPU or CUDA, without its arguments but with its result. Given."""
    if args[0].is_cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        fn(*args)
        return torch.cuda.max_memory_allocated() - before
    with _Watch(args) as watch:
        fn(*args)
    return watch.peak_bytes


def feature_map(x: torch.Tensor) -> torch.Tensor:
    """φ(x) = elu(x) + 1, element by element (Katharopoulos et al. 2020, equation 7): above 0 for every x.

    elu(x) + 1 is x + 1 for x > 0 and exp(x) for x ≤ 0.

    Args:
        x: any shape, floating-point; it is not changed.

    Returns:
        A new tensor of x's shape and dtype. Its derivative is 1 for x > 0 and exp(x) below, for x of any size.

    Example:
        [−1, 0, 2] becomes [0.3679, 1, 3].
    """
    ### BEGIN SOLUTION
    return F.elu(x) + 1
    ### END SOLUTION


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Bidirectional linear attention: each query sees every key (Katharopoulos et al. 2020, equation 4).

    out[i] = Σ_j w[i, j]·v[j] / (Σ_j w[i, j] + eps) with the weights w[i, j] = φ(q[i])·φ(k[j]), a dot product over d,
    and φ = `feature_map`.

    Args:
        q: `(..., N_q, d)`. As everywhere here, φ is applied inside, and there is no factor 1/√d.
        k: `(..., N_k, d)`, its leading axes those of q.
        v: `(..., N_k, d_v)`.
        eps: added to the sum of the weights, once for each query.

    Returns:
        `(..., N_q, d_v)` in q's dtype, with arithmetic of order N·d·d_v and memory of order N·(d + d_v) + d·d_v.

    Example:
        q = [[0]], k = [[0], [1]], v = [[3], [0]]: weights 1 and 2, out = [[1.0]] (minus eps / 3).
    """
    ### BEGIN SOLUTION
    q, k = feature_map(q), feature_map(k)
    state = k.mT @ v
    k_sum = k.sum(-2)
    out = q @ state
    weight_sum = q @ k_sum[..., None]
    return out / (weight_sum + eps)
    ### END SOLUTION


def causal_linear_attention_cumsum(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, eps: float = 1e-6
) -> torch.Tensor:
    """Causal linear attention with the state of every position at once, by cumulative sums.

    out[i] = Σ_{j≤i} w[i, j]·v[j] / (Σ_{j≤i} w[i, j] + eps) with w[i, j] = φ(q[i])·φ(k[j]).

    Args:
        q, k: `(..., N, d)` each.
        v: `(..., N, d_v)`.
        eps: added to the sum of the weights, once for each query.

    Returns:
        `(..., N, d_v)` in q's dtype. No loop over positions; at the peak two arrays of N·d·d_v elements are alive, not
        three.

    Example:
        q = [[0], [0]], k = [[0], [1]], v = [[3], [0]]: out = [[3.0], [1.0]] (less an eps-th part).
    """
    ### BEGIN SOLUTION
    q, k = feature_map(q), feature_map(k)
    products = k[..., :, None] * v[..., None, :]
    states = products.cumsum(-3)
    k_sums = k.cumsum(-2)
    out = (q[..., None, :] @ states)[..., 0, :]
    weight_sum = (q[..., None, :] @ k_sums[..., :, None])[..., 0]
    return out / (weight_sum + eps)
    ### END SOLUTION


def causal_linear_attention_recurrent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, eps: float = 1e-6
) -> torch.Tensor:
    """Causal linear attention one position at a time, with one state (Katharopoulos et al. 2020, section 3.4).

    The same numbers as `causal_linear_attention_cumsum`.

    Args:
        q, k: `(..., N, d)` each.
        v: `(..., N, d_v)`.
        eps: added to the sum of the weights, once for each query.

    Returns:
        `(..., N, d_v)` in q's dtype. Of the live memory only the output grows with N, and its pieces if they are joined
        at the end: 2·d_v elements per position.

    Example:
        q = [[0], [0]], k = [[0], [1]], v = [[3], [0]]: out = [[3.0], [1.0]] (less an eps-th part).
    """
    ### BEGIN SOLUTION
    state = v.new_zeros(*q.shape[:-2], q.shape[-1], v.shape[-1])
    k_sum = torch.zeros_like(q[..., 0, :])
    rows = []
    for i in range(q.shape[-2]):
        q_i, k_i, v_i = feature_map(q[..., i, :]), feature_map(k[..., i, :]), v[..., i, :]
        state = state + k_i[..., :, None] * v_i[..., None, :]
        k_sum = k_sum + k_i
        out = (q_i[..., None, :] @ state)[..., 0, :]
        rows.append(out / ((q_i * k_sum).sum(-1, keepdim=True) + eps))
    return torch.stack(rows, -2)
    ### END SOLUTION


def causal_linear_attention_chunked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunk: int = 64, eps: float = 1e-6
) -> torch.Tensor:
    """Causal linear attention one chunk of positions after the other (Yang et al. 2023, section 2.2).

    The same numbers as `causal_linear_attention_cumsum`, whatever `chunk` is.

    Args:
        q, k: `(..., N, d)` each.
        v: `(..., N, d_v)`.
        chunk: C, the number of positions taken at a time; the last chunk may be shorter, and C larger than N.
        eps: added to the sum of the weights, once for each query.

    Returns:
        `(..., N, d_v)` in q's dtype. Besides the state, the C × C weights of one chunk and its other temporaries, live
        memory grows with N as in the recurrent route, by at most 2·d_v elements per position.

    Raises:
        ValueError: naming `chunk`, when it is below 1.

    Example:
        128 positions in chunks of 64 take two steps: within each, weights of 64 × 64; from the first to the second,
        one state of d × d_v and one sum of d numbers.
    """
    ### BEGIN SOLUTION
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    state = v.new_zeros(*q.shape[:-2], q.shape[-1], v.shape[-1])
    k_sum = q.new_zeros(*q.shape[:-2], q.shape[-1], 1)
    pieces = []
    for start in range(0, q.shape[-2], chunk):
        here = slice(start, start + chunk)
        piece, state, k_sum = _one_chunk(q[..., here, :], k[..., here, :], v[..., here, :], state, k_sum, eps)
        pieces.append(piece)
    return torch.cat(pieces, -2)
    ### END SOLUTION


def causal_linear_attention_scan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunk: int = 64, eps: float = 1e-6
) -> torch.Tensor:
    """Causal linear attention on all chunks at once, with states from a parallel scan (Blelloch 1990).

    The same numbers as `causal_linear_attention_cumsum`, whatever `chunk` is.

    Args:
        q, k: `(..., N, d)` each.
        v: `(..., N, d_v)`.
        chunk: C, the number of positions that share a kept state; N need not be a multiple of C.
        eps: added to the sum of the weights, once for each query.

    Returns:
        `(..., N, d_v)` in q's dtype. The number of operators run grows as log(N / C). States exist only at the N / C
        borders of chunks, both in memory and among the tensors that autograd saves.

    Raises:
        ValueError: naming `chunk`, when it is below 1.

    Example:
        8 chunks whose own states are a, b, …, h start from the states 0, a, a+b, …, a+b+…+g: an exclusive scan, in 3
        doublings instead of 7 additions one after the other.
    """
    ### BEGIN SOLUTION
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    n = q.shape[-2]
    chunk = min(chunk, n)
    q, k, v = _in_chunks(feature_map(q), chunk), _in_chunks(feature_map(k), chunk), _in_chunks(v, chunk)
    states = _exclusive_scan(k.mT @ v)
    k_sums = _exclusive_scan(k.sum(-2)[..., None])
    weights = (q @ k.mT).tril_()
    out = weights @ v + q @ states
    weight_sum = weights.sum(-1, keepdim=True) + q @ k_sums
    return (out / (weight_sum + eps)).flatten(-3, -2)[..., :n, :]
    ### END SOLUTION


def linear_attention_memory(batch: int, heads: int, seq_len: int, d: int, dtype_bytes: int) -> dict[str, int]:
    """Peak memory of four attentions, in bytes without their inputs, by formulas that follow from the handout's steps.

    Args:
        batch, heads: B and H.
        seq_len: N; for `linear_chunked_peak` at most 64, or a multiple of 64, the chunk.
        d: the width of q, k and v.
        dtype_bytes: bytes of one element: 4 for float32, 2 for float16.

    Returns:
        A dict of ints, in bytes: `inputs` (q, k and v, in none of the others), `standard_peak`, `linear_bidir_peak`,
        `linear_causal_peak` (by cumulative sums), `linear_chunked_peak` (in chunks of 64). No tensor is made.

    Example:
        linear_attention_memory(1, 1, 512, 64, 4): 393,216; 2,228,224; 545,024; 17,436,672; 278,784.
    """
    ### BEGIN SOLUTION
    n, c = seq_len, min(seq_len, 64)
    state = d * d + d
    chunked = max(
        (n - c) * d + state + 5 * c * d + c * c,
        n * d + 2 * c * d + state + 2 * d * d,
        2 * n * d + state,
    )
    elements = {
        "inputs": 3 * n * d,
        "standard_peak": 2 * n * n + n * d,
        "linear_bidir_peak": 4 * n * d + state + 2 * n,
        "linear_causal_peak": 2 * n * d * d + 5 * n * d + 2 * n,
        "linear_chunked_peak": chunked,
    }
    return {name: batch * heads * count * dtype_bytes for name, count in elements.items()}
    ### END SOLUTION


def profile_attention_memory(
    seq_lens: Iterable[int],
    batch: int = 4,
    heads: int = 8,
    d: int = 64,
    dtype: torch.dtype = torch.float16,
    device: str = "meta",
    capacity_bytes: int | None = None,
) -> list[dict[str, float]]:
    """Measure the peaks of four attentions over the sequence length, and put the predictions next to them.

    They are `standard_attention`, and your `linear_attention`, `causal_linear_attention_cumsum` and
    `causal_linear_attention_chunked`, called with random q, k and v of shape `(batch, heads, seq_len, d)` that require
    no grad.

    Args:
        seq_lens: the lengths, in the order of the rows.
        batch, heads: B and H.
        d: the width of q, k and v.
        dtype: of q, k and v.
        device: "meta" (a simulation), "cpu" or "cuda".
        capacity_bytes: memory of the device, which inputs and peak together may not exceed. None: no limit.

    Returns:
        One dict per length. `seq_len`; `input_memory_mb`, q, k and v; then, without the inputs, measured:
        `standard_memory_mb`, `linear_bidir_memory_mb`, `linear_causal_memory_mb`, `linear_chunked_memory_mb`;
        predicted: the same four with `_theoretical_mb` instead of `_memory_mb`; and `savings_bidir`, measured standard
        over measured bidirectional. MB are 10⁶ bytes. Where memory runs out, on the device or by `capacity_bytes`, the
        value and the quotient are nan.

    Raises:
        Any error of an attention other than running out of memory.

    Example:
        The row for 8192, otherwise with the defaults: 100.7 MB of inputs; 8623.5, 135.5, 4463.8 and 67.4 MB measured.
    """
    ### BEGIN SOLUTION
    return [_profile_row(n, (batch, heads, n, d), dtype, device, capacity_bytes) for n in seq_lens]
    ### END SOLUTION


### BEGIN SOLUTION
MB = 10**6


def _routes():
    return {
        "standard": standard_attention,
        "linear_bidir": linear_attention,
        "linear_causal": causal_linear_attention_cumsum,
        "linear_chunked": causal_linear_attention_chunked,
    }


def _one_chunk(q, k, v, state, k_sum, eps):
    """The output of one chunk, and the state and the sum of keys after it."""
    q, k = feature_map(q), feature_map(k)
    piece = _read(q, k, v, state, k_sum, eps)
    return piece, state + k.mT @ v, k_sum + k.sum(-2)[..., None]


def _read(q, k, v, state, k_sum, eps):
    weights = (q @ k.mT).tril_()
    out = weights @ v + q @ state
    weight_sum = weights.sum(-1, keepdim=True) + q @ k_sum
    return out / (weight_sum + eps)


def _in_chunks(x, chunk):
    """`(..., N, d)` as `(..., chunks, chunk, d)`, the last chunk padded with zeros."""
    missing = -x.shape[-2] % chunk
    x = F.pad(x, (0, 0, 0, missing)) if missing else x
    return x.unflatten(-2, (-1, chunk))


def _exclusive_scan(x):
    """Sums of all matrices before each one, over axis −3: pairs are added, the pairs scanned, the results split up."""
    n = x.shape[-3]
    if n == 1:
        return torch.zeros_like(x)
    if n % 2:
        return _exclusive_scan(F.pad(x, (0, 0, 0, 0, 0, 1)))[..., :n, :, :]
    first, second = x[..., 0::2, :, :], x[..., 1::2, :, :]
    before = _exclusive_scan(first + second)
    return torch.stack([before, before + first], -3).flatten(-4, -3)


def _profile_row(n, shape, dtype, device, capacity_bytes):
    q, k, v = (torch.randn(shape, dtype=dtype, device=device) for _ in range(3))
    predicted = linear_attention_memory(*shape, dtype.itemsize)
    room = float("inf") if capacity_bytes is None else capacity_bytes - predicted["inputs"]
    row = {"seq_len": n, "input_memory_mb": predicted["inputs"] / MB}
    for name, route in _routes().items():
        peak = _peak_or_nan(route, q, k, v)
        row[f"{name}_memory_mb"] = peak / MB if peak <= room else float("nan")
    for name in _routes():
        row[f"{name}_theoretical_mb"] = predicted[f"{name}_peak"] / MB
    row["savings_bidir"] = row["standard_memory_mb"] / row["linear_bidir_memory_mb"]
    return row


def _peak_or_nan(route, *inputs):
    try:
        return measure_peak(route, *inputs)
    except torch.OutOfMemoryError:
        return float("nan")
    except RuntimeError as error:
        if "can't allocate memory" in str(error) or "not enough memory" in str(error):
            return float("nan")
        raise


### END SOLUTION
