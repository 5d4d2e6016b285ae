"""What grading refuses of an answer, as a student can see it beforehand: the line, and what it does there."""

from __future__ import annotations

import ast

import pytest

from labkit.labs.catalog import ROOT, find_lab, find_labs, solution_file
from labkit.suite.allowed import refusals
from labstaff.judge.policy import oddities
from labstaff.pytest_plugin import variant_text

ANSWERS = [
    (lab, file)
    for lab in find_labs(ROOT)
    for kind in ("src", "right")
    for file in sorted((ROOT / "solutions" / lab.folder.name / kind).glob("*.py"))
]


@pytest.mark.parametrize(("lab", "file"), ANSWERS, ids=lambda value: getattr(value, "stem", None))
def test_right_answers_are_judged(lab, file):
    text = solution_file(lab).read_text(encoding="utf-8") if file.parent.name == "src" else variant_text(lab, file)
    assert refusals(text, lab) == []


HONEST = {
    "self_check": "import numpy as np\nif __name__ == '__main__':\n    import sys\n    np.testing.assert_equal(1, 1)",
    "self_check_turned_round": "if '__main__' == __name__:\n    exec('print(1)')\n",
    "own_setattr": "class A:\n    def f(self):\n        object.__setattr__(self, '_x', 1)\n        print(self._x)\n",
    "update_wrapper": "import functools\ndef f(g):\n    return functools.update_wrapper(lambda: 0, g)\n",
    "format": "print('{0.__class__} inspects sys and os.path'.format(3))\n",
    "byte_order_mark": "\ufeffimport math\n",
    "line_ends": "import math\r\nx = math.pi\r\n",
    "arguments_named_as_builtins": "def f(input, open=1, vars=()):\n    return input, open, vars\n",
    "own_private_names": "class A:\n    def __init__(self):\n        self._kept = {}\n\ndef f(a): return a._kept\n",
    "matches": "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\n\ndef f(x):\n    match x:\n"
    "        case int(n): return n\n        case P(y): return y\n",
    "time": "from time import time\nt = time()\n",
    "what_a_node_of_autograd_saved": "def f(y):\n    return y.grad_fn._saved_result\n",
    "assertions_of_numpy": "import numpy as np\ndef f(x):\n    np.testing.assert_array_equal(x, x)\n",
}


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST)
def test_honest_code_is_judged(source):
    assert refusals(source, find_lab("01")) == []


REFUSED = {
    "import os": "imports os",
    "import os.path as p": "imports os.path",
    "from subprocess import run": "imports subprocess",
    "from . import x": "imports .",
    "import labkit.testing.attention.reference": "imports labkit.testing.attention.reference",
    "import torch": "imports torch",
    "import numpy._core": "imports numpy._core",
    "import warnings as w; w.sys": "uses warnings.sys",
    "from random import _os": "uses random._os",
    "import random; random._os": "uses random._os",
    "from warnings import sys as s": "uses warnings.sys",
    "open('x')": "uses open",
    "__builtins__": "uses __builtins__",
    "(lambda: 0).__globals__": "uses __globals__",
    "().__class__.__base__": "uses __base__",
    "print.__self__": "uses __self__",
    "(i for i in ()).gi_frame": "uses gi_frame",
    "match 1:\n    case object(__dict__=d): pass": "uses __dict__",
    "def f(c):\n    match 1:\n        case c(d): pass": "matches a class by position",
    "class P(m): pass\nmatch 1:\n    case P(x): pass": "matches a class by position",
    "class P:\n    __match_args__ = 'a',": "uses __match_args__",
    "int = object\nmatch 1:\n    case str(x): pass\nprint.__wrapped__": "uses __wrapped__",
    "import numpy as np; np.array = None": "changes numpy.array",
    "import numpy as np; del np.linalg.norm": "changes numpy.linalg.norm",
    "import enum; enum.global_enum": "uses enum.global_enum",
    "from operator import attrgetter": "uses operator.attrgetter",
    "import gc; gc.get_objects()": "uses gc.get_objects",
    "import numpy as np; np.memmap": "uses numpy.memmap",
    "x = a" + ".b" * 20_000: "is nested too deep",
    "x = " + "-" * 20_000 + "1": "is nested too deep",
}


@pytest.mark.parametrize(("source", "says"), REFUSED.items())
def test_what_reaches_further_is_refused_with_its_line(source, says):
    found = refusals("\n\n" + source, find_lab("01"))
    assert found, "nothing is refused"
    assert any(what.startswith(says) for _, what in found), found
    assert all(line >= 3 for line, what in found if "too deep" not in what)


def test_a_text_that_is_no_python_is_none_of_this():
    assert refusals("def f(:", find_lab("01")) == []
    assert refusals("\0", find_lab("01")) == []


LEAVES_TORCH = ("np.matmul(q, k)", "np.einsum('ij,kj', q, k)", "n.dot(q, k)", "q.numpy() @ k")


@pytest.mark.parametrize("product", LEAVES_TORCH)
def test_a_product_past_the_meters_is_shown_to_the_grader(product):
    text = f"import torch\nimport numpy as np, numpy as n\ndef f(q, k):\n    return {product}\n"
    assert [finding.line for finding in oddities(ast.parse(text))] == [4]
    assert not oddities(ast.parse(text.replace("np.", "torch.").replace("n.dot", "torch.dot").replace(".numpy()", "")))
