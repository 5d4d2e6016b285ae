# %% [markdown]
"""
# Lab 03: Online softmax

One figure from your own functions and two predictions. Type a prediction in place of `None` and run its cell before the
next one. A wrong prediction costs nothing: the points are for explaining the gap.
"""

# %%
from functools import reduce

import matplotlib.pyplot as plt
import numpy as np

from labkit.meters.arrays import measure_arrays
from labkit.notebook import compare, predict, student_module
from labkit.testing.attention.reference import random_qkv

lab = student_module("lab03")
plt.rcParams["figure.figsize"] = (6, 5)

Q, K, V = random_qkv(np.random.default_rng(0), n_queries=1, n_keys=512, d=64, logit_scale=1.0)
scores = (K @ Q[0] / 8).astype(np.float32)
blocks = np.split(scores, 32)

# %% [markdown]
# ## 1. The figure: m and l over the blocks of a row
#
# `blocks` is a row of 512 scores in 32 blocks. Draw, over the number of blocks seen, the running maximum m and the
# running sum l that `online_softmax_stats` gives, in two panels or on two axes. Mark every block at which the maximum
# moved.

# %% nbgrader={"grade": true, "grade_id": "figure_rescaling", "solution": true}
### BEGIN SOLUTION
# Rubric: 1 point for m and 1 for l over the number of blocks, from the student's function (a prefix of the blocks each
# time); 1 for the moves of the maximum marked at the right blocks; 1 for labelled axes.
seen = np.arange(1, len(blocks) + 1)
m, l = np.array([lab.online_softmax_stats(blocks[:n]) for n in seen]).T
moved = np.flatnonzero(np.diff(m, prepend=-np.inf) > 0)
figure, panels = plt.subplots(2, 1, sharex=True)
for ax, name, values in zip(panels, ("m, maximum so far", "l, sum so far"), (m, l), strict=True):
    ax.step(seen, values, where="post")
    ax.plot(seen[moved], values[moved], "o", label="the maximum moved")
    ax.set_ylabel(name)
panels[0].legend()
panels[1].set_xlabel("blocks seen")
print(f"the maximum moved at blocks {[int(n) for n in seen[moved]]}")
### END SOLUTION

# %% [markdown]
# ## 2. Half the bytes per number
#
# Keys and values exist before the call, in blocks of 2048 with d = d_v = 128. So the peak counts only what your
# `online_attention` makes. The next cell measures it in float32.

# %%
keys, values = (np.random.default_rng(seed).standard_normal((16_384, 128), dtype=np.float32) for seed in (1, 2))


def peak_kib(dtype):
    """The peak of online_attention in KiB, without its arguments."""
    K, V = keys.astype(dtype), values.astype(dtype)
    return measure_arrays(lab.online_attention, K[0], np.split(K, 8), np.split(V, 8)).peak_bytes / 1024


print(f"float32: {peak_kib(np.float32):,.1f} KiB")

# %% [markdown]
# Now everything is float16. Predict the peak.

# %%
predicted = predict(None, "KiB")

# %%
compare(predicted, round(peak_kib(np.float16), 1), "KiB")

# %% [markdown]
# (a) Name the arrays that are alive at the peak, in float32 and in float16, with shape, dtype and KiB. They must add up
# to the two numbers within 4 KiB. (b) Explain the gap between prediction and measurement; if there was none, say which
# terms your prediction had. (c) Change your function so that one of the two peaks falls, with the tests still passing.
# Give the change and the numbers before and after.

# %% [markdown] nbgrader={"grade": true, "grade_id": "peak_in_half_precision", "solution": true}
# (The numbers belong to the course's own solution; each student has their own.)
#
# (a) float32, 34.5 KiB: four arrays of 2048 numbers, 8 KiB each: the block's scores, scores − m, exp(scores − m), and
# the exponentials of the block before, which still have a name. The query and the sums o are 0.5 KiB each. float16,
# 1,051.1 KiB: a float32 copy of the block of keys, 2048 · 128 · 4 bytes = 1024 KiB, and three arrays of 8 KiB in
# float32: the new scores, and scores and exponentials of the block before.
#
# (b) Predicted 17.3 KiB, half of float32's; measured 61 times that. The inputs are half as large, but the function
# computes in float32, so it makes a copy of each block. In float32 the block itself could be used.
#
# (c) Multiply 256 keys of a block at a time: the copy is then 128 KiB. (Or: multiply in float16 and convert only the
# scores, 8 KiB. The products are then rounded to float16.) Deleting the old exponentials before the new ones are made
# saves 8 KiB in float32.
#
# *Rubric (6): (a) 2, one for each dtype, if the list adds up to the number for the code handed in; (b) 2 for the array
# that the prediction lacked or had too much, with its bytes (no gap: its terms); (c) 2 for the change with both
# numbers. Code that never copies to float32 has a small gap: the same points.*

# %% [markdown]
# ## 3. One at a time, or in pairs
#
# 4096 keys have equal scores. Each key has the state (0, 1, [1]), in float16. The next cell but one merges them with
# your `merge_states`, one after the other. Predict l.

# %%
predicted = predict(None, "keys")

# %%
key = np.float16(0), np.float16(1), np.ones(1, np.float16)
compare(predicted, float(reduce(lab.merge_states, [key] * 4096)[1]), "keys")

states = [key] * 4096
while len(states) > 1:
    states = [lab.merge_states(a, b) for a, b in zip(states[::2], states[1::2], strict=True)]
print(f"merged in pairs: {float(states[0][1]):,g} keys")

# %% [markdown]
# (a) Explain the gap; if there was none, say what your prediction took into account. (b) Merging is associative, so why
# do the two orders differ, and why is the second one right here? (c) Sums in float32 reach the same limit: at how many
# equal scores? (d) A limit of another kind: above which score does exp(x) / Σ exp(x) in float16 give NaN, and why does
# the safe form not?

# %% [markdown] nbgrader={"grade": true, "grade_id": "half_precision", "solution": true}
# (a) Predicted 4096, measured 2048. float16 has 11 significant bits, so above 2048 it has only even numbers: 2048 + 1
# rounds to 2048, and the sum stops there.
#
# (b) Associative is the exact sum; each merge rounds. In pairs, two equal powers of two meet in each round, and their
# sum is a power of two, which float16 has.
#
# (c) float32 has 24 significant bits: 2²⁴ = 16,777,216.
#
# (d) Above ln 65,504 = 11.09: exp(x) is inf, and inf/inf is NaN. In the safe form the largest argument of exp is 0.
#
# *Rubric (4): 1 each. (a) the significant bits, or that 2049 does not exist; (b) that each merge rounds; (c) 2²⁴;
# (d) 11 or 11.1 with the reason.*
