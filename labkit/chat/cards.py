"""What each lab's card shows: bytes measured in a run of the student's code against the textbook's, and a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.arrays import measure_arrays

LENGTHS = (256, 512, 1024, 2048)
N, WIDTH, BLOCK, WINDOW, RANKS = LENGTHS[-1], 64, 128, 256, 8
HEADS, KV_HEADS = 9, 3
"""Of SmolLM2-135M, whose heads are `WIDTH` wide."""
BITS, GROUP, PAGE, BUDGET = 4, 32, 16, 8


@dataclass(frozen=True)
class Card:
    """What the bytes are, two curves of them over x, and a picture of cells, with NaN where nothing is."""

    what: str
    curves: Sequence[Sequence[int]]
    x: Sequence[int] = LENGTHS
    xlabel: str = "tokens N"
    names: tuple[str, str] = ("textbook", "mine")
    picture: Any = None
    caption: str = ""
    cmap: str = "viridis"
    headline: str = "fewer bytes"


HELD = f"held besides the inputs, one head of {WIDTH} numbers"
TILES = "The tiles of scores that my code computes, row by row"


def memory_profiling(student: Any) -> Card:
    """Lab 01: standard attention's own peak, and its weights for a text that looks at what is near."""
    peaks = [_array_peak(partial(student.standard_attention, *_arrays(n))) for n in LENGTHS]
    walk = np.random.default_rng(0).standard_normal((64, WIDTH), np.float32).cumsum(0)
    _, weights = student.standard_attention(walk / 2, walk / 2, walk, mask=np.triu(np.ones((64, 64), bool), 1))
    seen = np.where(np.tri(64, dtype=bool), weights**0.5, np.nan)
    inputs = [16 * n * WIDTH for n in LENGTHS]
    names = ("standard attention's peak", "its inputs and output")
    what, caption = (
        f"held for N × N weights, one head of {WIDTH} numbers",
        "My weights over a text of 64 tokens, causal",
    )
    return Card(what, (peaks, inputs), names=names, picture=seen, caption=caption, headline="its inputs")


def peak_memory(student: Any) -> Card:
    """Lab 02: what autograd saves, by the student's own function."""
    forms = _textbook, torch.nn.functional.scaled_dot_product_attention
    saved = [
        [student.saved_for_backward(form, *(x[None, None].requires_grad_() for x in _tensors(n))) for n in LENGTHS]
        for form in forms
    ]
    return Card("saved for the backward pass, as I measured it", saved, names=("textbook", "torch's fused attention"))


def online_softmax(student: Any) -> Card:
    """Lab 03: one query over very many keys."""
    x, theirs, mine = [4 * n for n in LENGTHS], [], []
    for n in x:
        q, (_, k, v) = _arrays(1)[0], _arrays(n)
        blocks = [np.split(each, range(256, n, 256)) for each in (k, v)]
        theirs.append(_array_peak(partial(_numpy_textbook, q, k, v)))
        mine.append(_array_peak(partial(student.online_attention, q[0], *blocks)))
    return Card("held for one query over N keys", (theirs, mine), x, "keys N")


def tiling(student: Any) -> Card:
    """Lab 04: the tiles that causal attention computes."""
    attend = partial(student.tiled_attention, block_q=BLOCK, block_k=BLOCK, causal=True)
    return Card(HELD, _attention_curves(attend, _arrays), picture=_tiles(attend, _arrays), caption=TILES)


def flash_attention(student: Any) -> Card:
    """Lab 05: the tiles that the forward pass computes."""
    attend = partial(student.flash_forward, causal=True, block_q=BLOCK, block_k=BLOCK)
    return Card(HELD, _attention_curves(attend), picture=_tiles(lambda *x: attend(*x)[0]), caption=TILES)


def gradient_checkpointing(student: Any) -> Card:
    """Lab 06: a training step's peak over its layers, √layers of them in a segment."""
    layers, x = [4, 16, 36, 64], torch.randn(4096, requires_grad=True)
    plain = [partial(reduce, lambda y, f: f(y), [torch.tanh] * n, x) for n in layers]
    mine = [partial(student.checkpoint_sequential, [torch.tanh] * n, round(n**0.5), x) for n in layers]
    peaks = [[_tensor_peak(partial(_train, forward, x)) for forward in each] for each in (plain, mine)]
    return Card("peak of a training step", peaks, layers, "layers", ("all activations kept", "mine, recomputed"))


def linear_attention(student: Any) -> Card:
    """Lab 07: no square."""
    return Card(HELD, _attention_curves(student.causal_linear_attention_chunked))


def sliding_window(student: Any) -> Card:
    """Lab 08: the tiles in the window."""
    attend = partial(student.sliding_window_attention, window=WINDOW, block=BLOCK)
    return Card(HELD, _attention_curves(attend), picture=_tiles(attend), caption=TILES)


def decoding(student: Any) -> Card:
    """Lab 09: a cache of shared key heads, and the blocks of sequences that begin alike."""
    mine = []
    for n in LENGTHS:
        cache = student.KVCache(n, KV_HEADS, WIDTH, torch.float32)
        cache.append(*torch.zeros(2, KV_HEADS, n, WIDTH))
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in (cache.keys, cache.values)}
        mine.append(sum(storages.values()))
    manager, tables = student.BlockManager(64, 4), []
    for number, more in enumerate((6, 19, 3, 11, 26, 8)):
        manager.allocate(number, [*range(24), *range(100 * (number + 1), 100 * (number + 1) + more)])
        tables.append(manager.block_table(number))
    cells = np.full((len(tables), max(map(len, tables))), np.nan)
    for row, table in zip(cells, tables, strict=True):
        row[: len(table)] = table
    theirs, names = [8 * HEADS * n * WIDTH for n in LENGTHS], ("keys and values per query head", "my cache, shared")
    caption = "My block tables, a row per sequence: equal colours are shared"
    return Card("the cache of a layer of SmolLM2", (theirs, mine), names=names, picture=cells, caption=caption)


def ring_attention(student: Any) -> Card:
    """Lab 11: what a rank sends, and how much work it has in each step."""
    from labkit.ranks.threads import run_ranks

    mine = []
    for n in LENGTHS:
        shards = [student.shard(x[None], RANKS, "zigzag") for x in _tensors(n)]
        ring = partial(student.ring_attention_forward, causal=True, layout="zigzag")
        mine.append(max(each.sent_bytes for each in run_ranks(ring, list(zip(*shards, strict=True))).traffic))
    rows = [np.asarray(student.causal_work(N, RANKS, layout), float) for layout in ("contiguous", "zigzag")]
    cells = np.concatenate([rows[0], np.full((RANKS, 1), np.nan), rows[1]], 1)
    cells[cells == 0] = np.nan
    names, caption = ("the weights, N × N", "what my rank sends"), "Work of 8 ranks: contiguous, and zigzag"
    square = [4 * n * n for n in LENGTHS]
    return Card(f"one head, {RANKS} ranks", (square, mine), names=names, picture=cells, caption=caption)


def compressed_cache(student: Any) -> Card:
    """Lab 12: keys as they are, and in a few bits."""
    mine = []
    for n in LENGTHS:
        k, v = (torch.randn(KV_HEADS, n, WIDTH) * torch.linspace(0.2, 3, WIDTH) for _ in range(2))
        packed = student.quantize_kv(k, v, BITS, GROUP)
        mine.append(sum(x.nbytes for x in packed.values() if isinstance(x, torch.Tensor)))
    restored, _ = student.dequantize_kv(packed)
    cells = torch.cat([k[0, :96], torch.full((96, 4), torch.nan), restored[0, :96]], 1).numpy()
    theirs, names = [8 * KV_HEADS * n * WIDTH for n in LENGTHS], ("float32", f"mine, {BITS} bits")
    caption = f"Keys as they were, and back from {BITS} bits"
    return Card("the cache of a layer", (theirs, mine), names=names, picture=cells, caption=caption, cmap="coolwarm")


def serving(student: Any) -> Card:
    """Lab 13: who owns which block in which step, for a trace of requests."""
    from labkit.serving.drive import Drive
    from labkit.serving.engine import settings_of, token_bytes
    from labkit.serving.locations import Locations
    from labkit.serving.model import SPEC
    from labkit.serving.requests import LIMITS, make_trace

    nbytes, max_tokens = LIMITS["chat"].values()
    server, theirs, columns = student.Server(SPEC, nbytes, max_tokens), list[int](), list[Any]()
    bits, block_size, num_blocks = settings_of(server, SPEC, nbytes)

    class Seen(Drive):
        def scores(self, step: int, work: Any) -> Any:
            columns.append(np.full(num_blocks, np.nan))
            for piece in work:
                columns[-1][list(piece.blocks)] = self.order[piece.id] % 10
            requests = [one.request for one in self.active.values()]
            theirs.append(sum(len(each.prompt) + each.max_new for each in requests) * token_bytes(SPEC, 32))
            return super().scores(step, work)

    trace = make_trace("chat", 0)
    served = Seen(server, trace, Locations(num_blocks, block_size), max_tokens).run(probe=False)
    mine = [step.blocks * block_size * token_bytes(SPEC, bits) for step in served.history]
    names, caption = ("float32, all reserved", "my blocks"), "My blocks, step by step: a colour for each request"
    what, cells = f"the cache of {len(trace)} requests as they come and go", np.array(columns).T
    return Card(what, (theirs, mine), range(len(mine)), "step", names, cells, caption, "tab10")


def selected_attention(student: Any) -> Card:
    """Lab 14: the pages that each new token reads."""
    walk = torch.randn(KV_HEADS, N, WIDTH, generator=torch.Generator().manual_seed(0))
    keys = torch.nn.functional.avg_pool1d(walk.mT, 65, 1, 32).mT * 6
    cells, mine = np.full((N // 32, N // PAGE), np.nan), []
    for row, n in enumerate(range(32, N + 1, 32)):
        bounds = student.page_bounds(keys[:, :n], PAGE)
        scores = student.page_scores(keys[:, n - 1].repeat_interleave(HEADS // KV_HEADS, 0), *bounds)
        pages = student.select_pages(scores, KV_HEADS, BUDGET, (n - 1) // PAGE)
        mine.append(8 * pages.numel() * PAGE * WIDTH + sum(x.nbytes for x in bounds))
        cells[row, : n // PAGE], cells[row, pages[0].numpy()] = 0.15, 1
    x, names = range(32, N + 1, 32), ("all tokens", "mine, with the bounds")
    theirs, caption = (
        [8 * KV_HEADS * n * WIDTH for n in x],
        f"{BUDGET} pages of {PAGE} tokens, chosen for each new token",
    )
    return Card("read for a new token, in a layer of SmolLM2", (theirs, mine), x, "tokens N", names, cells, caption)


def _attention_curves(mine: Callable[..., Any], inputs: Callable[[int], Any] | None = None) -> tuple[list[int], ...]:
    """Peaks of the textbook's attention and of the student's, for each length."""
    textbook, peak = (_textbook, _tensor_peak) if inputs is None else (_numpy_textbook, _array_peak)
    return tuple([peak(partial(form, *(inputs or _tensors)(n))) for n in LENGTHS] for form in (textbook, mine))


def _arrays(n: int) -> list[Any]:
    return [np.random.default_rng(n).standard_normal((n, WIDTH), np.float32) for _ in range(3)]


def _tensors(n: int) -> list[torch.Tensor]:
    return [torch.from_numpy(x) for x in _arrays(n)]


def _array_peak(call: Callable[[], Any]) -> int:
    return measure_arrays(call).peak_bytes


def _tensor_peak(call: Callable[[], Any]) -> int:
    with AllocationMeter() as meter:
        call()
    return meter.peak_bytes


def _textbook(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def _numpy_textbook(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.T * np.float32(q.shape[-1] ** -0.5)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ v


def _tiles(attend: Callable[..., Any], inputs: Callable[[int], Any] | None = None) -> Any:
    """The tiles that are computed, numbered row by row: NaN in a block of keys spoils the rows that read it."""
    seen = []
    for start in range(0, N, BLOCK):
        q, k, v = (inputs or _tensors)(N)
        k[start : start + BLOCK] = np.nan
        seen.append(np.isnan(np.asarray(attend(q, k, v))[:, 0]).reshape(-1, BLOCK).any(1))
    found = np.stack(seen, 1)
    return np.where(found, found.cumsum().reshape(found.shape), np.nan)


def _train(forward: Callable[[], torch.Tensor], x: torch.Tensor) -> None:
    x.grad = None
    forward().sum().backward()
