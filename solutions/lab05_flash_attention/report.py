# %% [markdown]
# # Lab 05: FlashAttention
#
# Run the cells from top to bottom after the three tasks pass. Everything here is computed by **your** functions; when
# you change `src/flash_attention.py`, restart the kernel and run all cells again. Say the unit of every number:
# bytes, KiB (2¹⁰), MiB (2²⁰), GiB (2³⁰) or FLOPs.

# %%
import matplotlib.pyplot as plt
import torch

from labkit.meters.products import ProductMeter
from labkit.meters.tensors import AllocationMeter, kept_by_forward
from labkit.notebook import student_module

flash_attention = student_module("lab05")
MIB = 2**20

# %% [markdown]
# ## Measurements
#
# Three forms of the same attention: as in a textbook; your tiled forward pass, left to autograd; your FlashAttention.


# %%
def textbook(Q, K, V):
    """softmax(Q Kᵀ / √d) V, differentiated by autograd."""
    return (Q @ K.mT * Q.shape[-1] ** -0.5).softmax(-1) @ V


def tiled_autograd(Q, K, V):
    """Your forward pass, differentiated by autograd."""
    return flash_attention.flash_forward(Q, K, V, False, 128, 128)[0]


def flash(Q, K, V):
    """Your Function."""
    return flash_attention.FlashAttention.apply(Q, K, V)


FORMS = {"textbook": textbook, "tiled, by autograd": tiled_autograd, "FlashAttention": flash}


def measured(form, n, d=64):
    """Bytes kept between the passes, and at the peak of a step."""
    inputs = [torch.randn(n, d, requires_grad=True) for _ in range(3)]
    kept = kept_by_forward(form, *inputs)
    with AllocationMeter() as meter:
        form(*inputs).sum().backward()
    return kept, meter.peak_bytes


LENGTHS = [128, 256, 512, 1024]
memory = {name: [measured(form, n) for n in LENGTHS] for name, form in FORMS.items()}
for name, rows in memory.items():
    print(f"{name:20s} kept, peak (MiB): " + "  ".join(f"{kept / MIB:.3f}, {peak / MIB:.3f}" for kept, peak in rows))

# %% [markdown]
# ## 1. The figure: memory of a training step over N
#
# Draw the peak of a step over N for the three forms, and for each of them what it keeps between the passes, in MiB,
# both axes logarithmic to base 2. Add as guides a line that grows with N and one that grows with N². Tell peak from
# kept.

# %% nbgrader={"grade": true, "grade_id": "figure_memory", "solution": true}
figure, ax = plt.subplots(figsize=(7, 4.6), layout="constrained")
### BEGIN SOLUTION
# Rubric, 5 points: 1 peaks of all three forms; 1 kept bytes of all three; 1 logarithmic axes to base 2 with quantity
# and MiB; 1 two guides with slopes 1 and 2, labelled; 1 a legend in which peak and kept can be told apart.
for number, (name, rows) in enumerate(memory.items()):
    for part, dash, marker in ((1, "-", "o"), (0, "--", "s")):
        heights = [row[part] / MIB for row in rows]
        label = f"{name}, {'peak' if part else 'kept between the passes'}"
        ax.plot(LENGTHS, heights, dash, marker=marker, color=f"C{number}", label=label)
for power, start in ((1, 0.05), (2, 0.02)):
    guide = [start * (n / LENGTHS[0]) ** power for n in LENGTHS]
    ax.plot(LENGTHS, guide, ":", color="0.4", label="grows with N" if power == 1 else "grows with N²")
for set_scale in (ax.set_xscale, ax.set_yscale):
    set_scale("log", base=2)
ax.set(xlabel="sequence length N", ylabel="memory over the inputs (MiB)")
ax.grid(alpha=0.3)
ax.legend(fontsize=8)
plt.show()
### END SOLUTION

# %% [markdown]
# ## 2. Why one number a row is enough
#
# FlashAttention kept two numbers for each query, m and l; FlashAttention-2 keeps L.
#
# (a) Write a weight p of row i as a function of its score s and L alone, and derive it from m and l.
#
# (b) Why can e^(s − L) not overflow, although L is no maximum?
#
# (c) For one layer with batch 4, 16 heads and N = 16,384, bfloat16 inputs: how many bytes is L, and how many the
# matrix of weights in bfloat16?

# %% [markdown] nbgrader={"grade": true, "grade_id": "one_number_a_row", "solution": true}
# (a) p = e^(s − m) / l = e^(s − m − log l) = e^(s − L) with L = m + log l.
#
# (b) L = log Σ e^(s_j) is at least as large as each s_j, since the sum holds e^(s_j) and only positive terms besides.
# So the exponent is at most 0 and the power at most 1.
#
# (c) L is float32: 4 · 16 · 16,384 · 4 bytes = 4,194,304 bytes = 4 MiB. The weights: 4 · 16 · 16,384² · 2 bytes = 32
# GiB, 8192 times as much.
#
# Rubric, 5 points: 2 (a) with the step from m and l; 1 (b); 2 (c), 1 each, units said (L in bfloat16: no point for
# it).

# %% [markdown]
# ## 3. Where D comes from
#
# The next cell computes D in two ways.

# %%
Q, K, V, dO = (torch.randn(96, 32, dtype=torch.float64) for _ in range(4))
P = (Q @ K.mT * 32**-0.5).softmax(-1)
O = P @ V
D_from_weights = (P * (dO @ V.mT)).sum(-1)
D_from_output = (dO * O).sum(-1)
print("largest difference:", float((D_from_weights - D_from_output).abs().max()))

# %% [markdown]
# (a) Show with sums that the two are the same.
#
# (b) Why can the first not be computed tile by tile in one pass together with dS, and the second can?
#
# (c) Each row of dS adds up to 0. Show it, and say what property of the softmax is behind it.
#
# (d) A classmate computes D from the tile at hand: the sum of P ∘ dP over the keys of that tile. With which lengths
# do all their tests pass?

# %% [markdown] nbgrader={"grade": true, "grade_id": "where_d_comes_from", "solution": true}
# (a) Σ_j p_ij dp_ij = Σ_j p_ij Σ_c dO_ic V_jc = Σ_c dO_ic Σ_j p_ij V_jc = Σ_c dO_ic O_ic.
#
# (b) dS of the first tile needs D, and the first form of D needs P and dP of all tiles of the row: a pass of its own
# over the keys must come first. The second form needs O and dO only, which are there before the backward pass begins.
#
# (c) Σ_j p_ij (dp_ij − D_i) = D_i − D_i Σ_j p_ij = 0, as weights add up to 1. A constant added to all scores of a row
# does not change the softmax, so the loss has no slope in that direction.
#
# (d) With N_k up to block_k: then one tile holds all keys of the row.
#
# Rubric, 6 points: 2 (a), both sums exchanged; 1 (b); 2 (c), 1 each; 1 (d).

# %% [markdown]
# ## 4. Why autograd cannot find this backward pass
#
# Look at the second row of the measurements, at N = 1024.
#
# (a) How many N × N arrays does the tiled forward pass keep when autograd differentiates it, and which tensors of a
# tile are they? Name the operator that wants each.
#
# (b) The textbook form keeps one. Which, and why is one enough there?
#
# (c) Recomputing the tiles in the backward pass, with autograd inside each tile, would lower the memory. What would
# it still do more than your backward pass?

# %% [markdown] nbgrader={"grade": true, "grade_id": "why_not_autograd", "solution": true}
# (a) About 3 (12.4 MiB, where one is 4 MiB). exp keeps its result P̃,
# wanted by its own derivative; the product P̃ V_j keeps P̃ too, the same storage; `amax` keeps the scores and its
# result to find the maximum's place, so S stays as well. The rest are columns, rescaling factors and copies of O for
# every block of keys. (Which of these stay depends on how the forward pass is written.)
#
# (b) The weights. The softmax's derivative can be written with its result alone, and the product with V wants the
# same tensor; the scores go.
#
# (c) It would compute the maximum, the sum and the rescaling again, and differentiate through them, with P V once
# more: the identity D = rowsum(dO ∘ O) and P = e^(S − L) make all of that unnecessary.
#
# Rubric, 5 points: 1 (a) a number of 2 to 4 from the measurement; 1 P̃ with exp or the product; 1 (b) the weights,
# softmax from its result; 2 (c), 1 for each thing that is not needed.

# %% [markdown]
# ## 5. More operations, less time

# %%
n, d = 512, 64
Q, K, V, dO = (torch.randn(n, d) for _ in range(4))
O, L = flash_attention.flash_forward(Q, K, V)
for causal in (False, True):
    O, L = flash_attention.flash_forward(Q, K, V, causal)
    with ProductMeter() as forward:
        flash_attention.flash_forward(Q, K, V, causal)
    with ProductMeter() as backward:
        flash_attention.flash_backward(Q, K, V, O, L, dO, causal)
    print(f"causal={causal}: {forward.flops / (n * n * d):.2f}, {backward.flops / (n * n * d):.2f} (× N²d FLOPs)")

# %% [markdown]
# (a) Explain the two numbers of the first line with the products of a tile. How many FLOPs does a textbook backward
# pass need that kept P, and how many of yours are the price of not keeping it?
#
# (b) Explain the share that is left with causal at this N and block size; not "half".
#
# (c) On an A100 FlashAttention does more operations than standard attention and needs a fraction of the time. Why?
# Name the arrays that standard attention's backward pass writes and reads.

# %% [markdown] nbgrader={"grade": true, "grade_id": "more_work_less_time", "solution": true}
# (a) Each product of a tile over all tiles is 2N²d. Forward two (Q Kᵀ, P V): 4. Backward five (Q Kᵀ again, Pᵀ dO, dO
# Vᵀ, dS K, dSᵀ Q): 10; seven, 14, where dQ has a loop of its own. A textbook backward pass does the last four: 8. The
# price is 2N²d (6N²d with two loops), and the exponentials once more.
#
# (b) With T = N/64 = 8 blocks, 36 of 64 tiles are visited: (T + 1)/(2T) = 56.25 %: 2.25 and 5.63. The tiles on the
# diagonal are computed whole although half of each is hidden.
#
# (c) Time goes into bytes between HBM and the chip. Standard attention writes and reads P, dP and dS (and S), N²
# elements each; the tiles never leave the chip, and recomputing one costs less than fetching it.
#
# Rubric, 5 points: 2 (a), 1 for the products, 1 for the price; 1 (b) with the count; 2 (c), bytes, and two of the
# arrays.
