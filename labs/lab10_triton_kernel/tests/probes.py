"""What runs next to the submission: calls of kernels, watched or compiled, and rows that are far apart in memory."""

import ctypes
import mmap

import numpy as np
import torch
from triton_kernel import flash_backward, flash_forward, paged_decode, softmax_rows

from labkit.meters.kernels.adapter import int32_products, watching
from labkit.meters.kernels.calls import compiled_call, kernel_call
from labkit.testing.probes import probe

FUNCTIONS = {
    "softmax_rows": softmax_rows,
    "flash_forward": flash_forward,
    "flash_backward": flash_backward,
    "paged_decode": paged_decode,
}


@probe
def called(task, given, *more):
    """What a task returns, and what its kernels did."""
    return kernel_call(FUNCTIONS[task], given, *more)


@probe
def called_without_copies(task, *arguments):
    """What a task returns, run as in `called`, but on the arguments themselves."""
    with watching(_Offsets(0, 0, 1)):
        return FUNCTIONS[task](*arguments)


@probe
def largest_int32_product(task, given, *more):
    """The largest product of int32 numbers in a task's kernels; 0 where there is none."""
    with int32_products() as found:
        kernel_call(FUNCTIONS[task], given, *more)
    return max(found, default=0)


@probe
def compiled_for(task, arch, options, given, *more):
    """The kernels of a call, compiled for sm_`arch`."""
    return compiled_call(FUNCTIONS[task], given, *more, archs=[arch], **options)[arch]


@probe
def softmax_of_far_rows(x):
    """What `softmax_rows` returns for rows `ROW_STRIDE` elements apart, and offsets of loads outside of the rows."""
    return call_on_far_rows(softmax_rows, x)


MAP_FIXED_NOREPLACE = 0x100000
ROW_STRIDE = 1 << 30
"""Elements from row to row: the third begins at element 2³¹, one more than int32 can say."""


def call_on_far_rows(function, x):
    """What `function(x)` returns for x, (rows, columns), with its rows `ROW_STRIDE` elements apart.

    Beside it the offsets, in elements from the first row, of what its kernels load outside of the rows: one of each
    load, which gets 0 for them. Only the rows' own pages are mapped, so that the rest takes no room; they are kept.
    """
    step, n_bytes = ROW_STRIDE * x.itemsize, x.shape[0] * ROW_STRIDE * x.itemsize
    size = -(-x.shape[1] * x.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]

    def is_mapped(address):
        access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
        return libc.mmap(address, size, access, flags, -1, 0) == address

    start = next((place for place in range(1 << 37, 1 << 38, n_bytes) if is_mapped(place)), None)
    if start is None or not all(is_mapped(start + row * step) for row in range(1, x.shape[0])):
        raise OSError("no address space for rows that lie far apart")
    memory = (ctypes.c_char * n_bytes).from_address(start)
    far = torch.frombuffer(memory, dtype=x.dtype).as_strided(x.shape, (ROW_STRIDE, 1))
    far.copy_(x)
    rows = [(start + row * step, start + row * step + size) for row in range(x.shape[0])]
    watch = _Offsets(start, n_bytes, x.itemsize, rows)
    with watching(watch):
        result = function(far)
    # What came back may be a view of these rows: they stay, for a few pages of memory.
    return result.clone() if isinstance(result, torch.Tensor) else result, watch.outside


class _Offsets:
    """Lets loads and stores pass that stay within their tensors, and notes the loads outside of all rows."""

    def __init__(self, start, n_bytes, itemsize, rows=()):
        self.start, self.end, self.itemsize = start, start + n_bytes, itemsize
        self.ranges = list(rows)
        self.outside = []

    def launched(self, function, args, kwargs, grid):
        """Its tensors are what it may touch."""
        tensors = [x.untyped_storage() for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        spans = [(each.data_ptr(), each.data_ptr() + each.nbytes()) for each in tensors]
        self.ranges += [span for span in spans if span[0] != self.start]  # of the rows, only their pages are there

    def load(self, addresses, mask, itemsize, program):
        """A program reads."""
        allowed = self._allowed(addresses)
        is_outside = (addresses < self.start) | (addresses >= self.end)
        left = addresses[np.broadcast_to(mask, addresses.shape) & ~allowed & is_outside]
        if len(left):
            self.outside.append((int(left[0]) - self.start) // self.itemsize)
        return mask & allowed

    def store(self, addresses, mask, itemsize, program):
        """A program writes, which other tests look at."""
        return mask & self._allowed(addresses)

    update = store

    def multiplied(self, left, right):
        """Of no interest here."""

    def _allowed(self, addresses):
        """Which of them lie within a tensor."""
        allowed = np.zeros(addresses.shape, bool)
        for start, end in self.ranges:
            allowed |= (addresses >= start) & (addresses < end)
        return allowed
