"""The fields of requests in OpenAI's form: their types, and values that greedy decoding can serve."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

GREEDY: dict[str, tuple[float, ...]] = {
    "temperature": (0, 1),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
}
"""Fields that ask for more than the likeliest token each time, unless they have one of these values.

OpenAI's own defaults are among them, as a client that sends them means no more than one that leaves them out. Each
`top_p` is served: the likeliest token is always among those that it keeps.
"""


class ApiError(Exception):
    """A request that cannot be served: a status, OpenAI's code, and the field that it is about."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.status, self.body = status, {"message": message, "type": kind, "param": param, "code": code}


class _Object(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Part(_Object, tag="text", tag_field="type"):
    text: str


class _TextFormat(_Object, tag="text", tag_field="type"):
    pass


class _StreamOptions(_Object):
    include_usage: bool = False


class Message(_Object):
    """A message; its content is a text, or a list of texts."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[_Part], Meta(min_length=1)]
    name: str = ""

    def for_template(self) -> dict[str, str]:
        """Role and text as a chat template knows them: `developer` is the newer name of `system`."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


_Positive = Annotated[int, Meta(ge=1)]
_Stop = Annotated[str, Meta(min_length=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]


class Fields(_Object):
    """The fields that both kinds of requests have."""

    model: str
    max_tokens: _Positive | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=4)] = []
    stream: bool = False
    stream_options: _StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1
    presence_penalty: _Penalty = 0
    frequency_penalty: _Penalty = 0
    n: _Positive = 1
    seed: int = 0
    user: str = ""

    @property
    def stops(self) -> list[str]:
        """The texts before which an answer ends."""
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def wants_usage(self) -> bool:
        """Whether the last event of a stream has the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class Completion(Fields, kw_only=True):
    """The fields of `/v1/completions`."""

    prompt: Annotated[str, Meta(min_length=1)]
    best_of: _Positive = 1
    echo: bool = False


class Chat(Fields, kw_only=True):
    """The fields of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: _Positive | None = None
    response_format: _TextFormat | None = None
    logprobs: bool = False

    @property
    def max_new(self) -> int | None:
        """New tokens, at most; None where the client does not say."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


Kind = TypeVar("Kind", bound=Fields)


def read(body: bytes, kind: type[Kind]) -> Kind:
    """The fields of a request; null is the same as left out.

    Raises:
        ApiError: the body is not JSON, or a field has a wrong type or a value that cannot be served.
    """
    try:
        given = _without_nulls(msgspec.json.decode(body))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ApiError(f"the body is not JSON in UTF-8: {error}") from None
    try:
        fields = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    for name, values in GREEDY.items():
        if (value := getattr(fields, name, values[0])) not in values:
            found, *served = (msgspec.json.encode(each).decode() for each in (value, *values))
            message = f"{name} must be {' or '.join(served)}, or left out, since decoding is greedy: not {found}"
            raise ApiError(message, param=name, code="unsupported_value")
    if fields.stream_options and not fields.stream:
        raise ApiError("stream_options is only allowed with stream", param="stream_options")
    if isinstance(fields, Chat) and fields.max_tokens and fields.max_completion_tokens:
        raise ApiError("max_tokens and max_completion_tokens exclude each other", param="max_tokens")
    return fields


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _invalid(message: str) -> ApiError:
    """The error for a message of msgspec, such as "Expected `str`, got `int` - at `$.messages[0].content`"."""
    problem, _, place = message.partition(" - at ")
    field = re.search(r"(missing required|unknown) field `(.*)`", problem, re.DOTALL)
    param = ".".join(filter(None, [place.strip("`").removeprefix("$").lstrip("."), field and field[2]]))
    if field and field[1] == "unknown":
        return ApiError(f"{param} is not supported", param=param, code="unsupported_parameter")
    return ApiError(f"{param or 'the body'}: {problem}".replace("`", ""), param=param or None)
