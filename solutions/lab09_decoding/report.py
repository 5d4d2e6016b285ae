# %% [markdown]
# # Lab 09: Decoding
#
# Run the cells from top to bottom after the tasks pass. Everything here is computed by **your** functions; when you
# change `src/decoding.py`, restart the kernel and run all cells again. Say the unit of every number: bytes, KiB
# (2¹⁰), MiB (2²⁰), GiB (2³⁰), kB and MB (powers of ten).

# %%
import matplotlib.pyplot as plt
import torch

from labkit.meters.moved import MovedBytes
from labkit.meters.products import ProductMeter
from labkit.notebook import compare, predict, student_module

decoding = student_module("lab09")
torch.set_num_threads(1)
KIB, GIB = 2**10, 2**30

# %% [markdown]
# ## Measurements
#
# What a token weighs in the cache of five models (two bytes a number), and the arithmetic and the bytes of attention
# for one query: 8 query heads, d = 64, N = 1024 keys, float32.

# %%
MODELS = {
    "OPT-13B": {"layers": 40, "kv_heads": 40, "head_dim": 128},
    "Llama-2-7B": {"layers": 32, "kv_heads": 32, "head_dim": 128},
    "Llama-3.1-405B": {"layers": 126, "kv_heads": 8, "head_dim": 128},
    "Llama-3.1-8B": {"layers": 32, "kv_heads": 8, "head_dim": 128},
    "DeepSeek-V2": {"layers": 60, "kv_heads": 128, "head_dim": 128, "latent_dim": 512, "rope_dim": 64},
}
for name, sizes in MODELS.items():
    print(f"{name:15s} {decoding.kv_cache_bytes(**sizes):>9,} bytes a token")


def measured(n_queries, kv_heads, n_keys=1024, heads=8, d=64):
    """FLOPs of the products, and bytes of q, k and v that operators read."""
    q, k, v = torch.randn(heads, n_queries, d), torch.randn(kv_heads, n_keys, d), torch.randn(kv_heads, n_keys, d)
    with ProductMeter() as products, MovedBytes(q=q, k=k, v=v) as moved:
        decoding.grouped_query_attention(q, k, v)
    return products.flops, sum(moved.read.values())


for kv_heads in (8, 2, 1):
    flops, n_bytes = measured(1, kv_heads)
    print(f"one query, {kv_heads} key heads: {flops:,} FLOPs, {n_bytes:,} bytes, {flops / n_bytes:.2f} FLOPs a byte")

# %% [markdown]
# ## 1. The figure: bytes of a token, bytes of a sequence
#
# Draw the bytes of the cache over the length of the sequence, from 1 to 131,072 tokens, a line for each of the five
# models and one for Llama-3.1-8B with a window of 4,096, in GiB, both axes logarithmic to base 2. Mark the length at
# which the cache of one sequence outgrows 16 GiB, the weights of a model with eight billion numbers of two bytes.

# %% nbgrader={"grade": true, "grade_id": "figure_bytes_a_token", "solution": true}
figure, ax = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
### BEGIN SOLUTION
# Rubric, 4 points: 1 all five models, and the window, flat from 4,096 tokens on; 1 logarithmic axes to base 2 with
# quantity and GiB; 1 a legend or labels at the lines; 1 the line at 16 GiB with the lengths at which it is crossed.
lengths = [2**power for power in range(18)]
lines = MODELS | {"Llama-3.1-8B, window 4,096": MODELS["Llama-3.1-8B"] | {"window": 4096}}
for number, (name, sizes) in enumerate(lines.items()):
    heights = [decoding.kv_cache_bytes(tokens=n, **sizes) / GIB for n in lengths]
    ax.plot(lengths, heights, "--" if "window" in name else "-", color=f"C{number}", label=name)
    a_token = decoding.kv_cache_bytes(**sizes)
    if "window" not in name and 16 * GIB / a_token <= lengths[-1]:
        ax.plot(16 * GIB / a_token, 16, "o", color=f"C{number}")
        print(f"{name} outgrows 16 GiB at {16 * GIB // a_token:,} tokens")
ax.axhline(16, color="0.4", linestyle=":", label="16 GiB")
for set_scale in (ax.set_xscale, ax.set_yscale):
    set_scale("log", base=2)
ax.set(xlabel="tokens of one sequence", ylabel="cache of one sequence (GiB)")
ax.grid(alpha=0.3)
ax.legend(fontsize=8)
plt.show()
### END SOLUTION

# %% [markdown]
# ## 2. Why a token reads everything
#
# With one query and 8 key heads, attention does 0.5 FLOPs for each byte it reads: a number of K, 4 bytes, serves one
# multiplication and one addition. Predict the FLOPs for each byte with 1,024 queries, all else as above and without a
# mask. Type the number instead of None.

# %%
predicted = predict(None, "FLOPs a byte")

# %%
flops, n_bytes = measured(1024, 8)
print(f"{flops:,} FLOPs, {n_bytes:,} bytes read")
compare(predicted, flops / n_bytes, "FLOPs a byte")

# %% [markdown]
# (a) Give both numbers, and explain the gap: which bytes did your prediction leave out, or count twice? If there was
# none, say which tensors it counted.
#
# (b) A GPU with 312 · 10¹² FLOPs a second and 1.555 · 10¹² bytes a second (chapter 1) needs how many FLOPs for each
# byte before arithmetic is what it waits for? On which side of that is each of the two cases, in two bytes a number?

# %% [markdown] nbgrader={"grade": true, "grade_id": "why_a_token_reads_everything", "solution": true}
# (a) Predicted 512, since each number of K and V now serves 1,024 queries instead of one: 1,024 · 0.5. Measured 341.
# The prediction left out q. For one query it is 2 KiB of 4 MiB, but with 1,024 queries it is as large as K: 2 MiB of
# 6 MiB are read for q, and 512 · 4 / 6 = 341.
#
# (b) About 201. In two bytes a number a decoding step does 1 FLOP a byte: it waits for bytes, and takes as long as its
# bytes take. Prefill of 1,024 tokens does 683 and waits for arithmetic.
#
# Rubric, 5 points: 3 for (a): 1 both numbers, 2 a cause whose bytes account for the gap (without q: 512; without a gap:
# q, k and v are named; code that reads K more than once has a number below 341 and must say so). 2 for (b): 1 about
# 200, 1 both sides.

# %% [markdown]
# ## 3. What a prefix hit must prove
#
# 32 chats begin with the same 1,000 tokens, and each goes on with 20 tokens of its own. Your manager allocates their
# prompts in blocks of 16. Predict how many blocks are in use.

# %%
predicted = predict(None, "blocks")

# %%
manager = decoding.BlockManager(4096, 16)
for chat in range(32):
    manager.allocate(chat, [*range(1000), *(1000 + 20 * chat + i for i in range(20))])
compare(predicted, 4096 - manager.num_free_blocks(), "blocks")

# %% [markdown]
# (a) Give both numbers, and explain the gap, in blocks. If there was none, say which terms your prediction had.
#
# (b) An engine keeps a map from a hash of a block's tokens to a block. Name two prompts for which it hands out keys
# and values of another text, and what must be in the key.

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_a_prefix_hit_must_prove", "solution": true}
# (a) Predicted (1,000 + 32 · 20) / 16 = 103 blocks, measured 126. Only full blocks are shared: 62 of them hold 992
# tokens, and the last 8 tokens of the beginning are in each chat's own block. Each chat then has 28 tokens of its own
# in 2 blocks, of which the second is not full: 62 + 32 · 2 = 126. Without sharing there would be 32 · 64 = 2,048.
#
# (b) "A B" and "C B", in blocks: B's keys and values depend on all that precedes them (through the layers below), so
# B after A is not B after C. The key needs the tokens and those before them, compared and not only hashed: two texts
# may have one hash.
#
# Rubric, 5 points: 3 for (a): 1 both numbers, 1 the 8 tokens that are not in a full block, 1 each chat's last block
# (without a gap: 1 for both numbers, 2 for 62 and 32 · 2). 2 for (b): 1 two prompts, 1 the prefix, compared.
