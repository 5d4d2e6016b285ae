# %% [markdown]
# # Lab 14: Selected attention
#
# Run the cells from top to bottom after the tasks pass. Everything here is computed by **your** functions; when you
# change `src/selected_attention.py`, restart the kernel and run all cells again. The model is SmolLM2-135M-Instruct (30
# layers, 9 query heads on 3 key heads of width 64), installed by `uv sync --group model`.

# %%
import matplotlib.pyplot as plt
import torch

from labkit.model.attention import grouped_attention
from labkit.model.perplexity import perplexity, sample_text
from labkit.model.weights import read_model
from labkit.notebook import student_module

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


# %% [markdown]
# ## 1. The figure: perplexity against the share that is read
#
# For budgets of 4, 8 and 16 pages draw the perplexity of the tokens from number 512 on, for a window, a window with the
# first page, Quest, and the best pages by true scores; with a line for the whole cache. To the right: the share of the
# cache's bytes that a token reads at 640 tokens, by `selection_bytes`. Quest's bounds are a part of it.

# %% nbgrader={"grade": true, "grade_id": "figure_perplexity_against_bytes", "solution": true}
figure, ax = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
### BEGIN SOLUTION
# Rubric, 6 points: 2 the four ways with a mark and a legend each; 1 the line of the whole cache; 2 shares by
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
full = perplexity(model.llama, tokens, first=FIRST)
print(f"the whole cache: {full:.2f}")
ax.axhline(full, color="0.4", linestyle=":", label="the whole cache")
ax.set(xlabel="share of the cache's bytes read per token, %", ylabel="perplexity", yscale="log")
ax.set_yticks([25, 50, 100, 200], ["25", "50", "100", "200"])
ax.minorticks_off()
ax.grid(alpha=0.3)
ax.legend()
plt.show()
### END SOLUTION

# %% [markdown]
# ## Which pages a head reads
#
# Layer 15, Quest with 8 pages: a point where key head 0 reads a page.

# %%
seen = []


def watched(q, K, current):
    """Quest's choice of 8 pages, noted."""
    pages = quest(8)(q, K, current)
    seen.append(pages[0].tolist())
    return pages


perplexity(model.llama, tokens, attention_by(watched), FIRST)
per_layer = N_TOKENS - FIRST
rows = seen[13 * per_layer : 14 * per_layer]
figure, ax = plt.subplots(figsize=(7.5, 4), layout="constrained")
ax.plot(*zip(*((FIRST + i, p) for i, row in enumerate(rows) for p in row), strict=True), "s", markersize=2)
ax.set(xlabel="token", ylabel="page")
plt.show()

# %% [markdown]
# ## 2. What a bound misses
#
# (a) A page has the keys (10, 0) and (0, 10), the query is (1, 1). Compute the page's score and the largest product.
# Can a page be chosen wrongly because of this? Can a page with the largest product of all be left out by it?
#
# (b) Two pages of one key each have the products 5 and 6. Can Quest order them wrongly? Why do smaller pages choose
# better, and what do they cost?

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_a_bound_misses", "solution": true}
# (a) Score 10 + 10 = 20, largest product 10. Yes: the bound takes each channel from another key. And yes: a page whose
# own bound is tight, with a product of 15, has a smaller score than this one, and with a small budget it is left out.
#
# (b) No: a page of one key has its product as score. The fewer keys a page has, the closer the bound is; but bounds are
# two vectors per page, so that halving the page doubles the bytes of bounds, which are all read for every token.
#
# Rubric, 5 points: 1 for 20 and 10; 2 for both answers of (a), with why; 1 no; 1 for what smaller pages cost.

# %% [markdown]
# ## 3. Reading less, storing more
#
# DeepSeek-V3.2: a token has 1,152 bytes per layer, its index key 132, and 2,048 tokens are read.
#
# (a) From which length on does a token read fewer bytes than without an indexer? Derive it, and check it with
# `selection_bytes`.
#
# (b) Towards which share of the whole does its reading tend as the text grows? Why can more text never make it less?
#
# (c) A server's memory is full. Does it now serve more sequences than without the indexer?

# %% [markdown] nbgrader={"grade": true, "grade_id": "reading_less_storing_more", "solution": true}
# (a) 132 T + 2,048 · 1,152 < 1,152 T, so T > 2,048 · 1,152 / 1,020 = 2,313.04: from 2,314 tokens on.
#
# (b) Towards 132 / 1,152 = 11.5 %: all index keys are read for each token, whatever is chosen.
#
# (c) No, fewer: each token stores 1,284 bytes instead of 1,152, 11.5 % more. Selection saves reading, not memory.
#
# Rubric, 5 points: 2 (a); 2 (b), 1 of them for why; 1 (c).

# %% [markdown]
# ## 4. Why a group chooses together
#
# Eight query heads share a key head; each would choose 8 pages of its own. How many pages may the key head have to
# read, in the worst case and at best? What does choosing by the largest score do where one head's queries are ten times
# as long as the others'?

# %% [markdown] nbgrader={"grade": true, "grade_id": "why_a_group_chooses_together", "solution": true}
# At worst 64, if no two heads agree; at best 8. What is read once per key head serves the whole group, so that the
# union counts. The head with long queries has scores ten times as large, and it alone chooses for all; a sum has the
# same weakness, less so. Scores after a softmax, or ranks, would not.
#
# Rubric, 4 points: 1 for 64 and 8; 1 for the union being read; 2 for the head that chooses alone, with a remedy.
