# %% [markdown]
# # Lab 10: A Triton kernel
#
# Run the cells from top to bottom after the tasks pass. Everything here is computed by **your** kernels, or by the
# compiler from them; when you change `src/triton_kernel.py`, restart the kernel and run all cells again. Say the unit
# of every number: bytes, KiB (2¹⁰), registers a thread.

# %%
import matplotlib.pyplot as plt
import torch

from labkit.kernels.table import attention_launches, rows_of
from labkit.meters.kernels.calls import kernel_call
from labkit.notebook import compare, predict, student_module

kernels = student_module("lab10")
torch.set_num_threads(1)

# %% [markdown]
# ## What the compiler says
#
# Your forward kernel, float16, d = 64, over blocks and warps, for an A100 (sm_80) and an H100 (sm_90). `stack` is
# what a thread keeps in memory because its 255 registers do not suffice.
#
# Before you run it: predict the registers that a thread needs for blocks of 64 × 64 with 4 warps, on sm_80. A register
# holds one float32, and a warp has 32 threads.

# %%
predicted_registers = predict(None, "registers")

# %%
BLOCKS = [(64, 32), (64, 64), (128, 64), (128, 128)]
table = [
    row
    for block_q, block_k in BLOCKS
    for arch in (80, 90)
    for num_warps in (4, 8)
    for row in rows_of(
        attention_launches(kernels.flash_forward, 64, "fp16", True, block_q, block_k),
        {"blocks": f"{block_q} × {block_k}"},
        arch,
        num_warps,
        2,
    )
]
print("blocks     arch   warps   shared B   registers   stack B   products")
for row in table:
    numbers = f"{row.shared:>9,}   {row.registers:>9}   {row.stack:>7,}   {row.products:>8}"
    print(f"{row.constants['blocks']:9s}  sm_{row.arch}   {row.num_warps:>3}   {row.problem or numbers}")

# %% [markdown]
# ## 1. The figure: what the compiler reports over block sizes
#
# Draw, for sm_80 and for sm_90, the registers of a thread and the bytes of its stack over the four blocks, for 4 and
# for 8 warps. Mark the 255 registers that there are.

# %% nbgrader={"grade": true, "grade_id": "figure_compiler", "solution": true}
figure, axes = plt.subplots(2, 2, figsize=(8.5, 5.5), sharex=True, layout="constrained")
### BEGIN SOLUTION
# Rubric, 4 points: 1 registers and the stack, with units; 1 both architectures, told apart; 1 both numbers of warps,
# with a legend; 1 the line at 255.
for column, arch in enumerate((80, 90)):
    for number, num_warps in enumerate((4, 8)):
        chosen = [row for row in table if row.arch == arch and row.num_warps == num_warps]
        names = [row.constants["blocks"] for row in chosen]
        for ax, heights in (
            (axes[0, column], [row.registers for row in chosen]),
            (axes[1, column], [row.stack for row in chosen]),
        ):
            ax.plot(names, heights, "o-" if num_warps == 4 else "s--", color=f"C{number}", label=f"{num_warps} warps")
    axes[0, column].axhline(255, color="0.4", linestyle=":")
    axes[0, column].set(title=f"sm_{arch}", ylabel="registers a thread", ylim=(0, 280))
    axes[1, column].set(xlabel="block_q × block_k", ylabel="stack, bytes a thread")
axes[0, 0].legend()
plt.show()
### END SOLUTION

# %% [markdown]
# ## 2. Why it spills

# %%
(row,) = (row for row in table if (row.constants["blocks"], row.arch, row.num_warps) == ("64 × 64", 80, 4))
compare(predicted_registers, row.registers, "registers")

# %% [markdown]
# (a) Give both numbers, and explain the gap: what else does a thread hold? If there was none, say which tiles your
# prediction had.
#
# (b) What is it with blocks of 128 × 128 and 4 warps, and why do 8 warps help?

# %% [markdown] nbgrader={"grade": true, "grade_id": "why_it_spills", "solution": true}
# (a) Predicted 64: 64 · 64 / 128 = 32 of the accumulator, and 32 of one tile of scores. Measured 168
# (another kernel or another version of Triton has its own number). A thread also holds the weights in float16 for the
# second product, its parts of Q, K and V on their way to the tensor cores, m and l, and addresses and masks.
#
# (b) 64 of the accumulator and 128 of the scores: with all else more than the 255 that there are, and the rest goes to
# the stack. With 8 warps twice the threads hold half as much each: no stack.
#
# Rubric, 5 points: 3 for (a): 1 both numbers, 1 accumulator and scores with their numbers, 1 a third part of which the
# prediction knew nothing. 2 for (b): 1 the 192 and 255, 1 the halves.

# %% [markdown]
# ## 3. Where the bytes go
#
# N = 256, d = 64, float32, block_q = 64, block_k = 32: predict the bytes that a causal forward pass loads, as a share
# of those without a mask, in percent.

# %%
predicted = predict(None, "%")

# %%
given = dict(zip("QKV", (torch.randn(256, 64) for _ in range(3)), strict=True))
loaded = {}
for causal in (False, True):
    _, seen = kernel_call(kernels.flash_forward, given, causal, 64, 32)
    loaded[causal] = sum(seen["loaded"].values())
    print(f"causal {causal}: loaded {', '.join(f'{name} {n:,} bytes' for name, n in seen['loaded'].items())}")
compare(predicted, 100 * loaded[True] / loaded[False], "%")

# %% [markdown]
# (a) Give both numbers, and explain the gap. If there was none, say which terms your prediction had.
#
# (b) A larger block_q moves fewer bytes without a mask. How many times is K loaded with 64 rows, and with 256? Name two
# things that keep you from 1,024.

# %% [markdown] nbgrader={"grade": true, "grade_id": "where_bytes_go", "solution": true}
# (a) Predicted 50 %, measured 66.7 %. Tiles are loaded whole: the four blocks of queries need 2, 4, 6 and 8 of 8 tiles
# of keys, 20 of 32 and not half, since those at the diagonal are partly hidden. And Q is loaded once in both cases:
# (65,536 + 327,680) / (65,536 + 524,288).
#
# (b) Once for each of the ⌈256 / block_q⌉ blocks of queries: 4 times, and once. The program keeps Q's block, the
# accumulator and a tile of scores: beyond 255 registers a thread they spill. And N / block_q programs a head must be
# enough to fill the GPU.
#
# Rubric, 5 points: 3 for (a): 1 both numbers, 1 the tiles at the diagonal, 1 Q (without a gap: 1 for the numbers, 2 for
# both terms). 2 for (b): 1 for 4 and 1, 1 for two reasons.
