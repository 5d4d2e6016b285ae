"""Which of the labs' tasks `lab trace` knows inputs for: asked where torch is not imported."""

from labkit.labs.manifest import Task

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
    }
)
"""Their arguments are not just tensors called q, k, v or x: `labkit.trace.targets.INPUTS` has some."""


def can_be_traced(task: Task) -> bool:
    """Whether `lab trace` runs the task without being told inputs."""
    return task.name in OTHERS or any(names in task.signature for names in OF_TENSORS)
