# %% [markdown]
# # Lab 08: Sliding windows
#
# Run the cells from top to bottom after the five tasks pass. Everything here is computed by **your** functions;
# when you
# change `src/sliding_window.py`, restart the kernel and run all cells again. Say the unit of every number: bytes, kB
# and MB (powers of ten), KiB and MiB (powers of two).

# %%
import matplotlib.pyplot as plt
import torch

from labkit.meters.tensors import kept_by_forward
from labkit.notebook import perplexity, student_module

sliding_window = student_module("lab08")
torch.set_num_threads(1)
PARTS = ("mask", "output", "saved", "gradients", "workspace")

# %% [markdown]
# ## Measurements
#
# Batch 1, 4 heads, N = 512, d = 64, window 64, block 64, float32.

# %%
SIZES = (1, 4, 512, 64, 64, 64, torch.float32)
rows = {}
for variant in ("naive_mask", "flex_block_mask", "causal_sdpa", "tiled_window"):
    for checkpointed in (False, True):
        if variant == "flex_block_mask" and checkpointed:
            continue  # forward only
        name = variant + (", checkpointed" if checkpointed else "")
        rows[name] = sliding_window.memory_breakdown(variant, *SIZES, checkpointed)
        print(f"{name:27s}", rows[name])

# %% [markdown]
# ## 1. The figure: where the bytes are
#
# Draw one bar for each row, stacked from its five parts, in MB (10⁶ bytes), so that variants can be compared. Mark in
# each bar of a variant with a mask how much `mask_building` was.

# %% nbgrader={"grade": true, "grade_id": "figure_breakdown", "solution": true}
figure, ax = plt.subplots(figsize=(8, 4.4), layout="constrained")
### BEGIN SOLUTION
# Rubric, 5 points: 1 all rows; 1 five parts stacked to the total; 1 axis with quantity and MB; 1 a legend by which
# the
# parts can be told apart; 1 mask_building marked, apart from the sum.
places = range(len(rows))
left = [0.0] * len(rows)
for number, part in enumerate(PARTS):
    widths = [row[part] / 1e6 for row in rows.values()]
    ax.barh(places, widths, left=left, color=f"C{number}", label=part)
    left = [a + b for a, b in zip(left, widths, strict=True)]
building = [(place, row["mask_building"] / 1e6) for place, row in enumerate(rows.values()) if row["mask_building"]]
ax.plot(
    [x for _, x in building], [y for y, _ in building], "k|", markersize=24, label="mask_building (a moment of its own)"
)
ax.set_yticks(places, rows)
ax.invert_yaxis()
ax.set(xlabel="memory over the inputs at the fullest moment (MB)")
ax.legend(fontsize=8, markerscale=0.5)
plt.show()
### END SOLUTION

# %% [markdown]
# ## 2. What a block mask weighs
#
# (a) The analysis says a block mask for N = 1024 and window 64 stores 5 to 20 MB. Blocks are 128 × 128, and a block
# mask
# holds, for keys and for queries, for partial and for full tiles, a number of tiles for each row of tiles and a
# list of
# their indices with room for all T, in int32. How many bytes is that? And ten of them?
#
# (b) Your measured `mask_building` is larger by orders of magnitude. What is made there, and how long does it live?
#
# (c) In what does the size of the block mask grow with N? At which N would it be 20 MB?

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_a_block_mask_weighs", "solution": true}
# (a) T = 8: 4 · (8 + 64) · 4 bytes = 1,152 bytes; ten of this length 11,520 bytes.
#
# (b) The mask function evaluated for all N² pairs, as bools, and a wider copy (int64, 8 bytes a pair) while pairs are
# added up for each tile: 10 bytes a pair. It is freed before `create_block_mask` returns; compiled, it is never made.
#
# (c) With T², so N² / 128². 16 T² bytes ≈ 20 MB at T ≈ 1,118, N ≈ 143,000.
#
# Rubric, 5 points: 2 (a), 1 for each number; 2 (b), all pairs, and that it is temporary; 1 (c), N² and an N within
# 10 %.

# %% [markdown]
# ## 3. A table that does not add up
#
# The analysis ends in this table (MB, batch 4, 12 heads, N = 1024):
#
# | component | causal | window | difference |
# |---|---:|---:|---:|
# | projections | 150 | 150 | 0 |
# | attention | 0 | 80–120 | +100 |
# | block mask cache | 0 | 50–200 | +150 |
# | compiled kernels | 20 | 100–250 | +150 |
# | total | 170 | 520 | +350 |
#
# (a) Add up the last column, and the window's column at its lower and its upper end.
#
# (b) The analysis gives FlexAttention's intermediates as B · H · N² / block numbers. How many bytes is that in
# float32,
# with block 128, and does it agree with the table?
#
# (c) It says that a mask made with B = H = 1 is broadcast to B and H, which makes copies of 10–50 MB. Take your
# figures of
# `flex_block_mask`: what would B · H copies of the mask be? What does broadcasting copy?

# %% [markdown] nbgrader={"grade": true, "grade_id": "table_that_does_not_add_up", "solution": true}
# (a) +400, not +350; the window's column is 380 to 720.
#
# (b) 4 · 12 · 1024² / 128 = 393,216 numbers, 1.57 MB: not 80–120 MB.
#
# (c) 48 · 1,152 = 55,296 bytes at N = 1024 even if it were copied. Broadcasting is a stride of 0 and copies
# nothing; masks
# for one head and for 48 give the same measured peak (37,979,136 bytes, compiled, on the CPU).
#
# Rubric, 6 points: 2 (a); 2 (b), 1 for the number and 1 for the comparison; 2 (c), 1 each.

# %% [markdown]
# ## 4. What checkpointing does here
#
# (a) For which of your variants does checkpointing save memory between the passes, and how much? For which does it
# lower
# the total? Explain with what is kept and what comes back.
#
# (b) The mask is made outside of the checkpointed function, so it stays. What does that cost for `naive_mask` and for
# `flex_block_mask`? What would it cost to make it inside?
#
# (c) The analysis advises to switch checkpointing off, as the masks are kept in any case. Answer in one sentence.

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_checkpointing_does_here", "solution": true}
# (a) naive: the weights, 4 · 512² · 4 bytes = 4.19 MB, go; 5,056 bytes (the random generator's state) come. For the
# other
# two only the log-sum-exp goes, 8,192 bytes. The total falls for none of them: the backward pass has all of it
# again, and
# the fused and the tiled form pay for a second output.
#
# (b) naive: N² bytes, 262,144. flex: 1,152 bytes at T = 8. Made inside, the building, 10 N² bytes for a moment,
# happens
# twice a step.
#
# (c) Checkpointing drops activations of a whole layer, against which a mask of about a kilobyte is nothing.
#
# Rubric, 5 points: 2 (a), saved and total; 2 (b), outside and inside; 1 (c).

# %% [markdown]
# ## 5. How many keys a window has

# %%
q, k, v = (torch.randn(1024, 64, requires_grad=True) for _ in range(3))
kept = kept_by_forward(sliding_window.sliding_window_attention, q, k, v, 256, 64)
kinds = sliding_window.classify_tiles(8192, 256, 64)
print("kept:", kept, "bytes; tiles visited:", int((kinds != "empty").sum()), "of", kinds.size)


def through_a_window(window):
    """Your attention for a real model, SmolLM2: 9 query heads on 3 key heads."""

    def attend(layer, q, k, v):
        k, v = (x.repeat_interleave(3, 0) for x in (k, v))
        return sliding_window.sliding_window_attention(q, k, v, window, 64)

    return attend


for window in (16, 64, 256):
    print(f"perplexity of SmolLM2 with window {window}: {perplexity(through_a_window(window)):.1f}")
print(f"without a window: {perplexity():.1f}")

# %% [markdown]
# (a) The analysis proposes `flash_attn_func(…, causal=True, window_size=(window, 0))`. How many keys does a query
# see with
# it, and what should stand there?
#
# (b) In a model of L layers with window w, how far back can a token's information come from? For L = 32, w = 4096?
# SmolLM2 has 30 layers: why is its perplexity with a window of 64 not that of the whole text of 512 tokens?
#
# (c) Derive the number of tiles in a row of tiles from window and block, away from the edges. Check it with 630
# tiles above.
#
# (d) What does your attention keep between the passes, and what would the other way (strips or a Function) keep?

# %% [markdown] nbgrader={"grade": true, "grade_id": "keys_of_a_window", "solution": true}
# (a) window + 1; `(window - 1, 0)`.
#
# (b) L · (w − 1) tokens back: each layer reaches w − 1 further. 32 · 4095 = 131,040, about 131 thousand.
# 30 · 63 = 1,890 tokens would reach the whole text, but only for a model that was trained with the window: SmolLM2 was
# not, and reads from far tokens, the first above all (Lab 12), directly.
#
# (c) Keys from start − w + 1 to start + b − 1: with start a multiple of b, ⌈(w − 1) / b⌉ + 1 blocks. 255/64 → 4,
# and 1:
# 5 a row, 128 rows; the first four rows lack 4 + 3 + 2 + 1: 630.
#
# (d) A Function: the log-sum-exp, 4 N bytes = 4,096 (besides q, k, v, out). Strips: the weights, up to 4 N (w + b −
# 1) bytes =
# 1.3 MB.
#
# Rubric, 5 points: 1 (a); 1 (b); 2 (c), the formula and the check; 1 (d).
