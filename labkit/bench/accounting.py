"""Closed forms of attention's memory: every part in bytes, the moment of the peak, and what fits a device."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
    size = _Sizes(batch, seq_len, d_model, dtype_bytes, round_to)
    if definition not in DEFINITIONS:
        raise ValueError(f"definition must be one of {', '.join(DEFINITIONS)}, got {definition!r}")
    if softmax not in SOFTMAXES:
        raise ValueError(f"softmax must be one of {', '.join(SOFTMAXES)}, got {softmax!r}")
    parts = max(_MOMENTS[definition, softmax](size), key=lambda moment: sum(moment.values()))
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


def longest_that_fits(
    capacity_bytes: int,
    batch: int,
    d_model: int,
    dtype_bytes: int = 4,
    definition: str = "forward_peak",
    softmax: str = "written_out",
    round_to: int = CUDA_ROUNDING_BYTES,
    workspace_bytes: int = CUDA_WORKSPACE_BYTES,
) -> int:
    """The longest sequence whose memory under `definition` is within `capacity_bytes`; 0 when none is."""

    def fits(seq_len: int) -> bool:
        parts = attention_memory(
            batch,
            seq_len,
            d_model,
            definition=definition,
            softmax=softmax,
            dtype_bytes=dtype_bytes,
            round_to=round_to,
            workspace_bytes=workspace_bytes,
        )
        return sum(parts.values()) <= capacity_bytes

    return _last_true(fits)


def _last_true(holds: Callable[[int], bool]) -> int:
    """The largest n ≥ 1 for which `holds(n)`, 0 if there is none; once it fails it must not hold again."""
    too_many = 1
    while holds(too_many):
        too_many *= 2
    low, high = too_many // 2, too_many
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class _Sizes:
    """Bytes of the arrays that occur, each rounded up separately."""

    batch: int
    seq_len: int
    d_model: int
    dtype_bytes: int
    round_to: int

    def __post_init__(self) -> None:
        for name in ("batch", "seq_len", "d_model", "dtype_bytes", "round_to"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def _rounded(self, nbytes: int) -> int:
        return -(-nbytes // self.round_to) * self.round_to

    @property
    def square(self) -> int:
        """(batch, N, N)."""
        return self._rounded(self.batch * self.seq_len**2 * self.dtype_bytes)

    @property
    def tall(self) -> int:
        """(batch, N, d)."""
        return self._rounded(self.batch * self.seq_len * self.d_model * self.dtype_bytes)

    @property
    def column(self) -> int:
        """(batch, N, 1)."""
        return self._rounded(self.batch * self.seq_len * self.dtype_bytes)

    @property
    def positions(self) -> int:
        """(batch, N, 1) of int64, whatever the dtype of the rest."""
        return self._rounded(self.batch * self.seq_len * 8)

    @property
    def scalar(self) -> int:
        """One number."""
        return self._rounded(self.dtype_bytes)

    @property
    def always(self) -> Parts:
        """Bytes alive throughout every training step: the inputs, their gradients, and one loss."""
        return {"inputs": 3 * self.tall, "gradients": 3 * self.tall, "loss": self.scalar}


def _saved_written_out(size: _Sizes) -> Iterator[Parts]:
    yield {
        "exponentials": size.square,
        "weights": size.square,
        "argmax": size.positions,
        "row_sums": size.column,
    }


def _saved_built_in(size: _Sizes) -> Iterator[Parts]:
    yield {"weights": size.square}


def _forward_written_out(size: _Sizes) -> Iterator[Parts]:
    (saved,) = _saved_written_out(size)
    yield {**size.always, "scores": size.square, "shifted": size.square, **saved}
    yield {**size.always, **saved, "output": size.tall, "new_loss": size.scalar}


def _forward_built_in(size: _Sizes) -> Iterator[Parts]:
    (saved,) = _saved_built_in(size)
    yield {**size.always, "scores": size.square, **saved}
    yield {**size.always, **saved, "output": size.tall, "new_loss": size.scalar}


def _step_written_out(size: _Sizes) -> Iterator[Parts]:
    (saved,) = _saved_written_out(size)
    yield from _forward_written_out(size)
    backward = {**size.always, "seed_gradient": size.scalar}
    yield {**backward, **saved, "dV": size.tall, "dweights": size.square}
    yield {  # the quotient's backward: d row_sums = Σ −dweights · (exponentials / row_sums) / row_sums
        **backward,
        **{name: nbytes for name, nbytes in saved.items() if name != "weights"},
        "dweights": size.square,
        "quotient": size.square,
        "quotient_over_row_sums": size.square,
        "negated_dweights": size.square,
        "product": size.square,
    }
    yield {**backward, "dproducts": size.square, "dQ": size.tall, "dK": size.tall}


def _step_built_in(size: _Sizes) -> Iterator[Parts]:
    yield from _forward_built_in(size)
    backward = {**size.always, "seed_gradient": size.scalar}
    yield {**backward, "weights": size.square, "dweights": size.square, "dscores": size.square}
    yield {**backward, "dproducts": size.square, "dQ": size.tall, "dK": size.tall}


def _inference_written_out(size: _Sizes) -> Iterator[Parts]:
    inputs = {"inputs": 3 * size.tall}
    yield {**inputs, "scores": size.square, "argmax": size.positions, "row_maxima": size.column}
    squares = dict.fromkeys(("scores", "shifted", "exponentials", "weights"), size.square)
    yield {**inputs, **squares, "row_sums": size.column}
    yield {**inputs, "weights": size.square, "output": size.tall}


def _inference_built_in(size: _Sizes) -> Iterator[Parts]:
    yield {"inputs": 3 * size.tall, "scores": size.square, "weights": size.square}
    yield {"inputs": 3 * size.tall, "weights": size.square, "output": size.tall}


def _live_written_out(size: _Sizes) -> Iterator[Parts]:
    (saved,) = _saved_written_out(size)
    yield {**size.always, **saved}


def _live_built_in(size: _Sizes) -> Iterator[Parts]:
    (saved,) = _saved_built_in(size)
    yield {**size.always, **saved}


_MOMENTS: dict[tuple[str, str], Callable[[_Sizes], Iterator[Parts]]] = {
    ("forward_peak", "written_out"): _forward_written_out,
    ("forward_peak", "built_in"): _forward_built_in,
    ("step_peak", "written_out"): _step_written_out,
    ("step_peak", "built_in"): _step_built_in,
    ("inference_peak", "written_out"): _inference_written_out,
    ("inference_peak", "built_in"): _inference_built_in,
    ("live_after_forward", "written_out"): _live_written_out,
    ("live_after_forward", "built_in"): _live_built_in,
    ("saved", "written_out"): _saved_written_out,
    ("saved", "built_in"): _saved_built_in,
}
