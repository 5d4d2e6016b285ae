"""A module's buffers are counted as saved.

Task: saved_for_backward
Killed by: TestSavedForBackward::test_modules
Says: a module's buffers are inputs
"""


def saved_for_backward(fn, *args):
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = fn(*args)
    left_out = {
        tensor.untyped_storage()._cdata
        for tensor in [*_tensors((args, output)), *(fn.parameters() if isinstance(fn, torch.nn.Module) else ())]
    }
    return sum((storage.nbytes() for key, storage in saved.items() if key not in left_out))
