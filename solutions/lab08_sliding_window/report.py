# %% [markdown]
# # Lab 08: Sliding windows
#
# Run the cells from top to bottom after the five tasks pass. Everything here is computed by **your** functions; when
# you change `src/sliding_window.py`, restart the kernel and run all cells again. Say the unit of every number: tiles,
# bytes, kB and MB (powers of ten).

# %%
import matplotlib.pyplot as plt
import torch

from labkit.notebook import compare, perplexity, predict, student_module

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
# Rubric, 4 points: 1 all rows; 1 five parts stacked to the total, told apart by a legend; 1 axis with quantity and MB;
# 1 mask_building marked, apart from the sum.
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
# ## 2. How many keys a window has
#
# 4,096 tokens, a window of 300 keys, blocks of 64: how many tiles are not empty? Predict the number from the pairs that
# are seen.

# %%
predicted = predict(None, "tiles")

# %%
kinds = sliding_window.classify_tiles(4096, 300, 64)
compare(predicted, int((kinds != "empty").sum()), "tiles")


# %%
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
# (a) Give both numbers, and explain the gap. Derive the number of tiles in a row of tiles from window and block, away
# from the edges.
#
# (b) SmolLM2 has 30 layers. How far back can a token's information come from with a window of 64? Why is its perplexity
# then not that of the whole text of 512 tokens?

# %% [markdown] nbgrader={"grade": true, "grade_id": "keys_of_a_window", "solution": true}
# (a) Predicted 4,096 · 300 / 64² = 300 tiles, measured 369. A row of tiles needs keys start − 299 to start + 63, and
# start is a multiple of 64: ⌈299 / 64⌉ + 1 = 6 tiles, of which the first and the last are partial and count whole. 64
# rows of 6 are 384; the first five lack 5 + 4 + 3 + 2 + 1 = 15.
#
# (b) 30 · 63 = 1,890 tokens: each layer reaches 63 further, more than the whole text. But only a model that was trained
# with the window passes on what it needs: SmolLM2 was not, and reads from far tokens, the first above all (Lab 12),
# directly.
#
# Rubric, 5 points: 3 for (a): 1 both numbers, 1 partial tiles count whole, 1 the formula (without a gap: 1 for the
# numbers, 2 for the formula and the first rows). 2 for (b): 1 about 1,890, 1 the training.

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
# (b) The analysis gives FlexAttention's intermediates as B · H · N² / block numbers. How many bytes is that in float32,
# with block 128, and does it agree with the table?
#
# (c) It says that ten block masks, of 5 to 20 MB each, stay in the cache. At your N = 512 that would be a quarter, 1.25
# to 5 MB each. Which number of your `flex_block_mask` is of that order, how many bytes a pair is it, and how long is it
# alive?

# %% [markdown] nbgrader={"grade": true, "grade_id": "table_that_does_not_add_up", "solution": true}
# (a) +400, not +350; the window's column is 380 to 720.
#
# (b) 4 · 12 · 1024² / 128 = 393,216 numbers, 1.57 MB: not 80–120 MB.
#
# (c) `mask_building`, 2,621,952 bytes for 512² pairs, 10 bytes a pair, which is 10.5 MB at N = 1024: the mask function
# evaluated for all pairs, as bools and for a moment as int64. It is freed before `create_block_mask` returns. What
# stays is `mask`, 1,152 bytes.
#
# Rubric, 5 points: 2 (a), 1 for each column; 1 (b), the number and "no"; 2 (c), 1 for `mask_building` with its bytes a
# pair, 1 for a moment only.
