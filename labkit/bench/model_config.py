"""Reads what each layer of a model keeps in its cache from the model's Hugging Face config.json.

One rule: what a token keeps × how far the layer reaches + what is fixed, each read from the layer's own config. A key
that may change the cache and that the rule does not read is refused, never passed over.
"""

from __future__ import annotations

import json
from collections import Counter
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

KINDS = {
    **dict.fromkeys(["full_attention", "attention"], "all"),
    **dict.fromkeys(["indexed_attention", "deepseek_sparse_attention"], "chosen"),
    **dict.fromkeys(["linear_attention", "mamba", "conv"], "state"),
    **dict.fromkeys(["moe", "mlp"], "nothing"),
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "hybrid": "all + state",
    "hybrid_sliding": "window + state",
    "compressed_sparse_attention": "compressed + chosen",
    "heavily_compressed_attention": "compressed",
}
"""How far a layer reaches, and what it has besides, by its name in `layer_types`."""

CODES = {
    "hybrid_layer_pattern": {"0": "full_attention", "1": "sliding_attention"},
    "no_rope_layers": {"0": "full_attention", "1": "chunked_attention"},
    "compress_ratios": {
        "0": "sliding_attention",
        "4": "compressed_sparse_attention",
        "128": "heavily_compressed_attention",
    },
}
"""Other lists with an entry for each layer, and what their numbers stand for."""

PERIODS = (
    *("full_attention_interval", "sliding_window_pattern", "_sliding_window_pattern", "layer_group_size"),
    *("global_attn_every_n_layers", "no_rope_layer_interval", "attn_layer_period"),
)
"""Keys that say that one layer of so many reaches over all: the last, or the one at `attn_layer_offset`."""

LETTERS = {"F": "full_attention", "W": "sliding_attention", "C": "chunked_attention", "L": "linear_attention"}
LETTERS |= {"H": "hybrid", "I": "indexed_attention", "M": "mamba", "*": "full_attention", "E": "moe", "-": "mlp"}
"""Kinds by the letters of `LIMITS`, `PATTERNS` and Nemotron's `hybrid_override_pattern`."""

LIMITS = {"window": "W", "chunk": "C", "chosen": "I", "linear value heads": "L", "state": "L", "convolution alone": "L"}
"""Sizes that only layers of one kind have."""

PATTERNS = {
    **dict.fromkeys(["mistral", "mixtral", "phi3", "starcoder2", "ministral"], "W"),
    **dict.fromkeys(["gpt_oss", "gemma2"], "WF"),
    **dict.fromkeys(["gemma3"], "WWWWWF"),
    **dict.fromkeys(["qwen3_next", "qwen3_5", "qwen3_5_moe"], "LLLF"),
    **dict.fromkeys(["mamba", "mamba2", "falcon_mamba"], "L"),
    **{"cohere2": "WWWF", "olmo3": "WWWF", "gemma3n": "WWWWF", "llama4": "CCCF"},
    **{"jamba": "LLLLFLLL", "bailing_hybrid": "LLLLLF", "falcon_h1": "H"},
}
"""Kinds that follow each other where a config lists none, by `model_type`: its class in transformers says so."""

HIDDEN = {
    **dict.fromkeys(["gemma4", "gemma4_unified", "embedding_gemma2", "diffusion_gemma"], "global_head_dim"),
    "mimo_v2_flash": "swa_num_key_value_heads",
}
"""Sizes that are not the same in all layers of a type, whether its config says so or not: then it is refused."""

READ = {
    *(name for names in NAMES.values() for name in names),
    *(*CODES, *PERIODS, *HIDDEN.values(), "layer_types", "layers_block_type", "hybrid_override_pattern"),
    *("linear_attn_config", "full_attn_idxs", "attn_layer_indices", "attn_layer_offset", "per_layer_config"),
    *("use_sliding_window", "max_window_layers", "compress_rates", "num_global_key_value_heads"),
    *("num_kv_shared_layers", "indexer_types"),
}
"""All keys that are read here; windows may have their own, with `swa_` before the name."""

WORDS = (
    *("layer", "head", "kv", "cache", "window", "compress", "share", "index", "chunk", "pattern", "block", "state"),
    *("sparse", "recurrent", "mem_", "cca_"),
)
"""A key with one of these in its name may change the cache; it is refused unless it is read or harmless."""

HARMLESS = (
    *("*layer*norm*", "*layerdrop*", "*_bias", "*_token_index", "use_cache", "rope_*", "layer_rope_theta", "lm_head_*"),
    *("vision_config", "audio_config", "vq_config", "*quantization_config", "id2label", "label2id"),
    *("*shared_expert*", "shared_intermediate_size", "share_expert_dim", "*moe_layer*", "moe_layers", "mlp_*layer*"),
    *("num_dense_layers", "expert_layer_*", "decoder_sparse_step", "*_layer_idx", "block_auto_adjust_ff_dim"),
    *("block_ffn_dim_multiplier", "block_multiple_of", "*_per_layer_input", "activation_sparsity_pattern"),
    *("qk_head_dim", "qk_nope_head_dim", "index_n_heads", "index_topk_freq", "num_attention_heads_per_layer"),
    *("num_sliding_attention_heads", "num_nextn_predict_layers", "mtp_*", "mamba_chunk_size", "chunk_size"),
    *("mamba_ssm_cache_dtype", "hybrid_layer_ids", "num_mem_blocks", "prefix_dense_sliding_window_pattern"),
    *("compress_rope_theta", "compress_rates.*", "linear_attn_config.*"),
)
"""Keys, or nested objects, with such words that leave the cache as it is: norms, experts, positions, queries, pieces of
a computation, layers that only propose tokens, and second ways of saying what `layer_types` says."""


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
    if _given(config, "layers")[1] is None and _listed(config) is None:
        raise ValueError(f"{path} is not a language model's configuration: it has no num_hidden_layers")
    return config


def layers_of(config: Config) -> list[LayerCache]:
    """What each layer keeps, from the first to the last.

    Raises ValueError for a key that is missing or no whole number, for a kind of layers that is not in `KINDS`, and for
    a key that may change the cache and is not read.
    """
    kinds = kinds_of(config)
    if unknown := Counter(kind for kind in kinds if kind not in KINDS):
        listed = ", ".join(f"{kind!r} ({count} layers)" for kind, count in unknown.items())
        raise ValueError(f"unknown kinds of layers: {listed}; known: {', '.join(KINDS)}")
    overrides = {int(layer): _object("per_layer_config", own) for layer, own in _per_layer(config).items()}
    for each in (config, *overrides.values()):
        if unread := _unread(each):
            raise ValueError(f"{unread[0]} may change the cache, and it is not read here")
    needed = HIDDEN.get(_model_type(config))
    if needed and not config.get(needed) and not overrides:
        raise ValueError(f"{needed} is missing: not all layers of {_model_type(config)} have the same sizes")
    single = any("compressed" in KINDS[kind] for kind in kinds)  # there a key is its own value
    own = [_own_config(config, i, len(kinds), KINDS[kind]) | overrides.get(i, {}) for i, kind in enumerate(kinds)]
    return _without_sharing(config, [_layer(*each, single) for each in zip(own, kinds, strict=True)])


def kinds_of(config: Config) -> list[str]:
    """The kind of each layer, by its name in the config, or by what the config says of all layers.

    Raises ValueError if the list and the number of layers disagree, and where nothing says which layers have a window,
    a state or the like.
    """
    kinds = _listed(config)
    if kinds is not None and _given(config, "layers")[1] is None:
        return kinds
    count = _whole(config, "layers")
    if count > MAX_LAYERS:
        raise ValueError(f"num_hidden_layers is {count}: more than {MAX_LAYERS:,} are not read")
    kinds = _followed(config, count) if kinds is None else kinds
    if len(kinds) != count:
        raise ValueError(f"it does not list one kind for each of its {count} layers")
    return kinds


def _listed(config: Config) -> list[str] | None:
    """The kinds that the config lists, in any of the ways that are in use; None if it lists none."""
    if key := next((key for key in ("layer_types", "layers_block_type") if config.get(key) is not None), None):
        return [str(kind) for kind in _list(key, config[key])]
    if letters := config.get("hybrid_override_pattern"):
        return [LETTERS.get(letter, letter) for letter in str(letters)]
    if linear := config.get("linear_attn_config"):
        kinds: dict[Any, str] = {}
        for key, kind in (("full_attn_layers", "full_attention"), ("kda_layers", "linear_attention")):
            listed = _list(f"linear_attn_config.{key}", _object("linear_attn_config", linear).get(key))
            kinds |= {layer: kind for layer in listed if isinstance(layer, int)}
        return [kinds[layer] for layer in range(1, _whole(config, "layers") + 1) if layer in kinds]  # counted from 1
    for key, codes in CODES.items():
        if config.get(key) and (key != "no_rope_layers" or _given(config, "chunk")[1]):
            listed = [codes.get(code, f"{key} {code}") for code in map(str, _list(key, config[key]))]
            # the ratios of layers that only propose tokens come last
            return listed[: _whole(config, "layers")] if key == "compress_ratios" else listed
    for key, other in (("full_attn_idxs", "conv"), ("attn_layer_indices", "mamba")):
        if config.get(key):
            full = _list(key, config[key])
            return ["full_attention" if i in full else other for i in range(_whole(config, "layers"))]
    return None


def _followed(config: Config, count: int) -> list[str]:
    """The kinds of a config that lists none: all full, or what a period or its model's pattern says."""
    limits = {meaning: letter for meaning, letter in LIMITS.items() if _given(config, meaning)[1] is not None}
    if config.get("use_sliding_window") is False:
        limits.pop("window", None)
    letters, pattern = set(limits.values()), PATTERNS.get(_model_type(config), "")
    if not limits:
        return ["full_attention"] * count
    if letters == {"I"}:
        return ["indexed_attention"] * count
    if letters == {"W"} and config.get("max_window_layers") is not None:
        full = _number("max_window_layers", config["max_window_layers"], least=0)
        return [LETTERS["F" if i < full else "W"] for i in range(count)]
    period = next((key for key in PERIODS if config.get(key)), None)
    if period and letters in ({"W"}, {"C"}):
        pattern = pattern or min(letters) + "F"
    if letters != set(pattern.replace("H", "L")) - {"F"}:
        key = _given(config, next(iter(limits)))[0]
        raise ValueError(
            f"it lists no layer_types, and no rule is known for the model_type {_model_type(config)!r}: which layers "
            f"have {key} is not said"
        )
    if period and "F" in pattern:
        every = _number(period, config[period])
        offset = _number("attn_layer_offset", config.get("attn_layer_offset", every - 1), least=0)
        return [LETTERS["F" if i % every == offset else pattern[0]] for i in range(count)]
    return [LETTERS[pattern[i % len(pattern)]] for i in range(count)]


def _own_config(config: Config, layer: int, count: int, kind: str) -> Config:
    """One layer's config: its entry in lists by layer, and sizes of windows alone or of layers that reach over all."""
    own = {key: v[layer] if isinstance(v, list) and len(v) == count else v for key, v in config.items()}
    if "window" in kind:
        own |= {key.removeprefix("swa_"): value for key, value in own.items() if key.startswith("swa_")}
    if "all" in kind and own.get("global_head_dim"):
        own["head_dim"] = own["global_head_dim"]
    if "all" in kind and own.get("num_global_key_value_heads") and own.get("attention_k_eq_v", True):
        own["num_key_value_heads"] = own["num_global_key_value_heads"]
    if linear := own.get("linear_attn_config"):
        names = {"linear_num_heads": "num_heads", "linear_head_dim": "head_dim"}
        names["linear_conv_kernel_dim"] = "short_conv_kernel_size"
        own |= {name: linear.get(key) for name, key in names.items()}
    return own


def _per_layer(config: Config) -> dict[str, Any]:
    """The sizes by layer that transformers writes, with numbers of layers as keys: "5", or "05" of ten or more."""
    layers = _object("per_layer_config", config.get("per_layer_config") or {})
    if wrong := [key for key in layers if not key.isdecimal()]:
        raise ValueError(f"per_layer_config has the key {wrong[0]!r}: it must be the number of a layer")
    return layers


def _unread(config: Config) -> list[str]:
    """The keys, those of nested objects too, that may change the cache and that nothing here reads."""
    keys = {key: value for key, value in config.items() if not _is_known(key)}
    inner = {
        f"{key}.{name}": v for key, value in config.items() if isinstance(value, dict) for name, v in value.items()
    }
    keys |= {name: value for name, value in inner.items() if not _is_known(*name.split(".", 1), name)}
    return [key for key, value in keys.items() if value and any(word in key.rpartition(".")[2] for word in WORDS)]


def _is_known(*keys: str) -> bool:
    return any(key.removeprefix("swa_") in READ or any(fnmatchcase(key, each) for each in HARMLESS) for key in keys)


def _layer(config: Config, name: str, single: bool) -> LayerCache:
    """What a token keeps × how far the layer reaches + what is fixed."""
    reach, _, besides = KINDS[name].partition(" + ")
    sizes: dict[str, Any] = _state(config) if "state" in (reach, besides) else {}
    if reach in ("state", "nothing"):
        return LayerCache("linear state" if sizes else "no cache", **sizes)
    sizes["numbers"] = _numbers(config, single)
    if reach in ("window", "chunk"):
        sizes["reach"] = _whole(config, reach)
    if "chosen" in (reach, besides):
        sizes |= {"index": _whole(config, "index"), "chosen": _whole(config, "chosen")}
    if reach == "compressed":
        ratios = {kind: int(ratio) for ratio, kind in CODES["compress_ratios"].items()}
        ratios |= _object("compress_rates", config.get("compress_rates") or {})
        sizes |= {"ratio": _number(f"compress_rates.{name}", ratios[name]), "recent": _whole(config, "window")}
    if besides == "chosen":  # a group is mixed with the one before, whose entries stay, and in float32 their weights
        sizes["conv"] = sizes["state"] = sizes["ratio"] * (sizes["numbers"] + sizes["index"])
    kind = {"all": "full", "chosen": "full"}.get(reach, reach)
    if _given(config, "latent")[1] is not None:
        kind = "MLA" if kind == "full" else f"{kind}, MLA"
    notes = (" + indexer" if "chosen" in (reach, besides) else "", " + linear state" if besides == "state" else "")
    return LayerCache(kind + "".join(notes), **sizes)


def _numbers(config: Config, single: bool) -> int:
    """Numbers that a token keeps: a latent vector, or keys and values, or one vector for both."""
    if _given(config, "latent")[1] is not None:
        return _whole(config, "latent") + _whole(config, "positions", least=0)
    heads = _whole(config, "heads")
    key_heads = _whole(config, "key heads", default=heads)
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        key_heads = 1
    width = _whole(config, "head width", default=0) or _whole(config, "width") // heads
    return key_heads * (width if single else width + _whole(config, "value width", default=width))


def _state(config: Config) -> dict[str, int]:
    """`conv`, the inputs of a short convolution, and `state`, a recurrent state, of a layer that has them."""
    if _given(config, "convolution alone")[1] is not None:
        return {"conv": _whole(config, "width") * _whole(config, "convolution alone")}
    if _given(config, "linear value heads")[1] is not None:  # a matrix for each head; a convolution over q, k and v
        width = _whole(config, "linear key width")
        keys = _whole(config, "linear key heads") * width
        values = _whole(config, "linear value heads") * _whole(config, "linear value width")
        return {"conv": (2 * keys + values) * _whole(config, "convolution"), "state": values * width}
    if _given(config, "state")[1] is None:
        raise ValueError("it has linear layers of a kind whose sizes are not known here")
    size, kernel = _whole(config, "state"), _whole(config, "convolution")
    if _given(config, "mamba groups")[1] is not None:  # Mamba-2: the convolution is over x, B and C
        channels = _whole(config, "mamba heads") * _whole(config, "mamba head width")
        return {"conv": (channels + 2 * _whole(config, "mamba groups") * size) * kernel, "state": channels * size}
    channels = _whole(config, "expansion") * _whole(config, "width")
    if "expand" in config and config.get("intermediate_size"):
        channels = _number("intermediate_size", config["intermediate_size"])
    return {"conv": channels * kernel, "state": channels * size}


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


def _model_type(config: Config) -> str:
    return str(config.get("model_type")).removesuffix("_text")


def _given(config: Config, meaning: str) -> tuple[str, Any]:
    """The key of that meaning, and its value; the first name and None if the config has none."""
    given = (name for name in NAMES[meaning] if config.get(name) is not None)
    return (name := next(given, NAMES[meaning][0])), config.get(name)


def _whole(config: Config, meaning: str, least: int = 1, default: int | None = None) -> int:
    name, value = _given(config, meaning)
    return default if value is None and default is not None else _number(name, value, least)


def _number(name: str, value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        given = "is missing" if value is None else f"is {value!r}"
        raise ValueError(f"{name} {given}: it must be a whole number of at least {least}")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is no list of layers")
    return value


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no JSON object")
    return value
