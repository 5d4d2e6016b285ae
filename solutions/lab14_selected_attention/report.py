# %% [markdown]
"""
# Lab 14: Selected attention

Three answers. Say how you came to each.
"""

# %% [markdown]
# ## 1. A question
#
# What is asked.

# %% [markdown] nbgrader={"grade": true, "grade_id": "question_1", "solution": true}
# A model answer to question 1 of the new lab.
#
# *Rubric (2): 1 for what; 1 for why.*

# %% [markdown]
# ## 2. A question
#
# What is asked.

# %% [markdown] nbgrader={"grade": true, "grade_id": "question_2", "solution": true}
# A model answer to question 2 of the new lab.
#
# *Rubric (2): 1 for what; 1 for why.*

# %% [markdown]
# ## 3. A question
#
# What is asked.

# %% [markdown] nbgrader={"grade": true, "grade_id": "question_3", "solution": true}
# A model answer to question 3 of the new lab.
#
# *Rubric (2): 1 for what; 1 for why.*
