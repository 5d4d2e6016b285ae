"""fn is called and nothing is recomputed.

Task: checkpoint
Killed by: TestCheckpoint::test_fn_runs_once_in_each_pass
Killed by: TestCheckpoint::test_keeps_its_arguments_only
"""


def checkpoint(fn, *args):
    return fn(*args)
