# %% [markdown]
# # Lab 11: Ring attention
#
# Run the cells from top to bottom after the tasks pass. Everything here is computed by **your** functions; when you
# change `src/ring_attention.py`, restart the kernel and run all cells again. Say the unit of every number: pairs,
# bytes, KiB (2¹⁰).

# %%
import matplotlib.pyplot as plt
import torch

from labkit.notebook import compare, predict, student_module
from labkit.ranks.threads import run_ranks

ring = student_module("lab11")
torch.set_num_threads(1)
KIB = 2**10
LAYOUTS = ("contiguous", "zigzag", "striped")

# %% [markdown]
# ## Measurements
#
# Ranks are threads here, as in the tests. Eight query heads on eight key heads, d = 32, 512 tokens, float32, causal,
# zigzag: what a rank sends, the most that it holds of what it received, and its peak over its own shards.

# %%
METHODS = {
    "ring": ring.ring_attention_forward,
    "all_gather": ring.all_gather_attention,
    "ulysses": ring.ulysses_attention,
}


def shards(world_size, layout="zigzag", heads=8, n_tokens=512, d=32):
    """The arguments of each rank."""
    generator = torch.Generator().manual_seed(11)
    whole = [torch.randn(heads, n_tokens, d, generator=generator) for _ in range(3)]
    return list(zip(*(ring.shard(x, world_size, layout) for x in whole), strict=True))


for world_size in (2, 4, 8):
    for name, method in METHODS.items():
        ran = run_ranks(lambda comm, *given, method=method: method(comm, *given, causal=True), shards(world_size))
        formula = ring.communication_bytes(name, world_size, 512, 8, 8, 32, 4)
        sent, held = ran.traffic[0].sent_bytes, ran.traffic[0].held_bytes
        print(
            f"{world_size} ranks, {name:10s}: sends {sent / KIB:5.0f} KiB (formula {formula / KIB:5.0f}), "
            f"holds {held / KIB:4.0f} KiB received, peak {max(ran.peak_bytes) / KIB:5.0f} KiB"
        )

# %% [markdown]
# ## 1. The figure: who works when
#
# Without a mask a ring of 8 ranks with 4,096 tokens takes 8 steps of 512² pairs each. A causal mask hides half of all
# pairs. Predict how long the contiguous layout takes, in such whole steps, when a step lasts as long as its slowest
# rank.

# %%
predicted_steps = predict(None, "whole steps")

# %% [markdown]
# With `causal_work`, 4,096 tokens and 8 ranks: a picture for each layout, ranks downwards and steps to the right, each
# cell coloured by its pairs, all three with one scale. Under each, print how long the ring takes when a step lasts as
# long as its slowest rank, in pairs, and which share of the ranks' time is spent waiting.

# %% nbgrader={"grade": true, "grade_id": "figure_work", "solution": true}
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained", sharey=True)
### BEGIN SOLUTION
# Rubric, 5 points: 1 three layouts with ranks and steps the right way round; 1 one scale for all; 1 axes and colours
# named, with pairs as the unit; 1 the sums of the steps' maxima; 1 the share of waiting: 1,966,336, 1,048,832 and
# 1,050,624 pairs; 46.7 %, 0 % and 0.2 %.
work = {layout: ring.causal_work(4096, 8, layout) for layout in LAYOUTS}
most = max(int(each.max()) for each in work.values())
for ax, (layout, pairs) in zip(axes, work.items(), strict=True):
    image = ax.imshow(pairs, vmin=0, vmax=most, cmap="viridis")
    lasts = int(pairs.max(0).values.sum())
    waits = 1 - int(pairs.sum()) / (8 * lasts)
    ax.set(title=f"{layout}\n{lasts:,} pairs, {waits:.1%} waiting", xlabel="step")
    print(f"{layout}: the ring takes {lasts:,} pairs, ranks wait for {waits:.1%} of that")
axes[0].set_ylabel("rank")
figure.colorbar(image, ax=axes, label="pairs of a query and a key that it sees")
plt.show()
### END SOLUTION

# %% [markdown]
# ## 2. Who waits for whom

# %%
contiguous = ring.causal_work(4096, 8, "contiguous")
compare(predicted_steps, int(contiguous.max(0).values.sum()) / 512**2, "whole steps")

# %% [markdown]
# (a) Give both numbers, and explain the gap: which rank computes how many pairs in which step, and who waits? If there
# was none, say how you got the number of each step. What does zigzag do about it?
#
# (b) In zigzag a step computes half of the pairs of a block. What becomes of the smallest block, from which on sending
# takes no extra time (`minimal_block`)?

# %% [markdown] nbgrader={"grade": true, "grade_id": "who_waits_for_whom", "solution": true}
# (a) Predicted half, 4; measured 7.5, 1.9 times that. Step 0 is half as long as without a mask: every
# rank has its own block. But in every other step the last rank has a whole block of 512² pairs, and rank r, which has
# nothing to do after step r, waits for it. So only half of one step is saved: 7.5 of 8. In zigzag each rank holds an
# early and a late run of tokens and has the same pairs in each step: the half is saved.
#
# (b) It is twice as large: the same bytes, for half of the arithmetic.
#
# Rubric, 4 points: 3 for (a): 1 both numbers, 1 the last rank's whole blocks (without a gap: the pairs of step 0 and of
# the others), 1 why zigzag has the same in each step. 1 for (b).

# %% [markdown]
# ## 3. The same bytes, other memory
#
# The ring again, on 8 ranks, in bfloat16. Predict how many times the bytes of the forward pass a rank sends in the
# backward pass.

# %%
predicted = predict(None, "times")


# %%
def both_passes(comm, q, k, v):
    """Forward and backward of the ring."""
    o, lse = ring.ring_attention_forward(comm, q, k, v, causal=True)
    return ring.ring_attention_backward(comm, o, q, k, v, o, lse, causal=True)


halves = [tuple(x.bfloat16() for x in given) for given in shards(8)]
forward = run_ranks(lambda comm, *given: ring.ring_attention_forward(comm, *given, causal=True), halves)
both = run_ranks(both_passes, halves)
forward_bytes, both_bytes = (ran.traffic[0].sent_bytes for ran in (forward, both))
print(f"forward {forward_bytes / KIB:.0f} KiB, backward {(both_bytes - forward_bytes) / KIB:.0f} KiB")
compare(predicted, (both_bytes - forward_bytes) / forward_bytes, "times")

# %% [markdown]
# (a) Give both numbers, and explain the gap. If there was none, say which terms your prediction had.
#
# (b) From the first measurements: the ring and the all-gather send the same bytes. What do they not have in common, and
# how does that grow with P?

# %% [markdown] nbgrader={"grade": true, "grade_id": "same_bytes_other_memory", "solution": true}
# (a) Predicted 2: K and V travel again, and dK and dV are as many numbers. Measured 3.29. dK and dV are sums, sent in
# float32, 4 bytes a number instead of 2; and they make P = 8 hops and not 7, since the last returns them to their
# owner: (7 · 2 + 8 · 4) / (7 · 2) = 46 / 14.
#
# (b) What is held of what was received: two blocks in the ring, 2 / P of the sequence, and P − 1 blocks in the
# all-gather, nearly all keys and values whatever P is. And time: the ring computes while blocks travel, the all-gather
# waits first.
#
# Rubric, 5 points: 3 for (a): 1 both numbers, 1 the float32, 1 the hop home (without a gap: all three terms). 2 for
# (b), 1 for memory, 1 for overlap.
