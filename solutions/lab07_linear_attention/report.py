# %% [markdown]
# # Lab 07: Linear attention
#
# A figure from your own functions, an answer and a prediction. Say the unit of every number: MB are 10⁶ bytes.

# %%
import matplotlib.pyplot as plt
import torch

from labkit.meters.tensors import kept_by_forward
from labkit.notebook import compare, predict, student_module

lab = student_module("lab07")
rows = lab.profile_attention_memory([512, 1024, 2048, 4096, 8192])
for row in rows:
    print({name: round(value, 1) for name, value in row.items() if not name.endswith("theoretical_mb")})

# %% [markdown]
# ## 1. The figure: memory over the sequence length
#
# Draw, from `rows`, the measured peaks of the four attentions as points and the predicted ones as lines, both axes
# logarithmic.

# %% nbgrader={"grade": true, "grade_id": "figure_scaling", "solution": true}
figure, ax = plt.subplots(figsize=(7, 5))
### BEGIN SOLUTION
# Rubric: 2 points for four measured series as points and the predictions as lines, on the same basis (over the inputs);
# 1 for logarithmic axes with quantity and unit; 1 for a legend.
lengths = [row["seq_len"] for row in rows]
for i, name in enumerate(("standard", "linear_bidir", "linear_causal", "linear_chunked")):
    ax.plot(lengths, [row[f"{name}_theoretical_mb"] for row in rows], color=f"C{i}", label=f"{name}, predicted")
    ax.plot(lengths, [row[f"{name}_memory_mb"] for row in rows], "os^D"[i], color=f"C{i}", label="measured")
ax.set_xscale("log", base=2)
ax.set_yscale("log")
ax.set(xlabel="sequence length", ylabel="peak over the inputs, MB")
ax.legend()
### END SOLUTION

# %% [markdown]
# ## 2. A published notebook's errors
#
# A notebook on this subject states for B = 4, H = 8, D = 64, fp16: (a) the bidirectional form needs "2 MB regardless
# of N", B·H·D·D elements; (b) the causal form needs "17 GB" at N = 8192, B·H·N·D·D elements, "worse than standard!";
# (c) the causal form "exceeds standard attention when D² > N". Compare each with your rows: what is wrong, and by what
# factor?

# %% [markdown] nbgrader={"grade": true, "grade_id": "find_the_errors", "solution": true}
# (a) 4·8·64·64·2 bytes are 0.262 MB: 2.1 is the number of megabits. And the state is not the peak: 135.5 MB at
# N = 8192, about 4 N·d, which grows with N.
#
# (b) 2.147 GB, again bits for bytes. Two such arrays are alive (the products and their cumulative sums): 4.46 GB.
# Standard holds 8.62 GB at that length (scores *and* weights, not the 4.3 of one), so causal is not worse there.
#
# (c) Both hold two of their arrays, so compare N·D² and N²: larger when D² > N, which is right, but 64² = 4096, so at
# 8192 it does not hold, and the notebook's own example contradicts its rule. With the smaller terms the measured
# curves cross a little above 4096 (at 4,225 = D² + 2D + 1).
#
# *Rubric (5): (a) 1 for bits, 1 for the temporaries that grow with N; (b) 1 for 2.15, 1 for the two arrays; (c) 1 for
# the crossing near 4096 against N = 8192.*

# %% [markdown]
# ## 3. What is kept for the backward pass
#
# In a forward pass the recurrence holds one state and the output. Predict what autograd keeps of it between the passes,
# at N = 512 and d = d_v = 32, in units of N·d numbers. Type it in place of `None` and run this cell before the next
# one. A wrong prediction costs nothing: the points are for explaining the gap.

# %%
predicted = predict(None, "N·d")

# %%
n, d = 512, 32
tensors = [torch.randn(n, d, requires_grad=True) for _ in range(3)]
kept = {
    route: round(kept_by_forward(getattr(lab, f"causal_linear_attention_{route}"), *tensors) / (4 * n * d), 2)
    for route in ("cumsum", "recurrent", "chunked", "scan")
}
compare(predicted, kept["recurrent"], "N·d")
print(kept)

# %% [markdown]
# (a) Explain the gap by the operator that keeps what your prediction lacked; if there was none, say which terms it had.
# (b) Explain the number of the chunked route by its leading terms in N, d and C = 64. (c) How would you get the
# recurrence's advantage back?

# %% [markdown] nbgrader={"grade": true, "grade_id": "training_memory", "solution": true}
# (a) Predicted 4 N·d, for φ(q), φ(k) and the like; measured 36. Reading a state is a product, whose derivative needs
# the state. So every state that was read is kept, one a position: N·d² = 32 N·d. Cumsum keeps the N states it made, as
# many.
#
# (b) One state a chunk, (N / C)·d² = 0.5 N·d; the weights of all chunks, N·C = 2 N·d; and φ(q), φ(k), elu and the like,
# 3 N·d. The scan keeps the same.
#
# (c) Keep the state only every C positions and compute the ones between again in the backward pass (Lab 06), or write
# the backward pass by hand, which is a recurrence from the end.
#
# *Rubric (5): (a) 2, one for "reading saves the state", one for N·d² with its number; (b) 1 for (N / C)·d² + N·C; (c) 2
# for a way back that keeps no more than N / C states.*
