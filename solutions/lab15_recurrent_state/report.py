# %% [markdown]
# # Lab 15: A state that cannot be taken back
#
# Run the cells from top to bottom after the tasks pass. Everything here is computed by **your** functions; when you
# change `src/recurrent_state.py`, restart the kernel and run all cells again.

# %%
from itertools import product

import matplotlib.pyplot as plt
import torch

from labkit.notebook import compare, predict, student_module

lab = student_module("lab15")
STATE = 32 * 128 * 128 * 4

# %% [markdown]
# ## 1. The figure: tokens computed again against bytes stored
#
# Take 8,192 tokens of a layer whose state has 2 MiB (32 heads of 128 × 128 numbers of float32), blocks of 64 tokens,
# and `checkpoint_plan` with every = 64. Draw the largest and the mean number of tokens computed again against the
# bytes stored, for budgets from 1 to 128 states. Mark where "align" with chunks of 2,048 and "all" lie
# (`replay_cost`). Label both axes with their units, and say in a comment what twice the bytes buy.

# %% nbgrader={"grade": true, "grade_id": "figure_replay_against_bytes", "solution": true}
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
### BEGIN SOLUTION
budgets = [1, 2, 4, 8, 16, 32, 64, 128]
plans = [lab.checkpoint_plan(8192, 64, STATE, n * STATE)[1] for n in budgets]
ax.loglog([n * STATE / 2**20 for n in budgets], [max(again) for again in plans], "o-", label="largest")
ax.loglog([n * STATE / 2**20 for n in budgets], [sum(again) / len(again) for again in plans], "o-", label="mean")
for method in ("align", "all"):
    stored, _ = lab.replay_cost(method, 8192, STATE, 0, block=64, chunk=2048)
    costs = [lab.replay_cost(method, 8192, STATE, 0, block=64, chunk=2048, shared=p) for p in range(8192)]
    worst = max(again for _, again in costs)
    ax.plot(stored / 2**20, worst, "k*")
    ax.annotate(method, (stored / 2**20, worst))
ax.set_xlabel("bytes stored (MiB)")
ax.set_ylabel("tokens computed again")
ax.legend()
plt.show()
# With n states at equal distances the largest replay is about 8,192 / (n + 1) tokens: twice the bytes halve it. It
# begins at 4,096 tokens for 2 MiB and ends at 63 tokens for 256 MiB; the mean is about half of the largest. "align" and
# "all" are on this curve (but for the running state): they are two of its points, not two different things.
#
# Rubric, 5 points: 2 both curves from the student's functions; 2 units and both marks, 1 each; 1 the law.
### END SOLUTION

# %% [markdown]
# ## 2. What a hundred states buy
#
# The same layer, with every = 64 and a budget of 100 states. Predict the largest number of tokens computed again.

# %%
predicted = predict(None, "tokens")

# %%
compare(predicted, max(lab.checkpoint_plan(8192, 64, STATE, 100 * STATE)[1]), "tokens")

# %% [markdown]
# (a) Give both numbers, and explain the gap. If there was none, say how you got your number. How many states are enough
# for the same largest replay?
#
# (b) A cache of 1,000 keys is cut to 700 by changing a length. Why is it impossible for β = 1 to go back from S_t to
# S_(t−1), even if k, v, β and g of the token are known?

# %% [markdown] nbgrader={"grade": true, "grade_id": "what_a_hundred_states_buy", "solution": true}
# (a) Predicted 8,192 / 101 = 81, measured 127. States can only be stored after each 64 tokens: 100 of the 128 places
# are taken, so some neighbours are 128 tokens apart, and the last position before the second of them needs 127 tokens.
# With 64 states all are 128 apart: 36 of the 100 buy nothing. It takes 127 to come below, to 64.
#
# (b) S_t = α (I − β k kᵀ) S_(t−1) + β k vᵀ. With a normalised k the matrix has the eigenvalue 1 − β along k: for β = 1
# it is singular, and what S had along k is gone.
#
# Rubric, 4 points: 3 for (a): 1 both numbers, 1 the places of 64 tokens, 1 the 64 states (63 is right too, but for the
# last position). 1 for (b): the matrix is singular, or what was along k is overwritten.

# %% [markdown]
# ## 3. A silent error
#
# Four drafts are verified in a pass. The target has p = (1/4, 3/4) for two tokens at every place, the draft model q =
# (1/2, 1/2), so that a draft stays with probability 3/4. Predict how many tokens a pass gives on average, the one that
# is drawn at its end included.

# %%
predicted = predict(None, "tokens")

# %%
p, q = torch.tensor([1 / 4, 3 / 4]).log(), torch.tensor([1 / 2, 1 / 2]).log()
given = list(product(product((0, 1), repeat=4), product((0.25, 0.75), repeat=4)))  # all equally likely
found = [
    lab.accept_drafts(p.expand(5, 2), q.expand(4, 2), list(drafts), torch.tensor([*u, 0.5]), 1.0) for drafts, u in given
]
compare(predicted, sum(map(len, found)) / len(found), "tokens")

# %% [markdown]
# (a) Give both numbers, and explain the gap. If there was none, give the sum that you computed.
#
# (b) Suppose that rejected drafts stay in the state. The engine raises nothing. Which test of yours would have found
# it, and why would a benchmark of accuracy or of speed have missed it for long?

# %% [markdown] nbgrader={"grade": true, "grade_id": "one_bug_of_2026", "solution": true}
# (a) Predicted 4 · 3/4 + 1 = 4, measured 3.05. The first draft that does not stay ends the pass, and drops those after
# it: draft i counts only if all before it stayed, 1 + 3/4 + (3/4)² + (3/4)³ + (3/4)⁴ = 3.05.
#
# (b) Greedy output with drafts must equal greedy output without, token by token, on a text where some drafts are
# rejected; in the cache: after rollback the state equals that of a sequence that never had the drafts. Keys, lengths
# and shapes are right, and the state decays: the words stay plausible and get worse slowly. The share of accepted
# drafts, which is watched, may even stay high. In vLLM's issue 43559 accuracy dropped by about 20 %.
#
# Rubric, 5 points: 3 for (a): 1 both numbers, 2 that a rejection drops what follows (without a gap: the sum). 2 for
# (b): 1 equality with and without, 1 why nothing else shows it.
