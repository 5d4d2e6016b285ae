"""Textbook attention, with a matrix of all scores, earns at most a quarter of a task that is about memory."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import find_lab, find_labs
from labkit.suite.forked import ForkedRunner
from labkit.suite.results import task_share
from labstaff.authoring.mistakes import find_mistake
from tests.suite_runs import PRELOADED

TEXTBOOK = {
    "03": {"online_softmax_stats": "stats_copies_joined", "online_attention": "attention_joined_first"},
    "04": {"tiled_attention": "attention_standard_inside"},
    "05": {
        "flash_forward": "forward_whole_matrix",
        "flash_backward": "backward_whole_matrix",
        "FlashAttention": "apply_naive_inside",
    },
    "07": {
        "causal_linear_attention_chunked": "chunked_one_chunk_of_all",
        "causal_linear_attention_scan": "scan_every_position",
    },
    "08": {"sliding_window_attention": "attention_masked"},
    "12": {"mla_decode": "mla_expanded_keys"},
    "13": {"QuantizedBlocks": "dequantized_whole"},
    "14": {"selected_decode": "decode_masked", "block_sparse_attention": "sparse_dense_mask"},
}
"""By lab, for each task that is about memory: the known mistake that does it with all of the memory."""
QUARTER = 0.25


def test_every_task_about_memory_has_its_textbook_code():
    about = {lab.number: {task.name for task in lab.tasks if task.memory_share <= QUARTER} for lab in find_labs()}
    assert {number: set(tasks) for number, tasks in TEXTBOOK.items()} == {
        n: tasks for n, tasks in about.items() if tasks
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "name"), [(number, name) for number, tasks in TEXTBOOK.items() for name in tasks.values()]
)
def test_textbook_code_earns_a_quarter(number, name, tmp_path):
    """Right at ordinary sizes: only what it costs takes its points."""
    mistake = find_mistake(find_lab(number), name)
    (task,) = (task for task in mistake.lab.tasks if task.name == mistake.task)
    mistake.write(tmp_path)
    with ForkedRunner(PRELOADED) as runner:
        run = runner.run(mistake.lab.label, "--src", str(tmp_path), tests=(task.tests,))
    passed = sum(result.passed for result in run.results)
    assert passed > len(run.results) / 2, "it is right, and costs too much"
    share = task_share(task, run.results)
    print(f"lab{number} {task.name} as {name}: {task.points * share:g} of {task.points:g} points")
    assert share <= QUARTER
