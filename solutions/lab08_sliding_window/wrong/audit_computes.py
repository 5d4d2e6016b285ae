"""Nothing is run: the bytes come from formulas.

Task: memory_breakdown
Killed by: TestMemoryBreakdown::test_the_step_is_run
Killed by: TestMemoryBreakdown::test_causal_sdpa_is_measured
Says: nothing was run
"""


def memory_breakdown(variant, batch, heads, seq_len, head_dim, window, block, dtype, checkpointed=False):
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}; got {variant!r}")
    size = dtype.itemsize
    output = batch * heads * seq_len * head_dim * size
    scores = batch * heads * seq_len**2 * size
    mask = {"naive_mask": seq_len**2, "flex_block_mask": 2 * 8 * (seq_len // block) ** 2}.get(variant, 0)
    saved = scores if variant == "naive_mask" else 4 * batch * heads * seq_len
    found = {"mask": mask, "output": output, "saved": 5056 if checkpointed else saved, "gradients": 3 * output}
    found["workspace"] = 2 * scores if variant == "naive_mask" else output
    return found | {"total": sum(found.values()), "mask_building": 3 * mask}
