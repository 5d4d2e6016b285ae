"""The labs' tasks for which `lab trace` has inputs. This module does not import torch."""

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
"""Tasks with other arguments than tensors called q, k, v or x; `labkit.trace.inputs.INPUTS` makes them."""


def can_be_traced(lab: Lab, task: Task) -> bool:
    """Whether `lab trace` has inputs for the task. It follows operators, so it shows nothing inside kernels."""
    if lab.module in KERNELS:
        return False
    return task.name in OTHERS or any(names in task.signature for names in OF_TENSORS)
