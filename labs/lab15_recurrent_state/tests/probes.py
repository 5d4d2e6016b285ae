"""What runs next to the submission: measured calls, calls of a cache, its bytes, and all outcomes of a sampling."""

import contextlib
import copy
import itertools

import torch
from recurrent_state import HybridCache, accept_drafts, gated_delta_chunked, gated_delta_recurrent

from labkit.meters.products import ProductMeter
from labkit.meters.tensors import AllocationMeter
from labkit.testing.probes import probe

FUNCTIONS = {"gated_delta_recurrent": gated_delta_recurrent, "gated_delta_chunked": gated_delta_chunked}


@probe
def measured(task, inputs, *numbers):
    """What a task returns, its peak of bytes, and the operations of its matrix products."""
    with AllocationMeter() as memory, ProductMeter() as products:
        result = FUNCTIONS[task](*inputs, *numbers)
    return result, {"peak_bytes": memory.peak_bytes, "flops": products.flops}


@probe
def gradients(inputs, chunk, weights):
    """Of both results of `gated_delta_chunked`, weighted, for all inputs."""
    return torch.autograd.functional.vjp(lambda *x: gated_delta_chunked(*x, None, chunk), inputs, weights)[1]


@probe
def all_outcomes(target_scores, draft_scores, numbers, temperature):
    """How probable each result is: for all drafts, and with each of `numbers` for each u, all equally probable.

    Drafts are weighted by the probabilities of the draft model. Returns a dict from the result, as a tuple.
    """
    n, vocab = draft_scores.shape
    q = torch.softmax(draft_scores.double() / temperature, -1)
    found = {}
    for drafts in itertools.product(range(vocab), repeat=n):
        weight = 1.0
        for i, token in enumerate(drafts):
            weight *= float(q[i, token])
        if weight == 0:
            continue
        for chosen in itertools.product(numbers, repeat=n + 1):
            u = torch.tensor(chosen, dtype=torch.float64)
            result = accept_drafts(target_scores.clone(), draft_scores.clone(), list(drafts), u, temperature)
            key = tuple(int(token) for token in result)
            found[key] = found.get(key, 0.0) + weight / len(numbers) ** (n + 1)
    return found


@probe
def run_cache(sizes, calls, seqs):
    """What calls of a new cache's methods give, in order, and then each sequence's length, keys, values and state.

    A call is (method, arguments, whether it is known to be refused).
    """
    cache, results = HybridCache(*sizes), []
    for name, args, refused in calls:
        with contextlib.suppress(ValueError) if refused else contextlib.nullcontext():
            results.append(getattr(cache, name)(*copy.deepcopy(args)))
    names = ("length", "keys", "values", "state")
    views = {seq: {name: getattr(cache, name)(seq) for name in names} for seq in seqs}
    return results, views, cache.num_free()


@probe
def cache_bytes(sizes, tokens, pieces, n_drafts):
    """Bytes alive: when a cache is made; after tokens in pieces; with drafts; after their rollback; after a fork."""
    found = {}
    with AllocationMeter() as life:
        cache = HybridCache(*sizes)
        found["made"] = life.live_bytes
        at = 0
        for n in pieces:
            cache.append("a", *(x[:, at : at + n] for x in tokens))
            at += n
        found["full"] = life.live_bytes
        cache.append("a", *(x[:, at : at + n_drafts] for x in tokens), True)
        found["drafts"] = life.live_bytes
        cache.rollback("a", 1)
        found["after"] = life.live_bytes
        cache.fork("a", "b")
        found["fork"] = life.live_bytes
        found["free"] = cache.num_free()
    return found


@probe
def arguments_after_calls(sizes, inputs):
    """The caller's tensors after drafts of them were appended; and the state, if the caller then changes them."""
    cache = HybridCache(*sizes)
    cache.append("a", *inputs)
    given = tuple(x.clone() for x in inputs)
    cache.append("a", *given, True)
    after = tuple(x.clone() for x in given)
    for x in given:
        x.zero_()
    cache.rollback("a", inputs[0].shape[1])
    return after, cache.state("a"), cache.keys("a")
