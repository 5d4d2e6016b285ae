"""What runs next to the submission: calls whose memory, reads and products are measured, and a backward pass."""

from selected_attention import (
    block_sparse_attention,
    index_top_tokens,
    page_bounds,
    page_scores,
    selected_decode,
)

from labkit.meters.moved import MovedBytes
from labkit.meters.products import ProductMeter
from labkit.meters.tensors import AllocationMeter
from labkit.testing.probes import probe

FUNCTIONS = {
    "page_bounds": page_bounds,
    "page_scores": page_scores,
    "selected_decode": selected_decode,
    "block_sparse_attention": block_sparse_attention,
    "index_top_tokens": index_top_tokens,
}


@probe
def measured(task, tensors, *numbers):
    """What a task returns, and what it took: bytes read of each tensor, by its name, the peak, and products."""
    with AllocationMeter() as memory, ProductMeter() as products, MovedBytes(**tensors) as moved:
        result = FUNCTIONS[task](*tensors.values(), *numbers)
    counts = {"read": dict(moved.read), "peak_bytes": memory.peak_bytes}
    return result, counts | {"fused": products.fused, "flops": products.flops}


@probe
def gradients(Q, K, V, block, top, dO):
    """The gradients of Q, K and V through block-sparse attention, where that of O is dO; None where there is none."""
    leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
    O = block_sparse_attention(*leaves, block, top)
    if not O.requires_grad:
        return None, None, None
    O.backward(dO)
    return tuple(x.grad for x in leaves)
