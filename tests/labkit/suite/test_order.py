"""The order of a lab's tests: what explains most comes first."""

from __future__ import annotations

from labkit.labs.catalog import find_lab
from labkit.suite.run import run_suite


def test_ordinary_inputs_first_and_worked_examples_after_them():
    run = run_suite(find_lab("05"), "--collect-only")
    tests = run.collected["flash_forward"]
    names = list(dict.fromkeys(test.partition("[")[0] for test in tests))
    assert names[:3] == ["test_results", "test_blocks_that_do_not_divide", "test_worked_example"]
    assert names.index("test_without_keys") < names.index("test_memory_grows_with_n_only")
    assert names[-1] == "test_block_sizes_below_one"
    assert list(run.collected) == ["flash_forward", "flash_backward", "FlashAttention"]
