"""Storages are told apart by the tensor's address, which differs from view to view.

Task: saved_for_backward
Killed by: TestSavedForBackward::test_views_of_one_storage
Says: data_ptr() differs from view to view
"""


def saved_for_backward(fn, *args):
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[tensor.data_ptr()] = storage
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = fn(*args)
    left_out = {tensor.untyped_storage()._cdata for tensor in _tensors((fn, args, output))}
    return sum(storage.nbytes() for storage in saved.values() if storage._cdata not in left_out)
