"""Ordinary styles of correct code, as snippets of a submission."""

SNIPPETS = '''
#: 01 logging
import logging
log = logging.getLogger(__name__)
log.debug("N = %d", 3)

#: 01 doctest
import doctest
def f(x):
    """Double.
    >>> f(2)
    4
    """
    return 2 * x
doctest.testmod()

#: 01 unittest
import unittest
class TestF(unittest.TestCase):
    def test_f(self):
        self.assertEqual(1, 1)

#: 01 sys
import sys
EPS = sys.float_info.epsilon
print("warning", file=sys.stderr)

#: 01 os
import os
os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = os.path.dirname(__file__)

#: 01 pathlib
from pathlib import Path
HERE = Path(__file__).parent
HERE.mkdir(exist_ok=True)

#: 01 json
import json
def save(x, file):
    return json.dumps(x)

#: 01 traceback
import traceback
def f(g):
    try:
        return g()
    except ValueError:
        traceback.print_exc()
        raise

#: 01 tqdm
from tqdm import tqdm
def f(sizes):
    return [n * n for n in tqdm(sizes)]

#: 01 inspect
import inspect
def f(g):
    return inspect.signature(g).parameters

#: 01 tracemalloc
import tracemalloc
tracemalloc.start()
print(tracemalloc.get_traced_memory())

#: 01 wrapped
import functools
def timed(f):
    @functools.wraps(f)
    def g(*a):
        return f(*a)
    return g
@timed
def h(): ...
h.__wrapped__()

#: 01 attrgetter
import operator
biggest = max([], key=operator.attrgetter("nbytes"), default=None)

#: 01 array_pattern
import numpy as np
def f(x):
    match x:
        case np.ndarray(shape=(n, d)):
            return n
        case [*rows]:
            return len(rows)

#: 01 dict_of_self
class Config:
    def __init__(self, **kw):
        self.__dict__.update(kw)
    def __repr__(self):
        return f"{type(self).__name__}({self.__dict__})"

#: 01 self_check
import numpy as np
if __name__ == "__main__":
    import subprocess
    exec("print(1)")

#: 01 dataclass
from dataclasses import dataclass, field
@dataclass(frozen=True)
class P:
    q: int
    xs: list = field(default_factory=list)
    def __post_init__(self):
        object.__setattr__(self, "q", int(self.q))

#: 01 enum
import enum
class Kind(enum.Enum):
    A = "a"
    B = "b"
    def __str__(self):
        return self.value

#: 01 named_tuple
from typing import NamedTuple
class State(NamedTuple):
    m: float
    l: float
s = State(0, 1)._replace(m=2)
print(s._asdict())

#: 01 abc
from abc import ABC, abstractmethod
class Base(ABC):
    @abstractmethod
    def f(self): ...

#: 01 numpy_testing
import numpy as np
from numpy.testing import assert_allclose
assert_allclose(np.ones(2), 1)

#: 01 matplotlib
import matplotlib.pyplot as plt
def plot(x, y):
    fig, ax = plt.subplots()
    ax.loglog(x, y)
    plt.rcParams["font.size"] = 9
    return fig

#: 01 pandas
import pandas as pd
def table(rows):
    return pd.DataFrame(rows)

#: 01 timing
import time
from timeit import timeit
t = time.perf_counter()

#: 01 context_manager
import contextlib, gc
@contextlib.contextmanager
def quiet():
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

#: 01 type_hints
from __future__ import annotations
from typing import TYPE_CHECKING, TypeVar, cast
if TYPE_CHECKING:
    from numpy.typing import NDArray
T = TypeVar("T")
def f(x: "NDArray") -> T:
    return cast(T, x)

#: 01 template
ROW = "{name:<10} {value:>8.2f}"
print(ROW.format(name="x", value=1))

#: 01 thread_pool
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor() as pool:
    list(pool.map(abs, [1]))

#: 05 module
import torch
from torch import nn
class Head(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Linear(d, d)
        self.register_buffer("mask", torch.ones(d))
    def forward(self, x):
        return self.w(x) * self.mask

#: 05 compiled
import torch
@torch.compile
def scores(q, k):
    return q @ k.mT

#: 05 compared_with_torch
import torch
import torch.nn.functional as F
def check(q, k, v, out):
    assert torch.allclose(out, F.scaled_dot_product_attention(q, k, v))

#: 05 numpy_for_its_figure
import torch
import matplotlib.pyplot as plt
def plot(x):
    plt.plot(x.detach().numpy())

#: 05 einsum
import torch
def f(q, k):
    return torch.einsum("bid,bjd->bij", q, k)

#: 05 context_of_a_function
import torch
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.scale = 3
        return x * 3
    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale

#: 05 gradients_by_hand
import torch
def f(x):
    x.requires_grad = True
    x.grad = None
    return x

#: 05 generator_of_tiles
import torch
def tiles(q, k, n):
    for i in range(0, len(q), n):
        yield i, q[i : i + n] @ k.mT

#: 05 cached
import functools, torch
@functools.lru_cache(maxsize=8)
def mask(n):
    return torch.ones(n, n).tril()
mask.cache_clear()

#: 09 cache_class
import torch
class Cache:
    __slots__ = ("keys", "_n")
    def __init__(self):
        self._n = 0
    def __len__(self):
        return self._n
    def __getitem__(self, i):
        return self.keys[i]

#: 09 linked_list
class Node:
    def __init__(self, value, next=None):
        self.value, self.next = value, next
def append(node, other):
    node.next = other
    return node

#: 09 attributes_in_a_loop
class Block:
    def __init__(self, **fields):
        for name, value in fields.items():
            setattr(self, name, value)

#: 09 chosen_dtype
import torch
def dtype(name):
    return getattr(torch, name)

#: 09 a_set_of_requests
def admit(requests, now):
    for request in requests:
        request.started = now

'''

HONEST = {
    tuple(head.split()): source for head, _, source in (each.partition("\n") for each in SNIPPETS.split("#: ")[1:])
}
"""(lab, name) → source."""
