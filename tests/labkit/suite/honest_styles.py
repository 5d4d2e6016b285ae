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

#: 01 dataclass_with_enum
from dataclasses import asdict, dataclass, field
from enum import Enum, auto
class Part(Enum):
    INPUT = auto()
    @classmethod
    def _missing_(cls, value):
        return cls._member_map_.get(value)
@dataclass(frozen=True, slots=True)
class Measurement:
    input_memory: int
    total_memory: int = field(init=False)
    def __post_init__(self):
        object.__setattr__(self, "total_memory", sum(getattr(self, p.name.lower()) for p in Part))
def measure_attention_memory(seq_len, d_model):
    return asdict(Measurement(seq_len * d_model))

#: 01 tracemalloc_in_its_task
import gc, sys, tracemalloc
def measure_attention_memory(seq_len, d_model):
    gc.collect()
    tracemalloc.start()
    try:
        x = bytearray(seq_len * d_model)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return {"total_memory": sys.getsizeof(x)}

#: 01 argparse_main
import argparse, json, pickle, sys, time
from pathlib import Path
def save(results, file):
    with open(file, "w", encoding="utf-8") as out:
        json.dump(results, out)
def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("results.json"))
    args = parser.parse_args(argv)
    start = time.perf_counter()
    save(vars(args), args.out)
    with open(args.out.with_suffix(".pkl"), "wb") as out:
        pickle.dump(time.perf_counter() - start, out)
if __name__ == "__main__":
    sys.exit(main())

#: 01 optional_plot
import warnings
try:
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError as error:
    plt = None
    warnings.warn(f"no plots: {error}", stacklevel=2)
def plot_memory_scaling(results, ax=None):
    with plt.rc_context({"figure.figsize": (6, 4)}):
        ax = ax or plt.figure().add_subplot()
    ax.set_xscale("log", base=2)
    return ax

#: 01 names_in_tables
import functools, operator
import numpy as np
STATS = (("peak", "max"), ("total", "sum"))
SIZES = {np.dtype(getattr(np, name)): 4 for name in ("float16", "float32")}
nbytes = operator.attrgetter("nbytes")
def reduced(x, which):
    return getattr(x, dict(STATS)[which])(axis=-1, keepdims=True)
def estimate_attention_memory(*shapes):
    return functools.reduce(operator.add, map(np.prod, shapes))

#: 01 callable_object
import contextlib
import numpy as np
class Attention:
    __slots__ = ("eps", "_calls")
    def __init__(self, eps=0.0):
        self.eps, self._calls = eps, 0
    def __repr__(self):
        return f"{type(self).__name__}(eps={self.eps!r}, calls={self._calls})"
    def __call__(self, Q, K, V, mask=None):
        self._calls += 1
        with np.errstate(invalid="ignore"), contextlib.suppress(AttributeError):
            return Q @ K @ V
_attention = Attention()
def standard_attention(Q, K, V, mask=None):
    return _attention(Q, K, V, mask)

#: 01 timed_and_debugged
import functools, inspect, os, time
DEBUG = os.environ.get("LAB01_DEBUG", "0") == "1"
def timed(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            if DEBUG:
                print(function.__qualname__, inspect.signature(function), time.perf_counter() - start, dir(function))
    return wrapper
@timed
def estimate_attention_memory(seq_len, d_model):
    print({name: type(value) for name, value in locals().items()})
    return {}

#: 01 exact_numbers
import math, statistics
from collections import OrderedDict
from decimal import Decimal, localcontext
from fractions import Fraction
def analyze_scaling(results):
    if (count := len(results)) < 2:
        raise ValueError(f"need two lengths, got {count}")
    ordered = OrderedDict(sorted(results.items()))
    slope, _ = statistics.linear_regression(list(map(math.log2, ordered)), list(ordered.values()))
    with localcontext() as context:
        context.prec = 12
        return {"scaling_factor": 2**slope, "share": Fraction(1, 3), "mib": Decimal(1) / 2**20}

#: 01 windows_and_strides
import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view
def growth(values):
    pairs = sliding_window_view(np.asarray(values, dtype=float), 2)
    return pairs[:, 1] / pairs[:, 0]
def diagonal(x):
    return as_strided(x, shape=(min(x.shape),), strides=(sum(x.strides),), writeable=False)

#: 01 match_and_typing
import copy, weakref
from contextlib import contextmanager
from functools import singledispatch
from typing import Protocol, TypeAlias, TypedDict
import numpy as np
Results: TypeAlias = "dict[int, Measured]"
class Measured(TypedDict):
    total_memory: int
class HasBytes(Protocol):
    @property
    def nbytes(self) -> int: ...
@singledispatch
def lengths(x):
    return copy.deepcopy(list(x))
@lengths.register(int)
def _(x):
    return [x]
@contextmanager
def inputs(*shape):
    Q = np.ones(shape)
    alive = weakref.ref(Q)
    yield Q
    assert alive() is Q
def measure_attention_memory(seq_len, d_model, dtype="f4"):
    match np.dtype(dtype).kind:
        case "f":
            return Measured(total_memory=seq_len)
        case "c" | "V":
            raise TypeError(dtype)

#: 03 state_as_a_tuple
import functools
from typing import NamedTuple
import numpy as np
class Running(NamedTuple):
    m: float = -np.inf
    l: float = 0.0
    def __or__(self, other):
        m = np.maximum(self.m, other.m)
        return self._replace(m=m, l=self.l + other.l)
def online_softmax_stats(x_blocks):
    last = None
    def step(state, block):
        nonlocal last
        last = block
        return state | Running._make((block.max(), block.sum()))
    return functools.reduce(step, x_blocks, Running())

#: 03 accumulator
from dataclasses import dataclass, field, replace
from typing import ClassVar
import numpy as np
@dataclass(eq=False)
class Accumulator:
    START: ClassVar[float] = float("-inf")
    m: float = START
    dtype: np.dtype = field(default_factory=lambda: np.dtype("f8"), repr=False, metadata={"unit": "none"})
    @property
    def result(self):
        return replace(self).m
def online_softmax_stats(x_blocks):
    return Accumulator().result

#: 03 coroutine
import numpy as np
def running():
    m = -np.inf
    block = yield m
    while block is not None:
        m = np.maximum(m, block.max(axis=-1))
        block = yield m
def online_softmax_stats(x_blocks):
    statistics = running()
    m = next(statistics)
    for block in x_blocks:
        m = statistics.send(block)
    try:
        statistics.send(None)
    except StopIteration:
        return m

#: 03 operators_of_a_state
class State:
    __slots__ = ("_m", "_l", "__weakref__")
    def __init__(self, m, l):
        self._m, self._l = m, l
    def __iter__(self):
        yield self._m
        yield self._l
    def __add__(self, other):
        return State(max(self._m, other._m), self._l + other._l) if isinstance(other, State) else NotImplemented
    def __radd__(self, other):
        return self if other == 0 else NotImplemented
    def __eq__(self, other):
        return tuple(self) == tuple(other)
    __hash__ = None
def merge_states(state_a, state_b):
    return tuple(sum((State(*state_a), State(*state_b))))

#: 03 typed_decorator
import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast
import numpy as np
P = ParamSpec("P")
T = TypeVar("T", bound=np.ndarray)
def wide(function: Callable[Concatenate[T, P], T]) -> Callable[Concatenate[T, P], T]:
    @functools.wraps(function)
    def wrapped(x, *args, **kwargs):
        return cast(T, function(x.astype("f8"), *args, **kwargs).astype(x.dtype))
    wrapped.is_wide = True
    return wrapped
@wide
@np.errstate(over="raise")
def safe_softmax(x, axis=-1):
    return np.exp(x - x.max(axis=axis, keepdims=True))
assert getattr(safe_softmax, "is_wide", False) and safe_softmax.__wrapped__ is not safe_softmax

#: 03 partial_and_cache
from __future__ import annotations
from functools import lru_cache, partial
import numpy as np
largest = partial(np.amax, axis=-1, initial=-np.inf)
@lru_cache
def working(dtype: np.dtype) -> np.dtype:
    return np.dtype("f4") if np.finfo(dtype).max < 1e5 else dtype
def safe_softmax(x, axis=-1):
    if axis not in range(-x.ndim, x.ndim):
        raise np.exceptions.AxisError(axis, x.ndim)
    return np.logaddexp.reduce(x, axis=axis, initial=-np.inf)

#: 03 closure_and_out
import math
import numpy as np
def reader(q, scale):
    o = None
    def read(K, V):
        nonlocal o
        s = np.matmul(K, q)
        s *= scale
        np.exp(s, out=s)
        o = s @ V if o is None else np.add(o, s @ V, out=o)
    return read, lambda: o
def online_attention(Q_row, K_blocks, V_blocks, scale=None):
    read, finish = reader(Q_row, 1 / math.sqrt(Q_row.shape[-1]) if scale is None else scale)
    values = iter(V_blocks)
    for K in K_blocks:
        try:
            read(K, next(values))
        except StopIteration:
            raise ValueError("more blocks of K than of V") from None
    return finish()

#: 03 sentinel_and_match
from enum import IntEnum, auto
from itertools import zip_longest
MISSING = object()
class Fit(IntEnum):
    GOOD = 0
    WIDTH = auto()
def fit(k, v):
    match k.shape, v.shape:
        case (*_, n, _), (*_, m, _) if n != m:
            return Fit.WIDTH
        case _:
            return Fit.GOOD
def online_attention(Q_row, K_blocks, V_blocks, scale=None):
    for i, pair in enumerate(zip_longest(K_blocks, V_blocks, fillvalue=MISSING)):
        if any(x is MISSING for x in pair) or (found := fit(*pair)) is not Fit.GOOD:
            raise ValueError(f"block {i}: {found.name.lower()}")

#: 03 context_managers
import contextlib, logging, os, warnings
LEVEL = os.environ.get("LOGLEVEL", "WARNING")
logging.basicConfig(level=getattr(logging, LEVEL), format="%(levelname)s %(message)s")
logger = logging.getLogger("online_softmax")
class Stage:
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        if error is not None:
            logger.exception("failed", exc_info=(kind, error, trace))
        return False
@contextlib.contextmanager
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
def online_softmax(x_blocks):
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet())
        stack.enter_context(Stage())

#: 03 threads_in_its_main
import concurrent.futures, random, sys, threading
import numpy as np
__all__ = ("merge_states", "online_softmax")
_local = threading.local()
def scratch(shape):
    if getattr(_local, "buffer", None) is None:
        _local.buffer = np.empty(shape)
    return _local.buffer
def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(2**31)
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        jobs = [pool.submit(scratch, (n,)) for n in range(8)]
        states = [job.result() for job in concurrent.futures.as_completed(jobs)]
    np.savez("states.npz", *states)
    with open("log.txt", "a") as log:
        print(seed, file=log)
if __name__ == "__main__":
    main()

#: 05 tile_as_a_dataclass
from collections.abc import Iterator
from dataclasses import dataclass
import torch
@dataclass(frozen=True, slots=True, order=True)
class Tile:
    row: int
    rows: int
    def of(self, x: torch.Tensor, axis: str) -> torch.Tensor:
        return x.narrow(-2, getattr(self, axis), getattr(self, axis + "s"))
def tiles(n: int, block: int) -> Iterator[Tile]:
    yield from (Tile(row, min(block, n - row)) for row in range(0, n, block))
def flash_backward(Q, K, V, O, L, dO, causal=False):
    dQ = torch.zeros_like(Q)
    for tile in tiles(Q.shape[-2], 64):
        tile.of(dQ, "row").add_(tile.of(dO, "row")).mul_(2)
    return dQ

#: 05 partial_einsum
import functools, math
import torch
scores = functools.partial(torch.einsum, "...id,...jd->...ij")
@torch.no_grad()
def flash_backward(Q, K, V, O, L, dO, causal=False):
    s = scores(Q, K) / math.sqrt(Q.shape[-1])
    s += torch.full(s.shape[-2:], -math.inf).triu(1).to(s.device)
    return tuple(g.to(x.dtype) for g, x in zip((s, s, s), (Q, K, V), strict=True))

#: 05 saved_as_a_tuple
from typing import Any, NamedTuple
import torch
class Saved(NamedTuple):
    Q: torch.Tensor
    L: torch.Tensor
class FlashAttention(torch.autograd.Function):
    BLOCKS = {"block_q": 128}
    @staticmethod
    def forward(ctx: Any, Q, K, V, is_causal=False):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*Saved(Q, K))
        ctx.blocks = dict(FlashAttention.BLOCKS)
        return Q
    @staticmethod
    def backward(ctx: Any, *grad_outputs):
        saved = Saved._make(ctx.saved_tensors)._asdict()
        return *(saved[name] if need else None for name, need in zip("QL", ctx.needs_input_grad)), None

#: 05 online_state_in_place
import torch
class OnlineState:
    __slots__ = ("m", "o")
    def __init__(self, like, width):
        self.m = torch.full_like(like[..., 0], -torch.inf)
        self.o = like.new_zeros((*self.m.shape, width))
    def __call__(self, S, V):
        m = torch.maximum(self.m, S.max(dim=-1).values)
        self.o.mul_((self.m - m).exp_().unsqueeze(-1)).add_(torch.matmul(S.sub_(m[..., None]).exp_(), V))
        self.m = m
        return self
def flash_forward(Q, K, V, causal=False):
    return OnlineState(Q.to(torch.float32, copy=True), V.shape[-1])(Q @ K.mT, V).o

#: 05 settings_and_masks
import os
from functools import lru_cache
from typing import Final, Literal, TypeAlias
import torch
BLOCK: Final[int] = int(os.environ.get("FLASH_BLOCK", "128"))
Device: TypeAlias = "torch.device | str"
Mode = Literal["causal", "full"]
@lru_cache(maxsize=8)
def mask(n: int, device: Device = "cpu") -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=device).triu_(1)
if os.environ.get("FLASH_STRICT"):
    torch.autograd.set_detect_anomaly(True)
assert mask(2).tolist() == [[False, True], [False, False]]

#: 05 autocast_and_profiler
import contextlib
import torch
from torch.profiler import record_function
@contextlib.contextmanager
def full_precision(x):
    with torch.autocast(device_type=x.device.type, enabled=False):
        torch.backends.cuda.matmul.allow_tf32 = False
        yield x
def flash_forward(Q, K, V, causal=False):
    scope = record_function("forward") if torch.autograd.profiler._is_profiler_enabled else None
    with scope or contextlib.nullcontext(), full_precision(Q):
        return Q.detach() @ K.mT

#: 05 attention_in_a_module
import warnings
import torch
from torch import Tensor, nn
class Heads(nn.Module):
    def __init__(self, width: int, attention=torch.matmul):
        super().__init__()
        self.attention, self.qkv = attention, nn.Linear(width, 3 * width)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
    def forward(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            warnings.warn("integers", RuntimeWarning, stacklevel=2)
        self.seen += x.shape[-2]
        return self.attention(*self.qkv(x).chunk(2, -1))
    def extra_repr(self) -> str:
        return f"modules={len(list(self.modules()))}"

#: 05 split_and_cat
from itertools import accumulate
import torch
def flash_forward(Q, K, V, causal=False):
    match (*Q.shape[:-1], K.size(-2)):
        case (*lead, n, 0):
            return Q.new_zeros(*lead, n, V.size(-1)), Q.new_full((*lead, n), -torch.inf)
    blocks = Q.split(64, -2)
    parts = [(q @ K.mT).logsumexp(-1) + i for i, q in zip(accumulate(b.size(-2) for b in blocks), blocks)]
    return torch.cat(parts, dim=-1)

#: 05 gradcheck_in_its_main
import argparse, subprocess, time
import torch
import torch.nn.functional as F
def flash_forward(Q, K, V, causal=False):
    return Q @ K.mT @ V
def reference(Q, K, V, causal):
    return F.scaled_dot_product_attention(Q, K, V, is_causal=causal)
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    print(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout)
    Q, K, V = (torch.randn(1, 64, 8, requires_grad=True) for _ in range(3))
    print({name: f(Q, K, V, args.causal) for name, f in {"mine": flash_forward, "torch": reference}.items()})
    torch.save(torch.load("before.pt"), f"{time.perf_counter()}.pt")
if __name__ == "__main__":
    main()

#: 05 debugging_helpers
import inspect, logging, traceback
from functools import wraps
import torch
log = logging.getLogger(__name__)
def logged(function):
    signature = inspect.signature(function)
    @wraps(function)
    def inner(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            log.debug("%s.%s: %s", function.__name__, name, value)
        try:
            return function(*args, **kwargs)
        except ValueError:
            log.debug(traceback.format_exc())
            raise
    return inner
class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        log.debug("ctx: %s", vars(ctx) if hasattr(ctx, "__dict__") else None)
        return logged(torch.matmul)(Q, K)

#: 09 cache_as_a_dataclass
from dataclasses import InitVar, dataclass, field
import torch
@dataclass
class KVCache:
    max_len: int
    dtype: InitVar[torch.dtype]
    _storage: torch.Tensor = field(init=False, repr=False)
    _n: int = field(init=False, default=0)
    def __post_init__(self, dtype):
        for name in ("max_len", "_n"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)}")
        self._storage = torch.zeros(2, self.max_len, dtype=dtype)
    keys = property(lambda self: self._storage[0, : self._n])
    def __bool__(self):
        return True

#: 09 enum_of_policies
from enum import StrEnum
class Policy(StrEnum):
    MAX = "max"
    PAGED = "paged"
    @classmethod
    def _missing_(cls, value):
        raise ValueError(f"{value!r} is none of {', '.join(cls)}")
    def slots(self, prompt, limit):
        match self:
            case Policy.MAX:
                return limit
            case Policy.PAGED:
                return prompt
assert Policy["MAX"]._value_ == "max" and set(Policy.__members__) == {p.name for p in Policy}
def simulate_serving(requests, num_slots, policy, block_size):
    return Policy(policy).slots(*requests[0])

#: 09 hash_chain
import hashlib, heapq, struct
from collections import defaultdict
from types import MappingProxyType
def chain(parent: bytes, tokens) -> bytes:
    return hashlib.sha256(parent + struct.pack(f"<{len(tokens)}q", *tokens)).digest()
class Pool:
    def __init__(self, num_blocks):
        self.heap, self.stamp = [(b, b) for b in range(num_blocks)], dict(enumerate(range(num_blocks)))
        heapq.heapify(self.heap)
        self.uses = defaultdict(int)
    @property
    def free(self):
        return MappingProxyType(self.stamp)
    def take(self):
        while self.heap:
            stamp, block = heapq.heappop(self.heap)
            if self.stamp.pop(block, None) == stamp:
                return block
        raise RuntimeError("no free block")

#: 09 bisect_and_counter
import bisect, operator
from collections import Counter
from itertools import pairwise, takewhile
class Slots:
    size_of = {"max": operator.attrgetter("limit"), "oracle": lambda r: r.prompt + r.output}
    def __init__(self, policy):
        self.needed, self.placed, self.counts = self.size_of[policy], [], Counter()
    def place(self, request):
        bisect.insort(self.placed, request, key=operator.attrgetter("start"))
        assert all(a.start <= b.start for a, b in pairwise(self.placed))
        self.counts.update(placed=1)
    def release(self, request):
        del self.placed[sum(1 for _ in takewhile(lambda other: other is not request, self.placed))]

#: 09 registry
from abc import ABC, abstractmethod
from typing import ClassVar, Protocol, runtime_checkable
RULES = {}
def rule(name):
    def register(function):
        RULES[name] = function
        return function
    return register
@rule("max")
def _(prompt, limit):
    return limit
@runtime_checkable
class Request(Protocol):
    limit: int
class Memory(ABC):
    registry: ClassVar[dict[str, type]] = {}
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Memory.registry[cls.__name__.lower()] = cls
    @abstractmethod
    def needed(self, request): ...

#: 09 rollback
import contextlib, copy, weakref
class BlockManager:
    _all = weakref.WeakSet()
    def __init__(self, num_blocks, block_size):
        self._tables = {}
        BlockManager._all.add(self)
    @contextlib.contextmanager
    def _transaction(self):
        before = copy.deepcopy(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__.update(before)
            raise
    def __contains__(self, seq_id):
        return seq_id in self._tables
    def free(self, seq_id):
        with self._transaction():
            del self._tables[seq_id]

#: 09 ring_with_a_base
from collections.abc import Sized
from functools import cached_property
from typing import Self
import torch
class Storage(Sized):
    def __init__(self, places, *, name="window"):
        self._pair, self._seen = torch.empty(2, places), 0
    @cached_property
    def places(self):
        return self._pair.shape[1]
    def __len__(self):
        return min(self._seen, self.places)
    def __enter__(self) -> Self:
        return self
    def __exit__(self, *exc_info):
        self._seen = 0
class RollingKVCache(Storage):
    @property
    def keys(self):
        return self._pair[0].roll(-self._seen % self.places, dims=0)

#: 09 exact_efficiency
from fractions import Fraction
from functools import lru_cache
from math import ceil, inf
from operator import itemgetter
@lru_cache(maxsize=1024)
def efficiency(work: int, num_sms: int) -> Fraction:
    waves = Fraction(work, num_sms)
    return waves / ceil(waves)
def num_splits_heuristic(total_mblocks, num_sms, num_n_blocks, max_splits=128):
    for name, value in locals().items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    table = [(s, efficiency(total_mblocks * s, num_sms)) for s in range(1, min(max_splits, num_sms) + 1)]
    return max(table, key=itemgetter(1), default=inf)

#: 09 lazy_parts
from typing import Generic, TypeVar, overload
import torch
T = TypeVar("T")
class OutOfBlocks(RuntimeError):
    def __init__(self, missing: int):
        super().__init__(f"{missing} blocks are missing")
class Lazy(Generic[T]):
    def __init__(self, make):
        self.make = make
    def __set_name__(self, owner, name):
        self.name = "_lazy_" + name
    @overload
    def __get__(self, instance: None, owner) -> "Lazy[T]": ...
    @overload
    def __get__(self, instance: object, owner) -> T: ...
    def __get__(self, instance, owner=None):
        if not hasattr(instance, self.name):
            setattr(instance, self.name, self.make(instance))
        return getattr(instance, self.name)
def split_kv_decode(q, k, v, num_splits):
    with torch.inference_mode():
        return sum(part.sum() for part in k.tensor_split(num_splits, -2))

#: 09 processes_in_its_main
import argparse, csv, importlib.util, json, os, random, sys, tempfile
from concurrent.futures import ProcessPoolExecutor
def simulate_serving(requests, num_slots, policy, block_size):
    return {"token": len(requests) / num_slots}
def job(policy):
    rng = random.Random(0)
    return policy, simulate_serving([(rng.randint(1, 64), 1, 128)], 1024, policy, 16)
def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "shares.csv"))
    args = parser.parse_args()
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        rows = list(pool.map(job, ["max", "paged"]))
    with open(args.out, "w", newline="") as file:
        csv.writer(file).writerows(rows)
    json.dump(dict(rows), sys.stdout)
    print(importlib.util.find_spec("matplotlib"))
if __name__ == "__main__":
    main()

'''

HONEST = {
    tuple(head.split()): source for head, _, source in (each.partition("\n") for each in SNIPPETS.split("#: ")[1:])
}
"""(lab, name) → source."""
