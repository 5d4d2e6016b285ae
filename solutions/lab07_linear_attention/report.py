# %% [markdown]
# # Lab 07: Linear attention
#
# Two figures and a table from your own functions, three answers. Say the unit of every number: MB are 10⁶ bytes.

# %%
import matplotlib.pyplot as plt
import torch

from labkit.labs.catalog import find_lab
from labkit.meters.tensors import kept_by_forward
from labkit.notebook import student_module

lab = student_module("lab07")
results = find_lab("lab07").folder / "results"
results.mkdir(exist_ok=True)
rows = lab.profile_attention_memory([512, 1024, 2048, 4096, 8192])
for row in rows:
    print({name: round(value, 1) for name, value in row.items() if not name.endswith("theoretical_mb")})

# %% [markdown]
# ## 1. The figure: memory over the sequence length
#
# Draw, from `rows`, the measured peaks of the four attentions as points and the predicted ones as lines, both axes
# logarithmic, and save it as `memory_scaling.png` in `results`.

# %% nbgrader={"grade": true, "grade_id": "figure_scaling", "solution": true}
figure, ax = plt.subplots(figsize=(7, 5))
### BEGIN SOLUTION
# Rubric: 2 points for four measured series as points; 1 for the predictions as lines, on the same basis (over the
# inputs); 1 for logarithmic axes with quantity and unit; 1 for a legend and the saved file.
lengths = [row["seq_len"] for row in rows]
for i, name in enumerate(("standard", "linear_bidir", "linear_causal", "linear_chunked")):
    ax.plot(lengths, [row[f"{name}_theoretical_mb"] for row in rows], color=f"C{i}", label=f"{name}, predicted")
    ax.plot(lengths, [row[f"{name}_memory_mb"] for row in rows], "os^D"[i], color=f"C{i}", label="measured")
ax.set_xscale("log", base=2)
ax.set_yscale("log")
ax.set(xlabel="sequence length", ylabel="peak over the inputs, MB")
ax.legend()
figure.savefig(results / "memory_scaling.png", dpi=150)
### END SOLUTION

# %% [markdown]
# ## 2. The figure and the table: memory saved
#
# Draw `savings_bidir` as bars with their values, save it as `memory_savings.png`, and write `rows` to
# `memory_profiling.csv`. Then give, in a comment, the value that the quotient tends to as N grows, as a formula.

# %% nbgrader={"grade": true, "grade_id": "figure_savings", "solution": true}
figure, ax = plt.subplots()
### BEGIN SOLUTION
# Rubric: 2 points for labelled bars; 1 for the CSV with all columns and a line a length; 2 for the formula: the
# quotient is (2N² + Nd) / (4Nd + d² + d + 2N), so it grows without end, like N / (2d + 1).
bars = ax.bar([str(row["seq_len"]) for row in rows], [row["savings_bidir"] for row in rows])
ax.bar_label(bars, fmt="%.1f×")
ax.set(xlabel="sequence length", ylabel="standard / bidirectional, peak over the inputs")
figure.savefig(results / "memory_savings.png", dpi=150)
lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
(results / "memory_profiling.csv").write_text("\n".join(lines) + "\n")
### END SOLUTION

# %% [markdown]
# ## 3. A published notebook's errors
#
# A notebook on this subject states for B = 4, H = 8, D = 64, fp16: (a) the bidirectional form needs "2 MB regardless
# of N", B·H·D·D elements; (b) the causal form needs "17 GB" at N = 8192, B·H·N·D·D elements, "worse than standard!";
# (c) its theory adds the inputs to the largest array; its measurement subtracts what was allocated before the call;
# (d) "exceeds standard attention when D² > N". Compare each with your rows: what is wrong, and by what factor?

# %% [markdown] nbgrader={"grade": true, "grade_id": "find_the_errors", "solution": true}
# (a) 4·8·64·64·2 bytes are 0.262 MB: 2.1 is the number of megabits. And the state is not the peak: 135.5 MB at
# N = 8192, about 4 N·d, which grows with N.
#
# (b) 2.147 GB, again bits for bytes. Two such arrays are alive (the products and their cumulative sums): 4.46 GB.
# Standard holds 8.62 GB at that length (scores *and* weights, not the 4.3 of one), so causal is not worse there.
#
# (c) The two are not on one basis: inputs (100.7 MB at 8192) are in the theory and not in the measurement.
#
# (d) Both hold two of their arrays, so compare N·D² and N²: larger when D² > N, which is right, but 64² = 4096, so at
# 8192 it does not hold, and the notebook's own example contradicts its rule. With the smaller terms the measured
# curves cross a little above 4096 (at 4,225 = D² + 2D + 1).
#
# *Rubric (6): (a) 1 for bits, 1 for the temporaries that grow with N; (b) 1 for 2.15, 1 for the two arrays; (c) 1;
# (d) 1 for the crossing near 4096 against N = 8192.*

# %% [markdown]
# ## 4. Which route when
#
# Say which of the routes you would take, and why, for: (a) generating one token after the other; (b) a prompt of
# 100 000 tokens on one CPU core; (c) the same on a GPU with thousands of cores, batch 1, one head; (d) d = 4, N = 64.
# How many multiplications per position do the recurrence and the chunked route take, to leading order?

# %% [markdown] nbgrader={"grade": true, "grade_id": "which_route", "solution": true}
# (a) Recurrent: a step costs one state, whatever came before, and nothing else is known yet. (b) Chunked: matrix
# products on one core, a state and a chunk in the cache. (c) Scan: the chunks run at the same time, and only
# log₂(N / C) steps follow each other. (d) Any; even the N × N weights are small, and cumsum has the fewest operators.
#
# Recurrence: d·d_v to add and d·d_v to read. Chunked: the same 2·d·d_v and C·(d + d_v) for the weights of a chunk:
# twice as many at C = d, and faster, since they are matrix products.
#
# *Rubric (5): 1 each for (a) to (c) with a reason; 1 for (d) with one; 1 for both counts.*

# %% [markdown]
# ## 5. What the four routes keep for the backward pass
#
# The cell measures what autograd keeps between the passes. Explain the four numbers by leading terms in N, d and C.
# Why does the recurrence lose its advantage, and how would you get it back?

# %%
n = 512
tensors = [torch.randn(n, 32, requires_grad=True) for _ in range(3)]
for route in ("cumsum", "recurrent", "chunked", "scan"):
    kept = kept_by_forward(getattr(lab, f"causal_linear_attention_{route}"), *tensors)
    print(f"{route:10s} {kept / (4 * n * 32):6.2f} N·d")

# %% [markdown] nbgrader={"grade": true, "grade_id": "training_memory", "solution": true}
# Reading a state is a product, whose derivative needs the state. Cumsum keeps the N states it made, N·d². The
# recurrence keeps every state that it read, one a position: N·d² too. Chunked keeps one state a chunk, (N / C)·d², the
# weights of all chunks, N·C, and φ(q), φ(k), elu and the like, a few N·d; the scan the same.
#
# To get it back: keep the state only every C positions and compute the ones between again in the backward pass (Lab
# 06), or write the backward pass by hand, which is a recurrence from the end.
#
# *Rubric (5): 1 for "reading saves the state"; 1 for N·d² in both; 1 for (N / C)·d² + N·C; 2 for a way back that keeps
# no more than N / C states.*
