"""Words to tokens and back: byte-level BPE, its tables and chat template from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SPECIAL = 3
"""The type of a token that stands for no text, like the end of an answer."""
REPLACEMENT = "\ufffd"
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


class TokenizerError(Exception):
    """The file's tokenizer cannot be used; the message says why."""


class TextError(ValueError):
    """A text that has no UTF-8 form; the message names the character."""


class Text:
    """Encodes and decodes text; the tables are as in the file.

    `ends` are the tokens that end an answer, the model's own end of a text first. `template` is the Jinja source of the
    chat format, "" without one.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        merges: Sequence[str] = (),
        *,
        pre: str = "default",
        special: Sequence[str] = (),
        ends: Sequence[int] = (),
        first: int | None = None,
        template: str = "",
    ) -> None:
        from tokenizers import Tokenizer, decoders, models

        self.tokens, self.merges, self.pre = list(tokens), list(merges), pre
        self.ends, self.first, self.template = tuple(ends), first, template
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        vocabulary = {token: number for number, token in enumerate(tokens)}
        self._tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
        self._tokenizer.pre_tokenizer = _pre_tokenizer(pre)
        self._tokenizer.decoder = decoders.ByteLevel()
        self._tokenizer.add_special_tokens(list(special))

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`; names of special tokens in it become these tokens.

        Raises:
            TextError: `text` is not Unicode text.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = ascii(text[error.start])
            raise TextError(f"the text is not Unicode: {half} is half of a surrogate pair, or no UTF-8") from None
        begin = [] if self.first is None else [self.first]
        return begin + self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special ones left out; bytes that are no UTF-8 become U+FFFD."""
        return self._tokenizer.decode(list(tokens))

    def decode_each(self, token: int) -> str:
        """One token as text, the names of special ones included."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def chat(self, question: str) -> list[int]:
        """The tokens after which the model answers `question`; without a chat template the question's own."""
        if not self.template:
            return self.encode(question)
        return self.encode(self.chat_text([{"role": "user", "content": question}]))

    def chat_text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Messages, each with a `role` and its `content`, in the model's chat format, the answer to follow."""
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        begin = "" if self.first is None else self.tokens[self.first]
        end = self.tokens[self.ends[0]] if self.ends else ""
        options = {"bos_token": begin, "eos_token": end, "add_generation_prompt": True}
        text = environment.from_string(self.template).render(messages=list(messages), **options)
        return text.removeprefix(begin) if self.first is not None else text


class Stream:
    """Turns tokens into text as they come: what ends in the middle of a character is held back."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._tokens: list[int] = []
        self._shown = ""

    def add(self, token: int) -> str:
        """The text that this token completes, "" in the middle of a character."""
        self._tokens.append(token)
        whole = self._text.decode(self._tokens)
        if whole.endswith(REPLACEMENT):
            return ""
        new, self._shown = whole[len(self._shown) :], whole
        return new


def read_text(fields: Mapping[str, Any]) -> Text:
    """The tokenizer of a GGUF file.

    Raises:
        TokenizerError: it is of another kind than byte-level BPE, or splits words in a way that is not known here.
    """

    def field(name: str, otherwise: Any = None) -> Any:
        return fields.get(f"tokenizer.{name}", otherwise)

    if field("ggml.model") != "gpt2":
        raise TokenizerError(f"its tokenizer is {field('ggml.model')!r}, and only byte-level BPE ('gpt2') can be used")
    tokens, types = field("ggml.tokens"), field("ggml.token_type", ())
    ends = [int(field(f"ggml.{name}_token_id", -1)) for name in ("eos", "eot")]
    return Text(
        tokens,
        field("ggml.merges", ()),
        pre=str(field("ggml.pre", "default")),
        special=[token for token, kind in zip(tokens, types, strict=False) if kind == SPECIAL],
        ends=[end for end in ends if end >= 0],
        first=int(field("ggml.bos_token_id")) if field("ggml.add_bos_token", False) else None,
        template=str(field("chat_template", "")),
    )


def byte_text() -> Text:
    """A tokenizer whose 256 tokens are the bytes of UTF-8; token 10 ends a line, and none ends a text."""
    from tokenizers import pre_tokenizers

    return Text(_byte_names(sorted(pre_tokenizers.ByteLevel.alphabet())))


def _byte_names(alphabet: Sequence[str]) -> list[str]:
    """The characters that stand for the bytes 0 … 255, as GPT-2 chose them: printable ones stand for themselves."""
    printable = {ord(each) for each in alphabet if ord(each) < 256}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _pre_tokenizer(pre: str) -> Any:
    """How text is split into words before pairs are merged, by the name that llama.cpp gives it."""
    from tokenizers import Regex, pre_tokenizers

    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if pre in ("default", "gpt-2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if pre in ("llama-bpe", "llama3", "llama-v3"):
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated"), whole])
    raise TokenizerError(f"how its tokenizer splits words, {pre!r}, is not known here")
