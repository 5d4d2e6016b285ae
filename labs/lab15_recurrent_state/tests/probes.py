"""What runs next to the submission: measured calls, calls of a cache, its bytes, and all outcomes of a sampling."""

import contextlib
import copy
import itertools
import math

import recurrent_state as submission
import torch

from labkit.meters.products import ProductMeter
from labkit.meters.tensors import AllocationMeter
from labkit.testing.probes import probe


@probe
def measured(task, inputs):
    """A call's peak of bytes, and the operations of its matrix products."""
    with AllocationMeter() as memory, ProductMeter() as products:
        getattr(submission, task)(*inputs)
    return {"peak_bytes": memory.peak_bytes, "flops": products.flops}


@probe
def gradients(inputs, chunk, weights):
    """Of both results of `gated_delta_chunked`, weighted, for all inputs."""
    return torch.autograd.functional.vjp(lambda *x: submission.gated_delta_chunked(*x, None, chunk), inputs, weights)[1]


@probe
def all_outcomes(target_scores, draft_scores, numbers, temperature):
    """How probable each result is: for all drafts, and with each of `numbers` for each u, all equally probable.

    Drafts are weighted by the probabilities of the draft model. Returns a dict from the result, as a tuple.
    """
    n, vocab = draft_scores.shape
    q, found = torch.softmax(draft_scores.double() / temperature, -1).tolist(), {}
    for drafts in itertools.product(range(vocab), repeat=n):
        weight = math.prod(q[i][token] for i, token in enumerate(drafts)) / len(numbers) ** (n + 1)
        for u in itertools.product(numbers, repeat=n + 1) if weight else ():
            given = target_scores.clone(), draft_scores.clone(), list(drafts), torch.tensor(u, dtype=torch.float64)
            result = tuple(map(int, submission.accept_drafts(*given, temperature)))
            found[result] = found.get(result, 0.0) + weight
    return found


@probe
def run_cache(sizes, calls, seqs):
    """What calls of a new cache's methods give; tensors that it was given are overwritten with NaN after each call.

    A call is (method, arguments, whether it is known to be refused). Returns what `restore` gave; `num_free()`; what
    each of `seqs` holds; the arguments that were changed; and the first call, or None, after which `state()` returned a
    tensor that a later call has changed.
    """
    cache, restored, changed, states = submission.HybridCache(*sizes), [], [], []
    for i, (name, args, refused) in enumerate(calls):
        given = copy.deepcopy(args)
        with contextlib.suppress(ValueError) if refused else contextlib.nullcontext():
            result = getattr(cache, name)(*given)
            restored += [result] if name == "restore" else []
        for name_of, before, after in zip(("seq", "k", "v", "beta", "g"), args, given, strict=False):
            if isinstance(after, torch.Tensor):
                changed += [] if torch.equal(before, after) else [name_of]
                after.fill_(torch.nan)
        if name in ("append", "rollback") and not refused:
            state = cache.state(args[0])
            states.append((i, state, state.clone()))
    names = ("length", "keys", "values", "state")
    views = {seq: {name: getattr(cache, name)(seq) for name in names} for seq in seqs}
    stale = next((i for i, now, before in states if not torch.equal(now, before)), None)
    return restored, cache.num_free(), views, changed, stale


@probe
def cache_bytes(sizes, tokens, pieces, n_drafts):
    """Bytes alive: after tokens in pieces; with drafts; and after their rollback."""
    found, at = {}, 0
    with AllocationMeter() as life:
        cache = submission.HybridCache(*sizes)
        for n, drafts in [*((n, False) for n in pieces), (n_drafts, True)]:
            found["full"] = life.live_bytes
            cache.append("a", *(x[:, at : at + n] for x in tokens), drafts)
            at += n
        found["drafts"] = life.live_bytes
        cache.rollback("a", 1)
        found["after"] = life.live_bytes
    return found
