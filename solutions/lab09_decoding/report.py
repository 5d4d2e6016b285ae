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
from labkit.notebook import student_module

decoding = student_module("lab09")
torch.set_num_threads(1)
KIB, GIB = 2**10, 2**30

# %% [markdown]
# ## Measurements
#
# What a token weighs in the cache of five models (two bytes a number), and the arithmetic and the bytes of attention
# when there are many queries (prefill) and when there is one (decode): 8 query heads, d = 64, N = 1024 keys, float32.

# %%
MODELS = {
    "OPT-13B": {"layers": 40, "kv_heads": 40, "head_dim": 128},
    "Llama-2-7B": {"layers": 32, "kv_heads": 32, "head_dim": 128},
    "Llama-3.1-405B": {"layers": 126, "kv_heads": 8, "head_dim": 128},
    "Llama-3-8B": {"layers": 32, "kv_heads": 8, "head_dim": 128},
    "DeepSeek-V2": {"layers": 60, "kv_heads": 128, "head_dim": 128, "latent_dim": 512, "rope_dim": 64},
}
for name, sizes in MODELS.items():
    print(f"{name:15s} {decoding.kv_cache_bytes(**sizes):>9,} bytes a token")


def measured(n_queries, kv_heads, n_keys=1024, heads=8, d=64):
    """FLOPs of the products, and bytes of q, k and v that operators read."""
    q, k, v = torch.randn(heads, n_queries, d), torch.randn(kv_heads, n_keys, d), torch.randn(kv_heads, n_keys, d)
    with ProductMeter() as products, MovedBytes(q=q, k=k, v=v) as moved:
        decoding.grouped_query_attention(q, k, v, causal=True)
    return products.flops, sum(moved.read.values())


for kv_heads in (8, 2, 1):
    for n_queries in (1, 1024):
        flops, n_bytes = measured(n_queries, kv_heads)
        print(f"{kv_heads} key heads, {n_queries:4d} queries: {flops:>13,} FLOPs, {n_bytes:>9,} bytes read")

# %% [markdown]
# ## 1. The figure: bytes of a token, bytes of a sequence
#
# Draw the bytes of the cache over the length of the sequence, from 1 to 131,072 tokens, a line for each of the five
# models and one for Llama-3-8B with a window of 4,096, in GiB, both axes logarithmic to base 2. Mark the length at
# which the cache of one sequence outgrows 16 GiB, the weights of a model with eight billion numbers of two bytes.

# %% nbgrader={"grade": true, "grade_id": "figure_bytes_a_token", "solution": true}
figure, ax = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
### BEGIN SOLUTION
# Rubric, 5 points: 1 all five models; 1 the window, flat from 4,096 tokens on; 1 logarithmic axes to base 2 with
# quantity and GiB; 1 a legend or labels at the lines; 1 the line at 16 GiB with the lengths at which it is crossed.
lengths = [2**power for power in range(18)]
lines = MODELS | {"Llama-3-8B, window 4,096": MODELS["Llama-3-8B"] | {"window": 4096}}
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
# (a) From the measurements: how many FLOPs a byte does attention do with one query, and with 1,024, when every query
# head has its own key head? Why are they so different?
#
# (b) What do 2 key heads and 1 key head change about each?
#
# (c) A GPU with 312 · 10¹² FLOPs a second and 1.555 · 10¹² bytes a second (chapter 1) needs how many FLOPs for each
# byte before arithmetic is what it waits for? On which side of that lie the two cases, in two bytes a number?
#
# (d) Batching serves many sequences with one read of the weights. Why does it not help attention in the same way?

# %% [markdown] nbgrader={"grade": true, "grade_id": "why_a_token_reads_everything", "solution": true}
# (a) One query: 2,097,152 FLOPs and about 4.2 MB, 0.5 FLOPs a byte: a number of K (4 bytes) is read for one
# multiplication and one addition. 1,024 queries: 1,024 times the FLOPs for 6.3 MB: 341 FLOPs a byte. Each number read
# serves all queries, and there is only one.
#
# (b) The FLOPs stay. With one query the bytes fall almost by 4 and by 8: about 2 and 4 FLOPs a byte, as 4 or 8 query
# heads share what is read. With many queries q is the larger part of what is left to read.
#
# (c) About 201. In two bytes a number decoding does 1 FLOP a byte, a multiplication and an addition for each number
# of two bytes: far below. Prefill of 1,024 tokens does 683, above.
#
# (d) Weights are the same for all sequences; keys and values are each sequence's own. A batch of B reads B caches.
#
# Rubric, 6 points: 2 (a), 1 for the numbers, 1 for one use of each number read; 1 (b); 2 (c), 1 for the ridge, 1 for
# the sides; 1 (d).

# %% [markdown]
# ## 3. Where the diagonal lies

# %%
q, k, v = torch.randn(2, 1, 8), torch.randn(1, 5, 8), torch.randn(1, 5, 3)
o, _ = decoding.grouped_query_attention(q, k, v, causal=True)
top_left = torch.nn.functional.scaled_dot_product_attention(q, k.expand(2, 5, 8), v.expand(2, 5, 3), is_causal=True)
print("yours:", o[0, 0].tolist(), "\nis_causal=True:", top_left[0, 0].tolist(), "\nvalue 0:", v[0, 0].tolist())

# %% [markdown]
# (a) Which keys does the one query see in each of the two? Which is right for a token that was just generated?
#
# (b) Both conventions agree for some shapes. Which, and why did Labs 04 to 08 never show the difference?
#
# (c) With N_q = 5 and N_k = 3, which queries see nothing under each convention, and what comes out for them?

# %% [markdown] nbgrader={"grade": true, "grade_id": "where_the_diagonal_lies", "solution": true}
# (a) From the bottom right the query is the last and sees all five keys; from the top left it is query 0 and sees key
# 0 alone: its output is value 0. The new token comes after all keys: the first is right.
#
# (b) N_q = N_k: training, and the prefill of a whole prompt, where every query has a key of its own number.
#
# (c) From the bottom right query i sees j ≤ i − 2: queries 0 and 1 see nothing, output 0 and log-sum-exp −inf. From
# the top left every query sees key 0 at least.
#
# Rubric, 4 points: 2 (a); 1 (b); 1 (c).

# %% [markdown]
# ## 4. What a prefix hit must prove

# %%
manager = decoding.BlockManager(8, 4)
manager.allocate("first", [1, 2, 3, 4, 5, 6, 7, 8, 9])
manager.allocate("second", [1, 2, 3, 4, 5, 6, 7, 8])
manager.fork("first", "third")
print(manager.block_table("first"), manager.block_table("second"), manager.num_cached_tokens("second"))
print("copies:", manager.append("first", 10), manager.append("third", 11))

# %% [markdown]
# (a) The second prompt is found whole, and only one of its two blocks is shared. Why?
#
# (b) An engine keeps a map from a hash of a block's tokens to a block. Name two prompts for which it hands out keys
# and values of another text, and what must be in the key.
#
# (c) Why may a full block be shared by any number of sequences without ever being copied, and a partly filled one not?

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_a_prefix_hit_must_prove", "solution": true}
# (a) The next token comes from the last token's output, and for that its query must run through the layers: something
# must be computed. As blocks are shared whole, the last one is computed again.
#
# (b) "A B" and "C B", in blocks: B's keys and values depend on all that precedes them (through the layers below), so
# B after A is not B after C. The key needs the tokens and what stands before them, compared and not only hashed: two
# texts may have one hash.
#
# (c) Nobody writes into a full block any more. Into a partly filled one its owners write their next tokens, in the
# same place: the first to write takes a copy.
#
# Rubric, 5 points: 1 (a); 3 (b), 1 for two prompts, 1 for the prefix, 1 for comparing; 1 (c).
