"""Which of the labs' tasks `lab trace` knows inputs for: asked where torch is not imported."""

from labkit.labs.manifest import Lab, Task

KERNELS = frozenset({"triton_kernel"})
OF_TENSORS = ("(q, k, v", "(x)")
OTHERS = frozenset(
    {
        "flash_forward",
        "flash_backward",
        "FlashAttention",
        "Checkpoint",
        "checkpoint",
        "checkpoint_sequential",
        "sliding_window_attention",
        "grouped_query_attention",
        "split_kv_decode",
        "paged_attention",
        "mla_decode",
        "quantize_kv",
        "attention_with_sinks",
        "attention_sink_logit",
    }
)
"""Their arguments are not just tensors called q, k, v or x: `labkit.trace.targets.INPUTS` has some."""


def can_be_traced(lab: Lab, task: Task) -> bool:
    """Whether `lab trace` runs the task without being told inputs. What kernels do, no operator shows."""
    if lab.module in KERNELS:
        return False
    return task.name in OTHERS or any(names in task.signature for names in OF_TENSORS)
