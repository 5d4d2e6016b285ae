"""Two N × N arrays are returned for whatever is asked.

Task: saved_for_backward
Killed by: TestSavedForBackward::test_worked_example
"""


def saved_for_backward(fn, *args):
    q = _tensors(args)[0]
    n = q.shape[-2] if q.dim() > 1 else 1
    return 2 * n * n * q.numel() // (n * q.shape[-1]) * q.element_size()
