"""What runs next to the submission in Lab 05: measured calls of both passes, and training steps through `apply`."""

from flash_attention import FlashAttention, flash_backward, flash_forward

from labkit.meters.calls import ScoreTiles, UninitialisedIsNaN, measured
from labkit.meters.steps import kept_between, left_behind, measured_step, penalised_gradients, saved_tensors, step
from labkit.testing.probes import probe

FUNCTIONS = {"flash_forward": flash_forward, "flash_backward": flash_backward}


@probe
def measured_call(task, *args):
    """What `flash_forward` or `flash_backward` returns, and what it allocated and computed."""
    return measured(FUNCTIONS[task], *args)


@probe
def tiles_of_call(task, d, *args):
    """What the function returns, the tiles of scores, (queries, keys), that it computed, and kernels that did more."""
    with ScoreTiles(d) as seen:
        result = FUNCTIONS[task](*args)
    return result, seen.tiles, seen.fused


@probe
def call_on_nan(task, *args):
    """What `flash_forward` or `flash_backward` returns where uninitialised memory holds NaN."""
    with UninitialisedIsNaN():
        return FUNCTIONS[task](*args)


@probe
def step_of_apply(kind, Q, K, V, dO, causal=False, **options):
    """One of the steps of `labkit.meters.steps`, by its name, through `apply`."""
    kinds = {"step": step, "measured_step": measured_step, "penalised_gradients": penalised_gradients}

    def causal_apply(*inputs):
        return FlashAttention.apply(*inputs, True)

    return kinds[kind](causal_apply if causal else FlashAttention.apply, (Q, K, V), dO, **options)


@probe
def step_through(function, Q, K, V, dO):
    """The output and the gradients of Q, K and V through `function.apply`; None for those that never arrived."""
    O, _, gradients = step(function.apply, (Q, K, V), dO)
    return O, *(gradients or [None] * 3)


@probe
def output_of_apply(Q, K, V, *is_causal):
    """The output."""
    return FlashAttention.apply(Q, K, V, *is_causal)


@probe
def saved_by_apply(Q, K, V):
    """The output, and what autograd saves for the backward pass; Q, K, V and O by these names."""
    return saved_tensors(FlashAttention.apply, (Q, K, V), "QKVO")


@probe
def kept_by_apply(Q, K, V):
    """Bytes kept between the passes, and the output; bytes alive when the output is gone, and its numbers."""
    return kept_between(FlashAttention.apply, (Q, K, V)), left_behind(FlashAttention.apply, (Q, K, V))


@probe
def gradient_of_one_input(X, dO):
    """The gradient of X, which is query, key and value at once."""
    X = X.detach().requires_grad_()
    (FlashAttention.apply(X, X, X, False) * dO).sum().backward()
    return X.grad
