"""Which kinds of layers a model has whose config.json lists none: what its class in transformers fills in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Config = dict[str, Any]


def whole(config: Config, key: str, least: int = 1) -> int:
    """The whole number of that name; ValueError names it if it is missing, smaller than `least` or something else."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        given = "is missing" if value is None else f"is {value!r}"
        raise ValueError(f"{key} {given}: it must be a whole number of at least {least}")
    return value


def linear_sizes(config: Config) -> Config:
    """The sizes and the places of Kimi's linear layers; ValueError if they are no JSON object."""
    sizes = config.get("linear_attn_config") or {}
    if not isinstance(sizes, dict):
        raise ValueError("linear_attn_config is no JSON object")
    return sizes


def _all_full(config: Config, count: int) -> list[str]:
    return ["full_attention"] * count


def _all_indexed(config: Config, count: int) -> list[str]:
    return ["indexed_attention"] * count


def _last_of(kind: str, key: str, period: int) -> Callable[[Config, int], list[str]]:
    """Full attention in the last of every few layers, `kind` in the others; the config may give the period."""

    def rule(config: Config, count: int) -> list[str]:
        every = whole(config, key) if key in config else period
        return ["full_attention" if (i + 1) % every == 0 else kind for i in range(count)]

    return rule


def _mistral(config: Config, count: int) -> list[str]:
    return ["full_attention" if config.get("sliding_window") is None else "sliding_attention"] * count


def _qwen2(config: Config, count: int) -> list[str]:
    full = whole(config, "max_window_layers", least=0) if config.get("use_sliding_window") else count
    return ["full_attention" if i < full else "sliding_attention" for i in range(count)]


def _llama4(config: Config, count: int) -> list[str]:
    if rotated := config.get("no_rope_layers"):  # 1: with positions, within a chunk; 0: without, over the whole text
        return ["chunked_attention" if each else "full_attention" for each in rotated]
    return _last_of("chunked_attention", "no_rope_layer_interval", 4)(config, count)


def _kimi_linear(config: Config, count: int) -> list[str]:
    kinds: dict[int, str] = {}
    for key, kind in (("full_attn_layers", "full_attention"), ("kda_layers", "linear_attention")):
        listed = linear_sizes(config).get(key)
        if not isinstance(listed, list):
            raise ValueError(f"linear_attn_config.{key} is no list of layers")
        kinds |= {layer: kind for layer in listed if isinstance(layer, int)}
    return [kinds[layer] for layer in range(1, count + 1) if layer in kinds]  # they count from 1


def _nemotron_h(config: Config, count: int) -> list[str]:
    letters = {"M": "mamba", "*": "full_attention", "E": "moe", "-": "mlp"}
    return [letters.get(letter, letter) for letter in str(config.get("hybrid_override_pattern", ""))]


FULL = ["llama", "smollm3", "minimax_m2", "granite", "olmo2", "glm4", "glm4_moe"]
MLA = ["deepseek_v2", "deepseek_v3", "kimi_k2"]
RULES: dict[str, Callable[[Config, int], list[str]]] = {
    **dict.fromkeys([*FULL, *MLA], _all_full),
    **dict.fromkeys(["deepseek_v32", "glm_moe_dsa"], _all_indexed),
    **dict.fromkeys(
        ["qwen3_next", "qwen3_5", "qwen3_5_moe"], _last_of("linear_attention", "full_attention_interval", 4)
    ),
    **dict.fromkeys(["mistral", "mixtral", "phi3"], _mistral),
    **dict.fromkeys(["qwen2", "qwen3", "qwen3_moe"], _qwen2),
    "gpt_oss": _last_of("sliding_attention", "sliding_window_pattern", 2),
    "gemma2": _last_of("sliding_attention", "sliding_window_pattern", 2),
    "gemma3": _last_of("sliding_attention", "sliding_window_pattern", 6),
    "llama4": _llama4,
    "kimi_linear": _kimi_linear,
    "nemotron_h": _nemotron_h,
}
"""Which layers a model has whose config lists none, by `model_type`: what its class in transformers fills in."""
