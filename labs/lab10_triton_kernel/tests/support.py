"""Assertions of Lab 10: results of kernels, and what a GPU and its compiler would do with them.

The interpreter hides errors that a GPU does not forgive; the messages say why it did not show them.
"""

import functools

import numpy as np
import torch

from labkit.kernels.resources import MAX_REGISTERS, SHARED_BYTES, resources
from labkit.testing.attention.backward_mistakes import backward_mistakes, lse_mistakes_of
from labkit.testing.attention.cases import Case, worked_example
from labkit.testing.attention.mistakes import attention_mistakes
from labkit.testing.compare import (
    NAN_HINT,
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_refused,
    assert_tuple,
    assert_type,
    compare_each,
    require,
)
from labkit.testing.tiles.counts import tiles_with_an_entry

from .probes import called, largest_int32_product

GRADIENTS = ("dQ", "dK", "dV")
USES = {"load": "loads", "store": "stores", "update": "updates, atomically,"}

GARBAGE = (
    "a lane that a mask leaves out of a load holds anything on a GPU (here NaN) unless the load says other=…; "
    "the interpreter alone puts 0 there. Or memory of torch.empty that no program writes"
)
"""For `nan_hint`: what usually causes NaN in a kernel's result."""

SHORT_SUMS = "a sum is kept in float16: sums belong in float32, in tl.float32 accumulators, with one .to(…) at the end"
SHORT_SCORES = "scores are rounded to half precision: tl.dot gives float32, which exp needs"
ONE_AFTER_THE_OTHER = "the interpreter runs one program after the other, and its sums come out right"
WHAT_LIES_THERE = "the interpreter reads what lies there and goes on"


def assert_sound(seen, outside=()):
    """Fail where a call's kernels did what a GPU does not forgive, or where there were none.

    `outside` is what torch may compute itself. Besides, it may compute a number for each that the arguments and the
    result hold, and two where `outside` holds anything: a sum of gradients, not an attention in plain arithmetic.
    """
    require(seen["launches"], "no kernel is launched: the work belongs into functions marked @triton.jit")
    found = [what for what in seen["outside_kernels"] if what not in outside]
    require(not found, f"torch itself computes {', '.join(found)}: that belongs into the kernels")
    most_numbers = seen["numbers"] * (2 if outside else 1)
    require(
        seen["outside_numbers"] <= most_numbers,
        f"torch itself computes {seen['outside_numbers']:,} numbers, at most {most_numbers:,} are allowed: "
        "that belongs into the kernels",
    )
    for problem in seen["problems"]:
        require(False, _described(problem))


def _described(problem):
    """One of the problems that `labkit.meters.kernels.watch` finds, in words."""
    kernel, tensor, program = problem["kernel"], problem["tensor"], tuple(problem["program"])
    operation = USES[problem["use"]]
    if problem["kind"] == "input":
        return (
            f"{kernel} {operation} into {tensor}, an argument, which the caller still needs: make a tensor for results"
        )
    if problem["kind"] == "meets":
        other = USES[problem["other"]]
        if problem["use"] == problem["other"] == "store":
            return (
                f"{kernel}: program {program} stores where another program of the same launch stores: in {tensor}\n"
                "On a GPU they run at the same time, and either may be the last; the interpreter runs one program "
                "after the other\nUsual cause: tl.store has no mask, and lanes behind the end of a row or a block "
                "write into the next one; or several programs own the same element"
            )
        return (
            f"{kernel}: program {program} {operation} where another program of the same launch {other}: in {tensor}\n"
            "On a GPU they run at the same time, and what one has added the other overwrites; "
            f"{ONE_AFTER_THE_OTHER}\nUsual cause: a sum is collected by several programs: give each element one "
            "program that owns it, or add with tl.atomic_add"
        )
    place = problem["element"]
    where = f"outside of {tensor}" if place is None else f"element {place} of {tensor}, which has none of that number"
    if place is None and not tensor:
        where = "an address that belongs to no argument"
    consequence = (
        "On a GPU that is another tensor's number, or the end of the program with “illegal memory access”; "
        + WHAT_LIES_THERE
        if problem["use"] == "load"
        else "On a GPU that destroys another tensor, or ends the program with “illegal memory access”"
    )
    return (
        f"{kernel}: program {program} {operation} {where}\n{consequence}\n"
        "Usual cause: a mask is missing, or compares with the wrong length: lanes from the length on must be left out; "
        "or a tensor is taken for contiguous, whatever its strides are"
    )


def assert_bytes(what, found, want, mistakes=None, *, hint=""):
    """Fail unless the bytes in `found`, by tensor, add up to `want`; the message lists them."""
    each = ", ".join(f"{name} {n_bytes:,}" for name, n_bytes in sorted(found.items()))
    assert_equal(f"the bytes {what} ({each})", sum(found.values()), want, mistakes=mistakes, hint=hint)


def assert_multiplied(seen, most, *, hint):
    """Fail unless tiles are multiplied by `tl.dot`, and at most so many pairs of numbers in all."""
    require(seen["products"], "no tile is multiplied by tl.dot: without it the tensor cores have nothing to do")
    done = sum(rows * inner * columns * times for rows, inner, columns, times in seen["products"])
    assert_at_most("the numbers multiplied in tl.dot", done, most, unit="multiplications", hint=hint)


def assert_compiles(made, arch, *, products=True, spills=False, stack=0, exact=False):
    """Fail unless Triton's compiler and the assembler take every kernel for sm_`arch`; what each takes.

    Args:
        products: tensor cores must have something to do in at least one of the kernels.
        spills: registers may be put into memory.
        stack: so many bytes a thread may have on the stack without that.
        exact: no product may be of tf32.
    """
    found = []
    for each in made:
        kernel = each["kernel"]
        require(not each["error"], _refused(kernel, arch, each["error"]))
        taken = resources(each["ptx"], each["shared"], arch)
        found.append(taken)
        require(taken.fits(arch), _too_much_shared(kernel, arch, taken, each))
        require(spills or taken.stack <= stack, _spilled(kernel, arch, taken, each))
        require(
            not (exact and taken.tf32),
            f"{kernel}, compiled for sm_{arch}, multiplies float32 in tf32, with 10 bits of mantissa instead of 23\n"
            "The interpreter multiplies float32 exactly, whatever is asked for\n"
            'Usual cause: tl.dot without input_precision="ieee", whose default is tf32',
        )
    require(
        not products or any(taken.products for taken in found),
        f"compiled for sm_{arch}, no kernel multiplies on tensor cores: products of float16 tiles by tl.dot do",
    )
    return found


def _refused(kernel, arch, said):
    """What to say where the compiler does not take a kernel."""
    return (
        f"Triton's compiler refuses {kernel} for sm_{arch}: {said}\n"
        "The interpreter is NumPy: it multiplies tiles of any shape and size, and knows no types but NumPy's\n"
        "Usual cause: a side of tl.dot below 16, a size that is no tl.constexpr or no power of two, "
        "or Python that Triton's language does not have"
    )


def _too_much_shared(kernel, arch, taken, made):
    """What to say where a thread block does not fit."""
    return (
        f"{kernel} asks for {taken.shared:,} B of shared memory, and a thread block of sm_{arch} can have "
        f"{SHARED_BYTES[arch]:,} B: its launch fails on a GPU\nThe interpreter has all of the machine's memory\n"
        f"Usual cause: every stage of the {made['num_stages']} keeps tiles of K and V: fewer stages, or smaller blocks"
    )


def _spilled(kernel, arch, taken, made):
    """What to say where registers do not suffice."""
    return (
        f"{kernel}, compiled for sm_{arch}, keeps {taken.stack} B a thread on the stack, in memory: its tiles do not "
        f"fit into the {MAX_REGISTERS} registers that a thread can have\n"
        "The interpreter has no registers: results are right, and on a GPU every use of what was put away is slow\n"
        f"Usual cause: tiles too large for {made['num_warps']} warps, one more tile alive than is needed, or tiles "
        "made float32 before they are multiplied"
    )


# Both passes of attention


def worked_case():
    """The handout's worked example."""
    return Case(*map(torch.from_numpy, worked_example()), torch.ones(1, 1))


def assert_forward(case, result, *blocks, hint="", nan_hint=""):
    """Compare (O, L) with the reference, and their dtypes; name a known mistake where one fits."""
    got = dict(zip("OL", assert_tuple("flash_forward's result", result, "OL"), strict=True))

    def known():
        return attention_mistakes(case, *blocks)

    def check(name):
        found = (lambda: known() | lse_mistakes_of(case)) if name == "L" else known
        case.check(name, got[name], found, hint=hint, nan_hint=nan_hint or GARBAGE)
        if name == "O":
            assert_dtype("O", got["O"], case.Q.dtype)

    assert_type("L", got["L"], torch.Tensor, "a tensor")
    assert_dtype("L", got["L"], torch.float32, because="whatever the inputs' dtype")
    compare_each("OL", check)


def assert_backward(case, result, *blocks, hint="", nan_hint=""):
    """Compare (dQ, dK, dV) with the reference, and their dtypes; name a known mistake where one fits."""
    got = dict(zip(GRADIENTS, assert_tuple("flash_backward's result", result, GRADIENTS), strict=True))

    def check(name):
        known = functools.partial(backward_mistakes, case, *blocks)
        case.check(name, got[name], known, hint=hint, nan_hint=nan_hint or GARBAGE)
        assert_dtype(name, got[name], case.Q.dtype)

    compare_each(GRADIENTS, check)


def measure(task, case, block_q=32, block_k=32, *, hint=""):
    """What the kernels of a call of a pass did, which is sound and whose results are right."""
    of_forward = task == "flash_forward"
    given = case.arguments if of_forward else case.backward_arguments
    result, seen = called(task, given, case.causal, block_q, block_k)
    assert_sound(seen)
    (assert_forward if of_forward else assert_backward)(case, result, block_q, block_k, hint=hint)
    return seen


def tiles_seen(case, block_q, block_k):
    """Row and column of each tile in which some query sees a key."""
    return tiles_with_an_entry(case.Q.shape[-2], case.K.shape[-2], block_q, block_k, case.causal)


def assert_blocks_refused(function, *inputs):
    """Fail unless `function(*inputs, …)` raises a ValueError for blocks below 16 and for those of no power of two."""
    for bad in ({"block_q": 8}, {"block_q": 24}, {"block_k": 0}, {"block_k": 48}):
        assert_refused(functools.partial(function, **bad), [(inputs, f"for {bad}", bad)])


def assert_int64_offsets(task, given, farthest, what, *more):
    """Fail where a task's kernels multiply int32 numbers to an offset as large as `farthest`, which is that of `what`.

    In a call as small as this one it is far below 2³¹: in a large one it is not.
    """
    found = largest_int32_product(task, given, *more)
    require(
        found < farthest,
        f"the offset of {what}, {farthest:,} elements or more, is a product of int32 numbers ({found:,})\n"
        "Offsets in int32 end at 2,147,483,647 and begin again below 0; tensors as small as this one never show it\n"
        "Usual cause: tl.program_id, and what is loaded from a table of int32, are int32: .to(tl.int64) before they "
        "are multiplied",
    )


# Softmax


def assert_softmax(got, x, *, hint="", nan_hint=NAN_HINT):
    """Fail unless `got` is the softmax of each row of `x`, in its dtype; a row of −inf alone gives zeros."""
    assert_type("the result", got, torch.Tensor, "a tensor")
    exact = x.double().numpy()
    baseline = _softmax(exact.astype(np.float32)).astype(np.float16 if x.itemsize == 2 else np.float32)
    padded = "the lanes behind a row's end score 0 and weigh something: other=-inf"
    behind = (1 << max(x.shape[1] - 1, 0).bit_length()) - x.shape[1]
    mistakes = {padded: lambda: _softmax(exact, behind)} if behind else {}
    name = "the result"
    assert_close(
        name, got.double(), _softmax(exact), baseline=baseline, mistakes=mistakes, hint=hint, nan_hint=nan_hint
    )
    assert_dtype(name, got, x.dtype)


def _softmax(x, behind=0):
    """Softmax of each row in x's precision, as if `behind` more elements of 0 stood there."""
    longer = np.concatenate([x, np.zeros((len(x), behind), x.dtype)], 1)
    top = longer.max(1, keepdims=True)
    powers = np.exp(longer - np.where(np.isneginf(top), 0, top))
    total = powers.sum(1, keepdims=True)
    return (powers / np.where(total == 0, 1, total))[:, : x.shape[1]]
