"""The bytes of the view that is saved count, not those of its storage.

Task: saved_for_backward
Killed by: TestSavedForBackward::test_a_view_keeps_the_whole_storage
Says: the elements saved are counted
"""


def saved_for_backward(fn, *args):
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[storage._cdata] = (storage, tensor.nbytes)
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = fn(*args)
    left_out = {tensor.untyped_storage()._cdata for tensor in _tensors((fn, args, output))}
    return sum((nbytes for key, (_, nbytes) in saved.items() if key not in left_out))
