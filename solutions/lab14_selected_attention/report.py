# %% [markdown]
# # Lab 14: Selected attention
#
# Run the cells from top to bottom after the tasks pass. Everything here is computed by **your** functions; when you
# change `src/selected_attention.py`, restart the kernel and run all cells again. The model is SmolLM2-135M-Instruct (30
# layers, 9 query heads on 3 key heads of width 64), installed by `uv sync --group model`.

# %%
import matplotlib.pyplot as plt
import torch

from labkit.meters.moved import MovedBytes
from labkit.model.attention import grouped_attention
from labkit.model.perplexity import perplexity, sample_text
from labkit.model.weights import read_model
from labkit.notebook import compare, predict, student_module

selected = student_module("lab14")
model = read_model()
PAGE, N_TOKENS, FIRST = 16, 768, 512
tokens = model.text.encode(sample_text())[:N_TOKENS]

# %% [markdown]
# ## The model with selected attention
#
# Tokens from number 512 on choose what they read; those before read everything, and so do the first two layers, as in
# the Quest paper. `choose(q, K, current)` returns the pages of one query, (H_kv, n), for `select_pages`' kind of
# choice. The text has 768 tokens, so that all cells take a few minutes.


# %%
def attention_by(choose):
    """An attention for the model in which late queries of late layers read the pages that `choose` returns."""

    def attend(layer, q, k, v):
        o = grouped_attention(q, k, v)
        if layer < 2:
            return o
        for t in range(FIRST, q.shape[-2]):
            K, V = k[:, : t + 1], v[:, : t + 1]
            pages = choose(q[:, t], K, t // PAGE)
            o[:, t] = selected.selected_decode(q[:, t], K, V, pages, PAGE)[0]
        return o

    return attend


def quest(budget):
    """The pages with the largest bounds."""

    def choose(q, K, current):
        scores = selected.page_scores(q, *selected.page_bounds(K, PAGE))
        return selected.select_pages(scores, len(K), budget, current)

    return choose


def best(budget):
    """The pages with the largest true scores."""

    def choose(q, K, current):
        true = (q.unflatten(0, (len(K), -1)) @ K.mT).flatten(0, 1)
        padded = torch.nn.functional.pad(true, (0, -true.shape[-1] % PAGE), value=-torch.inf)
        scores = padded.unflatten(-1, (-1, PAGE)).amax(-1)
        return selected.select_pages(scores, len(K), budget, current)

    return choose


def window(budget, sinks):
    """The last pages, and the first one where `sinks` is 1."""

    def choose(q, K, current):
        pages = [*range(sinks), *range(max(sinks, current + 1 - budget + sinks), current + 1)]
        return torch.tensor(pages).expand(len(K), -1)

    return choose


full = perplexity(model.llama, tokens, first=FIRST)
print(f"perplexity with the whole cache: {full:.2f}")


# %% [markdown]
# ## 1. The figure: perplexity against the share that is read
#
# For budgets of 4, 8 and 16 pages draw the perplexity of the tokens from number 512 on, for a window, a window with the
# first page, Quest, and the best pages by true scores; with a line for the whole cache. To the right: the share of the
# cache's bytes that a token reads at 640 tokens, by `selection_bytes`. Quest's bounds are a part of it.

# %% nbgrader={"grade": true, "grade_id": "figure_perplexity_against_bytes", "solution": true}
figure, ax = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
### BEGIN SOLUTION
# Rubric, 5 points: 2 the four ways with a mark and a legend each; 1 the line of the whole cache; 1 shares by
# selection_bytes, with Quest's bounds; 1 axes with quantity and unit.
TOKEN_BYTES = 2 * 3 * 64 * 4
whole = selected.selection_bytes("whole", 640, TOKEN_BYTES)[1]
ways = {
    "window": lambda budget: window(budget, 0),
    "window and first page": lambda budget: window(budget, 1),
    "Quest": quest,
    "best by true scores": best,
}
for name, way in ways.items():
    points = []
    for budget in (4, 8, 16):
        method = "quest" if name == "Quest" else "window"
        options = {"page": PAGE, "budget": budget} if name == "Quest" else {"window": budget * PAGE}
        read = selected.selection_bytes(method, 640, TOKEN_BYTES, **options)[1]
        points.append((100 * read / whole, perplexity(model.llama, tokens, attention_by(way(budget)), FIRST)))
    print(name, ", ".join(f"{share:.1f} %: {value:.2f}" for share, value in points))
    ax.plot(*zip(*points, strict=True), "o-", label=name)
ax.axhline(full, color="0.4", linestyle=":", label="the whole cache")
ax.set(xlabel="share of the cache's bytes read per token, %", ylabel="perplexity", yscale="log")
ax.set_yticks([25, 50, 100, 200], ["25", "50", "100", "200"])
ax.minorticks_off()
ax.grid(alpha=0.3)
ax.legend()
plt.show()
### END SOLUTION

# %% [markdown]
# ## 2. Reading less, storing more
#
# A cache of 2,048 tokens in 128 pages of 16: 8 query heads on 2 key heads, d = 64, float32. Quest reads 8 pages for a
# token. Predict the bytes that this reads, as a share of the keys and values of the whole cache, in percent.

# %%
predicted = predict(None, "%")

# %%
generator = torch.Generator().manual_seed(14)
q, K, V = (torch.randn(shape, generator=generator) for shape in ((8, 64), (2, 2048, 64), (2, 2048, 64)))
lows, highs = selected.page_bounds(K, PAGE)  # made once, when a page is written
with MovedBytes(K=K, V=V, lows=lows, highs=highs) as moved:
    pages = selected.select_pages(selected.page_scores(q, lows, highs), 2, 8, 127)
    selected.selected_decode(q, K, V, pages, PAGE)
print(", ".join(f"{name} {n:,} bytes" for name, n in moved.read.items()))
compare(predicted, 100 * sum(moved.read.values()) / (K.nbytes + V.nbytes), "%")

# %% [markdown]
# (a) Give both numbers, and explain the gap: what else is read, and how many bytes is it? If there was none, say which
# terms your prediction had.
#
# (b) Towards which share does the reading of 8 pages tend as the text grows? What do pages of 8 tokens change about it?
#
# (c) A server's memory is full. Does it serve more sequences with Quest than without?

# %% [markdown] nbgrader={"grade": true, "grade_id": "reading_less_storing_more", "solution": true}
# (a) Predicted 8 / 128 = 6.25 %, measured 12.5 %. To choose pages, all bounds are read: two vectors for each of 128
# pages and 2 key heads, 2 · 128 · 2 · 64 · 4 = 131,072 bytes. That is as much as the 8 pages: 2 · 8 · 16 · 2 · 64 · 4 =
# 131,072 bytes of 2,097,152.
#
# (b) The pages' share tends to 0, the bounds' stays: two vectors for the 2 · 16 of a page, 1 / 16 = 6.25 %, whatever is
# chosen. Pages of 8 tokens double it.
#
# (c) No, fewer: the whole cache is stored, and 6.25 % of it again for bounds. Selection saves reading, not memory.
#
# Rubric, 5 points: 3 for (a): 1 both numbers, 1 the bounds, 1 their bytes or share (without a gap: 1 for both numbers,
# 2 for both terms). 1 for (b): 1 / 16, and twice that. 1 for (c): no, with the bounds stored.

# %% [markdown]
# ## 3. What a bound misses
#
# Two pages of two keys. By their bounds page 0 comes first, and it has the largest product: Quest is right. Change the
# keys of page 1, and nothing else, so that Quest is wrong.

# %%
q = torch.tensor([[1.0, 1.0]])
K = torch.tensor([[[10.0, 0.0], [0.0, 10.0], [9.0, 0.0], [0.0, 9.0]]])
print("scores:", selected.page_scores(q, *selected.page_bounds(K, 2))[0].tolist())
print("largest products:", (q @ K[0].T).view(2, 2).amax(-1).tolist())

# %% [markdown]
# Give your keys, both scores and both largest products. What is it about page 0 that its bound is far above its
# products? Can this happen with pages of one key, and what do these cost?

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_a_bound_misses", "solution": true}
# Keys (7.5, 7.5) and (7.5, 7.5) in page 1: scores 20 and 15, largest products 10 and 15. Page 1 has the largest product
# of all, and with a budget of one page it is left out. The bound of page 0 takes each channel from another key: it is
# the product with (10, 10), which is none of its keys.
#
# A page of one key has its product as its score, so no two are in the wrong order. But its two bounds are twice its
# key: they are as many bytes as the cache, and all are read for each token.
#
# Rubric, 4 points: 2 keys whose scores and products are in opposite order, all four numbers given; 1 each channel from
# another key; 1 no, with bounds as large as keys and values.
