# %% [markdown]
# # Lab 12: A compressed cache
#
# Run the cells from top to bottom after the tasks pass. Everything here is computed by **your** functions; when you
# change `src/compressed_cache.py`, restart the kernel and run all cells again. Say the unit of every number: bytes, KiB
# (2¹⁰), MiB (2²⁰), kB and MB (powers of ten), bits.

# %%
import matplotlib.pyplot as plt
import torch

from labkit.meters.moved import MovedBytes
from labkit.meters.tensors import measure_peak
from labkit.model.attention import grouped_attention
from labkit.notebook import perplexity, student_module
from labkit.testing.layer_sample import layer_sample

compressed = student_module("lab12")
torch.set_num_threads(1)

# %% [markdown]
# ## The sample
#
# No model fits into this notebook, so queries, keys and values are drawn with what is said of trained ones: heads
# resemble one another and lie in few directions, some channels of K (and none of V) lie far from 0, queries look at
# what is near, and where they look for nothing they look at the first token, whose value is small. With another mixture
# the order of the schemes is another.

# %%
q, k, v = layer_sample()
SCHEMES = [
    {"kind": "full"},
    *({"kind": "grouped", "group": group} for group in (2, 4)),
    *({"kind": "window", "window": window, "num_sinks": sinks} for window in (16, 64, 128) for sinks in (0, 4)),
    *({"kind": "latent", "rank": rank} for rank in (8, 16, 32, 64)),
    *({"kind": "quantized", "bits": bits, "group": group} for bits in (2, 4, 8) for group in (16, 32)),
]
model = {"layers": 1, "dtype_bytes": 2, "q": q, "k": k, "v": v}


def one(scheme):
    """A scheme with its bytes for 256 tokens and its error on the sample."""
    return compressed.cache_under_budget(model | {"schemes": [scheme]}, 10**9, 256)


for scheme in SCHEMES:
    found = one(scheme)
    numbers = ", ".join(f"{name} {value}" for name, value in scheme.items() if name != "kind")
    print(f"{found['kind']:10s} {numbers:24s} {found['bytes'] / 256:7.1f} bytes a token  error {found['error']:.4f}")

# %% [markdown]
# ## 1. The figure: error against bytes
#
# Draw every scheme as a point: its bytes a token and layer (for 256 tokens) to the right, its error upwards, both axes
# logarithmic (leave out "full", whose error is 0, and mark its bytes by a line). Each kind has a mark and a colour of
# its own. Draw the staircase of what `cache_under_budget` chooses for budgets from the smallest to the largest scheme.

# %% nbgrader={"grade": true, "grade_id": "figure_error_against_bytes", "solution": true}
figure, ax = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
### BEGIN SOLUTION
# Rubric, 6 points: 1 every scheme but "full"; 1 a mark for each kind, with a legend; 1 logarithmic axes with quantity
# and unit; 2 the staircase, by cache_under_budget, falling and flat between the schemes it chooses; 1 the bytes of
# "full".
found = [one(scheme) for scheme in SCHEMES]
for kind, mark in {"grouped": "s", "window": "^", "latent": "D", "quantized": "o"}.items():
    points = [(each["bytes"] / 256, each["error"]) for each in found if each["kind"] == kind]
    ax.plot(*zip(*points, strict=True), mark, label=kind)
budgets = sorted({each["bytes"] for each in found[1:]})
chosen = [compressed.cache_under_budget(model | {"schemes": SCHEMES[1:]}, budget, 256)["error"] for budget in budgets]
ax.step([budget / 256 for budget in budgets], chosen, where="post", color="0.4", label="the best that fits")
ax.axvline(found[0]["bytes"] / 256, color="0.4", linestyle=":", label="full")
ax.set(xscale="log", yscale="log", xlabel="bytes a token and layer", ylabel="error of attention's output, relative")
ax.set_xticks([16, 32, 64, 128, 256, 512], ["16", "32", "64", "128", "256", "512"])
ax.minorticks_off()
ax.grid(alpha=0.3)
ax.legend()
plt.show()
### END SOLUTION

# %% [markdown]
# ## 2. What the latent vector costs

# %%
heads, d_n, d_r, d_c, d_v = 16, 32, 16, 64, 32
for n_tokens in (1024, 4096):
    shapes = (heads, d_n), (heads, d_r), (n_tokens, d_c), (n_tokens, d_r), (heads, d_n, d_c), (heads, d_v, d_c)
    given = [torch.randn(shape) / 4 for shape in shapes]
    peak = measure_peak(compressed.mla_decode, *given).peak_bytes
    with MovedBytes(c_kv=given[2], k_rope=given[3]) as moved:
        compressed.mla_decode(*given)
    whole = n_tokens * heads * (d_n + d_r + d_v) * 4
    print(f"N = {n_tokens}: read {moved.read}, peak {peak:,} bytes; keys and values of all heads {whole:,} bytes")

# %% [markdown]
# (a) How many bytes of cache does a token cost here, in float32, and how many if keys and values of the heads were
# kept? Which of the two numbers depends on the number of heads?
#
# (b) Count the multiplications of one head with one token: with its key and value in the cache, and absorbed. Which is
# more, and by which factor for d_n = d_v = 128, d_r = 64, d_c = 512? Why does it pay all the same?
#
# (c) Why is k_rope kept apart? Show what goes wrong with W_UKᵀ q when keys are turned after W_UK.

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_the_latent_costs", "solution": true}
# (a) (64 + 16) · 4 = 320 bytes, as measured: 262,144 + 65,536 bytes at N = 1024. Kept: 16 · (32 + 16 + 32) · 4
# = 5,120 bytes, which grows with the heads; the latent vector does not.
#
# (b) Kept: d_n + d_r for the score, d_v for the sum: 320. Absorbed: d_c + d_r and d_c: 1,088, which is 3.4 times as
# many. Decoding waits for bytes and not for arithmetic: each number read from the cache now serves all 128 heads,
# twice, instead of one head once.
#
# (c) Turned by position n the key is R_n W_UK c, and the score qᵀ R_{n−p} W_UK c. Between W_UK and q there is a matrix
# that is another for every token: W_UKᵀ R q would have to be computed for each distance, and nothing is absorbed. So
# positions live in a small part that is not made from c.
#
# Rubric, 5 points: 1 (a); 2 (b), 1 for the numbers, 1 for the reason; 2 (c).

# %% [markdown]
# ## 3. Why keys by channel

# %%
for name, x in (("K", k), ("V", v)):
    for bits in (2, 4):
        for axis in ("channel", "token"):
            as_k, as_v = compressed.dequantize_kv(compressed.quantize_kv(x, x, bits, 32))
            got = as_k if axis == "channel" else as_v
            print(f"{name} by {axis:7s} in {bits} bits: error {(got - x).norm() / x.norm():.4f}")


def few_bits(bits, axis):
    """Your cache for a real model, SmolLM2, with keys by channel or by token."""

    def attend(layer, q, k, v):
        keys, values = compressed.dequantize_kv(compressed.quantize_kv(k, v, bits, 32))
        if axis == "token":
            _, keys = compressed.dequantize_kv(compressed.quantize_kv(k, k, bits, 32))
        return grouped_attention(q, keys, values)

    return attend


for bits in (2, 4):
    for axis in ("channel", "token"):
        found = perplexity(few_bits(bits, axis))
        print(f"perplexity of SmolLM2 with keys by {axis:7s} in {bits} bits: {found:.1f}")
print(f"with every number as it is: {perplexity():.1f}")

# %% [markdown]
# (a) Which of the four pairs of numbers shows the reason? What in the sample causes it, and what would the four be if
# channels were alike? Do the perplexities of a real model say that its keys are like the sample's?
#
# (b) A group by channel takes `group` tokens. What is a cache that grows by one token at a time to do with the last
# ones, and what does that cost?
#
# (c) From which group size on do scales and zeros cost less than half a bit a number? What is lost by larger groups?
#
# (d) How many bits a number do 2 and 4 bits weigh, in groups of 32 and of 16? What buys more in the first table:
# halving the groups of 2 bits, or going from 2 bits in groups of 16 to 4 bits in groups of 32?

# %% [markdown] nbgrader={"grade": true, "grade_id": "why_keys_by_channel", "solution": true}
# (a) K in 2 bits (and in 4): by token the range of a group is that of the three channels far from 0, some 20, and the
# steps for all other channels with it; by channel those three have a group of their own, and their distance from 0 is
# in the zero. V has no such channels, and both ways lose about the same. Without them K would be like V (its two
# numbers by channel are smaller than V's because the far channels are in the length that is divided by). SmolLM2's keys
# have such channels too: in 2 bits its perplexity by token is many times that by channel.
#
# (b) Keep the tokens of a group that is not full in 16 bits (the residual), up to group − 1 tokens, and quantize when
# it is full.
#
# (c) 32 / group < 1/2: group > 64. A larger group has a larger range, so larger steps.
#
# (d) 3 and 5 bits in groups of 32, 4 and 6 in groups of 16. Both steps cost a bit a number. The first takes the error
# from 0.64 to 0.43, the second from 0.43 to 0.12: four times as many codes in a range that is hardly larger.
#
# Rubric, 5 points: 2 (a); 1 (b); 1 (c); 1 (d), for the arithmetic.

# %% [markdown]
# ## 4. What a sink is for

# %%
for scheme in SCHEMES:
    if scheme["kind"] == "window":
        print(scheme["window"], scheme["num_sinks"], one(scheme)["error"])
print("weight on token 0:", (q @ k.mT / 32**0.5).softmax(-1)[..., 0].mean().item())
for sink in (-4.0, 0.0, 4.0, 8.0):
    _, lse = compressed.attention_sink_logit(q, k, v, torch.full((4,), sink))
    print(f"with a sink of {sink:+.0f} the weights of the keys add up to {(1 - torch.exp(sink - lse)).mean():.3f}")

# %% [markdown]
# (a) What do four tokens change, and why just these? What must the softmax do with the weight that token 0 had when
# token 0 is gone?
#
# (b) The weights of an attention with a sink in the denominator do not add up to 1. What can a head say with that which
# it could not say before, and which of the two kinds of sink takes bytes in the cache?
#
# (c) With positions by text a model that was trained on 4,096 tokens meets distances it never saw, after token 4,096.
# With positions by cache, which distances does it meet, at most?
#
# (d) A window of 128 on this sample of 256 tokens has an error. What would it be on a sample of 100 tokens, and what
# does that say about choosing a scheme by a sample?

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_a_sink_is_for", "solution": true}
# (a) With a window of 128 the error falls from 0.50 to 0.015: token 0 had 30 % of the weight (and a small value).
# Without it the softmax spreads the same total of 1 over the others, so that each is multiplied by 1 / (1 − weight of
# token 0), and the output grows.
#
# (b) "Nothing here": an output near 0, whatever the values are. The number is a parameter of the model and takes
# nothing in the cache; sink tokens take their keys and values.
#
# (c) num_sinks + window − 1.
#
# (d) 0: nothing has left the window yet. A sample shows only what happens at its length and to its queries: compare at
# the length that is to be served.
#
# Rubric, 5 points: 2 (a); 1 (b); 1 (c); 1 (d).
