"""Closed forms of attention's memory: every part in bytes, the moment of the peak, and what fits a device."""

from collections.abc import Mapping
from typing import Any

MIB = 2**20
GIB = 2**30
CUDA_ROUNDING_BYTES = 512
"""CUDA's caching allocator hands out multiples of this."""
CUDA_WORKSPACE_BYTES = 64 * MIB
"""Bytes in every row of the published benchmark besides its tensors: cuBLAS's workspaces, forward and backward."""

DEFINITIONS = ("forward_peak", "step_peak", "inference_peak", "live_after_forward", "saved")
SOFTMAXES = ("written_out", "built_in")

Parts = dict[str, int]


def attention_memory(
    batch: int,
    seq_len: int,
    d_model: int,
    *,
    definition: str = "forward_peak",
    softmax: str = "written_out",
    dtype_bytes: int = 4,
    round_to: int = CUDA_ROUNDING_BYTES,
    workspace_bytes: int = CUDA_WORKSPACE_BYTES,
) -> Parts:
    """The parts, in bytes, whose sum is the memory that `definition` names; nothing is allocated.

    Inputs are Q, K and V of shape (batch, seq_len, d_model), each with a gradient, and the step is
    `loss = attention(Q, K, V).sum(); loss.backward()`, not the first one, so that gradients and a loss are there.

    - `forward_peak`: the most alive at once until the loss is there, the published benchmark's `mem_max_MB`.
    - `step_peak`: the most alive at once in forward and backward, which is what has to fit.
    - `inference_peak`: the most alive at once in one call without gradients.
    - `live_after_forward`: what is alive when the loss is there.
    - `saved`: of that, what the forward pass adds for the backward pass, the published `add_mem_MB`.

    `softmax` is `written_out` (shift, exponentials, row sums, quotient) or `built_in` (one operator). Every array is
    rounded up to `round_to` by itself. The workspace is a part of all definitions but `saved`.
    """
    for name, value in (("definition", definition), ("softmax", softmax)):
        choices = DEFINITIONS if name == "definition" else SOFTMAXES
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    for name, size in (("batch", batch), ("seq_len", seq_len), ("d_model", d_model), ("round_to", round_to)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")

    def array(numbers: int, itemsize: int = dtype_bytes) -> int:
        return -(-numbers * itemsize // round_to) * round_to

    sizes = {
        "square": array(batch * seq_len**2),
        "tall": array(batch * seq_len * d_model),
        "column": array(batch * seq_len),
        "positions": array(batch * seq_len, 8),
        "scalar": array(1),
    }
    moments = _written_out(**sizes) if softmax == "written_out" else _built_in(**sizes)
    parts = max(moments[definition], key=lambda moment: sum(moment.values()))
    return parts if definition == "saved" or not workspace_bytes else {"workspace": workspace_bytes, **parts}


def account_for(row: Mapping[str, Any], definition: str = "forward_peak", dtype_bytes: int = 4) -> Parts:
    """`attention_memory` for a row of the benchmark: the parts of its `mem_max_MB`, or those of another definition.

    Rows from the CPU are counted without the workspace and without rounding.
    """
    on_cuda = row["device"] != "cpu"
    return attention_memory(
        int(row["batch_size"]),
        int(row["seq_len"]),
        int(row["d_model"]),
        definition=definition,
        softmax=str(row.get("impl", "written_out")),
        dtype_bytes=dtype_bytes,
        round_to=CUDA_ROUNDING_BYTES if on_cuda else 1,
        workspace_bytes=CUDA_WORKSPACE_BYTES if on_cuda else 0,
    )


def longest_that_fits(capacity_bytes: int, batch: int, d_model: int, **options: Any) -> int:
    """The longest sequence within `capacity_bytes`, by `attention_memory` with these options; 0 when none is."""

    def fits(seq_len: int) -> bool:
        return sum(attention_memory(batch, seq_len, d_model, **options).values()) <= capacity_bytes

    too_many = 1
    while fits(too_many):
        too_many *= 2
    low, high = too_many // 2, too_many
    while high - low > 1:  # by hand: bisect cannot count as far as the largest capacities
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _written_out(square: int, tall: int, column: int, positions: int, scalar: int) -> dict[str, list[Parts]]:
    """By definition, the moments of which one has the most alive."""
    always = {"inputs": 3 * tall, "gradients": 3 * tall, "loss": scalar}
    saved = {"exponentials": square, "weights": square, "argmax": positions, "row_sums": column}
    forward = [
        {**always, "scores": square, "shifted": square, **saved},
        {**always, **saved, "output": tall, "new_loss": scalar},
    ]
    backward = {**always, "seed_gradient": scalar}
    step = [
        *forward,
        {**backward, **saved, "dV": tall, "dweights": square},
        {  # the quotient's backward: d row_sums = Σ −dweights · (exponentials / row_sums) / row_sums
            **backward,
            **{name: nbytes for name, nbytes in saved.items() if name != "weights"},
            **dict.fromkeys(("dweights", "quotient", "quotient_over_row_sums", "negated_dweights", "product"), square),
        },
        {**backward, "dproducts": square, "dQ": tall, "dK": tall},
    ]
    inputs = {"inputs": 3 * tall}
    inference = [
        {**inputs, "scores": square, "argmax": positions, "row_maxima": column},
        {**inputs, **dict.fromkeys(("scores", "shifted", "exponentials", "weights"), square), "row_sums": column},
        {**inputs, "weights": square, "output": tall},
    ]
    return dict(zip(DEFINITIONS, (forward, step, inference, [{**always, **saved}], [saved]), strict=True))


def _built_in(square: int, tall: int, column: int, positions: int, scalar: int) -> dict[str, list[Parts]]:
    always = {"inputs": 3 * tall, "gradients": 3 * tall, "loss": scalar}
    saved = {"weights": square}
    forward = [
        {**always, "scores": square, **saved},
        {**always, **saved, "output": tall, "new_loss": scalar},
    ]
    backward = {**always, "seed_gradient": scalar}
    step = [
        *forward,
        {**backward, "weights": square, "dweights": square, "dscores": square},
        {**backward, "dproducts": square, "dQ": tall, "dK": tall},
    ]
    inputs = {"inputs": 3 * tall}
    inference = [{**inputs, "scores": square, "weights": square}, {**inputs, "weights": square, "output": tall}]
    return dict(zip(DEFINITIONS, (forward, step, inference, [{**always, **saved}], [saved]), strict=True))
