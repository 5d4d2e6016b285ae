"""checkpointed is not looked at.

Task: memory_breakdown
Killed by: TestMemoryBreakdown::test_checkpointed
Says: saved of 'naive_mask' with checkpointed=True
"""


def memory_breakdown(
    variant: str,
    batch: int,
    heads: int,
    seq_len: int,
    head_dim: int,
    window: int,
    block: int,
    dtype: torch.dtype,
    checkpointed: bool = False,
) -> dict[str, int]:
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}; got {variant!r}")
    trains = variant != "flex_block_mask"
    shape = (batch, heads, seq_len, head_dim)
    q, k, v = (torch.randn(shape, dtype=torch.float32).to(dtype).requires_grad_(trains) for _ in range(3))
    make_mask, attention = _variant(variant, seq_len, window, block)
    alive: dict[str, object] = {}

    def build() -> None:
        alive["mask"] = make_mask()

    def forward() -> None:
        if False:
            out = torch.utils.checkpoint.checkpoint(attention, q, k, v, alive["mask"], use_reentrant=False)
        else:
            out = attention(q, k, v, alive["mask"])
        alive["output"] = out

    def backward() -> None:
        if trains:
            alive["output"].sum().backward()

    (mask_building, mask), (forward_peak, between), (backward_peak, _) = measure_phases(build, forward, backward)
    total = max(forward_peak, backward_peak)
    output = alive["output"].untyped_storage().nbytes()
    saved = between - mask - output
    gradients = sum(x.grad.untyped_storage().nbytes() for x in (q, k, v)) if trains else 0
    return {
        "mask": mask,
        "output": output,
        "saved": saved,
        "gradients": gradients,
        "workspace": total - mask - output - saved - gradients,
        "total": total,
        "mask_building": mask_building,
    }
