"""Each time a tensor is saved counts.

Task: saved_for_backward
Killed by: TestSavedForBackward::test_a_storage_counts_once
Killed by: TestSavedForBackward::test_attention
Says: each time a tensor is saved counts
"""


def saved_for_backward(fn, *args):
    saved = []

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved.append((storage._cdata, storage))
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = fn(*args)
    left_out = {tensor.untyped_storage()._cdata for tensor in _tensors((fn, args, output))}
    return sum((storage.nbytes() for key, storage in saved if key not in left_out))
