"""What a day with one H100 would measure, in one command: `python -m benchmarks h100 --save`.

- `h100_attention`: the forward pass by PyTorch's kernels, by FlashAttention-3 if `flash_attn_interface` is installed,
  in 16 bits and in FP8, and by Lab 10's kernel, in TFLOP/s. 16,384 tokens and 2,048 numbers a token at every length.
- `h100_product`: a matrix product in FP8 against one in 16 bits.
- `h100_decode`: a decoding step of Llama 3 8B's shape, by batch and length, against the time in which the memory can
  read its weights and its cache: (W + cache) / β, with β measured on the same device.
- `h100_labs`: functions of Labs 02 to 14: their times, and their peaks on the device next to those counted on meta.

Lab 10 is in the first table. Lab 11 needs several devices. What Lab 13 schedules are the steps of the third table.
`--dry` runs the same code with small sizes on the CPU, without what needs CUDA; its numbers mean nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from benchmarks.harness import Column, Table, made, solution_module, time_in_turn
from benchmarks.kernel import IN_A_ROW, awaited, built_in, forward, forward_flops
from benchmarks.lab_calls import READS_NUMBERS, arguments, calls
from labkit.meters.tensors import measure_peak

FP8 = torch.float8_e4m3fn
FP8_MEAN_ERROR = 0.05
"""The largest mean error of attention in FP8, on inputs of variance 1: it finds a wrong call, not a coarse one."""


class Sizes(NamedTuple):
    """What is measured; DRY is small enough for a test.

    `tokens` and `width` are of the attention's inputs, whatever their length; `layers` to `vocabulary` are the decoder,
    `heads` its query heads, key heads and numbers per head; `lab` is n, d and the tile of the labs' functions.
    """

    device: str
    dtype: torch.dtype
    tokens: int
    width: int
    head_dims: tuple[int, ...]
    lengths: tuple[int, ...]
    products: tuple[int, ...]
    layers: int
    heads: tuple[int, int, int]
    d_hidden: int
    vocabulary: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    lab: tuple[int, int, int]


H100 = Sizes(
    device="cuda",
    dtype=torch.bfloat16,
    tokens=16_384,
    width=2048,
    head_dims=(64, 128),
    lengths=(1024, 4096, 16_384),
    products=(2048, 4096, 8192),
    layers=32,
    heads=(32, 8, 128),
    d_hidden=14_336,
    vocabulary=128_256,
    batches=(1, 8, 32, 128),
    contexts=(1024, 8192, 32_768, 131_072),
    lab=(2048, 64, 128),
)
DRY = Sizes(
    "cpu", torch.bfloat16, 128, 64, (32,), (32, 64), (32,), 2, (4, 2, 16), 96, 50, (1, 2), (16, 32), (64, 16, 16)
)


def tables(*, rounds: int = 20, dry: bool = False) -> Iterator[Table]:
    """The four tables; without CUDA none, but for `dry`."""
    if not dry and not torch.cuda.is_available():
        print("h100: not run, since it needs a CUDA device; --dry tries its code on the CPU", file=sys.stderr)
        return
    sizes, rounds = (DRY, 1) if dry else (H100, rounds)
    device = "CPU, dry run" if dry else torch.cuda.get_device_name()
    setting = f"{device}, {rounds} rounds, torch {torch.__version__}"
    with torch.no_grad():
        for d in sizes.head_dims:
            yield attention(sizes, d, rounds, setting)
        yield product(sizes, rounds, setting)
        yield decode(sizes, rounds, setting)
    yield labs(sizes, rounds, setting)


def attention(sizes: Sizes, d: int, rounds: int, setting: str) -> Table:
    """TFLOP/s of a causal forward pass by candidate and length; empty where a candidate refuses the inputs."""
    columns: dict[str, dict[str, float]] = {}
    for n in sizes.lengths:
        shape = (sizes.tokens // n, sizes.width // d, n, d)
        q, k, v = (torch.randn(shape, device=sizes.device, dtype=torch.float16) for _ in range(3))
        if sizes.device == "cuda":
            arch = 90 if torch.cuda.get_device_capability()[0] >= 9 else 80
            candidates = forward({"Lab 10": solution_module("10")}, q, k, v, True, arch)
        else:
            candidates = built_in(q, k, v, True)
        candidates |= flash_attention_3(q, k, v)
        flops = forward_flops(q, causal=True)
        seconds = device_seconds(candidates, rounds, sizes)
        columns[f"N = {n}"] = {name: round(flops / each / 1e12, 1) for name, each in seconds.items()}
    names = dict.fromkeys(name for values in columns.values() for name in values)
    heading = f"causal, d = {d}, TFLOP/s"
    setting = f"{sizes.tokens} tokens, width {sizes.width}, float16, {setting}"
    return made(f"h100_attention_d{d}", "", setting, heading, names, {n: of.get for n, of in columns.items()})


def flash_attention_3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Callable[[], object]]:
    """FlashAttention-3 in 16 bits and in FP8, causal, where it is installed; its results must agree.

    Its layout is (batch, N, heads, d), and older versions return the log-sum-exp too (Dao-AILab/flash-attention,
    hopper/flash_attn_interface.py).
    """
    if not find_spec("flash_attn_interface"):
        return {}
    attend = import_module("flash_attn_interface").flash_attn_func
    inputs = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    want = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    found: dict[str, Callable[[], object]] = {}
    for name, dtype in (("FlashAttention-3", q.dtype), ("FlashAttention-3, FP8", FP8)):
        call = partial(attend, *(x.to(dtype) for x in inputs), causal=True)
        result = call()
        got = result[0] if isinstance(result, tuple) else result
        assert (got.float() - want.float()).abs().mean() < FP8_MEAN_ERROR, name
        found[name] = call
    return found


def product(sizes: Sizes, rounds: int, setting: str) -> Table:
    """TFLOP/s of the product of two n × n matrices, in 16 bits and in FP8 with one scale each."""
    columns: dict[str, dict[str, float]] = {}
    for n in sizes.products:
        a, b = (torch.randn(n, n, device=sizes.device, dtype=torch.bfloat16) for _ in range(2))
        one, scaling = torch.ones((), device=sizes.device), functional.ScalingType.TensorWise
        # FP8 products want the second matrix column by column.
        narrow = partial(functional.scaled_mm, a.to(FP8), b.to(FP8).t().contiguous().t(), one, scaling, one, scaling)
        candidates = {"bfloat16": partial(torch.mm, a, b), "FP8 (E4M3)": narrow}
        error = (narrow() - a @ b).float().norm() / (a @ b).float().norm()
        assert error < 0.1, f"FP8's product is {error:.0%} off"
        seconds = device_seconds(candidates, rounds, sizes)
        columns[f"n = {n}"] = {name: round(2 * n**3 / each / 1e12, 1) for name, each in seconds.items()}
    return made(
        "h100_product", "", setting, "n × n, TFLOP/s", candidates, {n: values.get for n, values in columns.items()}
    )


def decode(sizes: Sizes, rounds: int, setting: str) -> Table:
    """Milliseconds of a decoding step, and those in which its bytes can be read, by batch and length."""
    weights, beta = Weights(sizes), bytes_per_second(sizes, rounds)
    columns: dict[str, dict[str, float]] = {"ms, built-in": {}, "ms, Lab 09": {}, "(W + cache)/β, ms": {}, "ratio": {}}
    lab, rows = solution_module("09"), []
    for batch in sizes.batches:
        for tokens in sizes.contexts:
            nbytes = weights.cache_bytes(batch, tokens)
            if sizes.device == "cuda" and nbytes > 0.8 * torch.cuda.mem_get_info()[0]:
                continue  # no row for what does not fit, with room for a layer in float32
            cache = weights.cache(batch, tokens)
            row = f"batch {batch}, {tokens} tokens"
            grouped = partial(functional.scaled_dot_product_attention, enable_gqa=True)
            ways: dict[str, Callable[..., torch.Tensor]] = {
                "ms, built-in": grouped,
                "ms, Lab 09": lambda q, k, v: lab.grouped_query_attention(q, k, v)[0],
            }
            query = torch.randn_like(cache[0, 0, :, :1, :1]).expand(-1, sizes.heads[0], -1, -1)
            torch.testing.assert_close(*(attend(query, *cache[0]) for attend in ways.values()), rtol=0.02, atol=0.02)
            steps = {name: partial(weights.step, cache, attend) for name, attend in ways.items()}
            for name, seconds in device_seconds(steps, rounds, sizes).items():
                columns[name][row] = round(1e3 * seconds, 2)
            least = 1e3 * (weights.nbytes + nbytes) / beta
            columns["(W + cache)/β, ms"][row] = round(least, 2)
            columns["ratio"][row] = round(columns["ms, built-in"][row] / least, 2)
            rows.append(row)
            del cache, query, steps
    setting = f"{sizes.layers} layers, {weights.nbytes} B of weights, β = {beta / 1e9:.0f} GB/s measured, {setting}"
    return made("h100_decode", "", setting, "", rows, {name: values.get for name, values in columns.items()})


class Weights:
    """The weights of a decoder with grouped heads and gated layers, without norms and rotation: those cost no bytes."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        heads, kv_heads, self.head_dim = sizes.heads
        self.d_model = heads * self.head_dim
        widths = (
            (self.d_model, (heads + 2 * kv_heads) * self.head_dim),
            (self.d_model, self.d_model),
            (self.d_model, 2 * sizes.d_hidden),
            (sizes.d_hidden, self.d_model),
        )
        self.layers = [[self._random(*width) for width in widths] for _ in range(sizes.layers)]
        self.to_words = self._random(self.d_model, sizes.vocabulary)
        self.nbytes = sum(weight.nbytes for layer in self.layers for weight in layer) + self.to_words.nbytes

    def cache_bytes(self, batch: int, tokens: int) -> int:
        """Bytes of the keys and values of all layers."""
        return 2 * self.sizes.layers * batch * self.sizes.heads[1] * tokens * self.head_dim * self.sizes.dtype.itemsize

    def cache(self, batch: int, tokens: int) -> torch.Tensor:
        """(layers, 2, batch, H_kv, tokens, head_dim)."""
        shape = (self.sizes.layers, 2, batch, self.sizes.heads[1], tokens, self.head_dim)
        return torch.randn(shape, device=self.sizes.device, dtype=self.sizes.dtype)

    def step(self, cache: torch.Tensor, attend: Callable[..., torch.Tensor]) -> torch.Tensor:
        """One token of each sequence through all layers; returns the logits, (batch, vocabulary)."""
        heads = self.sizes.heads[0]
        x = torch.ones(cache.shape[2], self.d_model, device=cache.device, dtype=cache.dtype)
        for (to_qkv, out, up, down), (keys, values) in zip(self.layers, cache, strict=True):
            q = (x @ to_qkv)[:, : self.d_model].reshape(-1, heads, 1, self.head_dim)
            x = x + attend(q, keys, values).reshape(len(x), -1) @ out
            gate, value = (x @ up).chunk(2, -1)
            x = x + (functional.silu(gate) * value) @ down
        return x @ self.to_words

    def _random(self, n_in: int, n_out: int) -> torch.Tensor:
        return torch.randn(n_in, n_out, device=self.sizes.device, dtype=self.sizes.dtype) * n_in**-0.5


def bytes_per_second(sizes: Sizes, rounds: int) -> float:
    """Of a copy, counting what it reads and what it writes."""
    source = torch.ones(2**30 if sizes.device == "cuda" else 2**16, device=sizes.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / device_seconds({"copy": partial(target.copy_, source)}, rounds, sizes)["copy"]


def labs(sizes: Sizes, rounds: int, setting: str) -> Table:
    """The labs' functions on the device: milliseconds, and the peak that meta counts without it.

    CUDA's allocator rounds each block up to 512 bytes, and libraries take workspaces.
    """
    n, d, block = sizes.lab
    functions = calls(n, d, block)
    here, meta = (arguments(device, n, d) for device in (sizes.device, "meta"))
    ms, peak, counted = {}, {}, {}
    for name, function in functions.items():
        peak[name] = _mib(measure_peak(function, *here).peak_bytes)
        if name not in READS_NUMBERS:
            counted[name] = _mib(measure_peak(function, *meta).peak_bytes)
        ms[name] = round(1e3 * device_seconds({name: partial(function, *here)}, rounds, sizes)[name], 3)
    name = "02 benchmark_attention"
    ask = partial(solution_module("02").benchmark_attention, [d], [n], warmup_steps=1, steps=rounds)
    row, simulated = ask(device=sizes.device)[0], ask(device="meta")[0]
    ms[name], peak[name], counted[name] = round(row["fwd_ms"], 3), row["mem_max_MB"], simulated["mem_max_MB"]
    columns: dict[str, Column] = {"ms": ms.get, "peak, MiB": peak.get, "counted on meta, MiB": counted.get}
    setting = f"2 × 6 heads on 2, N={n}, d={d}, float32, {setting}"
    return made("h100_labs", "", setting, "", sorted(ms), columns)


def device_seconds(candidates: Mapping[str, Callable[[], Any]], rounds: int, sizes: Sizes) -> dict[str, float]:
    """The median time of one call of each, of as many in a row as the device is not waited for."""
    waited = {name: partial(awaited, call, sizes.device) for name, call in candidates.items()}
    times = time_in_turn(waited, rounds, clock=time.perf_counter, warm=1)
    return {name: median(seconds) / IN_A_ROW for name, seconds in times.seconds.items()}


def _mib(nbytes: int) -> float:
    return round(nbytes / 2**20, 3)
