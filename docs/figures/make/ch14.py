"""Chapter 14's figures from SmolLM2: which keys its heads look at, and what rules that choose some of them lose.

A run takes minutes on two cores, so only the slow tests recompute it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from labkit.bench.layer_cache import read_bytes
from labkit.bench.model_config import PUBLISHED, layers_of, read_config
from labkit.model.attention import expanded, grouped_attention
from labkit.model.generate import positions_for
from labkit.model.perplexity import perplexity, sample_text
from labkit.model.weights import Model, read_model
from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, PINK, Recipe

N_TOKENS, FIRST, PAGE, WHOLE_LAYERS, QUERIES_AT_ONCE = 2048, 1024, 16, 2, 256
BUDGETS = (128, 256, 512)
TWICE = "Nine blue ships left the old harbour at dawn. "
LOOKS = {
    "window": (MUTED, "x"),
    "window and first page": (GREEN, "v"),
    "means": (ORANGE, "s"),
    "bounds": (BLUE, "o"),
    "largest score": (PINK, "D"),
    "best tokens": (INK, "*"),
}
"""Rules, in the order of what they know; "best tokens" chooses tokens and not pages."""
MODELS = {
    "llama-3.1-8b": ("Llama-3.1-8B, full", MUTED, ":"),
    "deepseek-v3": ("DeepSeek-V3, MLA", ORANGE, "-."),
    "gpt-oss-120b": ("gpt-oss-120b, windows", GREEN, "--"),
    "deepseek-v3.2": ("DeepSeek-V3.2, DSA", BLUE, "-"),
    "kimi-linear-48b-a3b": ("Kimi Linear, states", INK, "--"),
    "glm-5.2": ("GLM-5.2, shared ranking", PINK, "-."),
    "deepseek-v4-pro": ("DeepSeek-V4-Pro, CSA and HCA", ORANGE, "-"),
}
LENGTHS = [2**power for power in range(10, 21)]


@functools.cache
def model() -> Model:
    """SmolLM2, read once."""
    torch.set_num_threads(2)
    return read_model()


@functools.cache
def maps() -> dict[str, Any]:
    """Three heads on a sentence that comes twice: most weight on token 0, on the token before, and after the repeat."""
    weights: list[torch.Tensor] = []
    tokens = model().text.encode(TWICE * 2)
    half = len(tokens) // 2
    _run(tokens, lambda layer, q, k, v: weights.append(_weights(q, k)))
    heads = torch.stack(weights)  # (layers, heads, n, n)
    later = torch.arange(half, len(tokens))
    searched = {
        "sink": heads[:, :, later, 0],
        "token before": heads[:, :, later, later - 1],
        "after the repeat": heads[:, :, later[:-1], later[:-1] - half + 1],
    }
    found = {}
    for name, share in searched.items():
        mean = share.mean(-1)
        layer, head = divmod(int(mean.argmax()), mean.shape[1])
        rows = heads[layer, head]
        pairs = [
            [i, j, round(float(rows[i, j]), 2)] for i in range(len(rows)) for j in range(i + 1) if rows[i, j] > 0.02
        ]
        where = {"layer": layer, "head": head, "share": round(float(mean.max()), 2)}
        found[name] = {"text": TWICE * 2, "tokens": len(tokens), "half": half, "name": name, **where, "weights": pairs}
    return found


def draw_map(data: dict[str, Any], colour: str) -> Figure:
    """Draw a dot for each weight of the head, as large as the weight. Each head is a file: on a phone they stack."""
    figure, ax = plt.subplots(figsize=(2.4, 3.1))
    queries, keys, sizes = zip(*data["weights"], strict=True)
    ax.scatter(keys, queries, s=[22 * size for size in sizes], color=colour, linewidths=0)
    ax.axhline(data["half"] - 0.5, color=MUTED, linewidth=0.8, linestyle=":")
    ax.set_title(f"{data['name']}\nlayer {data['layer']}, head {data['head']}", fontsize=9.5)
    ax.set(xlabel="key", ylabel="query", xlim=(-1, data["tokens"]), ylim=(data["tokens"], -1))
    ax.set_aspect("equal")
    return figure


def map_recipe(name: str, colour: str) -> Recipe:
    """The recipe of one head's figure."""

    def data() -> dict[str, Any]:
        found: dict[str, Any] = maps()[name]
        return found

    def draw(data: dict[str, Any]) -> Figure:
        return draw_map(data, colour)

    return Recipe(data, draw, takes_minutes=True)


def choice_data() -> dict[str, Any]:
    """The share of the weight that the chosen 128 tokens hold, by rule; perplexities; and how few tokens matter."""
    tokens = model().text.encode(sample_text())[:N_TOKENS]
    seen = _Shares()
    _run(tokens, seen)
    rows = [{"rule": "all", "tokens": N_TOKENS, "perplexity": _perplexity(tokens, None)}]
    tried = [(rule, BUDGETS[0]) for rule in LOOKS] + [("bounds", budget) for budget in BUDGETS[1:]]
    for rule, budget in tried:
        rows.append({"rule": rule, "tokens": budget, "perplexity": _perplexity(tokens, _Chosen(rule, budget))})
    alone = _perplexity(tokens, _Chosen("bounds", BUDGETS[0], together=False))
    return {
        "model": "SmolLM2-135M-Instruct",
        "tokens": N_TOKENS,
        "scored_from": FIRST,
        "page": PAGE,
        "whole_layers": WHOLE_LAYERS,
        "rows": rows,
        "each_head_alone": {
            "perplexity": alone,
            "pages_of_a_group": round(seen.union(), 1),
            "pages": BUDGETS[0] // PAGE,
        },
        **seen.summary(),
    }


def draw_choice(data: dict[str, Any]) -> Figure:
    """Draw the perplexity of each rule with 128 tokens, and of bounds with more, against that of all tokens."""
    figure, ax = plt.subplots(figsize=(5.4, 3.9))
    whole = next(row["perplexity"] for row in data["rows"] if row["rule"] == "all")
    rows = [row for row in data["rows"] if row["rule"] != "all"]
    labels = [f"{row['rule']}, {row['tokens']}" for row in rows]
    ax.axvline(whole, color=INK, linewidth=1, linestyle=":")
    ax.annotate("all tokens", (whole, -0.75), xytext=(4, 0), textcoords="offset points", va="center", size=8.5)
    for place, row in enumerate(rows):
        colour, mark = LOOKS[row["rule"]]
        ax.plot([whole, row["perplexity"]], [place, place], "-", color=colour, linewidth=1.5)
        ax.plot(row["perplexity"], place, mark, color=colour)
        ax.annotate(
            f"{row['perplexity']:.1f}",
            (row["perplexity"], place),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            size=8.5,
        )
    ax.set_xscale("log", base=2)
    ax.set_xticks([16, 24, 32, 48, 64], ["16", "24", "32", "48", "64"])
    ax.minorticks_off()
    ax.set_yticks(range(len(rows)), labels)
    ax.set(xlabel="perplexity", xlim=(15.5, 84), ylim=(len(rows) - 0.5, -1.2))
    return figure


def read_data() -> dict[str, Any]:
    """GiB that a decoding step reads of one sequence's cache, by its length, from published configurations."""
    rows = {}
    for name in MODELS:
        layers = layers_of(read_config(PUBLISHED / f"{name}.json"))
        rows[name] = [sum(read_bytes(layer, length) for layer in layers) for length in LENGTHS]
    return {"lengths": LENGTHS, "bytes": rows}


def draw_read(data: dict[str, Any]) -> Figure:
    """Draw the bytes over the length, logarithmic, each line named at its end."""
    figure, ax = plt.subplots(figsize=(5.6, 4.6))
    for name, (label, colour, dash) in MODELS.items():
        ax.plot(data["lengths"], [each / 2**30 for each in data["bytes"][name]], dash, color=colour, label=label)
    ax.axvline(131_072, color=MUTED, linewidth=0.8, linestyle=":")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(data["lengths"][::2], [f"{length // 1024}k" for length in data["lengths"][::2]])
    ax.set_yticks([1 / 64, 1 / 16, 1 / 4, 1, 4, 16, 64, 128], ["1/64", "1/16", "1/4", "1", "4", "16", "64", "128"])
    ax.minorticks_off()
    ax.set(xlabel="tokens in the cache", ylabel="GiB that a step reads")
    ax.legend(loc="upper left", fontsize=8.5)
    return figure


class _Chosen:
    """Attention to the tokens that a rule chooses, from query `FIRST` on and without the first two layers."""

    def __init__(self, rule: str, budget: int, together: bool = True) -> None:
        self.rule, self.budget, self.together = rule, budget, together

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if layer < WHOLE_LAYERS:
            return grouped_attention(q, k, v)
        parts = [grouped_attention(q[:, :FIRST], k[:, :FIRST], v[:, :FIRST])]
        values = expanded(v, len(q) // len(k))
        for scores, queries in _scores(q, k):
            seen = _seen(self.rule, self.budget, q[:, queries], k, scores, queries, self.together)
            parts.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values)
        return torch.cat(parts, 1)


class _Shares:
    """Notes how much of the weight of every eighth query the rules' choices of 128 tokens hold."""

    def __init__(self) -> None:
        self.shares: dict[str, list[float]] = {rule: [] for rule in LOOKS}
        self.unions: list[float] = []
        self.first: list[float] = []
        self.needed: list[torch.Tensor] = []

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        if layer < WHOLE_LAYERS:
            return
        for scores, queries in _scores(q, k, every=8):
            weights = scores.softmax(-1)
            for rule, found in self.shares.items():
                seen = _seen(rule, BUDGETS[0], q[:, queries], k, scores, queries)
                found.append(float((weights * seen).sum(-1).mean()))
            alone = _pages("bounds", BUDGETS[0], q[:, queries], k, scores, queries, together=False)
            self.unions.append(float(alone.unflatten(0, (len(k), -1)).any(1).sum(-1).float().mean()))
            self.first.append(float(weights[..., 0].mean()))
            order = weights.sort(-1, descending=True).values.cumsum(-1)
            self.needed.append((order < 0.9).sum(-1).flatten() + 1)

    def union(self) -> float:
        return sum(self.unions) / len(self.unions)

    def summary(self) -> dict[str, Any]:
        needed = torch.cat(self.needed).float()
        return {
            "weight_held_by_128_tokens": {rule: round(sum(x) / len(x), 3) for rule, x in self.shares.items()},
            "weight_on_token_0": round(sum(self.first) / len(self.first), 3),
            "tokens_for_90_percent": {
                "median": int(needed.median()),
                "mean": round(float(needed.mean())),
                "one_in_ten_needs": int(needed.quantile(0.9)),
            },
        }


def _scores(q: torch.Tensor, k: torch.Tensor, every: int = 1) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Causal scores (H, some queries, N) of the queries from `FIRST` on, a few at a time, and their numbers."""
    keys = expanded(k, len(q) // len(k))
    for queries in torch.arange(FIRST, q.shape[1], every).split(QUERIES_AT_ONCE):
        scores = q[:, queries] @ keys.mT * q.shape[-1] ** -0.5
        later = torch.arange(k.shape[1]) > queries[:, None]
        yield scores.masked_fill(later, -torch.inf), queries


def _seen(
    rule: str,
    budget: int,
    q: torch.Tensor,
    k: torch.Tensor,
    scores: torch.Tensor,
    queries: torch.Tensor,
    together: bool = True,
) -> torch.Tensor:
    """Which keys each query sees, (H, queries, N)."""
    if rule == "best tokens":
        return _top(_of_groups(scores, len(k), together), budget) & scores.isfinite()
    pages = _pages(rule, budget, q, k, scores, queries, together)
    return pages.repeat_interleave(PAGE, -1) & scores.isfinite()


def _pages(
    rule: str,
    budget: int,
    q: torch.Tensor,
    k: torch.Tensor,
    scores: torch.Tensor,
    queries: torch.Tensor,
    together: bool,
) -> torch.Tensor:
    """Which pages each query reads, (H, queries, pages): the first, its own, and the best others of those before."""
    number = torch.arange(k.shape[1] // PAGE)
    own = (queries // PAGE)[:, None]
    paged = k.unflatten(1, (-1, PAGE))
    if rule.startswith("window"):
        ranks = number.float().expand(*scores.shape[:2], -1)
    elif rule == "largest score":
        ranks = scores.unflatten(-1, (-1, PAGE)).amax(-1)
    elif rule == "means":
        ranks = q @ expanded(paged.mean(2), len(q) // len(k)).mT
    else:
        lows, highs = (expanded(x, len(q) // len(k)) for x in (paged.amin(2), paged.amax(2)))
        # Σ_c max(q_c · low_c, q_c · high_c): the highs where q_c is positive, the lows where it is negative.
        ranks = q.clamp(min=0) @ highs.mT + q.clamp(max=0) @ lows.mT
    ranks = (
        _of_groups(ranks, len(k), together).masked_fill(number > own, -torch.inf).masked_fill(number == own, torch.inf)
    )
    if rule != "window":
        ranks = ranks.masked_fill(number == 0, torch.inf)
    return _top(ranks, budget // PAGE) & (number <= own)


def _of_groups(ranks: torch.Tensor, groups: int, together: bool) -> torch.Tensor:
    """The largest value of each group of query heads, for all of its heads; or each head's own."""
    if not together:
        return ranks
    best = ranks.unflatten(0, (groups, -1)).amax(1, keepdim=True)
    return best.expand(-1, len(ranks) // groups, -1, -1).flatten(0, 1)


def _top(ranks: torch.Tensor, count: int) -> torch.Tensor:
    return torch.zeros_like(ranks, dtype=torch.bool).scatter(-1, ranks.topk(count, -1).indices, True)


def _weights(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    scores = q @ expanded(k, len(q) // len(k)).mT * q.shape[-1] ** -0.5
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


def _run(tokens: list[int], look: Callable[..., Any]) -> None:
    """Run the model on the text with whole attention, and show each layer's q, k and v to `look`."""

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        look(layer, q, k, v)
        return grouped_attention(q, k, v)

    with torch.no_grad():
        model().llama.hidden(torch.tensor(tokens), attend, positions_for(attend, 0, len(tokens)))


def _perplexity(tokens: list[int], attend: Any) -> float:
    return float(f"{perplexity(model().llama, tokens, attend, FIRST):.3g}")


FIGURES = {
    "14_sink": map_recipe("sink", ORANGE),
    "14_before": map_recipe("token before", GREEN),
    "14_repeat": map_recipe("after the repeat", BLUE),
    "14_choice": Recipe(choice_data, draw_choice, takes_minutes=True),
    "14_read": Recipe(read_data, draw_read),
}
