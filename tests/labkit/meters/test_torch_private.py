"""torch's private names: one module has them, and it says which one a torch has lost."""

import re
import runpy
import warnings
from pathlib import Path

import pytest
import torch

from labkit.labs.catalog import ROOT
from labkit.meters import torch_private

ADAPTER = Path(torch_private.__file__)
PRIVATE = re.compile(
    r"\btorch\.(?!__)(\w+\.)*_\w+(?!\w|__)"  # torch._C, torch.utils._pytree, also in "from torch._guards import"
    r"|from torch[\w.]* import .*\b_\w+"
    r"|\._(cdata|schema|is_view|sequence_nr|call_impl|orig_mod|torchdynamo_orig_callable|indices|values)\b"
)
PUBLIC = ("torch.ops.aten._", "torch.cuda.memory._")
"""Operators' names, and the names that snapshots are documented with."""


LISTS = [ROOT / "labkit" / "suite" / name for name in ("source_check.py", "library_work.py")]
"""They hold names as texts, to find them in a student's source."""


def test_no_other_module_uses_private_names():
    files = [file for package in ("labkit", "labstaff", "benchmarks") for file in (ROOT / package).rglob("*.py")]
    assert PRIVATE.search(ADAPTER.read_text())
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in files
        if file not in (ADAPTER, *LISTS)
        for match in PRIVATE.finditer(file.read_text(encoding="utf-8"))
        if not match[0].startswith(PUBLIC)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (torch._C, "_current_graph_task_id"),
        (torch._C._autograd, "_get_sequence_nr"),
        (torch.utils._pytree, "tree_leaves"),
        (torch.utils._python_dispatch, "_get_current_dispatch_mode_stack"),
        (torch.nn.Module, "_call_impl"),
    ],
)
def test_a_name_that_is_gone_is_named(owner, name, monkeypatch):
    monkeypatch.delattr(owner, name)
    with pytest.raises(ImportError, match=rf"lost a private name .*{name}.*torch_private\.py"):
        runpy.run_path(str(ADAPTER))


def test_nodes_are_numbered_in_the_order_in_which_they_are_made():
    first = torch_private.next_node_number()
    made = (torch.ones(2, requires_grad=True) * 2).exp()
    nodes = [made.grad_fn.next_functions[0][0], made.grad_fn]
    assert list(map(torch_private.node_number, nodes)) == [first, first + 1]
    seen = []
    made.register_hook(lambda _: seen.append((torch_private.current_node().name(), torch_private.backward_number())))
    made.sum().backward()
    assert [name for name, _ in seen] == ["ExpBackward0"]
    assert seen[0][1] >= 0 > torch_private.backward_number()


def test_views_share_their_storages_address():
    x = torch.ones(4)
    assert torch_private.is_view(x[1:])
    assert not torch_private.is_view(x)
    address = torch_private.storage_address(x.untyped_storage())
    assert address == torch_private.storage_address(x[1:].untyped_storage())
    x.untyped_storage().resize_(64)
    assert address == torch_private.storage_address(x.untyped_storage())


@pytest.mark.parametrize(
    ("make", "nbytes"),
    [
        (lambda: torch.eye(4), [64]),
        (lambda: torch.eye(4).to_sparse(), [64, 16]),  # 2 × 4 indices of 8 bytes, 4 values
        (lambda: torch.eye(4).to_sparse_csr(), [40, 64, 16]),  # 5 row pointers; 4 columns, in COO's memory; 4 values
        (lambda: torch.eye(4).to_sparse_csc(), [40, 64, 16]),
        (lambda: torch.eye(4).to_sparse_bsr((2, 2)), [24, 32, 32]),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), [20, 24, 0, 0]),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), [20, 16, 16, 16]),
    ],
    ids=["plain", "coo", "csr", "csc", "bsr", "jagged", "nested"],
)
def test_the_parts_of_a_tensor_hold_its_memory(make, nbytes):
    with warnings.catch_warnings(action="ignore"):  # sparse and nested tensors say that they may change
        parts = torch_private.plain_parts(make())
    sizes = [part.untyped_storage().nbytes() for part in parts]
    assert sizes == nbytes[: len(sizes)]
    assert sum(sizes) == sum(nbytes)
