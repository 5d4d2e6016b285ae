"""The memory of a whole model: its closed forms against published tables, and against layers that torch runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

from labkit.bench.model_command import sizes_of
from labkit.bench.model_memory import MODELS, ModelSizes, attention_bytes, gpt, layer_bytes, training_memory
from labkit.commands.app import app
from labkit.meters.tensors import kept_by_forward

BATCH, SEQ_LEN = 2, 48
SMALL = {
    "as GPT": ModelSizes(1, 96, 6, kv_heads=6, head_dim=16, ffn=384, vocab=10, gated=False, biases=True),
    "as Llama": ModelSizes(1, 96, 6, kv_heads=6, head_dim=16, ffn=250, vocab=10),
    "as Llama, shared keys": ModelSizes(1, 96, 6, kv_heads=2, head_dim=24, ffn=250, vocab=10),
}
NORM_COLUMNS = 4
"""Mean and deviation of two norms: one number a token each, which the closed forms leave out."""


class Layer(nn.Module):
    """One layer in torch's own operators, its norms fused."""

    def __init__(self, sizes: ModelSizes, attention: str) -> None:
        super().__init__()
        self.sizes, self.attention = sizes, attention
        self.norms = nn.ModuleList(nn.LayerNorm(sizes.hidden, bias=sizes.biases) for _ in range(2))
        widths = (sizes.query_width, sizes.kv_width, sizes.kv_width)
        self.qkv = nn.ModuleList(nn.Linear(sizes.hidden, width, sizes.biases) for width in widths)
        self.out = nn.Linear(sizes.query_width, sizes.hidden, sizes.biases)
        self.up = nn.ModuleList(
            nn.Linear(sizes.hidden, sizes.ffn, sizes.biases) for _ in range(2 if sizes.gated else 1)
        )
        self.down = nn.Linear(sizes.ffn, sizes.hidden, sizes.biases)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norms[0](x)
        q, k, v = (project(normed).unflatten(-1, (-1, self.sizes.head_dim)).transpose(1, 2) for project in self.qkv)
        if self.attention == "fused":
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            mixed = (q @ k.mT / self.sizes.head_dim**0.5).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        normed = self.norms[1](x)
        if self.sizes.gated:
            return x + self.down(functional.silu(self.up[0](normed)) * self.up[1](normed))
        return x + self.down(functional.gelu(self.up[0](normed)))


@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        ("as GPT", "written_out"),
        ("as GPT", "fused"),
        ("as Llama", "written_out"),
        ("as Llama", "fused"),
        ("as Llama, shared keys", "fused"),  # written out, torch's product would copy them for each head
    ],
)
def test_a_layer_keeps_the_bytes_of_the_closed_form(kind, attention):
    sizes = SMALL[kind]
    layer = Layer(sizes, attention).bfloat16()
    x = torch.zeros(BATCH, SEQ_LEN, sizes.hidden, dtype=torch.bfloat16, requires_grad=True)
    tokens = BATCH * SEQ_LEN
    closed_form = tokens * (layer_bytes(sizes) + attention_bytes(sizes, SEQ_LEN, attention))
    assert kept_by_forward(layer, x) + x.nbytes == closed_form + tokens * NORM_COLUMNS * x.itemsize


@pytest.mark.parametrize("sizes", [*SMALL.values(), gpt(1, 96, 6, vocab=10, positions=0)], ids=[*SMALL, "gpt"])
def test_parameters_of_a_layer(sizes):
    layer = Layer(sizes, "fused")
    torchs = sum(parameter.numel() for parameter in layer.parameters())
    two_layers = ModelSizes(**{**vars(sizes), "layers": 2})
    assert two_layers.parameters - sizes.parameters == torchs


class TestPublished:
    """Closed forms against published numbers."""

    @pytest.mark.parametrize(
        ("name", "parameters"),
        [
            ("gpt-2", 124_439_808),
            ("gpt-2-xl", 1_557_611_200),
            ("llama-3.2-1b", 1_235_814_400),
            ("llama-3-8b", 8_030_261_248),
            ("mistral-7b", 7_241_732_096),
        ],
    )
    def test_parameters_of_the_published_models(self, name, parameters):
        assert MODELS[name].parameters == parameters

    def test_gpt_3_has_175_thousand_millions(self):
        assert round(MODELS["gpt-3"].parameters / 1e9) == 175

    @pytest.mark.parametrize("name", ["gpt-2", "gpt-3"])
    @pytest.mark.parametrize("seq_len", [1024, 2048])
    def test_korthikantis_formula_for_a_layer(self, name, seq_len):
        sizes = MODELS[name]
        for_a_token = layer_bytes(sizes) + attention_bytes(sizes, seq_len, "written_out")
        assert for_a_token == 34 * sizes.hidden + 5 * sizes.heads * seq_len

    @pytest.mark.parametrize(("sizes", "percent"), [(MODELS["gpt-3"], 70), (gpt(105, 20480, 128), 65)])
    def test_what_selective_recomputation_saves_of_a_layer(self, sizes, percent):
        inside = attention_bytes(sizes, 2048, "written_out")
        assert round(100 * inside / (layer_bytes(sizes) + inside)) == percent

    def test_zeros_sixteen_bytes_a_parameter(self):
        parts = training_memory(MODELS["gpt-2-xl"], 1, 1024)
        states = sum(parts[name] for name in ("weights", "gradients", "optimizer"))
        assert states == 16 * MODELS["gpt-2-xl"].parameters
        assert round(states / 1e9) == 25  # "at least 24 GB" for 1.5 thousand million parameters


class TestTrainingMemory:
    """How the parts depend on each other."""

    def test_a_checkpoint_around_each_layer_leaves_inputs_and_one_layer(self):
        sizes = MODELS["llama-3.2-1b"]
        whole, pieces = (training_memory(sizes, 3, 100, "fused", choice) for choice in ("none", "layers"))
        dropped = (sizes.layers - 1) * (layer_bytes(sizes) - 2 * sizes.hidden)
        assert whole["activations"] - pieces["activations"] == 300 * dropped
        assert whole["attention"] == sizes.layers * pieces["attention"]

    def test_doubling_the_length_doubles_all_activations_but_the_written_out_attention(self):
        short, long = (training_memory(MODELS["llama-3-8b"], 1, n, "written_out") for n in (512, 1024))
        growth = {name: long[name] / short[name] for name in short}
        states = {"weights": 1, "gradients": 1, "optimizer": 1}
        assert growth == states | {"activations": 2, "attention": 4, "logits": 2}


class TestCommand:
    """`lab model` on the command line."""

    def test_the_parts_are_those_of_the_closed_form(self):
        done = CliRunner().invoke(app, ["model", "llama-3.2-1b", "--seq-len", "512", "--attention", "written_out"])
        assert done.exit_code == 0, done.output
        assert done.stdout.startswith("llama-3.2-1b: 1,235,814,400 parameters")
        shown = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if line.split()[1:]}
        parts = training_memory(MODELS["llama-3.2-1b"], 1, 512, "written_out")
        assert {name: shown[name] for name in parts} == {name: f"{nbytes:,}" for name, nbytes in parts.items()}
        assert shown["total"] == f"{sum(parts.values()):,}"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["nope"], "there is no model 'nope'"),
            ([], "or --layers, --hidden and --heads"),
            (["--layers", "4"], "or --layers, --hidden and --heads"),
            (["gpt-2", "--checkpoint", "some"], "checkpoint must be one of none, selective, layers, got 'some'"),
            (["gpt-2", "--attention", "flash"], "attention must be one of written_out, fused, got 'flash'"),
            (["gpt-2", "--batch-size", "0"], "batch must be at least 1, got 0"),
            (["gpt-2", "--layers", "4"], "or --layers, --hidden and --heads"),
            (["--layers", "4", "--hidden", "8", "--heads", "-1"], "heads must be at least 1"),
        ],
    )
    def test_errors_are_one_line(self, arguments, message):
        done = CliRunner().invoke(app, ["model", *arguments])
        assert done.exit_code == 1
        assert message in done.output
        assert "Traceback" not in done.output

    def test_sizes_without_a_name(self):
        assert sizes_of(None, 4, 256, 4) == gpt(4, 256, 4)
