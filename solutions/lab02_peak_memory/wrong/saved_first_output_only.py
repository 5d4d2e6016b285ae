"""Of several outputs only the first is left out.

Task: saved_for_backward
Killed by: TestSavedForBackward::test_inputs_and_outputs_in_containers
"""


def saved_for_backward(fn, *args):
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = fn(*args)
    left_out = {tensor.untyped_storage()._cdata for tensor in [*_tensors((fn, args)), *_tensors(output)[:1]]}
    return sum((storage.nbytes() for key, storage in saved.items() if key not in left_out))
