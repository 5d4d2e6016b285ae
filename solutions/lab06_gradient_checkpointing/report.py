# %% [markdown]
"""
# Lab 06: Gradient checkpointing

One figure from your own functions, one prediction, two answers. Type the prediction in place of `None` and run its cell
before the next one. A wrong prediction costs nothing: the points are for explaining the gap.
"""

# %%
import matplotlib.pyplot as plt
import torch

from labkit.meters.tensors import AllocationMeter, measure_peak
from labkit.notebook import compare, predict, student_module

lab = student_module("lab06")
plt.rcParams["figure.figsize"] = (6, 4)

N_LAYERS, WIDTH = 48, 4096
layers = [torch.tanh] * N_LAYERS
x = torch.ones(WIDTH, requires_grad=True)

with AllocationMeter() as meter:
    h = x
    for layer in layers:
        h = layer(h)
    h.sum().backward()
print(f"without checkpoints the peak is {meter.peak_bytes / (4 * WIDTH):.1f} activations")

# %% [markdown]
# ## 1. The figure: peak memory over the number of segments
#
# `layers` is a chain of 48 layers, each of which saves one activation of `WIDTH` float32 numbers. Measure the peak of a
# whole step (forward and backward of the sum) with an `AllocationMeter` for at least eight numbers of segments, in
# activations. Draw it together with the model, k + ⌈n / k⌉, and mark the number of segments with the model's lowest
# peak. What is the gap between the two, at k = 1, at the lowest point and at k = n?

# %% nbgrader={"grade": true, "grade_id": "figure_segments", "solution": true}
### BEGIN SOLUTION
# Rubric: 1 point for measured peaks of whole steps, in activations, for eight or more numbers of segments; 1 for the
# model's curve and the mark at 6, 7 or 8, which have the same peak; 1 for the gaps (here 1, and 0 at k = n: two
# gradients, less the input of the chain, which exists before); 1 for labelled axes with units.
counts = [1, 2, 3, 4, 6, 7, 8, 12, 16, 24, 48]
peaks = []
for segments in counts:
    with AllocationMeter() as segmented:
        lab.checkpoint_sequential(layers, segments, x).sum().backward()
    peaks.append(segmented.peak_bytes / (4 * WIDTH))
figure, ax = plt.subplots()
model = [segments + -(-N_LAYERS // segments) for segments in counts]
ax.plot(counts, model, label="model")
ax.plot(counts, peaks, "o", label="measured")
ax.axvline(counts[model.index(min(model))], linestyle=":", color="gray", label="lowest")
ax.set(xscale="log", xlabel="segments", ylabel="peak of one step, activations")
ax.legend()
print({k: peak - by_model for k, peak, by_model in zip(counts, peaks, model, strict=True)})
### END SOLUTION

# %% [markdown]
# ## 2. A checkpoint around attention
#
# A stack of 6 layers h + softmax(h hᵀ / √d) h, with N = 512 and d = 64 in float32: one N × N array is 1 MiB, one N × d
# array 0.125 MiB. The next cell measures the peak of a step without checkpoints, in MiB besides `tokens`.

# %%
N, D, N_BLOCKS = 512, 64, 6
tokens = torch.randn(N, D, generator=torch.Generator().manual_seed(0)).requires_grad_()


def block(h):
    """One attention layer, with its residual connection."""
    return h + torch.softmax(h @ h.mT / D**0.5, -1) @ h


def peak_mib(run):
    """The peak of a step through 6 blocks; `run(h)` applies one of them."""

    def step():
        h = tokens
        for _ in range(N_BLOCKS):
            h = run(h)
        h.sum().backward()

    tokens.grad = None
    return measure_peak(step).peak_bytes / 2**20


print(f"without checkpoints: {peak_mib(block):.3f} MiB")

# %% [markdown]
# Now each block has a checkpoint of its own, `lab.checkpoint(block, h)`. Predict the peak.

# %%
predicted = predict(None, "MiB")

# %%
compare(predicted, round(peak_mib(lambda h: lab.checkpoint(block, h)), 3), "MiB")

# %% [markdown]
# (a) Name the arrays alive at both peaks, without and with checkpoints. They must add up to the two numbers within 0.13
# MiB. (b) Explain the gap between prediction and measurement; if there was none, say which terms your prediction had.
# (c) Change where the checkpoints are until the peak is below 2 MiB, with the same `tokens.grad`. Give the change, the
# new peak, and the largest difference of the gradients.

# %% [markdown] nbgrader={"grade": true, "grade_id": "attention_in_checkpoints", "solution": true}
# (a) Without, 8.875 MiB, at the start of the last block's backward pass: the weights of 6 blocks, 6.0; the gradient of
# the last one's weights and that of its scores, 2.0; the outputs of 6 blocks, 0.75; a gradient of N × d, 0.125. With,
# 4.0 MiB: in one block the weights, made again, and those two gradients, 3.0; the outputs of 6 blocks, which are the
# next one's inputs, 0.75; the output made again and a gradient, 0.25.
#
# (b) Predicted 1.75 MiB, six inputs and one N × N array; measured 2.29 times that. The backward pass of softmax needs
# its result, the gradient that arrives and the one that leaves at once, so 3 N² and not 1. A checkpoint removes what is
# kept between the passes, but not what one block needs while it runs.
#
# (c) A checkpoint around each run of 128 queries, `lab.checkpoint(rows, h[i : i + 128], h)`, and their results
# concatenated: 1.78 MiB, of which 3 · 128 · N is 0.75. The gradients, up to 4,381, differ by at most 0.0005: rounding.
#
# *Rubric (6): (a) 2, one for each peak; (b) 2 for the term that the prediction lacked or had too much, with its bytes
# (no gap: its terms, among them 3 N²); (c) 2 for a change that is not around a whole block, with peak and difference.
# A gradient more or less is right: code that holds one N × d array more has 0.125 MiB more.*

# %% [markdown]
# ## 3. What must be the same the second time
#
# Recomputation assumes that `fn` gives the same again. Try each of these with your `checkpoint`. Are the gradients
# right, and what exactly happens? Give a number that you saw. (a) `fn` contains a batch norm in training mode, which
# updates its running mean in each forward run. (b) `fn` appends its result to a Python list. (c) `fn` reads a global
# number that the training loop changes between the two passes. (d) Between the passes an optimizer changes a parameter
# that `fn` uses, in place.

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_must_repeat", "solution": true}
# (a) The gradients are right, since in training mode the batch's own statistics are used. But the running mean is
# updated twice a step, so that it follows the data faster: after one step on data of mean 1 it is 0.19 instead of 0.1
# (momentum 0.1).
#
# (b) Right, but the list gets two entries, and the second, made in the backward pass, holds on to the recomputed graph.
#
# (c) Wrong without a word: the second run computes another function, and its gradient goes out as that of the first.
# With x² times a global of 1 that becomes 2, x.grad at x = 3 is 12 instead of 6.
#
# (d) Wrong without a word, unless it is an argument: `save_for_backward` watches the arguments' versions; parameters
# that `fn` merely uses are not saved in the forward pass. With w x, w changed from 3 to 5, x.grad is 5. (Plain autograd
# raises.)
#
# *Rubric (4): 1 each, with a number: (a) the double update; (b) the second entry; (c) and (d) "wrong, and unnoticed".
# An answer to (d) that says RuntimeError gets half if it speaks of arguments.*
