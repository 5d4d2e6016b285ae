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
from labkit.notebook import student_module

kernels = student_module("lab10")
torch.set_num_threads(1)

# %% [markdown]
# ## What the compiler says
#
# Your forward kernel, float16, d = 64, over blocks and warps, for an A100 (sm_80) and an H100 (sm_90). `stack` is
# what a thread keeps in memory because its 255 registers do not suffice.

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
# Rubric, 5 points: 1 registers; 1 the stack, with its unit; 1 both architectures, told apart; 1 both numbers of
# warps, with a legend; 1 the line at 255.
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
# ## 2. What the interpreter hides
#
# (a) A kernel's last tile of keys loads 31 keys that are not there, and gives them the score −∞. Results are right
# here. What can happen on a GPU, and why does it not happen in the interpreter?
#
# (b) A load of V has a mask and no `other`. Why does that matter for V, where the weights of those rows are 0?
#
# (c) Name two more errors that the interpreter cannot show, and where the tests see each.

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_the_interpreter_hides", "solution": true}
# (a) The addresses may belong to another tensor, whose numbers are then read for nothing, or to no page at all, which
# ends the program with an illegal memory access. The interpreter reads memory of this process, where there is mostly
# something behind a tensor.
#
# (b) What those lanes hold is anything, NaN and ∞ included, and 0 · NaN is NaN: one such row spoils the sum of all.
# The interpreter puts 0 there.
#
# (c) Two of: two programs that add to the same element, which it runs one after the other (seen by noting who uses
# which element); tiles below 16, which NumPy multiplies (the compiler refuses them); tf32 products, which it computes
# exactly (seen in the PTX); tiles too large for the registers, of which it has none (the assembler's stack); hidden
# tiles, which cost it nothing that shows (bytes counted).
#
# Rubric, 6 points: 2 (a), 1 for each half; 2 (b); 2 (c).

# %% [markdown]
# ## 3. Who owns a sum
#
# (a) In the backward pass dQ of a query is a sum over all blocks of keys. What goes wrong on a GPU when each block of
# keys is a program, which loads a row of dQ, adds to it and stores it? Say it for two programs, step by step.
#
# (b) What does an answer with two kernels pay for doing without that, in products a tile and in bytes?
#
# (c) With `tl.atomic_add` one kernel suffices. What is lost, besides time?

# %% [markdown] nbgrader={"grade": true, "grade_id": "who_owns_a_sum", "solution": true}
# (a) Both load the old row; the first stores it with its own part added; the second stores the old row with *its*
# part added. The first part is gone. Which one, and whether, depends on when they run.
#
# (b) Scores and dP are computed in both: 7 products a tile instead of 5. Q, K, V and dO are loaded by both loops.
#
# (c) The order of the additions is not fixed, and floating-point sums depend on it: two runs give different bits. The
# sums must also be kept in float32, in memory, next to dQ.
#
# Rubric, 5 points: 2 (a); 2 (b), 1 for each; 1 (c).

# %% [markdown]
# ## 4. Where the bytes go

# %%
Q, K, V = (torch.randn(256, 64) for _ in range(3))
for block_q in (16, 32, 64, 128):
    _, seen = kernel_call(kernels.flash_forward, {"Q": Q, "K": K, "V": V}, False, block_q, 32)
    print(
        f"block_q {block_q:>3}: loaded {sum(seen['loaded'].values()):>9,} B, stored {sum(seen['stored'].values()):,} B"
    )

# %% [markdown]
# (a) How do the bytes loaded depend on block_q, and why does block_k not matter for them?
#
# (b) A larger block_q moves fewer bytes. What keeps you from 1,024?

# %% [markdown] nbgrader={"grade": true, "grade_id": "where_bytes_go", "solution": true}
# (a) Q is loaded once; K and V once for each of the ⌈256 / block_q⌉ blocks of queries: 16 times with 16 rows, twice
# with 128. In a block of queries every key passes once, in tiles of whatever size.
#
# (b) The program keeps Q's block, the accumulator (block_q · d_v float32) and a tile of scores: beyond 255 registers
# a thread they spill, and more warps a program leave fewer programs for a multiprocessor. Also N / block_q programs a
# head must be enough to fill the GPU.
#
# Rubric, 4 points: 2 (a), 1 for each; 2 (b), 1 for registers, 1 for a second reason.

# %% [markdown]
# ## 5. Why it spills
#
# (a) Blocks of 128 × 128, d = 64, 4 warps. How many float32 does a thread hold of the accumulator, and of one tile of
# scores? Compare with 255.
#
# (b) What does the table say of the same blocks with 8 warps, and why?
#
# (c) sm_90 needs fewer registers for the same tiles. Where do the factors of a `wgmma` lie?

# %% [markdown] nbgrader={"grade": true, "grade_id": "why_it_spills", "solution": true}
# (a) 128 · 64 / 128 = 64 of the accumulator, 128 · 128 / 128 = 128 of the scores: 192, and besides them the weights
# in float16 (64 registers, two numbers each), Q's fragments, m, l and addresses: more than 255.
#
# (b) Twice the threads hold half as much each: no stack.
#
# (c) In shared memory, from which the tensor cores take them themselves; `mma` of sm_80 has both factors in
# registers.
#
# Rubric, 5 points: 2 (a); 1 (b); 2 (c).
