# %% [markdown]
"""
# Lab 04: Tiling

One figure from your own functions, four answers. Say how you came to each number.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from labkit.notebook import student_module
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
# Rubric: 2 points for both curves from counted bytes; 1 for logarithmic axes with units; 1 for the
# line of slope −1; 1 for the floor at 4·N·d·4 B = 128 KiB; 1 for saying that the curve bends towards the floor as
# T_q nears 1 (and moves in steps, because T_q is a whole number).
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
# ## 2. Bytes by hand
#
# N = 1024, d = d_v = 64, float16, blocks of 128 × 64. (a) How many bytes does tiled attention move with queries in the
# outer loop? (b) How many with keys in the outer loop, if the state is kept in float16 too, the first visit starts it
# in SRAM, and the last one stores the output alone? (c) How many does standard attention in three passes move?
# (d) `block_q` is doubled: what changes in (a), (b) and (c)?

# %% [markdown] nbgrader={"grade": true, "grade_id": "by_hand", "solution": true}
# T_q = 8, T_k = 16, N·d = 65,536 elements.
#
# (a) Q 1 + K and V 8·2 + O 1 = 18 N·d = 1,179,648 elements = 2,359,296 B (2.25 MiB).
#
# (b) K, V 2 N·d + Q 16 N·d + state loaded 15·1024·66 + stored 15·1024·66 + O 1 N·d
# = 19 · 65,536 + 2 · 1,013,760 = 3,272,704 elements = 6,545,408 B (6.24 MiB).
#
# (c) Q 1 + K and V 16 + O 1 = 18 N·d, and 4 N² = 4,194,304: 5,373,952 elements = 10,747,904 B (10.25 MiB).
#
# (d) T_q = 4. (a) 10 N·d = 1,310,720 B. (b) nothing: it depends on block_k alone. (c) 10 N·d + 4 N² = 9,699,328 B:
# a tenth less, since the matrix dominates.
#
# *Rubric (6): 2 for (a), 1 for (b), 1 for (c), 2 for (d) with all three. Half for the right elements in wrong bytes.*

# %% [markdown]
# ## 3. Which of the two block sizes counts
#
# Your `choose_blocks` gives one block size most of SRAM. (a) Which, and why, in your order of the loops? (b) For the
# product of two large square matrices the best tiles are square, with a side of about √(M/3). Why is attention
# different? What happens to your tiles when d grows to √M?

# %% [markdown] nbgrader={"grade": true, "grade_id": "which_block", "solution": true}
# (a) With queries outside the traffic is 2 N·d (1 + T_q): only T_q = N/block_q appears. block_k decides how K and V are
# cut, not how often they are read, so it is as small as convenience allows. (With keys outside it is the other way
# round: T_k = N/block_k.)
#
# (b) In a square product both operands are cut along the inner dimension too, and the result must be revisited; the
# reuse of one operand is the tile's height, of the other its width, so a square is best. In attention the inner
# dimension of the first product is d, which fits into SRAM whole, and the result of the first product is used at once:
# nothing but reuse of K and V is at stake, and that is block_q. About block_q · 3d fits, so block_q ≈ M/(3d). At
# d = √M that is √M/3: the tile is as high as in the square product, and the advantage over standard attention is gone.
#
# *Rubric (4): (a) 2, with the formula or the count; (b) 1 for d being short (or the fused second product), 1 for
# block_q ≈ M/(c·d) reaching the order of √M or d, where tiling stops paying.*

# %% [markdown]
# ## 4. Fewer bytes here, how much faster there?
#
# On the machine, tiled attention moves 116 MiB and standard attention 336 MiB (N = 4096, d = 64, float32, 64 KiB). In
# NumPy on a laptop the plain tiled form, with blocks of 64 × 64, is *slower* than standard attention written in place.
# Name two reasons for which bytes counted on the machine do not become time saved in NumPy, and two changes that make
# tiled NumPy faster.

# %% [markdown] nbgrader={"grade": true, "grade_id": "not_the_speed", "solution": true}
# Reasons: the machine charges nothing for arithmetic, NumPy pays for each pass over a tile, and the exponentials, the
# same number in both, take a large part; 4096 tiles are tens of thousands of calls, each with a cost of its own; small
# matrix products use BLAS badly; a CPU's caches hold megabytes, so 64 × 64 is far below what fits.
#
# Changes: larger blocks (256 × 512: fewer calls, better products); results into buffers that exist (`matmul(out=)`,
# subtraction and exp in place); scaling Q once instead of every tile of scores; leaving out the maximum when |q||k|
# bounds every score.
#
# *Rubric (4): 1 for each reason and each change. "Python is slow" alone is not a reason.*

# %% [markdown]
# ## 5. What skipping saves
#
# (a) Derive the share of tiles that causal attention visits, for square blocks of b that divide N = N_q = N_k. (b) What
# is it for N = 4096 and b = 128, b = 1024, b = 4096? (c) For N_q = 1024 and N_k = 4096, blocks of 128 × 64? Check
# with `count_tiles`. (d) Of the entries in visited tiles, how many are computed for nothing at N = 4096, b = 128?

# %% [markdown] nbgrader={"grade": true, "grade_id": "causal_share", "solution": true}
# (a) Row I (from 0) of n = N/b visits I + 1 tiles: n(n + 1)/2 of n², a share of (1 + b/N)/2. (b) 0.5156, 0.625, 1.
#
# (c) Row I ends at query 128(I + 1) − 1 and visits 2(I + 1) tiles of 64 keys: 2·36 = 72 of 8·64 = 512: 0.1406. Keys
# from 1024 on are seen by no query.
#
# (d) 32 tiles on the diagonal with 128·127/2 = 8128 hidden entries each: 260,096, of 528 · 16,384 = 8,650,752 computed,
# 3.0 %.
#
# *Rubric (4): 1 each.*
