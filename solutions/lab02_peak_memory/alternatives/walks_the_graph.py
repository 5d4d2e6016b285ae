"""Saved tensors are read off the graph behind the output; the longest length is a root, mended; moments are lists."""

import math

import torch


def saved_for_backward(fn, *args):
    output = fn(*args)
    left_out = {storage_key(tensor) for tensor in tensors_in((args, output, fn))}
    nodes = [tensor.grad_fn for tensor in tensors_in(output) if tensor.grad_fn is not None]
    seen, found = set(), {}
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        nodes.extend(following for following, _ in node.next_functions if following is not None)
        kept = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        kept.append(getattr(node, "saved_tensors", ()))
        for tensor in tensors_in(kept):
            if tensor.dim() == 0 and tensor.dtype in (torch.float64, torch.int64):
                continue  # a Python number
            found[storage_key(tensor)] = tensor.untyped_storage().nbytes()
    return sum(nbytes for key, nbytes in found.items() if key not in left_out)


def storage_key(tensor):
    return tensor.untyped_storage()._cdata


def tensors_in(tree):
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, torch.nn.Module):
        yield from tree.state_dict(keep_vars=True).values()
    elif isinstance(tree, dict):
        yield from tensors_in(list(tree.values()))
    elif isinstance(tree, list | tuple):
        for branch in tree:
            yield from tensors_in(branch)


def attention_training_memory(batch, seq_len, d_model, dtype_bytes=4):
    if min(batch, seq_len, d_model, dtype_bytes) < 1:
        raise ValueError("batch, seq_len, d_model and dtype_bytes must be positive")
    queries = batch * seq_len
    unit = {
        "NN": whole(queries * seq_len * dtype_bytes),
        "Nd": whole(queries * d_model * dtype_bytes),
        "N": whole(queries * dtype_bytes),
        "int": whole(queries * 8),
        "1": whole(dtype_bytes),
    }

    def add(text):
        return sum(unit[word] for word in text.split())

    resident = add("Nd Nd Nd Nd Nd Nd 1") + 2**26
    forward = [resident + add(moment) for moment in ("NN NN NN NN int N", "NN NN int N Nd 1")]
    backward = [
        resident + add("1 " + moment) for moment in ("NN NN int N NN Nd", "NN int N NN NN NN NN NN", "NN Nd Nd")
    ]
    result = dict.fromkeys(("scores", "shifted", "exponentials", "weights"), unit["NN"])
    result.update(
        inputs=add("Nd Nd Nd"), gradients=add("Nd Nd Nd"), argmax=unit["int"], row_sums=unit["N"], loss=unit["1"]
    )
    result.update(workspace=2**26, saved=add("NN NN int N"))
    result.update(forward_peak=max(forward), step_peak=max(forward + backward))
    return result


def whole(nbytes):
    return nbytes + -nbytes % 512


def largest_seq_len(capacity_bytes, batch, d_model, dtype_bytes=4, peak="forward_peak"):
    if peak not in ("saved", "forward_peak", "step_peak"):
        raise ValueError(f"no total is called {peak}")

    def fits(seq_len):
        return seq_len == 0 or attention_training_memory(batch, seq_len, d_model, dtype_bytes)[peak] <= capacity_bytes

    guess = math.isqrt(max(capacity_bytes, 0) // (2 * batch * dtype_bytes)) + 64
    step = 1 << guess.bit_length()
    length = 0
    while step:
        if length + step <= guess and fits(length + step):
            length += step
        step //= 2
    return length
