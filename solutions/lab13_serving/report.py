# %% [markdown]
# # Lab 13: Serving
#
# Run the cells from top to bottom after the tasks pass. Everything here is served by **your** server; when you change
# `src/serving.py`, restart the kernel and run all cells again. Say the unit of every number: tokens, steps, blocks,
# bytes, kB (powers of ten).

# %%
import matplotlib.pyplot as plt
import torch

from labkit.notebook import student_module
from labkit.serving.drive import serve_plans
from labkit.serving.engine import serve, token_bytes
from labkit.serving.goodput import goodput, latencies
from labkit.serving.model import SPEC
from labkit.serving.requests import KINDS, LIMITS, REAL, describe, make_trace

serving = student_module("lab13")
torch.set_num_threads(1)

# %% [markdown]
# ## Two traces
#
# `served.history` has one entry a step: requests `served` and `waiting`, `blocks` that the tables name, `tokens`
# computed.

# %%
traces = {kind: make_trace(kind, 0) for kind in KINDS}
runs = {}
for kind, trace in traces.items():
    print(f"{kind}: {describe(trace)}")
    limits = LIMITS[kind]
    runs[kind] = served = serve(serving.Server(SPEC, **limits), trace, SPEC, **limits)
    print(f"  {served.steps} steps, {served.in_time} requests in time, {served.prefix_tokens} tokens found,")
    print(f"  {served.again} computed again, {float(served.bytes_read_a_token):,.0f} bytes read a token")

# %% [markdown]
# ## 1. The figure: what a server does with its blocks
#
# One panel for each trace, steps to the right. Draw the blocks in use, and how many there are; the requests served
# and those that wait; and mark the steps in which requests come.

# %% nbgrader={"grade": true, "grade_id": "figure_served", "solution": true}
figure, axes = plt.subplots(2, 1, figsize=(7.5, 6.5), layout="constrained")
### BEGIN SOLUTION
# Rubric, 6 points: 1 a panel a trace; 1 blocks in use, and the number there is; 2 requests served and waiting, told
# apart from blocks (another axis or another mark), with a legend; 1 arrivals; 1 labels with units.
for ax, (kind, trace) in zip(axes, traces.items(), strict=True):
    history = runs[kind].history
    num_blocks = serving.Server(SPEC, **LIMITS[kind]).settings()["num_blocks"]
    steps = [each.step for each in history]
    ax.step(steps, [each.blocks for each in history], where="post", color="tab:blue", label="blocks in use")
    ax.axhline(num_blocks, color="tab:blue", linestyle=":", label="blocks there are")
    ax.set(title=kind, xlabel="step", ylabel="blocks")
    other = ax.twinx()
    other.step(steps, [each.served for each in history], where="post", color="tab:orange", label="requests served")
    other.step(steps, [each.waiting for each in history], where="post", color="tab:red", label="requests waiting")
    other.set_ylabel("requests")
    ax.plot([each.arrival for each in trace], [0] * len(trace), "k|", label="a request comes")
lines = (a + b for a, b in zip(*(x.get_legend_handles_labels() for x in (ax, other)), strict=True))
figure.legend(*lines, loc="outside lower center", ncols=3, fontsize=8)  # over no line
plt.show()
### END SOLUTION

# %% [markdown]
# ## 2. What sharing saves

# %%
for kind, trace in traces.items():
    n_prompt = sum(len(request.prompt) for request in trace)
    for block_size in (1, 4, 8, 16, 48):
        num_blocks = 1200 // block_size
        scheduler = serving.Scheduler(num_blocks, block_size, 48)
        served = serve_plans(scheduler, trace, num_blocks, block_size, 48)
        found = served.prefix_tokens / n_prompt
        print(f"{kind:10s} blocks of {block_size:2d}: {found:4.0%} of the prompts' tokens found, {served.steps} steps")

# %% [markdown]
# (a) Why does the share fall with the block size, and why is it not that of `describe(trace)` for blocks of one
# token? (What follows a prompt is made up in this cell.)
#
# (b) What do large blocks save, and what do they waste besides sharing? Give the places wasted by a request of 61
# tokens in blocks of 8 and of 48.
#
# (c) A beginning of 80 tokens is shared by 5 requests that generate 20 tokens each, with one token for each question.
# How many tokens are computed with and without sharing? And how many keys does attention read for the generated
# tokens, with and without? Which of the two does a prefix cache not change?

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_sharing_saves", "solution": true}
# (a) Only full blocks are shared: of a beginning of n tokens, n mod block_size are computed again, and never the
# block with the last token of the prompt. Second turns contain the first turn's answer, which is another here than in
# the trace: the made-up tokens are not found.
#
# (b) Tables, and keys of the manager's map, are shorter, and attention reads longer runs. 64 − 61 = 3 and 96 − 61 =
# 35 places are empty, in the last block of every request.
#
# (c) Without: 5 · 81 prompt tokens and 5 · 19 of those that follow (the last one's key is not needed): 500. With: 80
# once and 5 · 1, and 95: 180. Each generated token but the first is computed with 81 + i keys before it and its own,
# with and without sharing: what attention reads stays as it is. A prefix cache saves computing and places, and no
# reading.
#
# Rubric, 5 points: 2 (a); 1 (b); 2 (c), one for the tokens, one for what is read.

# %% [markdown]
# The same on what a real service recorded, its lengths divided by 64, in caches of growing size. A request counts as
# served well if its first token comes within 4 steps, and the others within 1.5 steps per token.

# %%
real = make_trace(REAL, 0)
n_prompt = sum(len(request.prompt) for request in real)
print(describe(real, answers=False))
for num_blocks in (300, 400, 800, 3200):
    max_tokens = LIMITS[REAL]["max_tokens"]
    served = serve_plans(serving.Scheduler(num_blocks, 8, max_tokens), real, num_blocks, 8, max_tokens)
    well = goodput(latencies(serving.Scheduler(num_blocks, 8, max_tokens), real, num_blocks, 8, max_tokens), 4, 1.5)
    found = served.prefix_tokens / n_prompt
    print(f"{num_blocks:4d} blocks: {found:4.0%} of the prompts' tokens found, {well} requests served well")

# %% [markdown]
# ## 3. Who gives way

# %%
for nbytes in (20_000, 24_000, 28_000, 40_000, 80_000):
    served = serve(serving.Server(SPEC, nbytes, 48), traces["chat"], SPEC, nbytes, 48)
    num_blocks = serving.Server(SPEC, nbytes, 48).settings()["num_blocks"]
    print(
        f"{nbytes:6,} bytes, {num_blocks} blocks: {served.steps} steps, {served.again} tokens computed again,", end=" "
    )
    print(f"{served.prefix_tokens} found, {served.peak_blocks} blocks at most")

# %% [markdown]
# (a) Between which budgets are tokens computed again? Why not for large ones, and why need it not be most for the
# smallest?
#
# (b) The last that came gives way. Show with two requests what can happen if the one that needs a block gives way,
# and if the first that came does.
#
# (c) What does a request that gave way find when it comes again, and on what does that depend?

# %% [markdown] nbgrader={"grade": true, "grade_id": "who_gives_way", "solution": true}
# (a) At all but 80,000 (with blocks of 8: 22, 11, 31 and 4), where there is room for all that are there at once. With
# fewer blocks fewer requests are served at once, so that fewer can be in need of a block at the same time: it depends
# on where their lengths meet the end of the blocks.
#
# (b) A needs a block and gives way to B; B then needs one and gives way to A, who has come in again: each throws away
# what it has computed, and neither gets on. If the first gives way, the oldest request is preempted whenever a
# new one needs a block, as long as new ones come: it starves. The last that came can only be thrown out by those
# before it, of which there are fewer and fewer.
#
# (c) Its own full blocks, as long as no other request has taken them: free blocks are taken in the order in which they
# became free, its own last ones first. If only a block or two were needed, most of its text is still there.
#
# Rubric, 5 points: 2 (a); 2 (b); 1 (c).

# %% [markdown]
# ## 4. What a plan must prove

# %%
for bits in (2, 4, 8):
    cache_of = serving.QuantizedBlocks(8, 4, SPEC["layers"], SPEC["kv_heads"], SPEC["head_dim"], bits)
    k, v = torch.randn(2, 32, 2, 16, generator=torch.Generator().manual_seed(1))
    at = [token // 4 for token in range(32)], [token % 4 for token in range(32)]
    cache_of.write(0, *at, k, v)
    q = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(2))
    exact = (q[0].unflatten(0, (2, 2)) @ k.permute(1, 2, 0) / 4).softmax(-1) @ v.transpose(0, 1)
    off = (cache_of.attend(0, q, list(range(8)), 31)[0] - exact.flatten(0, 1)).norm() / exact.norm()
    print(f"{bits} bits: {token_bytes(SPEC, bits)} bytes a token, attention's output off by {off:.4f}")

# %% [markdown]
# (a) A block may be found before it is filled. Tell how that comes about in two ways, one within a prompt that takes
# several steps and one with a request that gave way, and what your scheduler does about each.
#
# (b) The engine compares completions, and checks plans. Name a wrong plan that leads to right completions on some
# trace, and a right plan that leads to wrong ones.
#
# (c) With 4 bits there are more blocks in the same bytes. What would a server gain by them, and why does it not help
# here? What would you have to measure before you took 4 bits in earnest?

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_a_plan_must_prove", "solution": true}
# (a) The manager names a block when it gives it out. A prompt's blocks are all given at once, and its tokens are
# computed over several steps: a request in between finds blocks that are not filled yet. And a request that gives way
# in the middle of its prompt leaves names of blocks that will never be filled, unless another request does it. The
# scheduler keeps, for each block, how many of its tokens have been planned since it was given out, and begins behind
# the last whole one; what it computes then fills the block for every request.
#
# (b) A table with a block of another text whose token there has hardly any weight: the likeliest token stays the
# same. So completions alone prove little. A right plan with a cache that loses too much (4 bits), or writes to
# another place, leads to wrong ones.
#
# (c) More requests at once, and fewer that give way: more of them in time. But a completion that changes is no
# completion here. In earnest: answers of a trained model on its own tasks, at the lengths that are served, not one
# token compared with another.
#
# Rubric, 5 points: 2 (a); 2 (b); 1 (c).
