# %% [markdown]
"""
# Lab 04: Tiling

One figure from your own functions and two predictions. Type a prediction in place of `None` and run its cell before the
next one. A wrong prediction costs nothing: the points are for explaining the gap.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from labkit.notebook import compare, predict, student_module
from labkit.simulated_memory import Machine

lab = student_module("lab04")
plt.rcParams["figure.figsize"] = (6, 4)

N, d = 512, 16
rng = np.random.default_rng(0)
Q, K, V = (rng.standard_normal((N, d), dtype=np.float32) for _ in "QKV")
sram_sizes = [2**k for k in range(13, 18)]


def bytes_moved(function, sram_bytes, blocks):
    """What one run of tiled_traffic or naive_traffic moves on a fresh machine."""
    machine = Machine(sram_bytes)
    function(machine, Q, K, V, *blocks)
    return machine.traffic


# %% [markdown]
# ## 1. The figure: traffic over the size of SRAM
#
# Draw the bytes that `tiled_traffic` and `naive_traffic` move over the size of SRAM, both axes logarithmic, for
# `sram_sizes`: `tiled_traffic` with the blocks of `choose_blocks` and `naive_traffic` with the same blocks. Add
# a line of slope −1 through your first tiled point, and one at the least possible bytes: the inputs and the
# output, once. Where does the tiled curve leave the slope, and why?

# %% nbgrader={"grade": true, "grade_id": "figure_traffic", "solution": true}
### BEGIN SOLUTION
# Rubric (5): 2 points for both curves from counted bytes; 1 for logarithmic axes with units; 1 for the line of slope −1
# and the floor at 4·N·d·4 B = 128 KiB; 1 for saying that the curve bends towards the floor as T_q nears 1 (and moves in
# steps, because T_q is a whole number).
moved = {"tiled": [], "naive": []}
for sram_bytes in sram_sizes:
    blocks = lab.choose_blocks(sram_bytes, d)
    for name, function in (("tiled", lab.tiled_traffic), ("naive", lab.naive_traffic)):
        moved[name].append(bytes_moved(function, sram_bytes, blocks))
figure, ax = plt.subplots()
sizes = np.array(sram_sizes)
for name, marker in (("tiled", "o"), ("naive", "s")):
    ax.plot(sizes / 1024, np.array(moved[name]) / 1024, marker=marker, label=name)
ax.plot(sizes / 1024, moved["tiled"][0] / 1024 * sizes[0] / sizes, "--", label="slope −1")
ax.axhline(4 * Q.nbytes / 1024, linestyle=":", label="inputs and output, once")
ax.set(xscale="log", yscale="log", xlabel="SRAM, KiB", ylabel="bytes moved, KiB")
ax.legend()
print("Every row block reads K and V again; at 128 KiB two are left, and Q, K, V and O once remain.")
### END SOLUTION

# %% [markdown]
# ## 2. Twice the width
#
# SRAM has 16 KiB, N = 512, and blocks are those of your `choose_blocks`. The next cell counts the traffic of your
# `tiled_traffic` with d = 16.


# %%
def blocks_and_kib(d, function):
    """The blocks for 16 KiB of SRAM, and the KiB that one run with them moves."""
    blocks, machine = lab.choose_blocks(16_384, d), Machine(16_384)
    function(machine, *(np.ones((512, d), np.float32) for _ in "QKV"), *blocks)
    return blocks, machine.traffic / 1024


blocks, kib = blocks_and_kib(16, lab.tiled_traffic)
print(f"d = 16: blocks of {blocks[0]} × {blocks[1]}, {kib:,.0f} KiB")

# %% [markdown]
# Queries, keys, values and output become twice as wide: d = 32. Predict the traffic.

# %%
predicted = predict(None, "KiB")

# %%
blocks, kib = blocks_and_kib(32, lab.tiled_traffic)
print(f"d = 32: blocks of {blocks[0]} × {blocks[1]}")
compare(predicted, kib, "KiB")
for d in (16, 32):
    print(f"standard attention, d = {d}: {blocks_and_kib(d, lab.naive_traffic)[1]:,.0f} KiB")

# %% [markdown]
# (a) Write the traffic as a formula in N, d and the number of blocks in your outer loop, and check it against both
# measured numbers. (b) Explain the gap between prediction and measurement; if there was none, say which terms your
# prediction had. The law N²d²/M says 4 times: which terms make it less? (c) Why does the traffic of standard attention
# hardly grow, and what does that say about large d?

# %% [markdown] nbgrader={"grade": true, "grade_id": "twice_the_width", "solution": true}
# (The numbers belong to the course's own solution, with queries outside.)
#
# (a) Q and the output once, K and V T_q times: 2·N·d·(1 + T_q) elements. Blocks of 57 queries: T_q = 9, and
# 2·512·16·10·4 B = 640 KiB. Blocks of 31: T_q = 17, and 2·512·32·18·4 B = 2,304 KiB.
#
# (b) Predicted 1,280 KiB, twice as many bytes in each array; measured 3.6 times 640. Wider rows leave space for about
# half as many queries, so K and V are also read nearly twice as often. It is less than 4 because Q and the output are
# moved once, whatever the blocks are (1 of 10 parts, which only doubles), and because T_q goes from 9 to 17, not to 18:
# the last block of queries is not full in either case.
#
# (c) Its 4·N² elements of scores and weights, 4,096 KiB, do not depend on d. What grows is the same as in tiles, 640
# and 2,304 KiB. So at large d, of the order of √M elements, tiles save little.
#
# *Rubric (5): (a) 2, the formula 1 and both numbers 1; (b) 2, one for smaller blocks of queries (or whatever the
# prediction lacked; no gap: its terms), one for a term that makes it less than 4; (c) 1. With keys outside: K and V
# once, Q T_k times, and the state.*

# %% [markdown]
# ## 3. What skipping saves
#
# 1024 queries and 4096 keys in blocks of 128 × 64 are 512 tiles. Predict how many are left with `causal=True`.

# %%
predicted = predict(None, "tiles")

# %%
compare(predicted, lab.count_tiles(1024, 4096, 128, 64, causal=True), "tiles")

# %% [markdown]
# (a) Explain the gap; if there was none, write down your sum. (b) Derive the share of tiles that is left for square
# blocks of b that divide N = N_q = N_k. For which b does skipping save nothing? (c) How many of the entries in the
# tiles left are computed for nothing at N = 4096 and b = 128?

# %% [markdown] nbgrader={"grade": true, "grade_id": "causal_share", "solution": true}
# (a) Predicted 256, half; measured 72. Block I of queries (from 0) ends at query 128·(I + 1) − 1 and visits 2·(I + 1)
# tiles of 64 keys: 2·(1 + … + 8) = 72. No query sees the keys from 1024 on: three quarters of the tiles. Of the other
# 128 a little more than half are left.
#
# (b) Row I of n = N/b visits I + 1 tiles: n(n + 1)/2 of n², a share of (1 + b/N)/2. It is 1 for b = N.
#
# (c) 32 tiles on the diagonal with 128·127/2 = 8128 hidden entries each: 260,096, of 528 · 16,384 = 8,650,752 computed,
# 3.0 %.
#
# *Rubric (4): (a) 2, one for the keys that no query sees, one for the sum (or the tiles on the diagonal); (b) 1; (c) 1.*
