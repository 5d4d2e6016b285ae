# %% [markdown]
"""
# Lab 03: Online softmax

One figure from your own functions, four answers. Say how you came to each number.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from labkit.notebook import student_module
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
# ## 2. One row by hand
#
# The scores of a row come in the blocks [0, ln 2], [ln 4], [0, ln 3]; the values are [1, 2], [3], [4, 5]. Write down
# (m, l, o) after each block, as fractions, and the output. What would the output be if o were not rescaled?

# %% [markdown] nbgrader={"grade": true, "grade_id": "by_hand", "solution": true}
# | after block | m | l | o |
# |---|---|---|---|
# | 1 | ln 2 | 1/2 + 1 = 3/2 | 1/2·1 + 1·2 = 5/2 |
# | 2 | ln 4 | 3/2 · 1/2 + 1 = 7/4 | 5/2 · 1/2 + 3 = 17/4 |
# | 3 | ln 4 | 7/4 + 1/4 + 3/4 = 11/4 | 17/4 + 1/4·4 + 3/4·5 = 9 |
#
# Output 9 / (11/4) = 36/11 = 3.2727. Check: weights 1, 2, 4, 1, 3 over 11, times 1…5: (1 + 4 + 12 + 4 + 15)/11 = 36/11.
# Without rescaling o: 5/2 + 3 + 1 + 15/4 = 41/4, divided by 11/4: 41/11 = 3.7273.
#
# *Rubric (4): 1 for each state after blocks 2 and 3; 1 for 36/11; 1 for 41/11 (o alone not rescaled; an answer that
# rescales neither must say so: l would be 3/2 + 1 + 1 = 7/2 and the output 41/14 = 2.9286).*

# %% [markdown]
# ## 3. Why softmax must keep N numbers and attention need not
#
# `online_softmax` keeps an array of N numbers until the end; `online_attention` sees the same scores and keeps d_v + 2.
# (a) Why can the first weight of a softmax not be given out before the last block has come? Give two rows that begin
# alike and whose first weights differ. (b) What of attention's formula makes the N numbers unnecessary? (c) Would it
# still work if the output were Σ w[j]²·v[j]? And if it were v at the position of the median weight?

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_must_be_kept", "solution": true}
# (a) Every weight is divided by the sum over the whole row. [0, 0] has a first weight of 1/2, [0, 0, 10] one of
# 4.5·10⁻⁵, though both begin alike. So N exponentials wait for one factor (or the scores are read a second time).
#
# (b) The output is linear in the weights: a sum of exp(s − m)·v divided by a sum of exp(s − m). The factor that is
# still unknown is the same for all terms, so it can be taken out of the sum, and the sum, d_v numbers, is all that
# must wait.
#
# (c) Yes: Σ exp(2(s − m))·v over l². Carry o₂ = Σ exp(2(s − m))·v, rescale it by the square of the factor, divide by
# l². No for the median: which position it is depends on all weights at once, and no state of fixed size tells it.
#
# *Rubric (6): (a) 1 for the normaliser, 1 for a pair of rows; (b) 2 for linearity and the common factor; (c) 1 for the
# squares with the factor squared, 1 for the median.*

# %% [markdown]
# ## 4. Where each form breaks in float16
#
# The largest finite float16 is 65,504 and the smallest positive one 2⁻²⁴. For a row of scores x in float16, say (a)
# above which score the naive form exp(x) / Σ exp(x) gives NaN, whatever else is in the row; (b) below which it gives
# 0/0 when all scores lie below; (c) why the safe form does neither; (d) from how many equal scores on a sum l kept in
# float16 is wrong by half, when the ones are added one at a time.

# %% [markdown] nbgrader={"grade": true, "grade_id": "half_precision", "solution": true}
# (a) ln 65,504 = 11.09: exp of a score above it is inf, and inf/inf is NaN. (b) exp(x) rounds to 0 below half of 2⁻²⁴:
# x < −25 ln 2 = −17.33. (c) Its largest argument is 0, so no exp exceeds 1, and the largest exp *is* 1, so l ≥ 1. What
# underflows is less than 2⁻²⁴ of the largest. (d) float16 has 11 significant bits: 2048 + 1 rounds to 2048. The sum
# stops there, and is half of what it should be at 4096 equal scores. (Hence l is kept in float32, whatever the scores
# are.)
#
# *Rubric (4): 1 each. (a) 11 or 11.1 will do; (b) −16.6 (the smallest positive number itself) will do; (d) 4096, with
# 2048 as the place where the sum stops.*

# %% [markdown]
# ## 5. What associativity buys
#
# One query attends to 65,536 keys, which lie on 8 devices, 8192 on each. (a) What does each device compute, and how
# many numbers does it send, with d_v = 128? Compare with sending its keys and values (d = 128). (b) Which property of
# `merge_states` allows the devices' results to be put together pair by pair, in three rounds? Which allows them in the
# order in which they arrive? (c) What is the identity needed for? (d) One device's keys are all masked. What does it
# send, and what happens to the result?

# %% [markdown] nbgrader={"grade": true, "grade_id": "any_order", "solution": true}
# (a) Each runs online attention over its own 8192 keys, without the division at the end, and sends (m, l, o): 130
# numbers. Keys and values would be 8192 · 256 = 2,097,152 numbers, 16,132 times as many.
#
# (b) Associativity: any bracketing, so a tree of depth log₂ 8 = 3. For the order of arrival, commutativity as well.
#
# (c) A start for loops, and what a device without keys (an empty or masked shard) has to contribute.
#
# (d) (−inf, 0, 0), and the result does not change. It must be handled: −inf − (−inf) is NaN when two such states meet.
#
# *Rubric (6): (a) 1 for the state without division, 1 for both counts; (b) 1 + 1; (c) 1; (d) 1.*
