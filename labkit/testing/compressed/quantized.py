"""Keys and values in few bits: what their cache holds, exactly, and the mistakes usual in making and reading it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.compare import assert_close, assert_dtype, assert_equal, assert_keys, assert_type, require

PARTS = (("k", -2), ("v", -1))
"""What is kept, and the axis along which numbers share a scale."""

NAMES = (*(name + of for name, _ in PARTS for of in ("", "_scale", "_zero")), "bits", "group")
HALF_ULP = 2.0**-10
"""How far, as a share, two float16 may lie apart that were rounded from float32 and from float64."""
TIE = 0.501
"""How far a number may lie from its code: half a step, and what rounding in float32 explains."""


class QuantizedCase:
    """Keys (..., N, d) and values (..., N, d_v) and what the handout makes of them, computed in float64."""

    def __init__(self, k: torch.Tensor, v: torch.Tensor, bits: int, group: int) -> None:
        self.k, self.v, self.bits, self.group = k, v, bits, group

    @cached_property
    def cache(self) -> dict[str, Any]:
        """All parts of the cache, by their names."""
        found: dict[str, Any] = {"bits": self.bits, "group": self.group}
        for (name, axis), x in zip(PARTS, (self.k, self.v), strict=True):
            low, high = _extremes(x, self.group, axis)
            scale, zero = ((high - low) / (2**self.bits - 1)).half(), low.half()
            steps = _steps(x, scale, zero, self.group, axis)
            codes = steps.round().clamp(0, 2**self.bits - 1).to(torch.int64)
            found |= {name: packed(codes, self.bits), f"{name}_scale": scale, f"{name}_zero": zero}
        return found


def restored(cache: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """Keys and values from a cache, in float64."""
    found = []
    for name, axis in PARTS:
        scale, zero = (cache[name + of].double().repeat_interleave(cache["group"], axis) for of in ("_scale", "_zero"))
        found.append(unpacked(cache[name], cache["bits"]) * scale + zero)
    return tuple(found)


def packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes (..., d) as bytes (..., d · bits / 8), the first in the lowest bits."""
    places = codes.unflatten(-1, (codes.shape[-1] * bits // 8, 8 // bits))
    return (places * 2 ** torch.arange(0, 8, bits)).sum(-1).to(torch.uint8)


def unpacked(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Bytes (..., w) as codes (..., w · 8 / bits)."""
    places = codes.long()[..., None] // 2 ** torch.arange(0, 8, bits) % 2**bits
    return places.flatten(-2, -1)


def assert_quantized(got: Any, k: torch.Tensor, v: torch.Tensor, bits: int, group: int, hint: str = "") -> None:
    """Compare what `quantize_kv` made of k and v with what the handout says, part by part."""
    assert_keys("what quantize_kv returns", got, NAMES)
    for name, number in (("bits", bits), ("group", group)):
        assert_equal(name, got[name], number)
    want = QuantizedCase(k, v, bits, group).cache
    for (name, axis), x in zip(PARTS, (k, v), strict=True):
        for part, kind in ((name, torch.uint8), (f"{name}_scale", torch.float16), (f"{name}_zero", torch.float16)):
            assert_type(part, got[part], torch.Tensor, "a tensor")
            require(tuple(got[part].shape) == tuple(want[part].shape), _shape_told(part, got, want, bits))
            assert_dtype(part, got[part], kind)
        for of in ("_scale", "_zero"):
            _assert_near(name + of, got[name + of], want[name + of], _usual_of(x, bits, group, axis, of), hint)
        _assert_codes(name, got, x, axis, hint)


def _assert_near(name: str, got: torch.Tensor, want: torch.Tensor, suspects: Any, hint: str) -> None:
    near = want.double() * (1 + HALF_ULP)
    assert_close(name, got.double(), want.double(), plain=near.numpy(), slack=1.0, suspects=suspects, hint=hint)


def _usual_of(
    x: torch.Tensor, bits: int, group: int, axis: int, of: str
) -> dict[str, Callable[[], npt.NDArray[np.floating]]]:
    """Usual mistakes with a scale or a zero: what each leads to."""
    low, high = _extremes(x, group, axis)
    levels = 2**bits - 1
    if of == "_zero":
        return {
            "the zero is the middle of the group: it is its minimum": lambda: ((low + high) / 2).numpy(),
            "the zero is counted in steps: it is the minimum itself": lambda: (low / ((high - low) / levels)).numpy(),
            "the zero has the wrong sign": lambda: -low.numpy(),
            "the zero is 0, as if numbers lay around it": lambda: torch.zeros_like(low).numpy(),
        }
    top = torch.maximum(low.abs(), high.abs())
    return {
        "the range is divided by 2^bits: between 2^bits codes there are 2^bits − 1 steps": lambda: (
            (high - low) / 2**bits
        ).numpy(),
        "the scale is taken from the largest magnitude alone: it is (maximum − minimum) / (2^bits − 1)": lambda: (
            top / (2 ** (bits - 1) - 1)
        ).numpy(),
        "the scale is the maximum divided by 2^bits − 1, without the minimum": lambda: (high / levels).numpy(),
        "the scale is upside down: the size of a step": lambda: (levels / (high - low)).numpy(),
        "all of a tensor share one range: each group has its own": lambda: np.full(
            tuple(low.shape), float((high.max() - low.min()) / levels)
        ),
        "the range is not divided by 2^bits − 1": lambda: (high - low).numpy(),
    }


def _assert_codes(name: str, got: Mapping[str, Any], x: torch.Tensor, axis: int, hint: str) -> None:
    """Fail unless every code is the nearest one under the scale and the zero that are kept with it."""
    bits = got["bits"]
    levels = 2**bits - 1
    steps = _steps(x, got[f"{name}_scale"], got[f"{name}_zero"], got["group"], axis)
    codes = unpacked(got[name], bits)
    off = (codes - steps.clamp(0, levels)).abs()
    wrong = off > TIE
    if not wrong.any():
        return
    at = tuple(int(i) for i in wrong.nonzero()[0])
    why = _usual_of_codes(codes, steps.clamp(0, levels), bits) or hint
    require(
        False,
        f"the code of {name}[{', '.join(map(str, at))}] = {float(x[at]):.6g} is {int(codes[at])}; with the zero and "
        f"the scale that are kept it lies at {float(steps[at]):.4f} steps; {int(wrong.sum())} of {wrong.numel()} codes "
        "are not the nearest" + (f"\nUsual cause: {why}" if why else ""),
    )


def _usual_of_codes(codes: torch.Tensor, steps: torch.Tensor, bits: int) -> str:
    """The usual mistake that explains every one of these codes, if there is one."""
    if bool(((_turned(codes, bits) - steps).abs() <= TIE).all()):
        return "the order of the codes in a byte is another: the first of the neighbours lies in the lowest bits"
    if bool(((steps - codes) > -1e-3).all() and ((steps - codes) < 1 + 1e-3).all()):
        return "the fraction is cut off: the nearest whole number is taken (round)"
    return ""


def _turned(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes (..., d) with those of each byte in the opposite order."""
    return codes.unflatten(-1, (codes.shape[-1] * bits // 8, 8 // bits)).flip(-1).flatten(-2, -1)


def assert_restored(got: Any, cache: Mapping[str, Any], *, hint: str = "") -> None:
    """Compare what `dequantize_kv` made of a cache, and name a usual mistake where one fits."""
    require(
        isinstance(got, tuple) and len(got) == 2,
        f"dequantize_kv returns {type(got).__name__}, expected the pair (k, v)",
    )
    want, usual = restored(cache), restoring_suspects(cache)
    for place, (name, value) in enumerate(zip("kv", got, strict=True)):
        assert_type(name, value, torch.Tensor, "a tensor")
        suspects = {text: lambda made=made, place=place: made()[place].numpy() for text, made in usual.items()}
        plain = _in_float32(cache)[place]
        assert_close(name, value.double(), want[place].numpy(), plain=plain, suspects=suspects, hint=hint)
        assert_dtype(name, value, torch.float32)


def restoring_suspects(cache: Mapping[str, Any]) -> dict[str, Callable[[], tuple[torch.Tensor, ...]]]:
    """Usual mistakes in reading a cache: the keys and values that each leads to."""
    bits, group = cache["bits"], cache["group"]

    def made(turn: bool = False, sign: int = 1, tiled: bool = False, signed: bool = False, before: bool = False) -> Any:
        found = []
        for name, axis in PARTS:
            codes = unpacked(cache[name], bits)
            if turn:
                codes = _turned(codes, bits)
            if signed:
                codes = torch.where(codes >= 2 ** (bits - 1), codes - 2**bits, codes)
            times = [1] * codes.dim()
            times[axis] = group
            scale, zero = (
                x.repeat(times) if tiled else x.repeat_interleave(group, axis)
                for x in (cache[f"{name}_scale"].double(), cache[f"{name}_zero"].double())
            )
            found.append((codes + zero) * scale if before else codes * scale + sign * zero)
        return tuple(found)

    usual = {
        "the zero is subtracted: x is code · scale + zero": lambda: made(sign=-1),
        "the zero is left out: x is code · scale + zero": lambda: made(sign=0),
        "the zero is added before scaling: it is no number of steps": lambda: made(before=True),
        "scales are repeated as a whole (repeat): a group is neighbours, each repeated (repeat_interleave)": lambda: (
            made(tiled=True)
        ),
        "codes are read as signed numbers": lambda: made(signed=True),
    }
    if bits < 8:
        usual["the order of the codes in a byte is another: the first lies in the lowest bits"] = lambda: made(
            turn=True
        )
    return usual


def _in_float32(cache: Mapping[str, Any]) -> list[npt.NDArray[np.float32]]:
    found = []
    for name, axis in PARTS:
        scale, zero = (cache[name + of].float().repeat_interleave(cache["group"], axis) for of in ("_scale", "_zero"))
        found.append((unpacked(cache[name], cache["bits"]).float() * scale + zero).numpy())
    return found


def _extremes(x: torch.Tensor, group: int, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    parts = x.double().unflatten(axis, (x.shape[axis] // group, group))
    return parts.amin(axis), parts.amax(axis)


def _steps(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, group: int, axis: int) -> torch.Tensor:
    """Where each number lies, in steps of its group; 0 where the scale is."""
    scale, zero = (each.double().repeat_interleave(group, axis) for each in (scale, zero))
    return torch.where(scale == 0, 0, (x.double() - zero) / torch.where(scale == 0, 1, scale))


def _shape_told(part: str, got: Mapping[str, Any], want: Mapping[str, Any], bits: int) -> str:
    shapes = tuple(got[part].shape), tuple(want[part].shape)
    told = f"{part} has shape {shapes[0]}, expected {shapes[1]}"
    name, _, of = part.partition("_")
    other = "by token: K's numbers share a scale along the tokens, each channel apart"
    if of and name == "v":
        other = "by channel: V's numbers share a scale along the channels, each token apart"
    if of:
        return f"{told}\nUsual cause: {name.upper()} is quantized {other}"
    codes = shapes[0][-1:] == (shapes[1][-1] * 8 // bits,)
    return told + (f"\nUsual cause: a code takes a byte: {8 // bits} of them share one" if codes and bits < 8 else "")
