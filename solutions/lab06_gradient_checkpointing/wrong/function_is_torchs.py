"""PyTorch's own Function under another name.

Task: Checkpoint
Killed by: TestCheckpointFunction::test_is_a_function_of_its_own
Says: PyTorch's own
"""

import torch
from torch.utils.checkpoint import CheckpointFunction


class Checkpoint(CheckpointFunction):
    @staticmethod
    def forward(ctx, fn, *args):
        return CheckpointFunction.forward(ctx, fn, True, *args)

    @staticmethod
    def backward(ctx, *grads):
        with torch.enable_grad():
            found = CheckpointFunction.backward(ctx, *grads)
        return None, *found[2:]
