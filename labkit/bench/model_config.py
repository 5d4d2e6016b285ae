"""Reads what each layer of a model keeps in its cache from the model's Hugging Face config.json.

One rule: what a token keeps × how far the layer reaches + what is fixed, each read from the layer's own config. A key
that may change the cache and that the rule does not read is refused, never passed over.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from labkit.bench.layer_cache import LayerCache

PUBLISHED = Path(__file__).with_name("configs")
"""Facts of published configurations, one file a model; README.md names the sources."""

Config = dict[str, Any]
MAX_LAYERS = 10_000
TEXT_PARTS = ("text_config", "thinker_config", "llm_config", "language_config")
"""Where a model of several parts has its language model."""

NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "width": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "key heads": ("num_key_value_heads", "num_kv_heads", "num_attention_groups"),
    "head width": ("attention_head_dim", "head_dim", "kv_channels"),
    "value width": ("v_head_dim",),
    "latent": ("kv_lora_rank",),
    "positions": ("qk_rope_head_dim",),
    "window": ("sliding_window", "sliding_window_size"),
    "chunk": ("attention_chunk_size",),
    "index": ("index_head_dim",),
    "chosen": ("index_topk",),
    "linear key heads": ("linear_num_key_heads", "linear_num_heads"),
    "linear value heads": ("linear_num_value_heads", "linear_num_heads"),
    "linear key width": ("linear_key_head_dim", "linear_head_dim"),
    "linear value width": ("linear_value_head_dim", "linear_head_dim"),
    "mamba heads": ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads"),
    "mamba head width": ("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim"),
    "mamba groups": ("n_groups", "mamba_n_groups", "mamba_ngroups"),
    "state": ("ssm_state_size", "mamba_d_state", "state_size"),
    "expansion": ("mamba_expand", "expand"),
    "convolution": ("linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv"),
    "convolution alone": ("conv_L_cache",),
}
"""The keys of sizes, by what they mean; the first that is given counts."""

PERIODS = (
    *("full_attention_interval", "sliding_window_pattern", "_sliding_window_pattern", "layer_group_size"),
    *("global_attn_every_n_layers", "no_rope_layer_interval", "attn_layer_period"),
)
"""Keys that say that one layer of so many reaches over all: the last, or the one at `attn_layer_offset`."""

READ = {
    *(name for names in NAMES.values() for name in names),
    *PERIODS,
    *("layer_types", "layers_block_type", "hybrid_override_pattern", "hybrid_layer_pattern", "compress_ratios"),
    *("linear_attn_config", "no_rope_layers", "full_attn_idxs", "attn_layer_indices", "attn_layer_offset"),
    *("per_layer_config", "use_sliding_window", "max_window_layers", "multi_query", "compress_rates"),
    *("num_global_key_value_heads", "global_head_dim", "num_kv_shared_layers", "indexer_types"),
}
"""All keys that this module reads and that have one of `WORDS` in their names."""

WORDS = (
    *("layer", "head", "kv", "cache", "window", "compress", "share", "index", "chunk", "pattern", "block", "state"),
    *("sparse", "recurrent", "mem_"),
)
"""A key with one of these in its name may change the cache; it is refused unless it is read or harmless."""

HARMLESS = (
    *("*layer*norm*", "*layerdrop*", "*_bias", "*_token_index", "use_cache", "rope_*", "*quantization_config"),
    *("vision_config", "audio_config", "*id2label", "*label2id", "task_specific_params", "layer_rope_theta"),
    *("*shared_expert*", "n_shared_experts", "shared_intermediate_size", "share_expert_dim", "*moe_layer*"),
    *("mlp_layer_types", "mlp_only_layers", "moe_layers", "num_dense_layers", "expert_layer_*", "decoder_sparse_step"),
    *("qk_head_dim", "qk_nope_head_dim", "index_n_heads", "index_topk_freq", "num_attention_heads_per_layer"),
    *("num_sliding_attention_heads", "compress_rope_theta", "compress_rates.*", "num_nextn_predict_layers", "mtp_*"),
    *("*_per_layer_input", "activation_sparsity_pattern", "lm_head_*", "*chunk_size", "mamba_ssm_cache_dtype"),
    *("block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of", "linear_attn_config.*"),
    *("*_layer_idx", "first_k_dense_replace", "tie_word_embeddings"),
)
"""Keys, or nested objects, with such words that leave the cache as it is: norms, experts, positions, queries, chunks of
a computation, layers that only propose tokens."""

PATTERNS = {
    **dict.fromkeys(["mistral", "mixtral", "phi3", "starcoder2"], "W"),
    **dict.fromkeys(["gpt_oss", "gemma2"], "WF"),
    **dict.fromkeys(["gemma3", "gemma4"], "WWWWWF"),
    **dict.fromkeys(["qwen3_next", "qwen3_5", "qwen3_5_moe"], "LLLF"),
    **dict.fromkeys(["mamba", "mamba2", "falcon_mamba"], "L"),
    "cohere2": "WWWF",
    "gemma3n": "WWWWF",
    "llama4": "CCCF",
    "falcon_h1": "H",
}
"""Kinds of layers that follow each other where a config lists none, by `model_type`: its class in transformers says."""

LETTERS = {
    "F": "full_attention",
    "W": "sliding_attention",
    "C": "chunked_attention",
    "L": "linear_attention",
    "H": "hybrid",
    "M": "mamba",
    "*": "full_attention",
    "E": "moe",
    "-": "mlp",
}
"""Kinds of layers by the letters of `PATTERNS` and of Nemotron's `hybrid_override_pattern`."""

KINDS = {
    **dict.fromkeys(["full_attention", "attention"], "all"),
    **dict.fromkeys(["indexed_attention", "deepseek_sparse_attention"], "chosen"),
    **dict.fromkeys(["linear_attention", "mamba", "conv"], "state"),
    **dict.fromkeys(["moe", "mlp"], ""),
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "hybrid": "all + state",
    "hybrid_sliding": "window + state",
    "compressed_sparse_attention": "compressed + chosen",
    "heavily_compressed_attention": "compressed",
}
"""How far a layer reaches, and whether it has a state, by the kind's name in `layer_types`."""

RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""Tokens that one entry of a compressed layer stands for, where `compress_rates` does not say it."""


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
    while inner := next((config[part] for part in TEXT_PARTS if isinstance(config.get(part), dict)), None):
        config = inner
    if _given(config, "layers") is None and _listed(config) is None:
        raise ValueError(f"{path} is not a language model's configuration: it has no num_hidden_layers")
    return config


def layers_of(config: Config) -> list[LayerCache]:
    """What each layer keeps, from the first to the last.

    Raises ValueError for a key that is missing or no whole number, for a kind of layers that is not in `KINDS`, and for
    a key that may change the cache and is not read.
    """
    names = kinds_of(config)
    if unknown := Counter(name for name in names if name not in KINDS):
        listed = ", ".join(f"{name!r} ({count} layers)" for name, count in unknown.items())
        raise ValueError(f"unknown kinds of layers: {listed}; known: {', '.join(KINDS)}")
    own = [_own_config(config, layer, names) for layer in range(len(names))]
    if unread := next((key for each in [config, *own] for key in _unread(each)), None):
        raise ValueError(f"{unread} may change the cache, and it is not read here")
    single = any("compressed" in KINDS[name] for name in names)  # there a key is its own value
    return _without_sharing(config, [_layer(*each, single) for each in zip(own, names, strict=True)])


def kinds_of(config: Config) -> list[str]:
    """The kind of each layer, by its name in the config, or by what the config says of all layers.

    Raises ValueError if the list and the number of layers disagree, and where nothing says which layers have a window,
    a state or the like.
    """
    names = _listed(config)
    if names is not None and _given(config, "layers") is None:
        return names
    count = _whole(config, "layers")
    if count > MAX_LAYERS:
        raise ValueError(f"num_hidden_layers is {count}: more than {MAX_LAYERS:,} are not read")
    names = _followed(config, count) if names is None else names
    if len(names) != count:
        raise ValueError(f"it does not list one kind for each of its {count} layers")
    return names


def _listed(config: Config) -> list[str] | None:
    """The kinds that the config lists, in any of the ways that are in use; None if it lists none."""
    for key in ("layer_types", "layers_block_type"):
        if (listed := config.get(key)) is not None:
            return [str(name) for name in _list(key, listed)]
    if letters := config.get("hybrid_override_pattern"):
        return [LETTERS.get(letter, letter) for letter in str(letters)]
    if windows := config.get("hybrid_layer_pattern"):
        return ["sliding_attention" if each else "full_attention" for each in _list("hybrid_layer_pattern", windows)]
    if ratios := config.get("compress_ratios"):  # those of layers that only propose tokens come last
        names = {ratio: name for name, ratio in RATIOS.items()}
        return [names.get(each, f"ratio {each}") for each in _list("compress_ratios", ratios)][
            : _whole(config, "layers")
        ]
    if linear := config.get("linear_attn_config"):
        if not isinstance(linear, dict):
            raise ValueError("linear_attn_config is no JSON object")
        lists = {"full_attn_layers": "full_attention", "kda_layers": "linear_attention"}
        kinds = {
            layer: kind for key, kind in lists.items() for layer in _list(f"linear_attn_config.{key}", linear.get(key))
        }
        return [kinds[layer] for layer in sorted(kinds)]
    for key, other in (("full_attn_idxs", "conv"), ("attn_layer_indices", "mamba")):
        if full := config.get(key):
            return ["full_attention" if i in _list(key, full) else other for i in range(_whole(config, "layers"))]
    if (rotated := config.get("no_rope_layers")) and _given(
        config, "chunk"
    ):  # 1: within a chunk; 0: over the whole text
        return ["chunked_attention" if each else "full_attention" for each in _list("no_rope_layers", rotated)]
    return None


def _followed(config: Config, count: int) -> list[str]:
    """The kinds of a config that lists none: all full, or what a period or its model's pattern says."""
    letters = {"window": "W", "chunk": "C", "chosen": "I", "linear value heads": "L", "state": "L"}
    letters |= {"convolution alone": "L"}
    limits = {key: letter for key, letter in letters.items() if _given(config, key) is not None}
    if config.get("use_sliding_window") is False:
        limits.pop("window", None)
    model_type = str(config.get("model_type")).removesuffix("_text")
    if not limits:
        return ["full_attention"] * count
    pattern = PATTERNS.get(model_type, "")
    if set(limits.values()) == {"I"}:
        return ["indexed_attention"] * count
    if set(limits) == {"window"} and config.get("max_window_layers") is not None:
        return ["full_attention" if i < config["max_window_layers"] else "sliding_attention" for i in range(count)]
    if period := next((key for key in PERIODS if config.get(key)), None):
        every = _number(period, config[period])
        offset = config.get("attn_layer_offset", every - 1)
        other = LETTERS[next(iter(limits.values()))]
        return ["full_attention" if i % every == offset else other for i in range(count)]
    if not pattern:
        key = next(name for name in NAMES[next(iter(limits))] if config.get(name) is not None)
        raise ValueError(
            f"it lists no layer_types, and no rule is known for the model_type {model_type!r}: which layers have "
            f"{key} is not said"
        )
    return [LETTERS[pattern[i % len(pattern)]] for i in range(count)]


def _own_config(config: Config, layer: int, names: list[str]) -> Config:
    """The config of one layer: lists by layer, `per_layer_config`, and names for windows or for full layers alone."""
    own = {k: v[layer] if isinstance(v, list) and len(v) == len(names) else v for k, v in config.items()}
    reach = KINDS[names[layer]]
    if "window" in reach:
        own |= {key.removeprefix("swa_"): value for key, value in own.items() if key.startswith("swa_")}
    if "all" in reach:
        few = own.get("num_global_key_value_heads") and own.get("attention_k_eq_v", True)
        own |= {"num_key_value_heads": own["num_global_key_value_heads"]} if few else {}
        own |= {"head_dim": own["global_head_dim"]} if own.get("global_head_dim") else {}
    layers = config.get("per_layer_config") or {}
    if not isinstance(layers, dict) or not all(isinstance(each, dict) for each in layers.values()):
        raise ValueError("per_layer_config is no JSON object of objects")
    own |= layers.get(str(layer), {})
    if linear := own.get("linear_attn_config"):
        renamed = {"num_heads": "linear_num_heads", "head_dim": "linear_head_dim"}
        renamed |= {"short_conv_kernel_size": "linear_conv_kernel_dim"}
        own |= {name: linear.get(key) for key, name in renamed.items()}
    return own


def _unread(config: Config) -> Iterator[str]:
    """The keys, those of nested objects too, that may change the cache and that nothing here reads."""
    for key, value in config.items():
        nested = value if isinstance(value, dict) and not _is_harmless(key) else {}
        for name, given in {key: value, **{f"{key}.{inner}": each for inner, each in nested.items()}}.items():
            last = name.rpartition(".")[2]
            is_harmless = _is_harmless(name) or _is_harmless(last) or key.removeprefix("swa_") in READ
            if given and any(word in last for word in WORDS) and not is_harmless:
                yield name


def _is_harmless(key: str) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in HARMLESS)


def _layer(config: Config, name: str, single: bool) -> LayerCache:
    """What a token keeps × how far the layer reaches + what is fixed."""
    reach, _, state = KINDS[name].partition(" + ")
    chosen = "chosen" in KINDS[name]
    sizes: dict[str, Any] = {}
    if KINDS[name].endswith("state"):
        sizes = dict(zip(("conv", "state"), _state(config), strict=True))
    if reach in ("", "state"):
        return LayerCache("linear state" if sizes else "no cache", **sizes)
    latent = _given(config, "latent") is not None
    sizes["numbers"] = _numbers(config, single)
    if reach in ("window", "chunk"):
        sizes["reach"] = _whole(config, reach)
    if chosen:
        sizes |= {"index": _whole(config, "index"), "chosen": _whole(config, "chosen")}
    if reach == "compressed":
        sizes["ratio"] = _number("compress_rates", (config.get("compress_rates") or RATIOS).get(name))
        sizes["recent"] = _whole(config, "window")
        if chosen:  # it mixes the tokens of the group before with its own: their entries, and weights in float32
            sizes["conv"] = sizes["state"] = sizes["ratio"] * (sizes["numbers"] + sizes["index"])
    kind = {"all": "full", "chosen": "full"}.get(reach, reach)
    kind = ("MLA" if kind == "full" else f"{kind}, MLA") if latent else kind
    return LayerCache(kind + " + indexer" * chosen + " + linear state" * (state == "state"), **sizes)


def _numbers(config: Config, single: bool) -> int:
    """Numbers that a token keeps: a latent vector, or keys and values, or one vector for both."""
    if _given(config, "latent") is not None:
        return _whole(config, "latent") + _whole(config, "positions", least=0)
    heads = _whole(config, "heads")
    key_heads = _whole(config, "key heads", default=heads)
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        key_heads = 1
    width = _whole(config, "head width", default=0) or _whole(config, "width") // heads
    return key_heads * (width if single else width + _whole(config, "value width", default=width))


def _state(config: Config) -> tuple[int, int]:
    """Numbers in the cache's bits of a short convolution's inputs, and numbers in 32 bits of a recurrent state."""
    if _given(config, "convolution alone") is not None:
        return _whole(config, "width") * _whole(config, "convolution alone"), 0
    if _given(config, "linear value heads") is not None:  # a matrix for each head; a convolution over q, k and v
        value_heads, key_width = _whole(config, "linear value heads"), _whole(config, "linear key width")
        keys, values = (
            _whole(config, "linear key heads") * key_width,
            value_heads * _whole(config, "linear value width"),
        )
        return (2 * keys + values) * _whole(config, "convolution"), values * key_width
    if _given(config, "state") is None:
        raise ValueError("it has linear layers of a kind whose sizes are not known here")
    size, kernel = _whole(config, "state"), _whole(config, "convolution")
    if _given(config, "mamba groups") is not None:  # Mamba-2: the convolution is over x, B and C
        channels = _whole(config, "mamba heads") * _whole(config, "mamba head width")
        return (channels + 2 * _whole(config, "mamba groups") * size) * kernel, channels * size
    channels = _whole(config, "expansion") * _whole(config, "width")
    if "expand" in config and config.get("intermediate_size"):
        channels = _number("intermediate_size", config["intermediate_size"])
    return channels * kernel, channels * size


def _without_sharing(config: Config, layers: list[LayerCache]) -> list[LayerCache]:
    """The layers, those that read another layer's cache or index without what they share."""
    shared = _number("num_kv_shared_layers", config.get("num_kv_shared_layers") or 0, least=0)
    if shared > len(layers):
        raise ValueError(f"num_kv_shared_layers is {shared}, of {len(layers)} layers")
    layers = layers[: len(layers) - shared] + [LayerCache("shared")] * shared
    for i, indexer in enumerate(_list("indexer_types", config.get("indexer_types") or [])[: len(layers)]):
        if indexer == "shared":
            layers[i] = LayerCache("MLA, shared index", layers[i].numbers, chosen=layers[i].chosen)
    return layers


def _given(config: Config, meaning: str) -> Any:
    return next((config[name] for name in NAMES[meaning] if config.get(name) is not None), None)


def _whole(config: Config, meaning: str, least: int = 1, default: int | None = None) -> int:
    """The whole number of that meaning; ValueError names its key if it is missing, too small or something else."""
    value = _given(config, meaning)
    if value is None and default is not None:
        return default
    name = next((name for name in NAMES[meaning] if config.get(name) is not None), NAMES[meaning][0])
    return _number(name, value, least)


def _number(name: str, value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        given = "is missing" if value is None else f"is {value!r}"
        raise ValueError(f"{name} {given}: it must be a whole number of at least {least}")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is no list of layers")
    return value
