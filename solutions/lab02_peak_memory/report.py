# %% [markdown]
# # Lab 02: Peak memory
#
# Run the cells from top to bottom after the six tasks pass. Everything here is computed by **your** functions; when
# you change `src/peak_memory.py`, restart the kernel and run all cells again. Say the unit of every number: bytes, MiB
# (2²⁰), GiB (2³⁰), MB (10⁶) or GB (10⁹).

# %%
import matplotlib.pyplot as plt
import torch

from labkit.notebook import compare, predict, student_module

peak_memory = student_module("lab02")
MIB, GIB = 2**20, 2**30

# %% [markdown]
# ## Measurements
#
# The published benchmark, simulated: no GPU needed, no memory taken. The first operator on meta tensors takes some
# seconds.

# %%
rows = peak_memory.benchmark_attention([64], [256, 1024, 4096, 8192, 16384], device="meta")
print("     N   mem_max    add_mem   (MiB)")
for row in rows:
    print(f"{row['seq_len']:6,} {row['mem_max_MB']:9.6g} {row['add_mem_MB']:10.6g}")

# %% [markdown]
# ## 1. The figure: four kinds of memory over length
#
# For batch 8, d = 64, float32, draw over N from 256 to 32,768, both axes logarithmic to base 2, in GiB: as lines what
# `attention_training_memory` predicts for `inputs`, `saved`, `forward_peak` and `step_peak`; as points the measured
# `mem_max_MB` and `add_mem_MB` of the rows above, which must lie on two of the lines; and a device of 24 GiB as a
# horizontal line, with the two lengths marked at which `forward_peak` and `step_peak` reach it.

# %% nbgrader={"grade": true, "grade_id": "figure_lengths", "solution": true}
figure, ax = plt.subplots(figsize=(7, 4.6), layout="constrained")
### BEGIN SOLUTION
# Rubric, 4 points: 1 four predicted lines; 1 measured points of both columns on the right lines, in the same unit;
# 1 logarithmic axes with quantity and GiB, and a legend that tells measured from predicted; 1 the device and both
# crossings, at 14,122 and 11,537.
lengths = [2 ** (power / 2) for power in range(16, 31)]
predictions = [peak_memory.attention_training_memory(8, int(length), 64) for length in lengths]
for name in ("step_peak", "forward_peak", "saved", "inputs"):
    ax.plot(lengths, [prediction[name] / GIB for prediction in predictions], label=f"{name}, predicted")
for column, marker in (("mem_max_MB", "o"), ("add_mem_MB", "s")):
    ax.plot(
        [row["seq_len"] for row in rows],
        [row[column] / 1024 for row in rows],
        marker,
        color="0.15",
        fillstyle="none",
        label=f"{column}, measured",
    )
ax.axhline(24, color="0.5", linestyle="--")
ax.annotate("24 GiB", xy=(2**15, 24), xytext=(2, 4), textcoords="offset points", ha="right")
for name, offset in (("forward_peak", (30, -12)), ("step_peak", (-8, 8))):
    longest = peak_memory.largest_seq_len(24 * GIB, 8, 64, peak=name)
    ax.plot([longest], [24], "k.")
    ax.annotate(
        f"{longest:,}",
        xy=(longest, 24),
        xytext=offset,
        textcoords="offset points",
        ha="left" if offset[0] > 0 else "right",
    )
for set_scale in (ax.set_xscale, ax.set_yscale):
    set_scale("log", base=2)
ax.set(xlabel="sequence length N", ylabel="memory (GiB)")
ax.grid(alpha=0.3)
ax.legend()
plt.show()
### END SOLUTION

# %% [markdown]
# ## 2. The same softmax, one line changed
#
# `attention` on the CPU, the second of two steps at (B, N, d) = (8, 256, 16). `step_peak_mib` measures a whole step,
# forward and backward, with your tracker.


# %%
def step_peak_mib(softmax):
    """The peak of the second training step, in MiB, of attention with this softmax."""
    with peak_memory.MemoryTracker() as tracker:
        q, k, v = (torch.randn(8, 256, 16, requires_grad=True) for _ in range(3))
        for _ in range(2):
            tracker.reset()
            loss = (softmax(q @ k.transpose(-2, -1) / 16**0.5) @ v).sum()
            loss.backward()
    return tracker.peak_allocated() / MIB


print(f"with the quotient: {step_peak_mib(peak_memory.softmax):.5f} MiB")

# %% [markdown]
# Now the last line of `softmax` multiplies instead of dividing: `exponentials * (1 / row_sums)`. The result is the
# same. Predict the step's peak. Type the number instead of None.

# %%
predicted = predict(None, "MiB")


# %%
def softmax_by_product(scores):
    """The stub's softmax, but for its last line."""
    shifted = scores - scores.max(-1, keepdim=True)[0]
    exponentials = shifted.exp()
    row_sums = exponentials.sum(-1, keepdim=True)
    return exponentials * (1 / row_sums)


compare(predicted, step_peak_mib(softmax_by_product), "MiB")

# %% [markdown]
# (a) Explain the gap between prediction and measurement, in (B, N, N) arrays of 2 MiB; if there was none, say which
# terms your prediction had.
#
# (b) Name the (B, N, N) arrays that are alive at this peak, and those that the quotient had besides.
#
# (c) Change `attention` once more, with the same result, so that the step's peak falls below 7.5 MiB. Give the code and
# the number, and say which array is gone.

# %%
# Room for your change and its measurement.

# %% [markdown] nbgrader={"grade": true, "grade_id": "change_the_peak", "solution": true}
# (a) Predicted 12.77 MiB, since the same arrays are saved; measured 8.789. The peak was never what is saved: it was
# made of temporaries of the quotient's backward pass, and the product has fewer. 12.773 − 8.789 MiB are two arrays of
# 2 MiB; the 16 KiB less are two more columns of row sums, 1/r and what it is multiplied with.
#
# (b) Four: the exponentials, the gradient dP of the weights, and what the product makes of it: dP/r, the gradient of
# the exponentials, and dP·e, which is then summed to the gradient of 1/r. The forward pass also reaches four, when the
# weights are made: scores, shifted, exponentials, weights. The quotient had e, dP and e/r computed once more; that
# divided by r once more; minus dP; the product of the last two. So two more.
#
# (c) Divide after the product with v: `(e @ v) / r`, with e and r from a function of their own, gives 6.77 MiB: no
# quotient of (B, N, N) is made, forward or backward, so only e, its gradient and one temporary are alive. Or
# `scores.softmax(-1)`: 6.75 MiB, since its backward pass is one operator that needs only the weights.
#
# Rubric, 5 points: 2 for (a): the gap in arrays, and that the temporaries of a backward pass make the peak, not what is
# saved (no gap: the terms). 2 for (b): 1 the four arrays of one of the two moments, 1 what the quotient had besides.
# 1 for (c): code with the same result, and a number below 7.5 MiB with the array that is gone.

# %% [markdown]
# ## 3. Three measurements that lie
#
# Each of the following claims that one call of `attention` in training needs less than one array of N × N. All three
# pass on a machine without a GPU.

# %%
n = 1024
q, k, v = (torch.randn(1, n, 32, requires_grad=True) for _ in range(3))
one_array = n * n * 4

loss = peak_memory.attention(q, k, v).sum()
print("A:", torch.cuda.max_memory_allocated() < one_array)

with peak_memory.MemoryTracker() as tracker:
    output = peak_memory.attention(q, k, v)
    del output
    tracker.reset()
    print("B:", tracker.peak_allocated() < one_array)

output = peak_memory.attention(q, k, v)
print("C:", sum(tensor.nbytes for tensor in (q, k, v, output)) < one_array)

# %% [markdown]
# (a) Say for each of A, B and C why the number is too small.
#
# (b) Write the right measurement with your own tools and give the number, in arrays of N × N.
#
# (c) Your tracker has blind spots as well. Name one way in which memory can be taken on the CPU or on a GPU that it
# does not see, and what you would measure with instead.

# %%
# Room for your measurement.

# %% [markdown] nbgrader={"grade": true, "grade_id": "measurements_that_lie", "solution": true}
# (a) A: the statistics are those of CUDA's allocator. Without a GPU they read 0, so that any bound holds; and nothing
# is on CUDA here. B: the peak is started again after the forward pass, when everything is released. It must be reset
# before the work. (With the output kept alive it would be what is saved, two arrays.) C: it adds up the tensors that
# have names at the end. Temporaries are gone by then, and what autograd holds has no name.
#
# (b) `measure_memory(lambda *x: attention(*x).sum(), q, k, v)[0] / one_array` is 4.00 (forward); with `.backward()`
# behind it 6.03.
#
# (c) For instance: scratch inside one operator, such as a fused attention kernel's on the CPU (torch.profiler with
# profile_memory sees it); what the caching allocator has reserved and does not use (torch.cuda.memory_reserved); memory
# that NumPy or a library takes past torch (tracemalloc; nvidia-smi); storages resized by hand.
#
# Rubric, 5 points: 1 each for A, B and C; 1 a right measurement with its number; 1 a blind spot and a tool that sees
# it.
