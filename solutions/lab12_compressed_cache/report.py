# %% [markdown]
# # Lab 12: A compressed cache
#
# Run the cells from top to bottom after the tasks pass. Everything here is computed by **your** functions; when you
# change `src/compressed_cache.py`, restart the kernel and run all cells again. Say the unit of every number: bytes, KiB
# (2¹⁰), MiB (2²⁰), kB and MB (powers of ten), bits.

# %%
import matplotlib.pyplot as plt
import torch

from labkit.meters.products import ProductMeter
from labkit.model.attention import grouped_attention
from labkit.notebook import compare, perplexity, predict, student_module
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
# Rubric, 5 points: 1 every scheme but "full"; 1 a mark for each kind, with a legend; 1 logarithmic axes with quantity
# and unit; 1 the staircase, by cache_under_budget, falling and flat between the schemes it chooses; 1 the bytes of
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
#
# With keys and values of 16 heads in the cache, a head multiplies d_n + d_r + d_v = 320 numbers for each token (d_n =
# d_v = 128, d_r = 64). `mla_decode` has latent vectors of d_c = 512 instead. Predict how many times as many
# multiplications it makes for a cache of 256 tokens.

# %%
predicted = predict(None, "times")

# %%
heads, n_tokens, d_n, d_r, d_c, d_v = 16, 256, 128, 64, 512, 128
shapes = (heads, d_n), (heads, d_r), (n_tokens, d_c), (n_tokens, d_r), (heads, d_n, d_c), (heads, d_v, d_c)
with ProductMeter() as products:
    compressed.mla_decode(*(torch.randn(shape) / 4 for shape in shapes))
stored = heads * n_tokens * (d_n + d_r + d_v)
print(f"{products.flops // 2:,} multiplications; with keys and values stored {stored:,}")
compare(predicted, products.flops / 2 / stored, "times")

# %% [markdown]
# (a) Give both numbers, and explain the gap. If there was none, say which terms your prediction had. What becomes of
# the gap at 131,072 tokens?
#
# (b) How many bytes does a step read for each token, in float32, in either case? Why does absorbing pay, although it
# multiplies more?

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_the_latent_costs", "solution": true}
# (a) Predicted 3.4: absorbed, a head multiplies d_c + d_r numbers for a token's score and d_c for its part of the sum,
# 1,088 / 320. Measured 5.0. Each head also multiplies its query by W_UK and its sum by W_UV, once a step: 512 · (128 +
# 128) = 131,072, beside 256 · 1,088 = 278,528 for the tokens. That does not grow with the tokens: at 131,072 of them it
# is 0.1 % of the work, and the ratio is 3.4.
#
# (b) (512 + 64) · 4 = 2,304 bytes, instead of 16 · (128 + 64 + 128) · 4 = 20,480. Decoding waits for bytes and not for
# arithmetic: each number read now serves all 16 heads, most of them twice.
#
# Rubric, 5 points: 3 for (a): 1 both numbers, 1 W_UK and W_UV with their multiplications (without a gap: all three
# terms), 1 that they do not grow with N. Code that applies W_UK to the tokens measures far more, and must say so. 2 for
# (b): 1 both numbers of bytes, 1 the reason.

# %% [markdown]
# ## 3. Why keys by channel
#
# V is stored in groups of 32, first in 2 bits, then in 4. Predict how many times smaller the error is in 4 bits.

# %%
predicted = predict(None, "times")

# %%
errors = {}
for name, x in (("K", k), ("V", v)):
    for bits in (2, 4):
        as_k, as_v = compressed.dequantize_kv(compressed.quantize_kv(x, x, bits, 32))
        for axis, got in (("channel", as_k), ("token", as_v)):
            errors[name, axis, bits] = ((got - x).norm() / x.norm()).item()
            print(f"{name} by {axis:7s} in {bits} bits: error {errors[name, axis, bits]:.4f}")
compare(predicted, errors["V", "token", 2] / errors["V", "token", 4], "times")


# %%
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
# (a) Give both numbers, and explain the gap. If there was none, say what your prediction divided by what.
#
# (b) Which of the four pairs of errors shows why keys are quantized by channel? What in the sample causes it? Do the
# perplexities say that a real model's keys are like the sample's?

# %% [markdown] nbgrader={"grade": true, "grade_id": "why_keys_by_channel", "solution": true}
# (a) Predicted 4, since 4 bits have four times as many codes. Measured 5.0: codes 0 to 2^bits − 1 divide a range into 3
# steps and into 15, and an error is a share of a step.
#
# (b) K in 2 bits (and in 4): by token the range of a group is that of the three channels far from 0, and the steps of
# all other channels with it; by channel those three have a group of their own, and their distance from 0 is in the
# zero. V has no such channels, and both ways lose about the same. SmolLM2's keys have such channels too: in 2 bits its
# perplexity by token is many times that by channel.
#
# Rubric, 4 points: 2 for (a): 1 both numbers, 1 the 3 and 15 steps. 2 for (b): 1 the channels far from 0, 1 the
# perplexities.
