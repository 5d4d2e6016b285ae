# %% [markdown]
# # Lab 05: FlashAttention
#
# Run the cells from top to bottom after the three tasks pass. Everything here is computed by **your** functions; when
# you change `src/flash_attention.py`, restart the kernel and run all cells again. Say the unit of every number. Type a
# prediction in place of `None` and run its cell before the next one. A wrong prediction costs nothing: the points are
# for explaining the gap.

# %%
import matplotlib.pyplot as plt
import torch

from labkit.meters.products import ProductMeter
from labkit.meters.tensors import AllocationMeter, kept_by_forward
from labkit.notebook import compare, predict, student_module

flash_attention = student_module("lab05")
MIB = 2**20

# %% [markdown]
# ## 1. What autograd keeps of tiles
#
# Three forms of the same attention: as in a textbook; your tiled forward pass, left to autograd; your FlashAttention.
# The first keeps one N × N array between the passes.


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
    """Bytes kept between the passes, besides inputs and output, and at the peak of a step."""
    inputs = [torch.randn(n, d, requires_grad=True) for _ in range(3)]
    kept = kept_by_forward(form, *inputs)
    with AllocationMeter() as meter:
        form(*inputs).sum().backward()
    return kept, meter.peak_bytes


print(f"textbook, N = 1024: {measured(textbook, 1024)[0] / MIB:.2f} MiB kept between the passes")

# %% [markdown]
# How much does your tiled forward pass keep at N = 1024 and d = 64 when autograd differentiates it? It never makes an
# N × N array.

# %%
predicted = predict(None, "MiB")

# %%
compare(predicted, round(measured(tiled_autograd, 1024)[0] / MIB, 2), "MiB")

# %% [markdown]
# (a) Explain the gap; if there was none, say which terms your prediction had. How many N × N arrays are kept, as
# pieces, and which tensors of a tile are they? Name the operator that wants each.
#
# (b) The textbook form keeps one. Which, and why is one enough there?
#
# (c) Which of these does your `flash_backward` need, and what does it use instead of the others?

# %% [markdown] nbgrader={"grade": true, "grade_id": "why_not_autograd", "solution": true}
# (a) Predicted 0.004 MiB, L alone; measured 12.38, about 3 arrays of 4 MiB. No tile is forgotten when the loop goes on:
# exp keeps its result P̃, wanted by its own derivative; the product P̃ V_j keeps P̃ too, the same storage; `amax` keeps
# the scores and its result to find the maximum's place, so S stays as well. The rest are columns, rescaling factors and
# copies of O for every block of keys. (Which of these stay depends on how the forward pass is written.)
#
# (b) The weights. The softmax's derivative can be written with its result alone, and the product with V wants the
# same tensor; the scores go.
#
# (c) Only the weights, of one tile at a time: e^(S − L), from Q, K and L. The maximum, the rescaling and the copies of
# O are not needed: D = rowsum(dO ∘ O) stands for the sum over the row.
#
# Rubric, 5 points: 2 (a), one for tiles that are kept although the loop has gone on, one for P̃ or S with its operator
# and a number of arrays that fits the measurement; 1 (b) the weights, softmax from its result; 2 (c), 1 for P from L, 1
# for D from O (or that no maximum is differentiated).

# %%
LENGTHS = [128, 256, 512, 1024]
memory = {name: [measured(form, n) for n in LENGTHS] for name, form in FORMS.items()}
for name, rows in memory.items():
    print(f"{name:20s} kept, peak (MiB): " + "  ".join(f"{kept / MIB:.3f}, {peak / MIB:.3f}" for kept, peak in rows))

# %% [markdown]
# ## 2. The figure: memory of a training step over N
#
# Draw the peak of a step over N for the three forms, and for each of them what it keeps between the passes, in MiB,
# both axes logarithmic to base 2. Add as guides a line that grows with N and one that grows with N². Tell peak from
# kept.

# %% nbgrader={"grade": true, "grade_id": "figure_memory", "solution": true}
figure, ax = plt.subplots(figsize=(7, 4.6), layout="constrained")
### BEGIN SOLUTION
# Rubric, 4 points: 1 peaks and kept bytes of all three forms; 1 logarithmic axes to base 2 with quantity and MiB; 1 two
# guides with slopes 1 and 2, labelled; 1 a legend in which peak and kept can be told apart.
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
# ## 3. More operations, less time
#
# In units of N²d, a matrix product over all scores takes 2 FLOPs. The next cell counts your forward pass with N = 512,
# d = 64 and blocks of 64.

# %%
n, d = 512, 64
Q, K, V, dO = (torch.randn(n, d) for _ in range(4))
with ProductMeter() as forward:
    flash_attention.flash_forward(Q, K, V)
print(f"forward: {forward.flops / (n * n * d):.2f} N²d FLOPs")

# %% [markdown]
# Predict your backward pass with `causal=True`, which hides half of the scores.

# %%
predicted = predict(None, "N²d FLOPs")

# %%
O, L = flash_attention.flash_forward(Q, K, V, True)
with ProductMeter() as backward:
    flash_attention.flash_backward(Q, K, V, O, L, dO, True)
compare(predicted, round(backward.flops / (n * n * d), 3), "N²d FLOPs")

# %% [markdown]
# (a) Explain the gap with the products of a tile and the number of tiles; if there was none, write down your sum.
#
# (b) How many FLOPs are the price of not keeping P? Why does FlashAttention need a fraction of standard attention's
# time on a GPU all the same? Name two arrays that the backward pass of standard attention writes and reads.

# %% [markdown] nbgrader={"grade": true, "grade_id": "more_work_less_time", "solution": true}
# (a) Predicted 4: twice the forward pass, for four products instead of two, and half of it. Measured 5.625. Five
# products (Q Kᵀ again, Pᵀ dO, dO Vᵀ, dS K, dSᵀ Q) are 10; seven, 14, where dQ has a loop of its own. With T = N/64 = 8
# blocks, 36 of 64 tiles are visited, (T + 1)/(2T) = 56.25 %, since the tiles on the diagonal are computed whole:
# 10 · 0.5625 = 5.625 (7.875 with two loops).
#
# (b) 2N²d for Q Kᵀ again (6N²d with two loops), and the exponentials once more; here 56.25 % of it. Time goes into
# bytes between HBM and the chip. Standard attention writes and reads P, dP and dS, N² elements each; the tiles never
# leave the chip.
#
# Rubric, 5 points: 3 (a), 1 for the number of products, 1 for the share of tiles with its count, 1 for a sum that gives
# the measured number; 2 (b), 1 for the price, 1 for bytes with two of the arrays.
