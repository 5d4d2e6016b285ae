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
from labkit.notebook import student_module

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
# ## 2. Which array is it, and why the square?
#
# The cell below doubles N again and again and prints by what the *total* grows each time.

# %%
for n in (32, 64, 128, 512, 2048, 8192, 2**20):
    smaller, larger = (profiling.estimate_attention_memory(length, 64)["total_memory"] for length in (n, 2 * n))
    print(f"N = {n:9,} → {2 * n:9,}: total × {larger / smaller:.4f}")

# %% [markdown]
# (a) Which array makes the total grow, and why does it have the shape it has: what does one element of it stand for?
#
# (b) The factors printed above are not 4. Explain the smallest and the largest with the shapes, and compute the
# factor from N = 64 to N = 128 by hand.

# %% [markdown] nbgrader={"grade": true, "grade_id": "why_quadratic", "solution": true}
# (a) The weights. Each element says how much one query takes from one key; there are N queries and N keys, and every
# pair needs its own number, so N² elements. All others have one row of d numbers per token.
#
# (b) In elements the total is 4·N·d + N² (Q, K, V and the output are N·d each). A doubling multiplies the first term
# by 2 and the second by 4, so the factor is between: near 2 where 4d is large against N, near 4 where N is large
# against 4d = 256. At N = 64: 4·64·64 + 64² = 20,480; at 128: 4·128·64 + 128² = 49,152; the factor is 2.4.
#
# Rubric, 4 points: 1 names the weights; 1 one number per pair of query and key; 1 a sum of a linear and a quadratic
# term whose factors are 2 and 4; 1 the factor 2.4 with its two totals.

# %% [markdown]
# ## 3. What is alive at the peak?
#
# `total_memory` adds up arrays that exist when attention is done. The next cell measures how many bytes your
# `standard_attention` has allocated at its worst moment (inputs not counted), in units of one N × N array.

# %%
n = 1024
rng = np.random.default_rng(0)
Q, K, V = (rng.standard_normal((n, 64)).astype(np.float32) for _ in range(3))
matrix_bytes = n * n * 4
peak_bytes = measure_arrays(profiling.standard_attention, Q, K, V).peak_bytes
print(f"peak: {peak_bytes:,} bytes = {peak_bytes / matrix_bytes:.3f} arrays of N × N")

# %% [markdown]
# (a) Which number do you get? Name the line of your code at which the peak is reached and the N × N arrays that are
# alive there.
#
# (b) Change your function so that the peak falls by at least one N × N array, with the tests still passing. (When it
# is at its lowest already: go the other way.) Give the change, the number before and the number after.
#
# (c) What is the smallest number this function can reach, and what in its signature forbids a smaller one?

# %% [markdown] nbgrader={"grade": true, "grade_id": "alive_at_once", "solution": true}
# (The numbers belong to the course's own solution; each student has their own.)
#
# (a) 3.065. The peak is in the last lines: the scores, the exponentials and the quotient of the division are alive
# together, because `logits` and `powers` keep their names to the end of the function. The 0.065 is the output,
# 64/1024 of an N × N array, and columns of N numbers.
#
# (b) Divide into the array that is already there (`powers /= …`) and return it. No quotient is made, but the step
# before, `np.exp(logits - …)`, still has scores, difference and exponentials at once: 3.001. So one more: write the
# difference over the scores (`logits -= …`) and the exponentials over the difference (`np.exp(logits, out=logits)`).
# Then one array is alive from the product on: 1.065.
#
# (c) About 1: the weights are part of the result, so one N × N array must exist at the end, whatever happens before.
# Only a function that does not return them can stay below.
#
# Rubric, 6 points: 2 the number and the right arrays for the code handed in (a list that does not add up to the
# number: 1); 2 a change that saves an array, before and after measured; 1 the number 1; 1 the returned weights as the
# reason.

# %% [markdown]
# ## 4. The longest context that fits
#
# A GPU has 24 GiB of memory. Your attention runs on it as it is: the inputs and everything alive at your peak must
# fit. d = 64, float32. Let c be the number that you measured in question 3, rounded to a whole number of N × N
# arrays. Show the equation that you solve.
#
# (a) How long may one sequence with one head be?
#
# (b) How long with 32 heads computed at once?
#
# (c) You get a GPU with twice the memory. And instead: you go from 4 bytes an element to 2. By what factor does the
# longest context grow in each case?
#
# (d) How much memory would the sequence of 1,048,576 tokens need for *one* N × N array of one head, in float32?

# %%
# Room for your arithmetic.

# %% [markdown] nbgrader={"grade": true, "grade_id": "longest_context", "solution": true}
# With c = 3: 3·N²·4 + 4·N·64·4 ≤ 24·2³⁰ bytes (Q, K, V and the output are the second term).
#
# (a) 12 N² + 1024 N ≤ 25,769,803,776 gives N = 46,298. Without the linear term it is √(24·2³⁰/12) = 46,340; the
# inputs hardly matter.
#
# (b) Each head may take 24/32 GiB: 12 N² + 1024 N ≤ 805,306,368, so N = 8,149. That is about √32 = 5.7 times shorter,
# not 32 times.
#
# (c) √2 = 1.41 in both cases: N² times bytes is what must fit, so twice the memory or half the bytes only buys the
# root of 2.
#
# (d) 2²⁰ · 2²⁰ · 4 = 2⁴² bytes = 4 TiB (4.4 TB).
#
# Rubric, 6 points: 1 an equation with c·N² and the bytes of an element; 1 (a) right for the student's c (c = 1:
# 80,136; 2: 56,691; 4: 40,100; 1 % off is right); 1 (b) right (c = 1: 14,061; 2: 9,969; 4: 7,062); 2 the factor √2 in
# both cases of (c); 1 (d) with its unit. For float16 in (c), c is taken to stay the same.

# %% [markdown]
# ## 5. Two numbers that are wrong
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
