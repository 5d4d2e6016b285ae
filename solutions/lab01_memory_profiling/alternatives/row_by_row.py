"""One query after another in a Python loop, masked keys left out; least squares and estimates written by hand."""

import math

import numpy as np
from profiling import standard_attention as whole_matrix


def standard_attention(Q, K, V, mask=None):
    if Q.shape[-1] != K.shape[-1]:
        raise ValueError(f"d differs: {Q.shape} and {K.shape}")
    if K.shape[-2] != V.shape[-2]:
        raise ValueError(f"N_k differs: {K.shape} and {V.shape}")
    n_queries, n_keys = Q.shape[-2], K.shape[-2]
    hidden = np.broadcast_to(False if mask is None else mask, (*Q.shape[:-1], n_keys))
    weights = np.zeros((*Q.shape[:-1], n_keys), Q.dtype)
    output = np.zeros((*Q.shape[:-1], V.shape[-1]), Q.dtype)
    for entry in np.ndindex(Q.shape[:-2]):
        for i in range(n_queries):
            seen = np.flatnonzero(~hidden[entry][i])
            if len(seen) == 0:
                continue
            scores = K[entry][seen] @ Q[entry][i] / Q.dtype.type(math.sqrt(Q.shape[-1]))
            powers = np.exp(scores - scores.max())
            weights[entry][i, seen] = powers / powers.sum()
            output[entry][i] = weights[entry][i, seen] @ V[entry][seen]
    return output, weights


def measure_attention_memory(seq_len, d_model, batch_size=1, dtype=np.float32):
    inputs = np.random.default_rng(1).random((3, batch_size, seq_len, d_model)).astype(dtype)
    results = [whole_matrix(*(part[b] for part in inputs)) for b in range(batch_size)]
    output, weights = (np.stack(arrays) for arrays in zip(*results, strict=True))
    total = sum(array.nbytes for array in (inputs, weights, output))
    stats = {"seq_len": seq_len, "d_model": d_model, "input_memory": inputs.nbytes, "total_memory": total}
    return stats | {"attention_matrix_memory": weights.nbytes, "output_memory": output.nbytes}


def analyze_scaling(results):
    if len(results) < 2:
        raise ValueError("results has one length: there is no growth to see")
    lengths = sorted(results)
    xs = [math.log2(n) for n in lengths]
    ys = [math.log2(results[n]["attention_matrix_memory"]) for n in lengths]
    x_mean, y_mean = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    above = math.fsum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    slope = above / math.fsum((x - x_mean) ** 2 for x in xs)
    return {
        "seq_lengths": lengths,
        "attention_memory": [results[n]["attention_matrix_memory"] for n in lengths],
        "total_memory": [results[n]["total_memory"] for n in lengths],
        "scaling_factor": 2.0**slope,
    }
