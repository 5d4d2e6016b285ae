# %% [markdown]
# # Lab 01: Memory profiling
#
# Run the cells from top to bottom after the six tasks pass. Everything here is computed by **your** functions; when
# you change `src/profiling.py`, restart the kernel and run all cells again. Say the unit of every number: bytes, MiB
# (2²⁰), GiB (2³⁰), MB (10⁶) or GB (10⁹).

# %%
import matplotlib.pyplot as plt
import numpy as np

from labkit.meters.arrays import measure_arrays
from labkit.notebook import compare, predict, student_module

profiling = student_module("lab01")

# %% [markdown]
# ## Measurements
#
# The largest length below takes some hundred MiB while it runs. Leave 4096 out if your machine has less to spare.

# %%
measured = profiling.profile_memory_scaling([256, 512, 1024, 2048, 4096])
growth = profiling.analyze_scaling(measured)
print("     N   Q, K, V     weights    output   (MiB)")
for n, stats in measured.items():
    sizes = [stats[key] / 2**20 for key in ("input_memory", "attention_matrix_memory", "output_memory")]
    print(f"{n:6,} {sizes[0]:9.4f} {sizes[1]:11.4f} {sizes[2]:9.4f}")
print(f"factor per doubling of N, weights: {growth['scaling_factor']:.4f}")

# %% [markdown]
# ## 1. The figure: memory over length
#
# Draw your measurements with `plot_memory_scaling`, and into the same Axes, as dashed lines, what
# `estimate_attention_memory` predicts for the weights and for Q, K and V together, from N = 256 up to N = 16,384:
# four times beyond the measurements. The measured points must lie on the predicted lines. Label the lines, keep the
# axes' labels, and mark the point whose numbers the handout gives (N = 4096).

# %% nbgrader={"grade": true, "grade_id": "figure_scaling", "solution": true}
figure, ax = plt.subplots(figsize=(7, 4.6), layout="constrained")
### BEGIN SOLUTION
# Rubric, 4 points: 1 measured points of both quantities; 1 both predicted lines, reaching 16,384, through the points;
# 1 logarithmic axes to base 2 with quantity and MiB; 1 legend that tells measured from predicted, N = 4096 marked.
profiling.plot_memory_scaling(measured, ax=ax)
predicted_lengths = [2**power for power in range(8, 15)]
predictions = [profiling.estimate_attention_memory(length, 64) for length in predicted_lengths]
for title, dash, names in (
    ("weights, predicted", "--", ["attention_matrix_memory"]),
    ("Q, K, V, predicted", "-.", ["Q_memory", "K_memory", "V_memory"]),
):
    heights = [sum(prediction[name] for name in names) / 2**20 for prediction in predictions]
    ax.plot(predicted_lengths, heights, dash, color="0.15", zorder=3, label=title)
ax.annotate("N = 4096: 64 MiB", xy=(4096, 64), xytext=(-12, 8), textcoords="offset points", ha="right")
ax.annotate("3 MiB", xy=(4096, 3), xytext=(0, -16), textcoords="offset points", ha="center")
ax.grid(alpha=0.3)
ax.legend()
plt.show()
### END SOLUTION

# %% [markdown]
# ## 2. Two numbers that are wrong
#
# A notebook on linear attention compares three kinds of attention for 4 sequences, 8 heads, N = 8192, d = 64,
# float16. It says: the scores of standard attention take **4.3 GB**; the state of bidirectional linear attention, one
# d × d array per head of each sequence, takes **2 MB**; the state of causal linear attention, one such array for
# every token, takes **17 GB**, "worse than standard".
#
# (a) Compute the three sizes in bytes and say which of the numbers are right.
#
# (b) Which single mistake explains both wrong numbers?
#
# (c) Is the causal state larger than the score matrix at these sizes? For which N would it be, at d = 64?

# %% [markdown] nbgrader={"grade": true, "grade_id": "bits_or_bytes", "solution": true}
# (a) Scores: 4·8·8192²·2 = 4,294,967,296 bytes = 4.29 GB (4 GiB): right. Bidirectional state: 4·8·64²·2 = 262,144
# bytes = 0.26 MB. Causal state: 8192 times that, 2,147,483,648 bytes = 2.15 GB (2 GiB). The second and the third are
# wrong.
#
# (b) Both are 8 times too large: they are bits, 2.1 Mbit and 17.2 Gbit, with the unit of bytes behind them.
#
# (c) No, it is half as large: N·d² against N² elements, so the state is the larger one only where d² > N, that is for
# N below 4096. (Both are equal at N = 4096.)
#
# Rubric, 4 points: 1 the three sizes with their units; 1 which are wrong; 1 bits taken for bytes, from the factor 8;
# 1 "no, half", with d² > N.

# %% [markdown]
# ## 3. What is alive at the peak?
#
# `total_memory` adds up arrays that exist when attention is done. How many bytes has your `standard_attention`
# allocated at its worst moment, at N = 1024, d = 64 and float32, the inputs not counted? One N × N array is 4 MiB. Read
# your code, type your prediction in place of `None`, and run this cell before the next one. A wrong prediction costs
# nothing.

# %%
predicted = predict(None, "MiB")

# %%
Q, K, V = (np.random.default_rng(seed).standard_normal((1024, 64), dtype=np.float32) for seed in range(3))
peak_bytes = measure_arrays(profiling.standard_attention, Q, K, V).peak_bytes
compare(predicted, round(peak_bytes / 2**20, 2), "MiB")

# %% [markdown]
# (a) Name the line of your code at which the peak is reached, and the arrays that are alive there, with their MiB.
# Explain the gap to your prediction; if there was none, say which terms your prediction had.
#
# (b) Change your function so that the peak falls by at least one N × N array, with the tests still passing. (When it
# is at its lowest already: go the other way.) Give the change, the number before and the number after.
#
# (c) What is the smallest number this function can reach, and what in its signature forbids a smaller one?

# %% [markdown] nbgrader={"grade": true, "grade_id": "alive_at_once", "solution": true}
# (The numbers belong to the course's own solution; each student has their own.)
#
# (a) 12.26 MiB. The peak is in the last lines: the scores, the exponentials and the quotient of the division are alive
# together, 4 MiB each, because `logits` and `powers` keep their names to the end of the function. The rest is the
# output, 0.25 MiB, and columns of N numbers. Predicted 4.25 MiB, the arrays that are returned: scores and exponentials
# were forgotten.
#
# (b) Divide into the array that is already there (`powers /= …`) and return it. No quotient is made, but the step
# before, `np.exp(logits - …)`, still has scores, difference and exponentials at once: 12.00. So one more: write the
# difference over the scores (`logits -= …`) and the exponentials over the difference (`np.exp(logits, out=logits)`).
# Then one N × N array is alive from the product on: 4.26.
#
# (c) About 4 MiB, or 4.25 with the output: the weights are part of the result, so one N × N array must exist at the
# end, whatever happens before. Only a function that does not return them can stay below.
#
# Rubric, 6 points: 2 the right arrays for the code handed in (a list that does not add up to the number: 1); 1 the gap
# as an array that the prediction lacked or had too much (no gap: its terms); 2 a change that saves an array, before and
# after measured; 1 the smallest number, with the returned weights as the reason.
