# %% [markdown]
# # Lab 02: Peak memory
#
# Run the cells from top to bottom after the six tasks pass. Everything here is computed by **your** functions; when
# you change `src/peak_memory.py`, restart the kernel and run all cells again. Say the unit of every number: bytes, MiB
# (2²⁰), GiB (2³⁰), MB (10⁶) or GB (10⁹).

# %%
import matplotlib.pyplot as plt
import torch

from labkit.notebook import student_module

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
# Rubric, 5 points: 1 four predicted lines; 1 measured points of both columns on the right lines, in the same unit;
# 1 logarithmic axes with quantity and GiB; 1 the device and both crossings, at 14,122 and 11,537; 1 a legend that tells
# measured from predicted.
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
# ## 2. What is saved, and why the exponentials
#
# The next cell counts what three versions of attention save, in arrays of N × N.


# %%
def built_in(q, k, v):
    """The same attention, its softmax one operator."""
    return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v


def detached_maximum(q, k, v):
    """Written out, the maximum a constant to autograd."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    exponentials = (scores - scores.detach().max(-1, keepdim=True)[0]).exp()
    return exponentials / exponentials.sum(-1, keepdim=True) @ v


n = 512
q, k, v = (torch.randn(2, n, 64, requires_grad=True) for _ in range(3))
for form in (peak_memory.attention, detached_maximum, built_in):
    saved_bytes = peak_memory.saved_for_backward(form, q, k, v)
    print(f"{form.__name__:17s} {saved_bytes:10,} bytes = {saved_bytes / (2 * n * n * 4):.4f} arrays of N × N")

# %% [markdown]
# A note on the benchmark says that S and P, the scores and the weights, are what is saved for the backward pass.
#
# (a) Which two N × N arrays does `attention` really save? For each of them name the operators whose backward pass
# needs it, with the derivative that shows it. Why are the scores not among them?
#
# (b) The rest of what `attention` saves is 12 bytes for each query. Which arrays are that?
#
# (c) `detached_maximum` saves less. Are its gradients still right? Why?
#
# (d) Why is one array enough for the built-in softmax?

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_is_saved", "solution": true}
# (a) The exponentials e and the weights p = e/r. exp saves its own result, because d exp(z)/dz = exp(z). The quotient
# saves both operands: ∂(e/r)/∂e = 1/r needs r, ∂(e/r)/∂r = −e/r² needs e: the same storage, saved a second time. The
# product p·v saves p for the gradient of v (pᵀ dO), and v. The scores are input of a subtraction and of `max`: the
# derivative of x − m is 1 and −1, that of max needs only the position. Their values are not needed.
#
# (b) The position of each row's maximum, int64, 8 bytes, for the backward pass of max; and the row sum, 4 bytes.
#
# (c) Yes. Softmax does not change when a constant is taken from a row, so the derivative with respect to the maximum is
# 0; autograd computes this 0 because it does not know. Without it the positions need not be kept.
#
# (d) Its backward pass can be written with its result alone: dS = p ∘ (dP − rowsum(dP ∘ p)). The exponentials and the
# row sums never leave the operator.
#
# Rubric, 5 points: 2 exponentials and weights, each with an operator and its derivative; 1 why not the scores, or 1
# for (b) with 8 + 4 bytes (both: 1); 1 (c) yes, with the shift; 1 (d) a formula or sentence that needs only p.

# %% [markdown]
# ## 3. The moment of the peak
#
# The next cell measures one training step at two shapes and takes the readings that your tracker allows.

# %%
for shape in ((2, 256, 16), (2, 16, 256)):
    with peak_memory.MemoryTracker() as tracker:
        inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
        for _ in range(2):
            tracker.reset()
            loss = peak_memory.attention(*inputs).sum()
            forward, live = tracker.peak_allocated(), tracker.current_allocated()
            loss.backward()
    square = shape[0] * shape[1] ** 2 * 4
    print(
        f"(B, N, d) = {shape}, in arrays of N × N: forward peak {forward / square:.2f}, "
        f"live before backward {live / square:.2f}, step peak {tracker.peak_allocated() / square:.2f}"
    )

# %% [markdown]
# (a) At (2, 256, 16) the step's peak is about 2 arrays above the forward peak. Name the six N × N arrays that are alive
# then, and those of the forward peak.
#
# (b) At (2, 16, 256) which moment of the forward pass is the peak, and which of the backward pass? Derive from the
# table of moments the relation between N and d at which the forward peak moves from one moment to the other (leave out
# whatever is not N × N or N × d).
#
# (c) The benchmark prints the forward peak as `mem_max`. Someone chooses a device by this number. By what factor is it
# too small for training at large N?

# %% [markdown] nbgrader={"grade": true, "grade_id": "which_moment", "solution": true}
# (a) Forward, when the quotient has been made: scores, shifted, exponentials, weights. Backward, inside the quotient:
# the exponentials (saved) and five others: the gradient of the weights; e/r computed once more; that divided by r
# once more; minus the gradient of the weights; the product of the last two, which is then summed to the gradient of
# r. The weights themselves are gone: the product with v was done before and let go of them.
#
# (b) Forward: when the loss is made, with the output alive and scores and shifted scores gone. Backward: through
# q @ kᵀ, where the gradients of q and k are there before they are added to those kept: one N × N and two N × d. The
# forward moments are 4N² against 2N² + N·d, so they change places at d = 2N.
#
# (c) 6/4 = 1.5 (with inputs, gradients and the workspace a little less).
#
# Rubric, 5 points: 1 the four of the forward pass; 1 the exponentials and five arrays of the quotient's backward
# pass; 1 the moments at (2, 16, 256); 1 d = 2N; 1 the factor 1.5.

# %% [markdown]
# ## 4. A formula for "out of memory" that is wrong
#
# The benchmark (batch 8, float32, a device of 98 GiB) has a formula for the longest sequence:
#
# $$N_{\max} = \sqrt{\frac{98\ \mathrm{GiB} - 64\ \mathrm{MiB}}{2 \cdot 8 \cdot 4\ \mathrm{bytes}}} \approx 39\,800$$
#
# and the sentence that memory runs out between 16,384 and 32,768. It also says that the workspaces are 64 MB for the
# forward and 64 MB for the backward pass.
#
# (a) Compute the formula. Which of the totals does it estimate, and what does `largest_seq_len` give for that one?
#
# (b) What are the longest sequences by the forward peak and by the whole step, at d = 64? Which of the three answers
# agrees with the sentence, and which one should you believe when you train?
#
# (c) Show with the first row of the table that one of the two numbers for the workspaces must be wrong.
#
# (d) The notes call the peak at N = 16384 "33 GB". What is it in GiB and in GB, at d = 16, and where does 33 come from?

# %%
# Room for your arithmetic.

# %% [markdown] nbgrader={"grade": true, "grade_id": "does_it_fit", "solution": true}
# (a) √((98·2³⁰ − 64·2²⁰)/64) = 40,535, not 39,800. It counts two N × N arrays: what is saved.
# `largest_seq_len(98 * 2**30, 8, 64, peak="saved")` gives 40,547 (no workspace, but the columns).
#
# (b) 28,614 by the forward peak and 23,370 by the step. Both are between 16,384 and 32,768, the formula's own answer is
# not. For training the step has to fit: 23,370.
#
# (c) The row at N = 256, d = 16 is 72.7739 MiB. Its tensors are known: 6 of 0.125 MiB, 4 of 2 MiB, 24 KiB of columns
# and 512 B, together 8.7739 MiB. That leaves 64 MiB for workspaces in all, not 128. (It is the published table's time
# that had them in every row: torch 2.15 gives a workspace back after each product.)
#
# (d) 34,478,752,256 bytes: 32.11 GiB or 34.48 GB. The table has 32,881.5 MiB; divided by 1000 instead of 1024 that is
# "33", in no unit.
#
# Rubric, 5 points: 1 40,535 and "saved"; 1 the two lengths; 1 the step, with a reason; 1 the workspace by
# subtraction; 1 GiB and GB, and the division by 1000.

# %% [markdown]
# ## 5. Three measurements that lie
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
