"""The calculator of "Attention's memory in six numbers" against `lab model`, and the page's own numbers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from labkit.bench.cache_report import summed
from labkit.bench.model_config import PUBLISHED, layers_of, read_config
from labkit.labs.catalog import ROOT
from labstaff.derive.calculator import SCRIPT, refresh_script, script
from tests.docs.page_script import PageScript

NAMES = sorted(path.stem for path in PUBLISHED.glob("*.json"))
LAYERS = """text => {
  try {
    return { layers: sixNumbers.layersOf(sixNumbers.readConfig(text)) };
  } catch (error) {
    return { refused: error.message };
  }
}"""
SUMMED = "(text, tokens, bits) => sixNumbers.summed(sixNumbers.layersOf(sixNumbers.readConfig(text)), tokens, bits)"

SMALL = {"model_type": "llama", "num_hidden_layers": 8, "num_attention_heads": 4, "hidden_size": 64}
MAMBA = {"ssm_state_size": 16, "conv_kernel": 4, "expand": 2}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
V4 = {"num_key_value_heads": 1, "sliding_window": 8, "index_head_dim": 4, "index_topk": 2}
READ = {
    "gpt2's names": {"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 64},
    "one window for all": {"model_type": "mistral", "sliding_window": 16},
    "windows switched off": {"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": False},
    "windows after some layers": {"model_type": "qwen2", "sliding_window": 16, "max_window_layers": 3},
    "a pattern": {"model_type": "gemma2", "sliding_window": 16},
    "a period": {"model_type": "new", "sliding_window": 16, "sliding_window_pattern": 4},
    "a period and an offset": {"model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4}
    | {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2},
    "states": {"model_type": "mamba", "intermediate_size": 128} | MAMBA,
    "states and a pattern": {"model_type": "qwen3_next", "linear_conv_kernel_dim": 4} | DELTA,
    "a short convolution": {"full_attn_idxs": [2, 5], "conv_L_cache": 3},
    "letters": {"hybrid_override_pattern": "M*E-M*E-", "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2}
    | MAMBA,
    "both in one layer": {"model_type": "falcon_h1", "n_groups": 1, "mamba_n_heads": 4, "mamba_d_head": 8} | MAMBA,
    "chunks": {"no_rope_layers": [1, 1, 1, 0] * 2, "attention_chunk_size": 32},
    "numbers for kinds": {"hybrid_layer_pattern": [0, 1] * 4, "sliding_window": 16, "swa_head_dim": 8},
    "sizes by layer": {"per_layer_config": {"05": {"head_dim": 32, "num_key_value_heads": 8}}},
    "a list of sizes": {"num_key_value_heads": [1, 2, 4, 4, 2, 1, 1, 1]},
    "sizes of full layers": {"layer_types": ["sliding_attention", "full_attention"] * 4, "sliding_window": 16}
    | {"global_head_dim": 32, "num_global_key_value_heads": 1},
    "one head for all": {"multi_query": True},
    "two widths": {"v_head_dim": 8},
    "a latent vector": {"kv_lora_rank": 32, "qk_rope_head_dim": 0},
    "a window over it": {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "sliding_window": 16}
    | {"layer_types": ["sliding_attention", "full_attention"] * 4},
    "a shared index": {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "index_head_dim": 4, "index_topk": 16}
    | {"indexer_types": ["full", "shared"] * 4},
    "shared layers": {"num_kv_shared_layers": 3},
    "compressed": {"compress_ratios": [0, 4, 128, 4, 128, 4, 128, 4, 0]} | V4,
    "other ratios": {"layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"] * 4}
    | {"compress_rates": {"compressed_sparse_attention": 8, "heavily_compressed_attention": 64}}
    | V4,
    "empty lists": {"per_layer_config": {}, "indexer_types": [], "compress_ratios": []},
    "a part of it": {"vision_config": {"depth": 3}, "text_config": SMALL},
    "harmless keys": {"rope_scaling_layers": 1, "layer_norm_eps": 1e-5, "moe_layers": [1], "swa_window": None},
}
"""Parts of configurations, each of which needs another branch of the rules."""

REFUSED = {
    "no rule": {"model_type": "mimo", "sliding_window": 16},
    "unknown kinds": {"layer_types": ["full_attention"] * 6 + ["quick"] * 2},
    "too few kinds": {"layer_types": ["full_attention"]},
    "unknown letters": {"hybrid_override_pattern": "Q" * 8},
    "unknown ratios": {"compress_ratios": [3] * 8},
    "an unread key": {"kv_cache_ratio": 4},
    "an unread key within": {"cache": {"kv_heads": 4}},
    "a text for a number": {"num_attention_heads": "4"},
    "no whole number": {"num_attention_heads": 4.5},
    "truth for a number": {"num_attention_heads": -1},
    "no window": {"layer_types": ["sliding_attention"] * 8},
    "no state": {"layer_types": ["linear_attention"] * 8},
    "no list": {"model_type": "kimi_linear", "linear_attn_config": {"kda_layers": [1], "full_attn_layers": 2}},
    "too few in lists": {
        "model_type": "kimi_linear",
        "linear_attn_config": {"kda_layers": [1], "full_attn_layers": []},
    },
    "no object": {"model_type": "kimi_linear", "linear_attn_config": [1]},
    "no sizes by layer": {"per_layer_config": {"1": [3]}},
    "no number of a layer": {"per_layer_config": {"x": {}}},
    "hidden sizes": {"model_type": "gemma4_text"},
    "too many shared": {"num_kv_shared_layers": 9},
    "too many": {"num_hidden_layers": 10_001},
    "no layers": {"num_hidden_layers": None},
    "nothing": {"num_hidden_layers": 0},
}


@pytest.fixture(scope="module")
def page() -> PageScript:
    return PageScript("six_numbers", "rules.js", "config.js", "bytes.js")


def test_the_script_is_fresh(tmp_path: Path) -> None:
    assert (ROOT / SCRIPT).read_text(encoding="utf-8") == script(), f"{SCRIPT} is stale; run: uv run lab build"
    (tmp_path / SCRIPT).parent.mkdir(parents=True)
    assert (refresh_script(tmp_path), refresh_script(tmp_path)) == ([tmp_path / SCRIPT], [])


@pytest.mark.parametrize("name", NAMES)
def test_shipped_configurations(page: PageScript, name: str) -> None:
    path = PUBLISHED / f"{name}.json"
    layers, text = layers_of(read_config(path)), path.read_text(encoding="utf-8")
    assert page(LAYERS, text) == {"layers": [asdict(layer) for layer in layers]}
    for tokens, bits in ((1, 16), (777, 4), (131_072, 16), (1_048_576, 8)):
        expected = summed(layers, tokens, bits)
        given = page(SUMMED, text, tokens, bits)
        assert given == {
            "furtherToken": expected["further token"],
            **{part: expected[part] for part in ("fixed", "cache", "read")},
        }


@pytest.mark.parametrize("case", READ)
def test_every_rule(page: PageScript, tmp_path: Path, case: str) -> None:
    config = json.dumps(SMALL | READ[case])
    here = read_here(tmp_path, config)
    assert "layers" in here, here
    assert page(LAYERS, config) == here


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(page: PageScript, tmp_path: Path, case: str) -> None:
    config = json.dumps(SMALL | REFUSED[case])
    here = read_here(tmp_path, config)
    assert "refused" in here, here
    assert page(LAYERS, config) == here


@pytest.mark.parametrize("content", ["{", "[1]", "{}", ""])
def test_what_is_no_configuration(page: PageScript, tmp_path: Path, content: str) -> None:
    here, there = read_here(tmp_path, content)["refused"], page(LAYERS, content)["refused"]
    assert here.partition(":")[0] == there.partition(":")[0]


@pytest.mark.slow
def test_all_model_types_of_transformers(page: PageScript, tmp_path: Path) -> None:
    """Default configurations, with their list of kinds of layers and without it, are read and refused alike."""
    from tests.labkit.bench.test_cache_of_transformers import default_configs, without_kinds

    read = 0
    for name, theirs in default_configs():
        saved = json.loads(theirs.to_json_string())
        for _ in range(2):
            here = read_here(tmp_path, json.dumps(saved))
            assert page(LAYERS, json.dumps(saved)) == here, name
            read += "layers" in here
            without_kinds(saved)
    assert read > 200


def read_here(folder: Path, content: str) -> dict[str, Any]:
    """What `lab model` makes of a config.json: its layers, or the reason why not."""
    path = folder / "config.json"
    path.write_text(content, encoding="utf-8")
    try:
        return {"layers": [asdict(layer) for layer in layers_of(read_config(path))]}
    except ValueError as error:
        return {"refused": str(error).replace(str(path), "config.json")}


def test_the_pages_numbers(page: PageScript) -> None:
    """The six numbers of Llama-3.1-8B, and those that the sections derive from them."""
    text = " ".join((ROOT / "docs" / "six_numbers.md").read_text(encoding="utf-8").split())
    llama = summed(layers_of(read_config(PUBLISHED / "llama-3.1-8b.json")), 131_072)
    gpu = {"memory": 81_559 * 2**20, "weights": 2 * 8_030_261_248, "bandwidth": 3.35e12}
    given = page("sixNumbers.onGpu", {"cache": llama["cache"], "read": llama["read"]}, gpu | {"users": 4})
    half = page("sixNumbers.onGpu", {"cache": llama["cache"] // 2, "read": llama["read"] // 2}, gpu | {"users": 4})
    short = page("sixNumbers.onGpu", {"cache": llama["cache"] // 16, "read": 0}, gpu | {"users": 1})
    alone = page("sixNumbers.onGpu", {"cache": 1, "read": llama["read"]}, gpu | {"users": 1})
    assert given["fit"] == 4
    for part in (
        f"| 1. bytes that a token leaves behind | {llama['further token']:,} |",
        f"| 2. bytes that a user's cache takes | {llama['cache'] // 2**30} GiB |",
        f"| 4. time to read them | {given['cacheMs']:.2f} ms |",
        f"| 5. users that fit next to the weights | {given['fit']} |",
        f"| 6. time of a step for all of them | {given['stepMs']:.1f} ms |",
        f"are {4000 / given['stepMs']:.0f} tokens/s in all",
        f"wait {alone['stepMs']:.1f} ms",
        f"the step takes {half['stepMs']:.1f} ms instead of",
        f"halve number 2, and {half['fit']} users fit",
        f"hold {short['fit']} of 8,192 tokens",
    ):
        assert part in text, part


def test_users_and_milliseconds(page: PageScript) -> None:
    """Llama-3.1-8B by hand: 16 GiB of cache at 131,072 tokens, on an H100 next to weights of 16.06 GB."""
    cache = 131_072 * 131_072
    gpu = {"memory": 81_559 * 2**20, "weights": 16.06e9, "bandwidth": 3.35e12, "users": 2}
    on_gpu = page("sixNumbers.onGpu", {"cache": cache, "read": cache}, gpu)
    assert on_gpu["fit"] == 4
    assert on_gpu["cacheMs"] == pytest.approx(5.128, abs=1e-3)
    assert on_gpu["stepMs"] == pytest.approx(1000 * (16.06e9 + 2 * cache) / 3.35e12)
    assert page("sixNumbers.onGpu", {"cache": cache, "read": cache}, gpu | {"weights": 1e12})["fit"] == 0
    assert page("sixNumbers.onGpu", {"cache": 0, "read": 0}, gpu)["fit"] is None
