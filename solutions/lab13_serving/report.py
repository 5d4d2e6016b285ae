# %% [markdown]
# # Lab 13: Serving
#
# Run the cells from top to bottom after the tasks pass. Everything here is served by **your** server; when you change
# `src/serving.py`, restart the kernel and run all cells again. Say the unit of every number: tokens, steps, blocks,
# bytes.

# %%
import matplotlib.pyplot as plt
import torch

from labkit.notebook import compare, predict, student_module
from labkit.serving.drive import serve_plans
from labkit.serving.engine import serve
from labkit.serving.model import SPEC
from labkit.serving.player import Request
from labkit.serving.requests import KINDS, LIMITS, describe, make_trace

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
# Rubric, 5 points: 1 a panel a trace; 1 blocks in use, and the number there is; 1 requests served and waiting, told
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
#
# Five requests come one after the other. Their prompts begin with the same 90 tokens, each has one token of its own
# after them, and each generates 20 tokens. Without sharing 550 tokens are computed: 5 · 91 of the prompts, and 5 · 19
# that were generated (the last one's key is not needed). There are 64 blocks of 16 tokens.
#
# Predict how many tokens are computed with sharing, and how many times as many keys attention reads then, of all
# requests together.

# %%
predicted_tokens = predict(None, "tokens")
predicted_reads = predict(None, "times")


# %%
def counts(shared):
    """Tokens computed, and keys read of a layer, by your scheduler."""
    trace = []
    for number in range(5):
        beginning = tuple((7 * i + (0 if shared else 13 * number)) % 64 for i in range(90))
        trace.append(Request(number, 4 * number, (*beginning, number), 20))
    served = serve_plans(serving.Scheduler(64, 16, 128), trace, 64, 16, 128, token_bytes=1)
    return sum(step.tokens for step in served.history), served.bytes_read


(tokens_shared, reads_shared), (tokens_alone, reads_alone) = counts(True), counts(False)
print(f"tokens computed without sharing: {tokens_alone}; keys read {reads_alone:,}")
compare(predicted_tokens, tokens_shared, "tokens")
compare(predicted_reads, reads_shared / reads_alone, "times")

# %% [markdown]
# (a) Give both numbers of tokens, and explain the gap. If there was none, say which terms your prediction had.
#
# (b) The same for what is read. What does a prefix cache save, and what does it not?

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_sharing_saves", "solution": true}
# (a) Predicted 90 + 5 · 1 + 5 · 19 = 190, measured 230. Only full blocks are shared: of 90 tokens 5 blocks, 80 tokens.
# Each of the four later requests computes the other 10 again: 91 + 4 · 11 + 95 = 230.
#
# (b) Measured 1: each token that is computed reads all keys before it and its own, whoever computed these, and a
# prompt's tokens read the context once in either case. A prefix cache saves computing and blocks, and no reading.
#
# Rubric, 5 points: 3 for (a): 1 both numbers, 1 only full blocks, 1 the 4 · 10 tokens (without a gap: 1 for the
# numbers, 2 for the three terms). 2 for (b): 1 why reading stays the same, 1 what is saved.

# %% [markdown]
# ## 3. What a plan must prove
#
# (a) A block may be found before it is filled. Tell how that comes about in two ways, one within a prompt that takes
# several steps and one with a request that gave way, and what your scheduler does about each.
#
# (b) The engine compares completions, and checks plans. Name a wrong plan that leads to right completions on some
# trace, and a right plan that leads to wrong ones.

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
# Rubric, 4 points: 2 (a), 1 for each way with what the scheduler does; 2 (b), 1 for each plan.
