# %% [markdown]
# # Lab 15: A state that cannot be taken back
#
# Run the cells from top to bottom after the tasks pass. Everything here is computed by **your** functions; when you
# change `src/recurrent_state.py`, restart the kernel and run all cells again.

# %%
from labkit.notebook import student_module

lab = student_module("lab15")
STATE = 32 * 128 * 128 * 4

# %% [markdown]
# ## 1. The figure: tokens computed again against bytes stored
#
# Take 8,192 tokens of a layer whose state has 2 MiB (32 heads of 128 × 128 numbers of float32), blocks of 64 tokens,
# and `checkpoint_plan` with every = 64. Draw the largest and the mean number of tokens computed again against the
# bytes stored, for budgets from 1 to 128 states. Mark where "align" with chunks of 2,048 and "all" lie
# (`replay_cost`). Label both axes with their units.

# %% nbgrader={"grade": true, "grade_id": "figure_replay_against_bytes", "solution": true}
### BEGIN SOLUTION
import matplotlib.pyplot as plt  # noqa: E402

budgets = [1, 2, 4, 8, 16, 32, 64, 128]
plans = [lab.checkpoint_plan(8192, 64, STATE, n * STATE)[1] for n in budgets]
fig, ax = plt.subplots(figsize=(6, 4))
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
# With n states at equal distances the largest replay is about 8,192 / (n + 1) tokens: twice the bytes halve it. It
# begins at 4,096 tokens for 2 MiB and ends at 63 tokens for 256 MiB; the mean is about half of the largest. "align" and
# "all" are on this curve (but for the running state): they are two of its points, not two different things.
#
# *Rubric (6): 2 for both curves from the student's functions; 2 for units and both marks; 2 for the law.*
### END SOLUTION

# %% [markdown]
# ## 2. Why a state cannot be cut
#
# A cache of 1,000 keys is cut to 700 by changing a length. Show for one token of the gated delta rule what would have
# to be done to go back from S_t to S_(t−1). When is it impossible, and what does it cost in accuracy where it can be
# done?

# %% [markdown] nbgrader={"grade": true, "grade_id": "why_a_state_cannot_be_cut", "solution": true}
# S_t = α (I − β k kᵀ) S_(t−1) + β k vᵀ. To go back one subtracts β k vᵀ, and inverts I − β k kᵀ and α. With a
# normalised k the matrix has the eigenvalue 1 − β along k: for β = 1 it is singular, and what S had there is gone.
# For β < 1 the inverse multiplies rounding errors by 1 / (1 − β) and 1 / α with every token; k, v, α and β of the
# token must also have been stored. A state of before costs less, and is exact.
#
# *Rubric (5): 2 for the inverse; 2 for β = 1; 1 for the growth of errors.*

# %% [markdown]
# ## 3. A silent error
#
# Rejected drafts stay in the state. The engine raises nothing, and most drafts are accepted. Which test of yours would
# have found it, and why would a benchmark of accuracy or of speed have missed it for long?

# %% [markdown] nbgrader={"grade": true, "grade_id": "one_bug_of_2026", "solution": true}
# Greedy output with drafts must equal greedy output without, token by token, on a text where some drafts are rejected;
# in the cache: after rollback the state equals that of a sequence that never had the drafts. Keys and values are right,
# lengths are right, shapes are right, and the state decays: the words stay plausible and get worse slowly. The share of
# accepted drafts, which is watched, may even stay high. In vLLM's issue 43559 accuracy dropped by about 20 %.
#
# *Rubric (5): 2 for equality with and without; 3 for why nothing else shows it.*

# %% [markdown]
# ## 4. Why the residual
#
# A rejected draft is replaced by a token from max(0, p − q), and not from p. Compute with p = (1/4, 3/4),
# q = (1/2, 1/2) what distribution each of the two gives.

# %% [markdown] nbgrader={"grade": true, "grade_id": "why_the_residual", "solution": true}
# Draft 0 (probability 1/2) stays with 1/2, draft 1 always. Accepted: 1/4 for token 0 and 1/2 for token 1; 1/4 is left.
# The residual is (0, 1): token 1 gets the 1/4, in all (1/4, 3/4) = p. From p it would be split: (5/16, 11/16), too
# much of what the draft model proposes too often.
#
# *Rubric (4): 2 for each distribution.*
