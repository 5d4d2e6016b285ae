"""Nodes of hand-written Functions are passed over.

Task: saved_for_backward
Killed by: TestSavedForBackward::test_functions_with_a_backward_of_their_own
Says: ctx.save_for_backward
"""


def saved_for_backward(fn, *args):
    output = fn(*args)
    left_out = {tensor.untyped_storage()._cdata for tensor in _tensors((fn, args, output))}
    saved, nodes, seen = {}, [tensor.grad_fn for tensor in _tensors(output)], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        for name in dir(node):
            for value in _tensors(getattr(node, name)) if name.startswith("_saved_") else ():
                if value.dim() or value.dtype not in (torch.float64, torch.int64):
                    saved[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
    return sum(nbytes for key, nbytes in saved.items() if key not in left_out)
