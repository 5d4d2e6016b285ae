"""Reads the layers of a model, and what each keeps in its cache, from its Hugging Face config.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from labkit.bench.layer_cache import LayerCache
from labkit.bench.layer_rules import RULES, Config, linear_sizes, whole

PUBLISHED = Path(__file__).with_name("configs")
"""Facts of published configurations, one file a model; README.md names the sources."""

MAX_LAYERS = 10_000
UNREAD = ("compress_ratios", "sparse_attention_config", "block_configs", "hybrid_layer_pattern", "index_topk_freq")
"""Keys that change the cache in ways that are not counted here; a config with one of them is refused."""


def read_config(path: Path) -> Config:
    """The part of a config.json that describes the layers of the text model.

    Raises OSError if the file cannot be read, and ValueError unless it is a JSON object with such a part.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a model's configuration: it holds no JSON object")
    inner = config.get("text_config")
    if "num_hidden_layers" not in config and isinstance(inner, dict):
        config = inner
    if "num_hidden_layers" not in config:
        raise ValueError(f"{path} is not a language model's configuration: it has no num_hidden_layers")
    return config


def layers_of(config: Config) -> list[LayerCache]:
    """What each layer keeps, from the first to the last.

    Raises ValueError for a key that is missing or is no whole number, and for kinds of layers that are not in `KINDS`.
    """
    if unread := [key for key in UNREAD if config.get(key) and not (key == "index_topk_freq" and _indexers(config))]:
        raise ValueError(f"{unread[0]} changes the cache in a way that is not counted here")
    names = kinds_of(config)
    if unknown := Counter(name for name in names if name not in KINDS):
        listed = ", ".join(f"{name!r} ({count} layers)" for name, count in unknown.items())
        raise ValueError(f"unknown kinds of layers: {listed}; known: {', '.join(KINDS)}")
    layers = [KINDS[name](config) for name in names]
    return _without_sharing(config, layers)


def kinds_of(config: Config) -> list[str]:
    """The kind of each layer, by its name in the config, or by its model's rule where the config lists none.

    Raises ValueError if the list and the number of layers disagree, and for a model without a list and without a rule.
    """
    count = whole(config, "num_hidden_layers")
    if count > MAX_LAYERS:
        raise ValueError(f"num_hidden_layers is {count}: more than {MAX_LAYERS:,} are not read")
    names = config.get("layer_types") or config.get("layers_block_type")
    if names is None:
        model_type = str(config.get("model_type")).removesuffix("_text")
        if model_type not in RULES:
            raise ValueError(f"it lists no layer_types, and no rule is known for the model_type {model_type!r}")
        names = RULES[model_type](config, count)
    if not isinstance(names, list) or len(names) != count:
        raise ValueError(f"it does not list one kind for each of its {count} layers")
    return [str(name) for name in names]


def _attention(config: Config) -> LayerCache:
    if config.get("kv_lora_rank"):
        return LayerCache("MLA", numbers=whole(config, "kv_lora_rank") + whole(config, "qk_rope_head_dim", least=0))
    few = config.get("num_global_key_value_heads") and config.get("attention_k_eq_v", True)
    heads = "num_global_key_value_heads" if few else "num_key_value_heads"
    width = "global_head_dim" if config.get("global_head_dim") else "head_dim"
    return LayerCache("full", numbers=_keys_and_values(config, heads, width))


def _window(config: Config) -> LayerCache:
    return LayerCache("window", numbers=_keys_and_values(config), reach=whole(config, "sliding_window"))


def _chunk(config: Config) -> LayerCache:
    return LayerCache("chunk", numbers=_keys_and_values(config), reach=whole(config, "attention_chunk_size"))


def _indexed(config: Config) -> LayerCache:
    latent = _attention(config)
    index, chosen = whole(config, "index_head_dim"), whole(config, "index_topk")
    return LayerCache(f"{latent.kind} + indexer", latent.numbers, index, chosen=chosen)


def _linear(config: Config) -> LayerCache:
    """A state of the width of a key times that of a value per head, and the inputs of a convolution over q, k and v."""
    if kimi := linear_sizes(config):
        heads, width = whole(kimi, "num_heads"), whole(kimi, "head_dim")
        channels, kernel = 3 * heads * width, whole(kimi, "short_conv_kernel_size")
        return LayerCache("linear state", conv=channels * kernel, state=heads * width * width)
    if "mamba_num_heads" in config:
        return _mamba(config)
    if "linear_num_value_heads" not in config:
        raise ValueError("it has linear_attention layers of a kind whose sizes are not known here")
    keys = whole(config, "linear_num_key_heads") * whole(config, "linear_key_head_dim")
    values = whole(config, "linear_num_value_heads") * whole(config, "linear_value_head_dim")
    kernel = whole(config, "linear_conv_kernel_dim")
    state = values * whole(config, "linear_key_head_dim")
    return LayerCache("linear state", conv=(2 * keys + values) * kernel, state=state)


def _mamba(config: Config) -> LayerCache:
    """Mamba-2: a state per channel, and the inputs of a convolution over x, B and C."""
    channels = whole(config, "mamba_num_heads") * whole(config, "mamba_head_dim")
    size = whole(config, "ssm_state_size")
    conv = (channels + 2 * whole(config, "n_groups") * size) * whole(config, "conv_kernel")
    return LayerCache("linear state", conv=conv, state=channels * size)


def _nothing(config: Config) -> LayerCache:
    return LayerCache("no cache")


KINDS: dict[str, Callable[[Config], LayerCache]] = {
    "full_attention": _attention,
    "attention": _attention,
    "sliding_attention": _window,
    "chunked_attention": _chunk,
    "indexed_attention": _indexed,
    "deepseek_sparse_attention": _indexed,
    "linear_attention": _linear,
    "mamba": _mamba,
    "moe": _nothing,
    "mlp": _nothing,
}
"""Kinds of layers, by their names in `layer_types`."""


def _without_sharing(config: Config, layers: list[LayerCache]) -> list[LayerCache]:
    """The layers, those that read another layer's cache or index without what they share."""
    shared = whole(config, "num_kv_shared_layers", least=0) if config.get("num_kv_shared_layers") else 0
    if shared > len(layers):
        raise ValueError(f"num_kv_shared_layers is {shared}, of {len(layers)} layers")
    layers = layers[: len(layers) - shared] + [LayerCache("shared")] * shared
    for i, indexer in enumerate(_indexers(config)):
        if indexer == "shared":
            layers[i] = LayerCache("MLA, shared index", layers[i].numbers, chosen=layers[i].chosen)
    return layers


def _indexers(config: Config) -> list[str]:
    listed = config.get("indexer_types")
    return list(listed)[: whole(config, "num_hidden_layers")] if isinstance(listed, list) else []


def _keys_and_values(config: Config, heads: str = "num_key_value_heads", width: str = "head_dim") -> int:
    """Numbers of a token's keys and values; every query head has its own where no number of key heads is given."""
    n_heads = whole(config, heads if config.get(heads) else "num_attention_heads")
    d = (
        whole(config, width)
        if config.get(width)
        else whole(config, "hidden_size") // whole(config, "num_attention_heads")
    )
    d_v = whole(config, "v_head_dim") if config.get("v_head_dim") else d
    return n_heads * (d + d_v)
