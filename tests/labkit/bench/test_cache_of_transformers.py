"""`lab model` against the cache objects of transformers, which its own models fill on the meta device, to the byte."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from labkit.bench.layer_cache import LayerCache, kept_bytes
from labkit.bench.model_config import PUBLISHED, kinds_of, layers_of, read_config

pytestmark = pytest.mark.slow
TOKENS = 20_000
GROUPED = 256
"""Tokens, a multiple of every ratio, for caches that transformers cannot make static."""
LAYERS = 8
LARGEST_ON_CPU = 300_000_000
"""Parameters of the models that run on the CPU where they do not run on the meta device."""
SMALL = {
    key: size
    for size, keys in {
        1: (
            "num_experts_per_tok",
            "num_experts_per_token",
            "moe_topk",
            "moe_k",
            "n_group",
            "topk_group",
            "num_expert_group",
        ),
        2: ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
        8: ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "ffn_dim"),
    }.items()
    for key in keys
}
"""Sizes that do not change the cache, reduced so that a model on the meta device is made quickly."""

MIXED = ["linear_attention", "full_attention"] * (LAYERS // 2)
FILLED = {
    "bamba": {"layer_types": MIXED},
    "deepseek_ocr2": {"mlp_layer_types": ["dense"] * 32},
    "deepseek_v2": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 1},
    "diffusion_gemma": {"num_experts": 2, "top_k_experts": 1, "moe_intermediate_size": 8},
    "dots1": {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": 1},
    "gemma3n_text": {"num_kv_shared_layers": 2},
    "glm46v": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 24, 24]}},
    "glm4v_moe": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [7, 7, 7]}},
    "granitemoehybrid": {"layer_types": MIXED},
    **{key: {"head_dim": 128} for key in ["hunyuan_v1_dense", "hunyuan_v1_moe", "ministral"]},
    "hunyuan_vl": {
        "head_dim": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 24, 24]},
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "nemotron": {"num_key_value_heads": 8},
    "qwen3_omni_moe_thinker": {"num_attention_heads": 32},
    "rembert": {"vocab_size": 1000},
    "step3p7": {"sliding_window": 512, "mlp_layer_types": ["dense"] * 45},
    "xmod": {"default_language": "en_XX"},
}
"""Values without which a default configuration makes no model, or one too large for the CPU."""

DIFFERENT = {
    "openai-gpt": "its class keeps no cache",
    "dots3_note": "its class keeps the indexer's keys in float32",
    "dots3_note_text": "its class keeps the indexer's keys in float32",
}
"""Why the cache of a type in transformers has other bytes."""

UNMEASURED = {
    "chameleon": "it needs a map of its vocabulary",
    "cohere_compass_text": "its default positions name other kinds of layers than it has",
    "gemma4_unified_assistant": "all its layers read another model's cache",
    "longcat_flash": "it reads the numbers of its experts, and is too large for the CPU",
}
"""Why the model of a type that is read here does not run."""

LEAST_RIGHT = 150
"""Types whose bytes are equal, at least: fewer mean that models no longer run here."""


@pytest.fixture(autouse=True)
def torch_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain torch instead of Triton's kernels, which do not run on the meta device, wherever a model has both."""
    hub_kernels = importlib.import_module("transformers.integrations.hub_kernels")
    monkeypatch.setattr(hub_kernels, "is_torchdynamo_exporting", lambda: True)
    import torch.fx.experimental._config as fx_config

    monkeypatch.setattr(fx_config, "meta_nonzero_assume_all_nonzero", True, raising=False)
    importlib.import_module("transformers").logging.set_verbosity_error()


@pytest.mark.parametrize("name", sorted(path.stem for path in PUBLISHED.glob("*.json")))
def test_published_configurations(name: str) -> None:
    import transformers

    config = read_config(PUBLISHED / f"{name}.json")
    theirs = transformers.AutoConfig.for_model(**config)
    if layer_types := getattr(theirs, "layer_types", None):
        assert layer_types == ["linear_attention" if kind == "mamba" else kind for kind in kinds_of(config)]
    kept = stored(theirs)
    assert kept is not None
    assert expected(layers_of(config), kept) == kept.layers


def test_all_model_types(tmp_path: Path) -> None:
    """No type of text model is read wrong: with all that its config says, and without its list of kinds."""
    outcomes: dict[str, dict[str, str]] = {}
    for name, theirs in default_configs():
        ways = {"as saved": read_here(tmp_path / "config.json", saved := json.loads(theirs.to_json_string()))}
        if without_kinds(saved):
            ways["without kinds"] = read_here(tmp_path / "config.json", saved)
        is_read = any(isinstance(way, list) for way in ways.values())
        kept = stored(theirs.get_text_config(decoder=True)) if is_read else None
        outcomes[name] = {how: way if isinstance(way, str) else compared(way, kept) for how, way in ways.items()}
    for how in ("as saved", "without kinds"):
        given = {name: each[how] for name, each in outcomes.items() if how in each}
        print(f"\n{how}: {dict(Counter(each.partition(':')[0] for each in given.values()))}")
        print(*(f"  {name}: {each}" for name, each in given.items() if each != "right"), sep="\n")
    for expected_names, outcome in ((DIFFERENT, "differs"), (UNMEASURED, "not measured")):
        found = {name for name, each in outcomes.items() if outcome in str(each)}
        assert found == expected_names.keys(), outcome
    assert sum(each["as saved"] == "right" for each in outcomes.values()) >= LEAST_RIGHT


def read_here(path: Path, saved: dict[str, Any]) -> list[LayerCache] | str:
    """The layers of a config.json, or why it is refused."""
    path.write_text(json.dumps(saved), encoding="utf-8")
    try:
        return layers_of(read_config(path))
    except ValueError as error:
        return f"refused: {str(error).removeprefix(f'{path} ')}"


def compared(layers: list[LayerCache], kept: Stored | None) -> str:
    """How the layers that are read here compare with those of transformers."""
    if kept is None:
        return "not measured"
    here = expected(layers, kept)
    if here == kept.layers:
        return "right"
    if len(here) != len(kept.layers):
        return f"differs: {len(here)} layers, there {len(kept.layers)}"
    layer = next(i for i, pair in enumerate(zip(here, kept.layers, strict=True)) if len(set(pair)) == 2)
    return f"differs: layer {layer}, {here[layer]} bytes, there {kept.layers[layer]}"


def without_kinds(saved: dict[str, Any]) -> bool:
    """Take out the list of kinds of layers, as many files on the Hub have none; whether there was one."""
    parts = [saved, *(part for part in saved.values() if isinstance(part, dict))]
    lists = [part.pop(key, None) for part in parts for key in ("layer_types", "layers_block_type")]
    return any(listed is not None for listed in lists)


class Stored(NamedTuple):
    """Bytes of each layer's cache in transformers after `tokens` tokens."""

    layers: list[int]
    tokens: int
    static: bool


def stored(config: Any) -> Stored | None:
    """What the layers store of one sequence in the model of this config; None if it does not run."""
    for key in SMALL.keys() & vars(config).keys():
        if isinstance(getattr(config, key), int) and not (key == "intermediate_size" and hasattr(config, "expand")):
            setattr(config, key, SMALL[key])
    config.is_decoder = True
    for device in ("meta", "cpu"):
        for static in (True, False) if device == "meta" else (True,):
            with contextlib.suppress(Exception):
                return run(config, static, device)
    return None


def run(config: Any, static: bool, device: str) -> Stored:
    import torch
    from transformers import DynamicCache, StaticCache

    n_tokens = 3 if static else GROUPED
    with torch.device("meta"):
        model = made(config)
    if device == "cpu":
        if sum(parameter.numel() for parameter in model.parameters()) > LARGEST_ON_CPU:
            raise ValueError("too large")
        model = made(config)
    cache = StaticCache(config=config, max_cache_len=TOKENS) if static else DynamicCache(config=config)
    with torch.device(device), torch.no_grad():
        model(torch.zeros(1, n_tokens, dtype=torch.long), cache=cache, use_cache=True)
    return Stored([sum(bytes_of(vars(layer))) for layer in cache.layers], TOKENS if static else n_tokens, static)


def made(config: Any) -> Any:
    """The model of a config, from transformers' lists or from the config's module."""
    import torch
    from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

    for auto in (AutoModelForCausalLM, AutoModel):
        if type(config) in auto._model_mapping:
            return auto.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    classes = [each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, PreTrainedModel)]
    own = [each for each in classes if each.config_class is type(config) and "PreTrained" not in each.__name__]
    return own[0]._from_config(config, dtype=torch.bfloat16, attn_implementation="eager")


def bytes_of(kept: Any, seen: set[int] | None = None) -> Iterator[int]:
    """Bytes of the numbers in a layer's attributes, each tensor once; counters, which are whole numbers, left out."""
    import torch

    seen = set() if seen is None else seen
    for value in kept.values() if isinstance(kept, dict) else kept:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and id(value) not in seen:
            seen.add(id(value))
            yield value.nbytes
        elif isinstance(value, dict | list):
            yield from bytes_of(value, seen)


def expected(layers: list[LayerCache], kept: Stored) -> list[int]:
    """Bytes of each layer, without the token being computed where transformers' growing windows leave it out."""
    left_out = [0 if kept.static or kept.tokens < (layer.reach or layer.recent or math.inf) else 2 for layer in layers]
    return [kept_bytes(layer, kept.tokens) - n * layer.numbers for layer, n in zip(layers, left_out, strict=True)]


def default_configs() -> Iterator[tuple[str, Any]]:
    """The default configuration of each type of text model, and of each type with a text part of a class of its own."""
    from transformers.models.auto import configuration_auto, modeling_auto

    classes = set()
    with_images = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    for name in dict.fromkeys([*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *with_images]):
        made = configuration_auto.CONFIG_MAPPING[name]
        for sizes in ({"num_hidden_layers": LAYERS}, {}):
            with contextlib.suppress(Exception):
                config = made(**sizes)
                text = config.get_text_config(decoder=True)
                for key, value in FILLED.get(name, {}).items():
                    setattr(text, key, value)
                if type(text) not in classes or name not in with_images:
                    classes.add(type(text))
                    yield name, config
                break
