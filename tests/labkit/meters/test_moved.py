"""The meter of bytes moved: what operators read of a tensor and write; views are free, indexing counts elements."""

from __future__ import annotations

import pytest
import torch

from labkit.meters.moved import MovedBytes

X = torch.ones(4, 6, 8)
ONE = 4 * 8  # a row of X in bytes
PLACES = torch.tensor([0, 5])


@pytest.mark.parametrize(
    ("work", "rows_read"),
    [
        (lambda: X + 1, 24),
        (lambda: X[:, :2].sum(), 8),
        (lambda: X.clone(), 24),
        (lambda: X @ torch.ones(8, 3), 24),
        (lambda: X[0, :1].expand(6, 8) + torch.ones(6, 8), 1),
        (lambda: X[torch.tensor([0, 2])], 12),
        (lambda: X.index_select(1, torch.tensor([5])), 4),
        (lambda: torch.nn.functional.embedding(torch.tensor([1, 1, 3]), X.view(24, 8)), 3),
        (lambda: X.transpose(0, 1)[2:].unflatten(-1, (2, 4)).detach(), 0),
        (lambda: (torch.zeros_like(X), X.new_empty(3), torch.ones(2, 2) + 1), 0),
    ],
)
def test_what_is_read(work, rows_read):
    with MovedBytes(x=X) as moved:
        work()
    assert moved.read == {"x": rows_read * ONE}


@pytest.mark.parametrize(
    ("work", "rows_written"),
    [
        (lambda y, k: y[:, 3:5].copy_(k), 8),
        (lambda y, k: y.index_copy_(1, PLACES, k), 8),
        (lambda y, k: torch.cat([y, k], 1), 32),
        (lambda y, k: y.zero_(), 24),
        (lambda y, k: y[:, :2].add_(k), 8),
        (lambda y, k: torch.empty_like(y), 0),
        (lambda y, k: y.view(24, 8)[3:], 0),
    ],
)
def test_what_is_written(work, rows_written):
    y, k = torch.zeros(4, 6, 8), torch.ones(4, 2, 8)
    with MovedBytes(y=y) as moved:
        work(y, k)
    assert moved.written == rows_written * ONE


def test_assignment_by_index_writes_what_is_assigned():
    y, k = torch.zeros(4, 6, 8), torch.ones(4, 2, 8)
    with MovedBytes(y=y) as moved:
        y[:, PLACES] = k
    assert moved.written == 8 * ONE
    assert moved.read == {"y": 0}


def test_reading_again_counts_again():
    with MovedBytes(x=X) as moved:
        X[0].sum()
        X.sum()
    assert moved.read == {"x": 30 * ONE}
