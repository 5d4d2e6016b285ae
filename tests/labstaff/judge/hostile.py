"""Submissions that try to earn points they have not written, to hurt the machine, or to break the judge.

Each is Lab 01's file as a cheat would hand it in. Whatever could run away is bounded here as well, so that it would do
no harm if a wall were missing. `{canary}` stands for a file outside of the sandbox that nothing may make.
"""

from __future__ import annotations

from dataclasses import dataclass

TASKS = (
    "standard_attention",
    "measure_attention_memory",
    "profile_memory_scaling",
    "estimate_attention_memory",
    "analyze_scaling",
    "plot_memory_scaling",
)


@dataclass(frozen=True)
class Hostile:
    """One file. `says`: a text that the grader must be shown, among the flags, the reason or the tests' messages."""

    name: str
    tries: str
    source: str
    says: str


def everywhere(body: str, before: str = "") -> str:
    """A file whose every task has the body `body`, with `before` on top."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return before.strip() + "\n" + "\n".join(f"def {task}(*args, **kwargs):\n{lines}\n" for task in TASKS)


STUB = everywhere("raise NotImplementedError()")

CORPUS = [
    # ends, signals
    Hostile("exits_at_import", "end the judge by SystemExit", "raise SystemExit(0)\n" + STUB, "SystemExit"),
    Hostile("exits_in_a_call", "end the judge by SystemExit", everywhere("raise SystemExit(0)"), "SystemExit"),
    Hostile("exits_hard", "os._exit, before a verdict", "import os\n" + everywhere("os._exit(0)"), "imports os"),
    Hostile(
        "kills_its_parent", "signals", "import os, signal\n" + everywhere("os.kill(os.getppid(), 9)"), "imports os"
    ),
    Hostile("keyboard_interrupt", "stop the run as Ctrl-C would", everywhere("raise KeyboardInterrupt"), "Keyboard"),
    Hostile("generator_exit", "an exception that is no Exception", everywhere("raise GeneratorExit"), "GeneratorExit"),
    Hostile(
        "own_base_exception",
        "an exception that is no Exception",
        everywhere("raise Passed('all tests passed')", "class Passed(BaseException): pass"),
        "Passed",
    ),
    Hostile(
        "calls_itself_skipped",
        "a skip counts as no failure",
        everywhere("raise Skipped('no GPU')", "class Skipped(Exception): __module__ = '_pytest.outcomes'"),
        "Skipped",
    ),
    Hostile("skips_by_pytest", "pytest.skip", "import pytest\n" + everywhere("pytest.skip('later')"), "imports pytest"),
    Hostile(
        "not_implemented_not",
        "claim that it has not begun",
        everywhere("raise NotImplementedError('x')"),
        "still raises NotImplementedError",
    ),
    # the reporter, the plugin, the suite
    Hostile(
        "patches_reports",
        "make every report say passed",
        "import _pytest.reports as r\nr.TestReport.failed = False\n" + STUB,
        "imports _pytest",
    ),
    Hostile(
        "patches_verdict",
        "change the course's own code",
        "import labkit.suite.verdict as v\nv.Verdict.passed = True\n" + STUB,
        "imports labkit.suite.verdict",
    ),
    Hostile(
        "patches_compare",
        "assertions that assert nothing",
        "import labkit.testing.compare as c\nc.assert_close = lambda *a, **k: None\n" + STUB,
        "imports labkit.testing.compare",
    ),
    Hostile("imports_the_suite", "read the tests", "import test_profiling\n" + STUB, "imports test_profiling"),
    Hostile("modules_table", "sys.modules", "import sys\nsys.modules['numpy'] = None\n" + STUB, "imports sys"),
    Hostile(
        "modules_table_by_a_friend",
        "sys through a module that has it",
        "import warnings\ns = warnings.sys\n" + STUB,
        "uses warnings.sys",
    ),
    Hostile(
        "modules_table_by_an_alias",
        "sys under a private name",
        "import random\no = random._os\n" + STUB,
        "uses random._os",
    ),
    Hostile(
        "patches_numpy",
        "a comparison that is always true",
        "import numpy as np\nnp.array_equal = lambda *a, **k: True\n" + STUB,
        "changes numpy.array_equal",
    ),
    Hostile(
        "patches_numpy_by_setattr",
        "the same, at run time",
        everywhere("setattr(np, 'array_equal', lambda *a: True)\nreturn 0", "import numpy as np"),
        "",
    ),
    # expected values
    Hostile(
        "callers_frame",
        "the expected value lies in the caller's frame",
        "import sys\n" + everywhere("return sys._getframe(1).f_locals['want']"),
        "imports sys",
    ),
    Hostile(
        "frame_of_an_exception",
        "frames without sys",
        everywhere("try:\n    1 / 0\nexcept Exception as e:\n    return e.__traceback__.tb_frame.f_back.f_locals"),
        "uses __traceback__",
    ),
    Hostile(
        "frame_of_a_generator",
        "frames of a generator",
        everywhere("return (i for i in ()).gi_frame.f_back"),
        "uses gi_frame",
    ),
    Hostile(
        "garbage_collector",
        "find the expected value among all objects",
        "import gc\n" + everywhere("return [o for o in gc.get_objects() if type(o) is dict]"),
        "uses gc.get_objects",
    ),
    Hostile(
        "borrows_the_reference",
        "the course's own attention",
        "from labkit.testing.attention.reference import attention\n" + everywhere("return attention(*args)"),
        "imports labkit.testing.attention.reference",
    ),
    Hostile(
        "globals_of_a_function",
        "from a function to its module",
        everywhere("return print.__class__, (lambda: 0).__globals__"),
        "uses __globals__",
    ),
    Hostile(
        "globals_by_a_name_in_parts",
        "the same, where no reader of the text finds it",
        everywhere("return getattr(lambda: 0, '__glo' + 'bals__')"),
        "__globals__",
    ),
    Hostile(
        "globals_by_a_pattern",
        "the same, by pattern matching",
        everywhere("match (lambda: 0):\n    case object(__globals__=g):\n        return g"),
        "uses __globals__",
    ),
    Hostile(
        "subclasses",
        "from a tuple to every class",
        everywhere("return ().__class__.__base__.__subclasses__()"),
        "uses __base__",
    ),
    Hostile(
        "text_as_code",
        "code that no reader of the text finds",
        everywhere("return eval('__import__(\"os\").getcwd()')"),
        "eval",
    ),
    Hostile("builtins_by_name", "builtins as a dict", everywhere("return __builtins__['eval']('1')"), "__builtins__"),
    Hostile("import_by_name", "__import__", everywhere("return __import__('os').getcwd()"), "__import__"),
    Hostile(
        "memorised",
        "the worked example, and nothing else",
        everywhere("return np.float64([[0.66976155]]), np.float64([[0.66976155, 0.33023845]])", "import numpy as np"),
        "or repeats the examples",
    ),
    Hostile(
        "changes_what_it_was_given",
        "zeros are the attention over zeros",
        everywhere(
            "for x in args:\n    if isinstance(x, np.ndarray):\n        x[...] = 0\n"
            "return args[2] * 0, np.full((*args[0].shape[:-1], args[1].shape[-2]), 1 / args[1].shape[-2])",
            "import numpy as np",
        ),
        "",
    ),
    # files
    Hostile(
        "reads_solutions",
        "open the solution",
        everywhere("return open('solutions/lab01_memory_profiling/src/profiling.py').read()"),
        "open",
    ),
    Hostile(
        "reads_by_numpy",
        "files through NumPy",
        "import numpy as np\n" + everywhere("return np.fromfile('/etc/passwd')"),
        "uses numpy.fromfile",
    ),
    Hostile(
        "imports_the_solution",
        "import it",
        "from solutions.lab01_memory_profiling.src.profiling import *\n",
        "imports solutions",
    ),
    Hostile("writes_a_result", "forge a result", everywhere("open('{canary}', 'w').write('passed')"), "open"),
    Hostile(
        "writes_by_numpy",
        "files through NumPy",
        "import numpy as np\n" + everywhere("np.save('{canary}', np.ones(3))"),
        "FileNotFoundError",
    ),
    Hostile(
        "writes_by_matplotlib",
        "files through matplotlib",
        everywhere("import matplotlib.pyplot as plt\nplt.figure().savefig('{canary}.png')\nreturn 0"),
        "",
    ),
    Hostile(
        "writes_the_gradebook",
        "manual_score = 24",
        "import sqlite3\n" + everywhere("sqlite3.connect('gradebook.db')"),
        "imports sqlite3",
    ),
    Hostile(
        "unpickles",
        "code in a pickle",
        "import pickle\n" + everywhere("return pickle.loads(b'cos\\nsystem\\n')"),
        "imports pickle",
    ),
    # processes, network, floods
    Hostile("forks", "a process that outlives the judge", "import os\n" + everywhere("os.fork()"), "imports os"),
    Hostile(
        "runs_a_program",
        "a program",
        "import subprocess\n" + everywhere("subprocess.run(['touch', '{canary}'])"),
        "imports subprocess",
    ),
    Hostile(
        "opens_a_socket",
        "ask the network",
        "import socket\n" + everywhere("socket.create_connection(('127.0.0.1', 9))"),
        "imports socket",
    ),
    Hostile(
        "leaves_a_thread",
        "a thread that goes on",
        "import threading\n" + everywhere("threading.Thread(target=print).start()"),
        "imports threading",
    ),
    Hostile(
        "waits_for_the_end",
        "act when everything is over",
        "import atexit\natexit.register(print)\n" + STUB,
        "imports atexit",
    ),
    Hostile(
        "speaks_without_end",
        "flood the output",
        everywhere("for _ in range(200):\n    print('x' * 100_000)\nreturn 0"),
        "",
    ),
    Hostile("reads_the_input", "steal what the judge reads", everywhere("return input()"), "input"),
    Hostile("loops_at_import", "never end", "while True: pass\n" + STUB, "took too long"),
    Hostile(
        "loops_in_a_call",
        "never end",
        STUB + "def standard_attention(*args):\n    while True: pass\n",
        "still running after",
    ),
    Hostile(
        "loops_and_swallows",
        "never end, and let no one interrupt",
        STUB + "def standard_attention(*args):\n    while True:\n        try:\n            while True: pass\n"
        "        except BaseException: pass\n",
        "still running after",
    ),
    Hostile(
        "takes_memory",
        "all of it (bounded here)",
        STUB + "def standard_attention(*args):\n    kept = []\n    for _ in range(80):\n"
        "        kept.append(np.ones(1 << 23))\n    return kept\nimport numpy as np\n",
        "MemoryError",
    ),
    Hostile("takes_the_stack", "recursion", everywhere("return standard_attention(*args)"), "RecursionError"),
    # strange values
    Hostile(
        "equal_to_everything",
        "an object that every comparison likes",
        everywhere(
            "return Yes(), Yes()",
            "class Yes:\n    __eq__ = __ge__ = __le__ = lambda self, other: True\n"
            "    __hash__ = None\n    __getitem__ = lambda self, key: self\n"
            "    __iter__ = lambda self: iter([self] * 2)\n"
            "    __len__ = lambda self: 2\n    __float__ = lambda self: 0.0\n"
            "    __array__ = lambda self, *a, **k: self",
        ),
        "",
    ),
    Hostile(
        "array_equal_to_everything",
        "an array that every comparison likes",
        everywhere(
            "return [np.zeros(3).view(Yes)] * 2",
            "import numpy as np\nclass Yes(np.ndarray):\n    __eq__ = __le__ = lambda self, other: np.bool_(True)\n"
            "    __sub__ = __rsub__ = lambda self, other: np.zeros(1)",
        ),
        "",
    ),
    Hostile(
        "number_equal_to_everything",
        "a number that every comparison likes",
        everywhere(
            "return Yes(3)",
            "class Yes(int):\n    __eq__ = __le__ = __ge__ = lambda self, other: True\n    __hash__ = int.__hash__",
        ),
        "",
    ),
    Hostile(
        "dict_with_everything",
        "a dict that has every key",
        everywhere(
            "return All()",
            "class All(dict):\n    __contains__ = lambda self, key: True\n"
            "    __missing__ = lambda self, key: key\n    __eq__ = lambda self, other: True",
        ),
        "",
    ),
    Hostile("endless_number", "an integer of a hundred thousand digits", everywhere("return 10 ** 100_000"), ""),
    Hostile(
        "nothing_but_nan",
        "NaN compares with nothing",
        everywhere("return np.float64('nan'), np.full((3, 3), np.nan)", "import numpy as np"),
        "",
    ),
    Hostile("contains_itself", "a list without a bottom", everywhere("x = []\nx.append(x)\nreturn x"), ""),
    Hostile(
        "nested_deep",
        "a list with a far bottom",
        everywhere("x = []\nfor _ in range(5000):\n    x = [x]\nreturn x"),
        "",
    ),
    Hostile("a_million_parts", "a list of many parts", everywhere("return [None] * 1_000_000"), ""),
    Hostile("a_hundred_mebibytes", "a huge text", everywhere("return 'x' * (100 << 20)"), ""),
    Hostile(
        "exception_that_fails",
        "an exception whose text raises",
        everywhere("raise Bad", "class Bad(Exception):\n    def __str__(self): raise ValueError('twice')"),
        "Bad",
    ),
    Hostile("exception_of_a_mebibyte", "flood the messages", everywhere("raise ValueError('x' * (1 << 20))"), "xxx"),
    Hostile(
        "an_object_array",
        "an array of objects",
        everywhere("return np.array([print, len]), np.array([None])", "import numpy as np"),
        "",
    ),
    Hostile("functions_as_results", "a function in the place of a number", everywhere("return standard_attention"), ""),
    # measurements
    Hostile(
        "forges_tracemalloc",
        "a peak of 0 bytes",
        "import tracemalloc\ntracemalloc.get_traced_memory = lambda: (0, 0)\n" + STUB,
        "imports tracemalloc",
    ),
    Hostile(
        "resets_the_peak",
        "the same through a friend",
        "import linecache\n" + everywhere("return linecache.tracemalloc"),
        "imports linecache",
    ),
    # texts
    Hostile("nulls", "bytes that are no text", "\0" * 100, ""),
    Hostile("deep_parentheses", "break the parser", "x = " + "(" * 5000 + ")" * 5000, ""),
    Hostile("deep_signs", "break the compiler", "x = " + "-" * 20_000 + "1", ""),
    Hostile("deep_attributes", "break whoever walks the tree", "x = a" + ".b" * 20_000, ""),
    Hostile("empty", "nothing at all", "", "defines no standard_attention"),
]
