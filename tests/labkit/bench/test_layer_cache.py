"""The cache by kind of layer: published numbers, published configurations, and the cache objects of transformers."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from typer.testing import CliRunner

from labkit.bench.cache_report import summed
from labkit.bench.layer_cache import LayerCache, equal_pages_bytes, kept_bytes, read_bytes, token_bytes
from labkit.bench.model_config import PUBLISHED, layers_of, read_config
from labkit.commands.app import app

NAMES = sorted(path.stem for path in PUBLISHED.glob("*.json"))
LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
KIMI = LLAMA | {"model_type": "kimi_linear"}


def published(name: str) -> list[LayerCache]:
    return layers_of(read_config(PUBLISHED / f"{name}.json"))


class TestPublishedNumbers:
    """What papers and issues report of the same models."""

    def test_bytes_of_a_token_of_deepseek_v3(self):
        # Insights into DeepSeek-V3, table 1: 70.272 kB.
        assert sum(map(token_bytes, published("deepseek-v3"))) == 70_272

    def test_equal_pages_of_gpt_oss(self):
        # hf-mem, pull request 70: 6.09 GiB by windows and 12.00 GiB as allocated, 49.22 % less.
        totals = summed(published("gpt-oss-20b"), 8192)
        cache, equal = 32 * totals["cache"], 32 * totals["equal pages"]
        assert (round(cache / 2**30, 2), equal) == (6.09, 12 * 2**30)
        assert round(100 * (1 - cache / equal), 2) == 49.22

    @pytest.mark.parametrize(
        ("windows", "reach", "tokens", "share"), [(1, 4096, 8192, 0.25), (3, 32_768, 131_072, 0.5625)]
    )
    def test_waste_of_equal_pages(self, windows, reach, tokens, share):
        # vLLM, issue 11382: 25 % in Gemma 2 (one window to one), 56.25 % in Ministral (three to one).
        layers = [LayerCache("window", 8, reach=reach)] * windows + [LayerCache("full", 8)]
        kept = sum(kept_bytes(layer, tokens) for layer in layers)
        assert 1 - kept / equal_pages_bytes(layers, tokens) == share

    def test_equal_pages_are_as_large_as_the_largest_layer_needs(self):
        # Gemma 4: a window's layer keeps 2 · 8 · 256 numbers a token, a full one 2 · 2 · 512.
        assert summed(published("gemma-4-26b-a4b"), 131_072)["equal pages"] == 30 * 131_072 * 2 * 8 * 256 * 2

    def test_equal_pages_waste_nothing_where_all_layers_are_equal(self):
        layers = [LayerCache("window", 8, reach=16), LayerCache("linear state", state=5)]
        assert equal_pages_bytes(layers, 99) == sum(kept_bytes(layer, 99) for layer in layers)

    @pytest.mark.parametrize(
        ("name", "kinds", "further_token", "fixed"),
        [
            ("deepseek-v3.2", {"MLA + indexer": 61}, 61 * (512 + 64 + 128) * 2, 0),
            ("gemma-3-27b", {"window": 52, "full": 10}, 10 * 2 * 16 * 128 * 2, 0),
            ("gemma-4-26b-a4b", {"window": 25, "full": 5}, 5 * 2 * 2 * 512 * 2, 0),
            ("glm-5.2", {"MLA + indexer": 21, "MLA, shared index": 57}, 78 * 576 * 2 + 21 * 128 * 2, 0),
            ("gpt-oss-120b", {"window": 18, "full": 18}, 18 * 2 * 8 * 64 * 2, 0),
            ("kimi-linear-48b-a3b", {"linear state": 20, "MLA": 7}, 7 * 576 * 2, 20 * 32 * 128 * (128 * 4 + 3 * 4 * 2)),
            ("llama-4-scout", {"chunk": 36, "full": 12}, 12 * 2 * 8 * 128 * 2, 0),
            (
                "nemotron-3-nano-30b-a3b",
                {"linear state": 23, "no cache": 23, "full": 6},
                6 * 2 * 2 * 128 * 2,
                23 * (64 * 64 * 128 * 4 + (64 * 64 + 2 * 8 * 128) * 4 * 2),
            ),
            (
                "qwen3-next-80b-a3b",
                {"linear state": 36, "full": 12},
                12 * 2 * 2 * 256 * 2,
                36 * (32 * 128 * 128 * 4 + (2 * 16 + 32) * 128 * 4 * 2),
            ),
        ],
    )
    def test_by_hand_at_128k_tokens(self, name, kinds, further_token, fixed):
        layers = published(name)
        totals = summed(layers, 131_072)
        assert Counter(layer.kind for layer in layers) == kinds
        assert (totals["further token"], totals["fixed"]) == (further_token, fixed)


class TestBytes:
    """Closed forms of one layer."""

    def test_a_window_stops_growing(self):
        layer = LayerCache("window", 64, reach=100)
        assert [kept_bytes(layer, n) for n in (99, 100, 101, 5000)] == [99 * 128, 12_800, 12_800, 12_800]

    def test_an_indexer_reads_all_its_keys_and_few_latent_vectors(self):
        layer = LayerCache("MLA + indexer", 576, 128, chosen=2048)
        assert read_bytes(layer, 131_072) == 2 * (131_072 * 128 + 2048 * 576)
        assert read_bytes(layer, 1000) == kept_bytes(layer, 1000) == 2 * 1000 * 704

    def test_bits_of_the_cache_leave_the_state_alone(self):
        layer = LayerCache("linear state", conv=16, state=100)
        assert [kept_bytes(layer, 7, bits) for bits in (4, 16)] == [8 + 400, 32 + 400]


class TestConfig:
    """Reading a config: what it must say, and what is not guessed."""

    def test_a_window_needs_no_layer_types_in_mistral(self):
        config = LLAMA | {"model_type": "mistral", "sliding_window": 16}
        assert layers_of(config) == [LayerCache("window", 2 * 4 * 16, reach=16)] * 2
        assert layers_of(config | {"sliding_window": None}) == [LayerCache("full", 2 * 4 * 16)] * 2

    def test_each_layer_has_its_own_config(self):
        """As transformers writes it where layers differ: with one rule for all, half of the bytes were missing."""
        config = LLAMA | {"per_layer_config": {"1": {"head_dim": 32, "num_key_value_heads": 8}}}
        assert layers_of(config) == [LayerCache("full", 2 * 4 * 16), LayerCache("full", 2 * 8 * 32)]
        with pytest.raises(ValueError, match="per_layer_config is no JSON object"):
            layers_of(LLAMA | {"per_layer_config": {"1": [3]}})

    def test_a_window_over_a_latent_vector(self):
        latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "sliding_window": 128}
        config = LLAMA | latent | {"layer_types": ["sliding_attention", "full_attention"]}
        assert layers_of(config) == [LayerCache("window, MLA", 576, reach=128), LayerCache("MLA", 576)]

    def test_other_names_of_the_same_sizes(self):
        config = {"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 64}
        assert layers_of(config) == [LayerCache("full", 2 * 4 * 16)] * 2

    def test_shared_layers_keep_nothing(self):
        assert [layer.kind for layer in layers_of(LLAMA | {"num_kv_shared_layers": 1})] == ["full", "shared"]

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            (
                LLAMA | {"model_type": "mimo", "sliding_window": 16},
                "lists no layer_types, and no rule is known for the model_type 'mimo'",
            ),
            (LLAMA | {"layer_types": ["full_attention", "quick"]}, "unknown kinds of layers: 'quick' (1 layers)"),
            (LLAMA | {"layer_types": ["full_attention"]}, "does not list one kind for each of its 2 layers"),
            (LLAMA | {"kv_cache_ratio": 4}, "kv_cache_ratio may change the cache, and it is not read here"),
            (LLAMA | {"num_attention_heads": "4"}, "num_attention_heads is '4': it must be a whole number"),
            (LLAMA | {"layer_types": ["sliding_attention"] * 2}, "sliding_window is missing"),
            (LLAMA | {"layer_types": ["linear_attention"] * 2}, "of a kind whose sizes are not known"),
            (KIMI | {"linear_attn_config": {"kda_layers": [1], "full_attn_layers": []}}, "one kind for each"),
            (KIMI | {"linear_attn_config": {"kda_layers": [1], "full_attn_layers": 2}}, "full_attn_layers is no list"),
            (KIMI | {"linear_attn_config": [1]}, "linear_attn_config is no JSON object"),
            (LLAMA | {"num_hidden_layers": 10**30}, "more than 10,000 are not read"),
        ],
    )
    def test_nothing_is_guessed(self, config, message):
        with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
            layers_of(config)
        assert message in str(error.value)


class TestCommand:
    """`lab model CONFIG.json` on the command line."""

    def test_table_and_totals(self):
        done = CliRunner().invoke(app, ["model", "gpt-oss-20b", "--tokens", "8192", "--batch", "32"])
        assert done.exit_code == 0, done.output
        rows = [line.split() for line in done.stdout.splitlines()]
        assert ["12", "window,", "the", "last", "128", "tokens", "2,048", "0", "100,663,296", "0.094", "0.094"] in rows
        assert ["all", "6,543,114,240", "6.094", "6.094"] in rows
        assert "Equal pages for all layers: 12.000 GiB, of which 49.2% would hold nothing in use." in done.stdout
        assert "sinks are learned numbers" in done.stdout

    def test_a_file(self, tmp_path):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"vision_config": {}, "text_config": LLAMA}))
        done = CliRunner().invoke(app, ["model", str(path), "--bits", "8"])
        assert done.exit_code == 0, done.output
        assert "A further token adds 256 bytes" in done.stdout

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"{", "is not JSON"),
            (b"\xff\xfe", "is not JSON"),
            (b"[" * 100_000, "is not JSON"),
            (b"[1]", "holds no JSON object"),
            (b"{}", "has no num_hidden_layers"),
            (
                json.dumps(LLAMA | {"model_type": "x", "sliding_window": 4}).encode(),
                "no rule is known for the model_type 'x'",
            ),
            (None, "No such file or directory"),
        ],
    )
    def test_errors_are_one_line(self, tmp_path, content, message):
        path = tmp_path / "config.json"
        if content is not None:
            path.write_bytes(content)
        done = CliRunner().invoke(app, ["model", str(path)])
        assert done.exit_code == 1
        assert message in done.output
        assert len(done.output.strip().splitlines()) == 1

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--tokens", "0"], "tokens must be at least 1, got 0"),
            (["--batch", "0"], "batch must be at least 1, got 0"),
            (["--bits", "3"], "bits must be one of 4, 8, 16, 32, got 3"),
            (["--layers", "2"], "leave out --layers, --hidden and --heads"),
        ],
    )
    def test_wrong_options(self, options, message):
        done = CliRunner().invoke(app, ["model", "gpt-oss-20b", *options])
        assert (done.exit_code, message in done.output) == (1, True)
