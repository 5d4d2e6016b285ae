"""How many blocks fit into a budget: a count by hand, and the usual mistakes with a block's bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.testing.compare import assert_equal


def assert_plan(answer: Callable[..., Any], spec: dict[str, int], nbytes: int, block_size: int, bits: int) -> None:
    """Compare a number of blocks with a count of a block's bytes."""
    width, scales = spec["head_dim"], 4 if bits <= 8 else 0
    vectors = 2 * spec["layers"] * spec["kv_heads"] * block_size

    def fit(vector: float, n_vectors: float = vectors) -> int:
        return int(nbytes // (n_vectors * vector))

    vector = width * bits // 8 + scales
    usual = {
        "scales and zeros are not counted: 4 bytes a vector": fit(width * bits / 8),
        "a vector has a scale, 2 bytes, and a zero, 2 bytes": fit(width * bits / 8 + 2),
        "scales and zeros are float16, not float32": fit(width * bits / 8 + 8),
        "a token has one scale and one zero for all of its vectors: each vector has its own": int(
            nbytes // (vectors * width * bits / 8 + block_size * 4)
        ),
        "bits are counted as bytes": fit(width * bits + scales),
        "values are kept as well as keys: twice as many vectors": fit(vector, vectors / 2),
        "what is kept are key heads, not query heads": fit(vector, vectors * spec["heads"] / spec["kv_heads"]),
        "every layer keeps its own": fit(vector, vectors / spec["layers"]),
        "tokens, and not blocks, are counted": fit(vector, vectors / block_size),
        "a block that does not fit whole is none (rounded down)": -(-nbytes // (vectors * vector)),
        "with 32 bits there is neither scale nor zero": fit(width * bits / 8 + 4),
    }
    want = fit(vector)
    suspects = {text: value for text, value in usual.items() if value != want}
    name = f"the blocks of {block_size} tokens in {nbytes:,} bytes, {bits} bits a number, {spec},"
    assert_equal(name, answer(spec, nbytes, block_size, bits), want, suspects=suspects)
