# %% [markdown]
# # Lab 11: Ring attention
#
# Run the cells from top to bottom after the tasks pass. Everything here is computed by **your** functions; when you
# change `src/ring_attention.py`, restart the kernel and run all cells again. Say the unit of every number: pairs,
# bytes, KiB (2¹⁰), MiB (2²⁰), tokens, FLOP/s.

# %%
import matplotlib.pyplot as plt
import torch

from labkit.notebook import student_module
from labkit.ranks.comm import Deadlock
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
# With `causal_work`, 4,096 tokens and 8 ranks: a picture for each layout, ranks downwards and steps to the right, each
# cell coloured by its pairs, all three with one scale. Under each, print how long the ring takes when a step lasts as
# long as its slowest rank, in pairs, and which share of the ranks' time is spent waiting.

# %% nbgrader={"grade": true, "grade_id": "figure_work", "solution": true}
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained", sharey=True)
### BEGIN SOLUTION
# Rubric, 6 points: 1 three layouts with ranks and steps the right way round; 1 one scale for all; 1 axes and colours
# named, with pairs as the unit; 1 the sums of the steps' maxima; 1 the share of waiting; 1 all right:
# 1,966,336, 1,048,832 and 1,050,624 pairs; 46.7 %, 0 % and 0.2 %.
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
# ## 2. The same bytes, other memory
#
# (a) From the measurements: the ring and the all-gather send the same bytes. What do they not have in common, and how
# does that grow with P?
#
# (b) Ulysses sends less, and the less the more ranks there are. Why? What bounds the number of its ranks?
#
# (c) With H = 64 query heads on H_kv = 8 key heads, 8 ranks and two bytes a number, which of the two sends less in a
# forward pass? Compute it, and say what has changed.

# %% [markdown] nbgrader={"grade": true, "grade_id": "same_bytes_other_memory", "solution": true}
# (a) What is held of what was received: two blocks in the ring, 2/P of the sequence, and P − 1 blocks in the
# all-gather, nearly all keys and values whatever P is. And time: the ring computes while blocks travel, the all-gather
# waits first.
#
# (b) A rank sends (P − 1)/P of its own shard of q, k, v and o, which shrinks with P: 4 · N · H · d · (P − 1)/P². The
# ring passes on every other rank's K and V, 2 · N · H_kv · d · (P − 1)/P, which does not. P must divide the heads of q
# and of k and v.
#
# (c) A token's numbers, by d: the ring sends 7 · 2 · 8 = 112 blocks of one head, Ulysses 7/8 · (2 · 64 + 2 · 8) = 126,
# and lse. The ring sends a little less: it moves keys and values alone, which grouping has made eight times fewer, and
# Ulysses moves queries and outputs as well.
#
# Rubric, 5 points: 2 (a), 1 for memory, 1 for overlap; 2 (b), 1 for the shares, 1 for the bound; 1 (c).

# %% [markdown]
# ## 3. When sending is free

# %%
for name, flops, bandwidth in [
    ("300 GB/s", 312e12, 300e9),
    ("12.5 GB/s", 312e12, 12.5e9),
    ("300 GB/s, three times the FLOP/s", 936e12, 300e9),
]:
    print(f"312 TFLOP/s over {name}: blocks of {ring.minimal_block(flops, bandwidth):,} tokens")

# %% [markdown]
# (a) Why does the width d not occur in the smallest block, nor the number of heads? What does grouping change (H_kv <
# H)?
#
# (b) Causal, in zigzag, half of the pairs of a block are computed. What is the smallest block then? And in the
# contiguous layout: which rank waits for which?
#
# (c) A machine three times as fast on the same link: is that a gain for sequences of 16,384 tokens on 8 ranks of the
# first line?

# %% [markdown] nbgrader={"grade": true, "grade_id": "when_sending_is_free", "solution": true}
# (a) Both FLOPs and bytes of a block are proportional to d and to the heads: they cancel. With H_kv < H the FLOPs stay
# and the bytes fall: the smallest block is H / H_kv times smaller.
#
# (b) Half of the FLOPs for the same bytes: twice as large. Contiguous: a step is as long as its slowest rank, and the
# last rank has a whole block in every step: its transfer is hidden as without a mask, but all others wait for it.
#
# (c) 16,384 / 8 = 2,048 tokens on a rank: above 1,040, below 3,120. Before, the arithmetic was what lasted; now it is
# the transfer, which has not become faster: of the factor 3 only 2,048 / 1,040 = 1.97 is left.
#
# Rubric, 5 points: 2 (a), 1 for cancelling, 1 for grouping; 1 (b); 2 (c), 1 for the blocks, 1 for the factor or the
# link.

# %% [markdown]
# ## 4. Who waits for whom


# %%
def in_order(comm, x):
    """Even ranks send first, odd ranks receive first."""
    to, from_ = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    if comm.rank % 2:
        (came,) = comm.send_recv((x,), None, from_).wait()
        comm.send_recv((x,), to, None).wait()
    else:
        comm.send_recv((x,), to, None).wait()
        (came,) = comm.send_recv((x,), None, from_).wait()
    return came


def all_send_first(comm, x):
    """Every rank sends, then receives."""
    to, from_ = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    comm.send_recv((x,), to, None).wait()
    return comm.send_recv((x,), None, from_).wait()


for function in (in_order, all_send_first):
    for world_size in (3, 4):
        try:
            run_ranks(function, [(torch.zeros(1),)] * world_size)
            print(f"{function.__name__}, {world_size} ranks: done")
        except Deadlock as error:
            print(f"{function.__name__}, {world_size} ranks: {error}")

# %% [markdown]
# (a) Explain both outcomes of `all_send_first`. Why might the same program work with small messages on a real machine?
#
# (b) `in_order` works with 4 ranks. Does it with 3? Which two ranks meet there that both do the same, and why is there
# no deadlock, or is there?
#
# (c) In a causal ring of contiguous shards rank 0 is done after its own block. What becomes of the others if it
# returns?

# %% [markdown] nbgrader={"grade": true, "grade_id": "who_waits_for_whom", "solution": true}
# (a) Every rank waits until the next receives, and none gets as far as receiving: a circle, whatever the number of
# ranks. With small messages a library may put them into a buffer and let the sender go on: the program then works
# until messages outgrow the buffer.
#
# (b) It does. With 3 ranks, ranks 2 and 0 are both even and both send first. Rank 1 receives from 0, so 0 goes on to
# receive, which lets 2 go on, and so on: there is no circle as long as one rank receives first.
#
# (c) Rank 1 waits for the block that rank 0 should have passed on, and then all wait: a rank forwards blocks of which
# it sees nothing.
#
# Rubric, 5 points: 2 (a), 1 for the circle, 1 for buffers; 2 (b), 1 for the outcome, 1 for the reason; 1 (c).
