"""The source check shows what is not ordinary, on the text that runs, and little of what students really write."""

from __future__ import annotations

import importlib
import pkgutil
import re
import types

import pytest

from labkit.labs.catalog import find_lab, find_labs, solution_file
from labkit.suite.main_block import without_main_block
from labkit.suite.source_check import MODULES, TOO_DEEP, check_source
from labstaff.authoring.alternatives import alternative_solutions, variant_text

STYLES = r"""
#: 01 logging
import logging
log = logging.getLogger(__name__)
log.debug("N = %d", 3)
#: 01 environment
import os, sys
from pathlib import Path
os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).parent / os.path.join("a", "b")
EPS = sys.float_info.epsilon
print("warning", file=sys.stderr)
#: 01 plot
import warnings
try:
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter
except ImportError as error:
    plt = None
    warnings.warn(f"no plots: {error}", stacklevel=2)
def plot(results, ax=None):
    with plt.rc_context({"figure.figsize": (6, 4)}):
        ax = ax or plt.figure().add_subplot()
    plt.rcParams["font.size"] = 9
    ax.set_xscale("log", base=2)
    return ax
#: 01 traced memory
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
#: 01 frozen dataclass
from dataclasses import asdict, dataclass, field
from enum import Enum, auto
class Part(Enum):
    INPUT = auto()
    @classmethod
    def _missing_(cls, value):
        return cls._member_map_.get(value)
@dataclass(frozen=True, slots=True)
class Measurement:
    parts: list = field(default_factory=list)
    total_memory: int = field(init=False)
    def __post_init__(self):
        object.__setattr__(self, "total_memory", sum(self.parts))
def measure_attention_memory(seq_len, d_model):
    return asdict(Measurement([seq_len * d_model]))
#: 01 main block with everything
import argparse, json, pickle, subprocess, sys, time
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
def save(results, file):
    with open(file, "w", encoding="utf-8") as out:
        json.dump(results, out)
    exec("print(1)")
def standard_attention(Q, K, V, mask=None):
    return np.matmul(Q, K), time.perf_counter()
def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("results.json"))
    args = parser.parse_args(argv)
    save(vars(args), args.out)
    with ThreadPoolExecutor() as pool:
        print(list(pool.map(abs, [1])), subprocess.run(["nvidia-smi"]))
    pickle.dump(standard_attention(1, 2, 3), open("x.pkl", "wb"))
if __name__ == "__main__":
    sys.exit(main())
#: 03 named tuple
from typing import NamedTuple
import numpy as np
class State(NamedTuple):
    m: float
    l: float
s = State(0, 1)._replace(m=2)
print(s._asdict(), State._make([1, 2]), State._fields)
#: 03 reduce over states
import functools, itertools, operator
import numpy as np
def merge_states(states):
    return functools.reduce(np.maximum, sorted(states, key=operator.itemgetter(0)))
biggest = max([], key=operator.attrgetter("nbytes"), default=None)
table = {name: getattr(np, "float32") for name in itertools.chain("ab")}
#: 03 context manager
import contextlib, warnings
import numpy as np
class Stage:
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        return False
@contextlib.contextmanager
def quiet():
    with warnings.catch_warnings(), np.errstate(over="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
def online_softmax(x_blocks):
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet())
        stack.enter_context(Stage())
#: 03 pattern matching
import numpy as np
def f(x):
    match x:
        case np.ndarray(shape=(n, d)):
            return n
        case [*rows]:
            return len(rows)
    raise TypeError(f"{type(x).__name__} is no array: {x!r}")
#: 04 machine
import numpy as np
from labkit.simulated_memory import HBMArray, Machine, SRAMOverflow
Arrays = tuple[HBMArray, HBMArray]
def tiled_traffic(machine: Machine, Q: HBMArray | np.ndarray, block_q: int) -> dict[str, int]:
    if isinstance(Q, np.ndarray):
        Q = machine.hbm(Q)
    try:
        tile = machine.load(Q, np.s_[0:block_q])
    except SRAMOverflow as error:
        raise ValueError("too large") from error
    return {"loaded": machine.loaded, "shape": np.matmul(tile, tile.T).shape}
def minimum(n): return tiled_traffic(Machine(sram_bytes=n), np.zeros((n, 4)), 1)
#: 04 blocks of an array
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
def tiled_attention(Q, K, V, block_q, block_k):
    starts = range(0, Q.shape[0], block_q)
    tiles = [Q[start : start + block_q] @ K.swapaxes(-1, -2) for start in starts]
    return np.concatenate(tiles, axis=0), sliding_window_view(V, 2, axis=0).sum(axis=-1)
#: 05 autograd function
import math
from typing import Any
import torch
from torch import Tensor
class Saved(torch.nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.w = torch.nn.Linear(d, d)
        self.register_buffer("mask", torch.ones(d), persistent=False)
    def forward(self, x: Tensor) -> Tensor:
        return self.w(x) * self.mask
class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, Q, K, V, is_causal=False):
        ctx.save_for_backward(Q, K)
        ctx.scale = 1 / math.sqrt(Q.shape[-1])
        ctx.set_materialize_grads(False)
        return Q
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs):
        saved = dict(zip("QK", ctx.saved_tensors, strict=True))
        return *(saved[name] if need else None for name, need in zip("QK", ctx.needs_input_grad)), None
#: 05 dtype by its name
import torch
def dtype(name):
    return getattr(torch, name)
#: 05 cached masks
import os
from functools import lru_cache, partial, wraps
from typing import Final, Literal, TypeAlias
import torch
BLOCK: Final[int] = int(os.environ.get("FLASH_BLOCK", "128"))
Device: TypeAlias = "torch.device | str"
Mode = Literal["causal", "full"]
scores = partial(torch.einsum, "...id,...jd->...ij")
@lru_cache(maxsize=8)
def mask(n: int, device: Device = "cpu") -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=device).triu_(1)
def timed(f):
    @wraps(f)
    def g(*a):
        return f(*a)
    return g
mask.cache_clear()
timed(mask).__wrapped__(2)
#: 05 settings
import contextlib
import torch
from torch.profiler import record_function
@contextlib.contextmanager
def full_precision(x: torch.Tensor):
    with torch.autocast(device_type=x.device.type, enabled=False), torch.no_grad():
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        yield x
def flash_forward(Q, K, V, causal=False):
    scope = record_function("f") if torch.autograd.profiler._is_profiler_enabled else None
    with scope or contextlib.nullcontext(), full_precision(Q):
        assert isinstance(Q, torch.Tensor) and type(Q) is type(K)
        return Q.detach() @ K.mT
#: 05 gradients by hand
import torch
import torch.nn.functional as F
def flash_backward(Q, K, V, O, L, dO, causal=False):
    Q.requires_grad, Q.grad = True, None
    with torch.enable_grad():
        (g,) = torch.autograd.grad(F.softmax(Q @ K.mT, -1).sum(), Q)
    return g.to(torch.float32), torch.zeros_like(V).add_(1).mul_(2), torch.finfo(Q.dtype).min
#: 05 own comparison with torch
import torch
import torch.nn.functional as F
def check(q, k, v, out):
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v))
def flash_forward(Q, K, V, causal=False):
    return Q
#: 05 compared in its main block
import torch
import torch.nn.functional as F
def flash_forward(Q, K, V, causal=False):
    return Q @ K.mT @ V
def reference(Q, K, V, causal):
    return F.scaled_dot_product_attention(Q, K, V, is_causal=causal)
def main():
    Q, K, V = (torch.randn(1, 64, 8, requires_grad=True) for _ in range(3))
    torch.save(torch.load("before.pt"), "after.pt")
    print(torch.compile(flash_forward)(Q, K, V), reference(Q, K, V, True))
if __name__ == "__main__":
    main()
#: 07 jacobian
import torch
from torch.autograd.functional import jacobian
def f(x):
    return jacobian(torch.cumsum, (x, -1)), torch.linalg.norm(x), torch.special.logsumexp(x, -1)
#: 08 numpy to torch
import numpy as np
import torch
def window_mask(n, window):
    i = np.arange(n)
    return torch.from_numpy(i[:, None] - i < window)
print(window_mask(3, 2).numpy())
#: 09 cache with slots
import torch
class KVCache:
    __slots__ = ("_keys", "_n")
    def __init__(self, max_len):
        self._keys, self._n = torch.empty(max_len), 0
    def __len__(self):
        return self._n
    def __getitem__(self, i):
        return self._keys[i]
    @property
    def storage_bytes(self):
        return self._keys.nbytes
    def copy_of(self, other):
        self._n = other._n
        return self.__class__(self._n), type(self)(3)
#: 09 heap and counters
import bisect, collections, copy, hashlib, heapq, struct
from collections import Counter, OrderedDict, defaultdict, deque
from types import MappingProxyType
def chain(parent: bytes, tokens) -> bytes:
    return hashlib.sha256(parent + struct.pack(f"<{len(tokens)}q", *tokens)).digest()
class BlockManager:
    def __init__(self, num_blocks):
        self.heap = [(b, b) for b in range(num_blocks)]
        heapq.heapify(self.heap)
        self.uses = defaultdict(int)
        self.waiting: deque[int] = deque()
    def free(self):
        return MappingProxyType(copy.deepcopy(dict(self.uses)))
#: 09 abstract base
from __future__ import annotations
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar, cast, overload
if TYPE_CHECKING:
    from collections.abc import Callable
T = TypeVar("T")
class Lazy(Generic[T]):
    def __set_name__(self, owner, name):
        self.name = name
    def __get__(self, instance, owner=None):
        return cast("T", instance)
class Memory(ABC):
    registry: ClassVar[dict[str, type]] = {}
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Memory.registry[cls.__name__.lower()] = cls
    @abstractmethod
    def needed(self, request): ...
#: 09 linked list
class Node:
    def __init__(self, value, next=None):
        self.value, self.next = value, next
        self._tail = None
def append(node, other):
    node.next, node._tail = other, other
    del node.value
    return node
#: 09 fractions
from fractions import Fraction
from math import ceil, inf
from operator import itemgetter
def num_splits_heuristic(total_mblocks, num_sms, num_n_blocks, max_splits=128):
    table = [(s, Fraction(total_mblocks * s, num_sms)) for s in range(1, min(max_splits, num_sms) + 1)]
    print("{:<10} {value:>8.2f}".format("x", value=1))
    return max(table, key=itemgetter(1), default=inf)
#: 10 kernel
import torch
import triton
import triton.language as tl
@triton.autotune(configs=[triton.Config({"B": 16})], key=["n"])
@triton.jit
def kernel(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.exp(tl.load(x + i, mask=i < n, other=0.0)), mask=i < n)
def f(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 16),)](x, y, x.numel(), B=triton.next_power_of_2(16))
    return y
#: 11 ring
import torch
from labkit.ranks.comm import Comm
from labkit.ranks.threads import run_ranks
def ring(comm: Comm, q: torch.Tensor) -> torch.Tensor:
    handle = comm.send(q, (comm.rank + 1) % comm.world_size)
    return comm.recv(q)
if __name__ == "__main__":
    print(run_ranks(ring, [[torch.ones(2)]]))
#: 13 scheduler
import itertools
from collections import OrderedDict, deque
import torch
class Scheduler:
    def __init__(self, **settings):
        self._settings = settings
        self._next = itertools.count().__next__ if False else 0
    def plan(self):
        return [request for request in self._settings.values() if hasattr(request, "tokens")]
#: 14 top pages
import torch
from torch import Tensor
Pair = tuple[Tensor, torch.Tensor]
def select_pages(scores: Tensor, top: int) -> Pair:
    values, pages = scores.topk(min(top, scores.size(-1)), dim=-1)
    return values.masked_fill_(values.isnan(), -torch.inf), pages.sort(dim=-1).values
"""
EXPECTED = {
    ("lab02", "walks_the_graph"): "uses getattr without a name that is written there",
}
"""What is shown of the alternative solutions: all that it is."""


LABS = {lab.number: lab for lab in find_labs()}


def shown(source: str, number: str = "05") -> list[str]:
    lab = LABS[number]
    return [found.what for found in check_source(without_main_block(source, lab), lab)]


ROUTES = r"""
get = getattr ¦ functools.reduce(getattr, ["a", "b"], Q) ¦ map(eval, ["1"]) ¦ getattr(Q, "_" + "x")
setattr(Q, NAME, 1) ¦ getattr(torch, NAME) ¦ [setattr][0](Q, "x", 1) ¦ operator.attrgetter(NAME)(Q)
operator.attrgetter("__class__.__mro__")(Q) ¦ operator.methodcaller("__reduce__")(Q) ¦ find = operator.attrgetter
object.__getattribute__(Q, "x") ¦ object.__setattr__(Q, NAME, 1) ¦ import unittest.mock
from unittest.mock import patch ¦ import timeit; timeit.timeit("x = 1") ¦ from timeit import repeat
typing.get_type_hints(Q) ¦ from typing import get_type_hints as hints ¦ typing.ForwardRef("x") ¦ typing.sys.modules
import string; string.Formatter().get_field("0._x", [Q], {}) ¦ "{0._x}".format(Q) ¦ ("{0._" + "x}").format(Q)
str.format("{0._x}", Q) ¦ TEXT.format_map({}) ¦ import _ctypes ¦ import ctypes ¦ os.write(7, b"x")
from os import write ¦ os.open("/proc/self/mem", os.O_RDWR) ¦ os.fork() ¦ os.kill(1, 9) ¦ os.environ.__dict__
here = os ¦ sys.monitoring.use_tool_id(0, "x") ¦ sys.modules["labkit"] ¦ from sys import modules ¦ sys._getframe(1)
sys.settrace(None) ¦ sys.setprofile(None) ¦ s = sys ¦ out = sys.stdout ¦ type(sys.stdout.buffer) ¦ logging.sys
logging.FileHandler("x") ¦ logging.basicConfig(filename="x") ¦ logging.os.system("x") ¦ import importlib
import importlib; importlib.import_module("x") ¦ import importlib.util as u ¦ __import__("sys") ¦ __builtins__
__loader__ ¦ __spec__ ¦ print.__self__ ¦ inspect.currentframe() ¦ inspect.stack()
inspect.signature(f, eval_str=True) ¦ inspect.builtins ¦ from inspect import getmodule ¦ gc.get_objects()
gc.get_referrers(Q) ¦ gc.callbacks ¦ import codecs ¦ json.codecs ¦ import pickle ¦ import marshal ¦ import builtins
import threading; threading.Thread(target=f) ¦ import _thread ¦ import concurrent.futures ¦ import asyncio
import multiprocessing ¦ import weakref; weakref.finalize(Q, f)
import signal ¦ import socket ¦ import subprocess ¦ import mmap ¦ import runpy ¦ import code ¦ import ast ¦ import dis
import faulthandler ¦ import linecache ¦ import pdb ¦ import bdb ¦ import doctest ¦ import cProfile ¦ import site
import zipimport ¦ import pkgutil ¦ import atexit ¦ import copyreg ¦ import shelve ¦ import tempfile
import shutil ¦ import fileinput ¦ import xml ¦ import sqlite3 ¦ import curses ¦ import io ¦ import array
import resource ¦ import fcntl ¦ import antigravity ¦ import __main__ ¦ import pandas ¦ import labkit.meters
from labkit.meters import products ¦ from labkit.suite import limits ¦ from . import x ¦ from math import *
from torch import * ¦ eval("1") ¦ exec("1") ¦ compile("1", "x", "exec") ¦ open("/proc/self/mem", "r+b") ¦ globals()
locals() ¦ vars(Q) ¦ breakpoint() ¦ help(Q) ¦ run = eval ¦ Path("x").open() ¦ Path("x").write_bytes(b"")
Path("x").read_text() ¦ pathlib.os.system("x") ¦ f.__globals__ ¦ f.__code__ ¦ f.__closure__ ¦ f.__defaults__
f.__dict__ ¦ Q.__dict__ ¦ Q.__class__.__mro__ ¦ Q.__class__.__bases__ ¦ Q.__reduce_ex__(2) ¦ Q.__array_interface__
Q.__torch_function__ ¦ Q.__class__ = X ¦ ().__class__.__base__.__subclasses__() ¦ kind = type(Q) ¦ patch(type(Q))
[type(Q)][0].x = 1 ¦ make = type ¦ type("X", (), {"__del__": f}) ¦ class M(type): pass ¦ class T(torch.Tensor): pass
kind = torch.Tensor ¦ patch(torch.Tensor) ¦ Q.mro() ¦ try: f()\nexcept E as error: error.__traceback__
error.tb_frame.f_locals ¦ frame.f_back ¦ frame.f_globals ¦ (x for x in Q).gi_frame ¦ coroutine.cr_frame
generator.ag_frame ¦ class X:\n    def __del__(self): pass ¦ class X:\n    def __torch_dispatch__(self): pass
class X:\n    def __getattribute__(self, n): pass ¦ class X:\n    def __reduce__(self): pass
class X:\n    __torch_function__ = f ¦ class X:\n    __annotations__["x"] = 1 ¦ match Q:\n    case X(__dict__=d): pass
match Q:\n    case X(_ledger=d): pass ¦ __name__.__init_subclass__.__globals__ ¦ Q.__init__(3)
import functools; functools.singledispatch(f) ¦ functools._make_key ¦ dataclasses.make_dataclass("X", [])
dataclasses.builtins ¦ contextlib.os ¦ enum.bltns ¦ enum.sys ¦ warnings.sys ¦ re.copyreg ¦ collections.abc.sys
types.FunctionType(f, {}) ¦ types.CodeType ¦ types.ModuleType("x") ¦ types.MethodType(f, Q)
traceback.walk_stack(None) ¦ traceback.sys ¦ tracemalloc.stop() ¦ tracemalloc.reset_peak() ¦ json.dump(Q, f)
operator.call(f) ¦ torch.load("x") ¦ torch.save(Q, "x") ¦ torch.compile(f) ¦ torch.jit.script(f)
torch.hub.load("x", "y") ¦ torch.library.custom_op ¦ torch.ops.aten.mm ¦ torch.classes.load_library("x") ¦ torch._C
torch._dynamo ¦ from torch import _C ¦ from torch._C import _nn ¦ from torch.library import impl
from torch.utils.cpp_extension import load_inline ¦ torch.utils.cpp_extension.load("x", [])
import torch.utils.dlpack ¦ torch.utils._pytree.SUPPORTED_NODES.clear()
torch.utils._python_dispatch._disable_current_modes() ¦ torch.utils.hooks ¦ torch.fx.symbolic_trace(f) ¦ torch.package
torch.export ¦ torch.overrides.get_overridable_functions().clear() ¦ torch.distributed ¦ torch.multiprocessing
torch.serialization ¦ torch.storage ¦ torch.UntypedStorage(4) ¦ torch.FloatStorage ¦ torch.from_file("x")
torch.frombuffer(b"") ¦ torch.from_dlpack(Q) ¦ torch.to_dlpack(Q) ¦ torch.os ¦ torch.sys ¦ torch.ctypes
torch.builtins ¦ torch.torch ¦ torch.CompilationUnit("x") ¦ torch.PyTorchFileReader("x") ¦ torch.DispatchKeySet
torch.DisableTorchFunction ¦ torch.import_ir_module("x") ¦ torch.fork(f) ¦ torch.func.functional_call
torch.nn.functional.torch ¦ torch.nn.functional.np ¦ torch.nn.modules.module.register_module_forward_hook(f)
torch.nn.utils.parametrize ¦ torch.autograd.graph.saved_tensors_hooks(f, f) ¦ torch.autograd.function.inspect
torch.cuda.os ¦ torch.cuda.memory ¦ torch.matmul = f ¦ del torch.matmul ¦ torch.nn.functional.softmax = f ¦ t = torch
use(torch) ¦ F = torch.nn.functional ¦ Q.untyped_storage() ¦ Q.storage() ¦ Q.data_ptr() ¦ Q.set_(Q) ¦ Q.resize_(3)
Q.as_subclass(X) ¦ Q.register_hook(f) ¦ Q.grad_fn.register_prehook(f) ¦ Q.register_post_accumulate_grad_hook(f)
module.register_forward_hook(f) ¦ Q.numpy() ¦ torch.from_numpy(Q) ¦ Q.__array__() ¦ import numpy
from labkit.simulated_memory import Machine
getattr(Q, "__class__").x ¦ getattr(torch.nn, "functional").torch ¦ operator.attrgetter("__class__")(Q)
def isinstance(a, b): b.nbytes = 0\nisinstance(1, torch.Tensor) ¦ def f(getattr): getattr(torch, "nn")
class X:\n    def __eq__(self, T): T.nbytes = 0\nx = X()\nx == type(Q) ¦ list = G()\nx: list[torch.Tensor] = 1
class G:\n    def __class_getitem__(cls, T): T.nbytes = 0\nx: G[torch.Tensor] = 1 ¦ X() == torch.Tensor
class G:\n    def __getitem__(self, T): T.nbytes = 0\nG = G()\nx: G[torch.Tensor] = 1 ¦ x: g | torch.Tensor = 1
x: leak(torch.Tensor) = 1 ¦ inspect.signature(f).parameters["x"].annotation ¦ dataclasses.fields(A)[0].type
typing.get_args(tuple[torch.Tensor]) ¦ T = torch.nn.functional.Tensor ¦ match Q:\n    case X(__class__=c): pass
c = functools.cached_property(len)\nc.__set_name__(object, N)\nc.__get__(Q) ¦ type(Q.raw)("/proc/self/fd/5", "wb")
def print(file): type(file)\nprint(file=sys.stdout) ¦ f(file=sys.stdout) ¦ contextlib.redirect_stdout(Q)
class A: _typed_storage = 0\nQ._typed_storage() ¦ class A: _forward_hooks = 0\nQ._forward_hooks
logging.basicConfig(**{"filename": "x"}) ¦ logging.getLogger().handlers ¦ from tqdm import tqdm; tqdm([]).fp
import torch as t, math as t; t.hub ¦ def super(): return Q\nsuper().__init__(4) ¦ Qq = Q; Qq.__init__(4)
import flash_attention; flash_attention.torch ¦ (t := torch).hub ¦ def f(t=torch): t.hub ¦ lambda: torch
"""
NUMPY_ROUTES = r"""
np.load("x") ¦ np.save("x", Q) ¦ np.savez("x", Q) ¦ np.loadtxt("x") ¦ np.fromfile("x") ¦ np.memmap("x")
np.ctypeslib.as_array ¦ np.f2py ¦ np.lib.stride_tricks.as_strided(Q, (9,), (9,)) ¦ np.lib.format.open_memmap("x")
np.core ¦ np.testing.rundocs("x") ¦ np.testing.runstring("x", {}) ¦ np.seterrcall(f) ¦ np.DataSource() ¦ np.add = f
Q.tofile("x") ¦ Q.dump("x") ¦ Q.ctypes.data ¦ Q.setflags(write=True) ¦ import numpy.ctypeslib
from numpy.lib.stride_tricks import as_strided ¦ import numpy.distutils ¦ n = np ¦ plt.np ¦ plt.savefig("x")
figure.canvas ¦ plt.imsave("x", Q) ¦ import torch
np.random.default_rng().bit_generator.cffi ¦ machine._ledger.loaded = 0
class A:\n    _ledger = 0\n    def f(self): self._ledger = 1\nmachine._ledger
object.__setattr__(machine, "_ledger", 0) ¦ setattr(machine, "_ledger", 0) ¦ machine.__init__(4)
machine.__class__ = A ¦ Machine.loaded = property(len) ¦ Machine.__init__(machine, 4)
for M in (Machine,): M.loaded = 0 ¦ class Liar(Machine): pass ¦ patch(Machine) ¦ super(Machine, machine).x ¦ sm.np
sm.math ¦ from labkit.simulated_memory import _ledger
"""
IMPORTS = (
    "import torch, os, sys, functools, operator, typing, logging, inspect, gc, json, pathlib, enum, re, types\n"
    "import contextlib, dataclasses, collections.abc, traceback, tracemalloc, torch.nn.functional, warnings\n"
    "from pathlib import Path\n"
)
NUMPY_IMPORTS = (
    "import numpy as np, matplotlib.pyplot as plt, labkit.simulated_memory as sm\n"
    "from labkit.simulated_memory import Machine\n"
)


@pytest.mark.parametrize("route", re.split(r"\n| ¦ ", ROUTES.strip()))
def test_each_route_is_shown(route: str) -> None:
    assert shown(IMPORTS) == []
    assert shown(IMPORTS + route.replace("\\n", "\n"))


@pytest.mark.parametrize("route", re.split(r"\n| ¦ ", NUMPY_ROUTES.strip()))
def test_each_route_is_shown_in_a_numpy_lab(route: str) -> None:
    assert shown(NUMPY_IMPORTS, "04") == []
    assert shown(NUMPY_IMPORTS + route.replace("\\n", "\n"), "04")


MODULES_OF_LIBRARIES = [name for name, names in MODULES.items() if names == "*" and not name.startswith("triton")]


@pytest.mark.parametrize("module", MODULES_OF_LIBRARIES)
def test_a_module_inside_an_ordinary_one_is_ordinary_itself_or_shown(module: str) -> None:
    """A new version of a library may have modules that the list does not know; some are imported by others only."""
    outer = importlib.import_module(module)
    names = {name for name, value in vars(outer).items() if isinstance(value, types.ModuleType)}
    names |= {each.name for each in pkgutil.iter_modules(getattr(outer, "__path__", ()))}
    for name in names:
        inner = f"{module}.{name}"
        harmless = name in ("math", "random", "time", "copy") and not name.startswith("_")
        assert inner in MODULES or harmless or shown(f"import {module}\n{inner}.x", "08"), inner


@pytest.mark.parametrize("lab", find_labs(), ids=lambda lab: lab.label)
def test_solutions_are_clean_and_two_alternative_solutions_show_a_line(lab) -> None:
    texts = {file: file.read_text(encoding="utf-8") for file in (lab.student_file, solution_file(lab))}
    texts |= {file: variant_text(lab, file) for file in alternative_solutions(lab)}
    found = {file.stem: [each.what for each in check_source(text, lab)] for file, text in texts.items()}
    assert {name: lines for name, lines in found.items() if lines} == {
        name: [line] for (label, name), line in EXPECTED.items() if label == lab.label
    }


def test_few_ordinary_styles_are_shown_and_none_loses_a_point() -> None:
    styles = [each.partition("\n") for each in STYLES.split("#: ")[1:]]
    found = {
        head: check_source(without_main_block(text, find_lab(head[:2])), find_lab(head[:2])) for head, _, text in styles
    }
    listed = {head: [each.what for each in lines] for head, lines in found.items() if lines}
    assert len(styles) >= 30
    assert listed == {
        "01 traced memory": ["uses tracemalloc.stop"],
        "05 dtype by its name": ["uses getattr without a name that is written there"],
    }
    assert not [each for lines in found.values() for each in lines if each.tasks]


def test_numpy_and_torch_meet_without_a_line_where_a_lab_has_both() -> None:
    both = "import numpy as np\nimport torch\nx = torch.from_numpy(np.matmul(a, b))\ny = x.numpy()\n"
    assert shown(both, "08") == shown(both, "12") == []
    assert shown("import numpy as np\nimport torch\ny = np.matmul(a, b)\n", "01") == ["imports torch"]
    assert shown(both, "05") == ["imports numpy", "uses torch.from_numpy", "uses numpy"]


BY_HAND = """import subprocess
def helper():
    '''Two
    lines.'''
    return subprocess.run("x")
def rename(function):
    {rename}
    return function
@rename
def flash_forward(Q):
    return {leads}
if __name__ == "__main__":
    helper()
    eval("1")
LINE = 15
"""


@pytest.mark.parametrize(
    ("rename", "leads"),
    [
        ("global __name__; __name__ = '__main__'", "Q"),
        ("function.__globals__['__name__'] = '__main__'", "Q"),
        ("import sys; sys.modules['flash_attention'].__name__ = '__main__'", "Q"),
        ("pass", "getattr(__import__('flash_attention'), 'hel' + 'per')()"),
    ],
)
def test_whatever_leads_to_the_main_block_finds_nothing(rename: str, leads: str) -> None:
    """What is cut does not run; what stays is checked. Line numbers are those of the file."""
    text = BY_HAND.format(rename=rename, leads=leads)
    cut = without_main_block(text, find_lab("05"))
    assert "eval" not in cut
    assert cut.split("\n")[14] == "LINE = 15"
    assert "subprocess" not in cut or shown(text)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(cut.replace("@rename", ""), names)
    assert names["LINE"] == 15


def test_what_is_reached_by_any_name_stays_and_is_checked() -> None:
    text = BY_HAND.format(rename="pass", leads="globals()['hel' + 'per']()")
    assert shown(text) == ["imports subprocess", "uses globals"]


@pytest.mark.parametrize(
    "block",
    ["main(); x = (1,\n  2)", "\n\tmain()\n\tx = 1 # c", "\n  @d\n  def f():\n    main()\n  f(); \nelse:\n  y = 1"],
)
def test_a_block_of_any_form_is_cut(block: str) -> None:
    before = "import pickle; import os\ndef main(): return pickle.load(\n  1)"
    text = f"{before}\nif '__main__' == __name__: {block}\nz = os.sep\n"
    cut = without_main_block(text, find_lab("05"))
    assert shown(text) == []
    assert cut.count("\n") == text.count("\n")
    assert "main()" not in cut.replace("def main()", "")


def test_what_is_registered_or_named_by_others_stays() -> None:
    text = "RULES = []\n@RULES.append\ndef a(): return 1\ndef b(): return 2\nB = [b]\n"
    text += "if __name__ == '__main__': a(), b()\n"
    assert "return 1" in without_main_block(text, find_lab("05"))
    assert "return 2" in without_main_block(text, find_lab("05"))


ATTEND = "import torch\nattend = torch.nn.functional.scaled_dot_product_attention\n"
THEIRS = "from torch.utils.checkpoint import {0} as theirs\n"


@pytest.mark.parametrize(
    ("number", "code", "tasks"),
    [
        ("05", f"{ATTEND}def flash_backward(Q): attend(Q, Q, Q)", {"flash_backward"}),
        ("05", f"{ATTEND}def helper(Q): attend(Q, Q, Q)\ndef flash_backward(Q): helper(Q)", {"flash_backward"}),
        ("05", f"{ATTEND}def check(Q): attend(Q, Q, Q)\ndef flash_backward(Q): return Q", set()),
        ("05", f"{ATTEND}TABLE = {{}}\nTABLE['a'] = attend\ndef flash_backward(Q): TABLE['a'](Q)", {"flash_backward"}),
        ("05", f"{ATTEND}if __name__ == '__main__':\n    flash_backward = attend", set()),
        ("01", f"{ATTEND}def standard_attention(Q): attend(Q, Q, Q)", {"standard_attention"}),
        (
            "01",
            "def scaled_dot_product_attention(): ...\ndef standard_attention(Q): scaled_dot_product_attention()",
            set(),
        ),
        ("06", f"{THEIRS.format('CheckpointFunction')}class Checkpoint(theirs): pass", {"Checkpoint"}),
        ("06", f"{THEIRS.format('checkpoint')}def checkpoint(f): return theirs(f)", {"checkpoint"}),
        ("08", f"{ATTEND}def memory_breakdown(): attend()", set()),
        (
            "08",
            f"{ATTEND}def memory_breakdown(): attend()\ndef sliding_window_attention(): attend()",
            {"sliding_window_attention"},
        ),
    ],
)
def test_tasks_whose_work_a_library_does_earn_nothing(number: str, code: str, tasks: set[str]) -> None:
    lab = find_lab(number)
    found = check_source(without_main_block(code, lab), lab)
    assert {task for each in found for task in each.tasks} == tasks
    assert all("uses a library's own" in each.what for each in found if each.tasks)


def test_findings_come_once_each_in_the_order_of_the_lines() -> None:
    found = check_source("import ctypes\n\nx = eval('1')\nimport mmap, unittest.mock\neval('2')\n", find_lab("01"))
    assert list(map(str, found)) == [
        "line 1: imports ctypes",
        "line 3: uses eval",
        "line 4: imports mmap",
        "line 4: imports unittest.mock",
    ]


@pytest.mark.parametrize("source", ["def f(:", "\0", "", "import math\r\nx = math.pi\r\n"])
def test_other_texts_are_reported_by_the_tests(source: str) -> None:
    assert check_source(source, find_lab("05")) == []


@pytest.mark.parametrize("source", ["x = a" + ".b" * 20_000, "x = " + "-" * 20_000 + "1", "(" * 5000])
def test_a_text_that_is_nested_too_deep_is_a_finding(source: str) -> None:
    assert [each.what for each in check_source(source, find_lab("05"))] in ([TOO_DEEP], [])
