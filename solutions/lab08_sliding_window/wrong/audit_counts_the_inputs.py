"""q, k and v are made while the mask is, so that they count.

Task: memory_breakdown
Killed by: TestMemoryBreakdown::test_causal_sdpa_is_measured
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
    make_mask, attention = _variant(variant, seq_len, window, block)
    alive: dict[str, object] = {}

    def build() -> None:
        alive["qkv"] = [torch.randn(shape).to(dtype).requires_grad_(trains) for _ in range(3)]
        alive["mask"] = make_mask()

    def forward() -> None:
        if checkpointed and trains:
            out = torch.utils.checkpoint.checkpoint(attention, *alive["qkv"], alive["mask"], use_reentrant=False)
        else:
            out = attention(*alive["qkv"], alive["mask"])
        alive["output"] = out

    def backward() -> None:
        if trains:
            alive["output"].sum().backward()

    (mask_building, mask), (forward_peak, between), (backward_peak, _) = measure_phases(build, forward, backward)
    total = max(forward_peak, backward_peak)
    output = alive["output"].untyped_storage().nbytes()
    saved = between - mask - output
    gradients = sum(x.grad.untyped_storage().nbytes() for x in alive["qkv"]) if trains else 0
    return {
        "mask": mask,
        "output": output,
        "saved": saved,
        "gradients": gradients,
        "workspace": total - mask - output - saved - gradients,
        "total": total,
        "mask_building": mask_building,
    }
