# %% [markdown]
"""
# Lab 06: Gradient checkpointing

One figure from your own functions, four answers. Say how you came to each number.
"""

# %%
import matplotlib.pyplot as plt
import torch

from labkit.meters.tensors import AllocationMeter
from labkit.notebook import student_module

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
# activations. Draw it together with what `checkpoint_cost` says, and mark the number that `plan_segments` gives.

# %% nbgrader={"grade": true, "grade_id": "figure_segments", "solution": true}
### BEGIN SOLUTION
# Rubric: 2 points for measured peaks of whole steps, in activations, for eight or more numbers of segments; 1 for the
# model's curve from the student's function; 1 for the plan's mark; 1 for labelled axes with units and a legend.
counts = [1, 2, 3, 4, 6, 7, 8, 12, 16, 24, 48]
peaks = []
for segments in counts:
    with AllocationMeter() as segmented:
        lab.checkpoint_sequential(layers, segments, x).sum().backward()
    peaks.append(segmented.peak_bytes / (4 * WIDTH))
figure, ax = plt.subplots()
ax.plot(counts, [lab.checkpoint_cost(N_LAYERS, segments)[0] for segments in counts], label="model")
ax.plot(counts, peaks, "o", label="measured")
ax.axvline(lab.plan_segments(N_LAYERS), linestyle=":", color="gray", label="plan")
ax.set(xscale="log", xlabel="segments", ylabel="peak of one step, activations")
ax.legend()
print(dict(zip(counts, peaks, strict=True)))
### END SOLUTION

# %% [markdown]
# ## 2. Why the square root
#
# A chain has n equal layers and is cut into k segments; take n / k for the length of a segment. (a) Write the peak as
# a function of k and find its minimum by calculus. What is the peak there, and what share of n for n = 100 and
# n = 10 000? (b) Suppose that a segment's *input* takes four times the bytes of a layer's activation (it is float32,
# the activations are in 8 bits). What is the best k now, and the peak in activations, for n = 100? (c) Which k makes
# the peak as large as without checkpoints, or larger, and what does the step cost then?

# %% [markdown] nbgrader={"grade": true, "grade_id": "why_the_root", "solution": true}
# (a) M(k) = k + n/k, M′(k) = 1 − n/k² = 0 at k = √n, where M = 2√n; M″ = 2n/k³ > 0, a minimum. n = 100: 20, a fifth;
# n = 10 000: 200, a fiftieth.
#
# (b) M(k) = 4k + n/k, so k = √(n/4) = 5 and M = 20 + 20 = 40 activations (with k = 10 it would be 50). In general
# k = √(n/c) and M = 2√(cn).
#
# (c) k = 1 and k = n: 1 + n both times. All n layers still run a second time, for nothing.
#
# *Rubric (5): (a) 1 for the derivative and the minimum, 1 for both shares; (b) 1 for k = 5, 1 for 40; (c) 1 for both
# values of k together with the n extra forwards.*

# %% [markdown]
# ## 3. What must be the same the second time
#
# Recomputation assumes that `fn` gives the same again. Say for each of these whether the gradients of your `checkpoint`
# are still right, and what exactly happens: (a) `fn` contains dropout. (b) `fn` contains a batch norm in training mode,
# which updates its running mean in each forward run. (c) `fn` appends its result to a Python list. (d) `fn` reads a
# global number that the training loop changes between the two passes. (e) Between the passes an optimizer changes a
# parameter that `fn` uses, in place.

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_must_repeat", "solution": true}
# (a) Right: the state of the generator is kept and set, so that the mask is the same.
#
# (b) The gradients are right, since in training mode the batch's own statistics are used. But the running mean is
# updated twice a step, so that it follows the data faster than it should (momentum 0.1 acts like 0.19).
#
# (c) Right, but the list gets two entries, and the second, made in backward, holds on to the recomputed graph.
#
# (d) Wrong without a word: the second run computes another function, and its gradient goes out as that of the first.
#
# (e) Wrong without a word, unless it is an argument: `save_for_backward` watches the arguments' versions; parameters
# that `fn` merely uses are not saved in the forward pass, so their change is not noticed. (Plain autograd raises.)
#
# *Rubric (5): 1 each. (b) needs the double update; (c) needs the second entry; (d) and (e) need "wrong, and unnoticed";
# an answer to (e) that says RuntimeError gets half if it speaks of arguments.*

# %% [markdown]
# ## 4. Segments within segments
#
# A segment of length n / k can be checkpointed within itself: while it is recomputed, it keeps only the inputs of k₂
# sub-segments, and recomputes those one at a time. (a) Write the peak of this for k₁ and k₂, choose both for n = 1000,
# and compare with one level. (b) How many extra forwards does it cost? (c) With m levels, what do peak and extra
# forwards become? Which m would you take for n = 96 layers and why?

# %% [markdown] nbgrader={"grade": true, "grade_id": "more_levels", "solution": true}
# (a) M = k₁ + k₂ + n/(k₁ k₂), lowest at k₁ = k₂ = n^(1/3) = 10: 30 activations. One level: ⌈√1000⌉ = 32, 32 + 32 = 64.
#
# (b) Every layer runs once for the outer segment's inputs of sub-segments and once for the sub-segment's activations:
# 2n = 2000 extra, instead of 1000. (Of the last sub-segment the first of the two can be spared.)
#
# (c) M = (m + 1)·n^(1/(m+1)), extra m·n. n = 96: none 96 and 0; one level 10 + 10 = 20 and 96; two levels
# 3·96^(1/3) = 13.7 (5 + 5 + 4 = 14) and 192. The first level saves 76 activations for 96 forwards, the second 6 for 96
# more: one level.
#
# *Rubric (5): (a) 1 for the formula, 1 for 30 against 64; (b) 1 for 2n; (c) 1 for the general form, 1 for a choice with
# numbers. Two levels is a good answer where those 6 activations decide whether it fits, if it says so.*

# %% [markdown]
# ## 5. What checkpointing cannot save
#
# One head of attention, N = 8192, d = 64, float32; softmax as one operator, so that autograd keeps the weights and its
# backward holds three N × N arrays at once. (a) What does one layer keep between the passes, in MiB, without
# checkpoint, with the whole attention checkpointed, and as FlashAttention (output left out)? (b) What is the peak of
# the step's N × N arrays in each of the three? (c) Twelve such layers: which of the three fit in 4 GiB? (d) In products
# of 2N²d operations a plain step costs 6. What does it cost with checkpoint, and what with FlashAttention, and why is
# the second less although both recompute?

# %% [markdown] nbgrader={"grade": true, "grade_id": "checkpoint_or_flash", "solution": true}
# (a) N² · 4 B = 256 MiB; nothing but the inputs; L, N · 4 B = 32 KiB = 0.03 MiB.
#
# (b) 3 · 256 = 768 MiB, 768 MiB, none: checkpointing gives the arrays back between the passes, but the backward of a
# layer needs them all at once.
#
# (c) Without: 12 · 256 + 2 · 256 = 3584 MiB = 3.5 GiB of N × N arrays at the peak (when the last layer's backward
# starts, its own weights are one of the twelve): it just fits, with some 2 MiB for each N·d array. Checkpointed: 768
# MiB and a few N·d. FlashAttention: a few N·d a layer. All three fit; at N = 16 384, four times the bytes, the first
# does not.
#
# (d) 8: the two products of the forward pass once more. FlashAttention 7: with L it gets P from S in one step, so only
# S is recomputed, not O = PV, which was kept.
#
# *Rubric (6): (a) 2; (b) 1; (c) 1 for a sum with 12 layers that counts kept and working arrays apart (3.5 to 3.75 GiB);
# (d) 1 for 8 and 7, 1 for "S only, since O and L are kept".*
