"""The bytes of a cache of keys and values, counted, and the mistakes usual in counting them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.testing.compare import assert_equal, assert_type

MODELS: dict[str, tuple[tuple[int, int, int], dict[str, int], int]] = {
    "Llama-2-7B": ((32, 32, 128), {}, 524_288),
    "Llama-3-8B": ((32, 8, 128), {}, 131_072),
    "OPT-13B": ((40, 40, 128), {}, 819_200),
    "DeepSeek-V2": ((60, 128, 128), {"latent_dim": 512, "rope_dim": 64}, 69_120),
    "Llama-3.1-405B": ((126, 8, 128), {}, 516_096),
}
"""A model → its layers, key heads and their width; how its latent vectors are wide, if it has them; a token's bytes."""


def assert_cache_bytes(answer: Callable[..., Any], *sizes: int, **options: Any) -> None:
    """Compare what `answer` says of a cache with a count, and name the usual mistakes.

    `sizes` are layers, key heads and their width.
    """
    want = _count(*sizes, **options)
    alone = {name: value for name, value in options.items() if name != "window"}
    window, latent = options.get("window"), options.get("latent_dim", 0)
    usual = {
        "keys alone are counted: a value is kept for every key": want // 2,
        "the bits are counted: 8 to a byte": 8 * want,
        "numbers are counted in place of bytes": want // options.get("dtype_bytes", 2),
    }
    if window is not None:
        usual["the window is ignored"] = _count(*sizes, **alone)
        usual["the whole window counts although there are fewer tokens: min(tokens, window)"] = _count(
            *sizes, **(alone | {"tokens": window})
        )
    if latent:
        rope = options.get("rope_dim", 0)
        scale = want // (latent + rope)
        usual |= {
            "the latent vector is counted twice, as if there were keys and values": 2 * want,
            "the latent vector is counted twice: keys and values are both made from one": scale * (2 * latent + rope),
            "the rope part is counted for each head: all heads share it": scale * (latent + sizes[1] * rope),
            "the rope part is left out": scale * latent,
            "the latent vector is ignored": _count(*sizes, **(options | {"latent_dim": 0})),
        }
    shown = [*map(str, sizes), *(f"{name}={value}" for name, value in options.items())]
    got = answer(*sizes, **options)
    assert_equal(f"kv_cache_bytes({', '.join(shown)})", got, want, suspects=usual)
    assert_type(f"kv_cache_bytes({', '.join(shown)})", got, int, "an int: bytes are counted")


def _count(
    *sizes: int,
    tokens: int = 1,
    dtype_bytes: int = 2,
    window: int | None = None,
    latent_dim: int = 0,
    rope_dim: int = 0,
) -> int:
    layers, kv_heads, head_dim = sizes
    kept = tokens if window is None else min(tokens, window)
    return layers * kept * dtype_bytes * (latent_dim + rope_dim if latent_dim else 2 * kv_heads * head_dim)
