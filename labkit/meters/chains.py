"""Functions for a checkpoint to run: made where the answer is, chains of them from their parameters."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F


def sequence(kind: str, parameters: Sequence[Any], ran: list[int]) -> tuple[Any, list[torch.Tensor]]:
    """The functions, which note their numbers in `ran`, and the leaves they use."""
    if kind == "dropout":
        return [lambda x: F.dropout(x, parameters[0])] * len(parameters), []
    if kind == "module":
        layers = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        with torch.no_grad():
            for own, given in zip(layers.parameters(), parameters, strict=True):
                own.copy_(given)
        return layers, list(layers.parameters())

    def shifted(i, shift):
        def step(x):
            ran.append(i)
            return torch.tanh(x + shift) if x.shape[-1] == shift.shape[-1] else torch.tanh(x)

        return step

    return [shifted(i, shift) for i, shift in enumerate(parameters)], list(parameters)


def deep(x: torch.Tensor) -> torch.Tensor:
    """Eight steps, each of which saves a tensor of x's size when autograd looks on."""
    for _ in range(8):
        x = torch.tanh(x)
    return x


def mixed(
    a: torch.Tensor, power: int, b: torch.Tensor, names: Any, frozen: torch.Tensor, rows: torch.Tensor, flag: Any
) -> tuple[torch.Tensor, ...]:
    """Tensors of all kinds between other arguments; two results of different shapes, and one of integers."""
    if not isinstance(names, tuple) or flag is not None:
        raise TypeError("fn was not given its arguments in their order")
    product = a**power @ b
    return product * frozen, torch.sin(a[rows]).sum(-1) * b.sum(), product.argmax(-1)
