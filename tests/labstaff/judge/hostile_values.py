"""A second set of hostile submissions: at what crosses, at what is told of it, and at hooks."""

from __future__ import annotations

from tests.labstaff.judge.hostile import STUB, Hostile, everywhere

SECOND_SET = [
    # values that lie about what they are
    Hostile(
        "class_of_an_array",
        "an object whose __class__ is NumPy's",
        everywhere(
            "return Lies(), Lies()",
            "import numpy as np\nclass Lies:\n    __class__ = property(lambda self: np.ndarray)\n"
            "    shape, dtype, size = (3, 3), np.dtype(float), 9",
        ),
        "",
    ),
    Hostile(
        "class_of_a_dict",
        "the same for a dict, whose items nobody has counted",
        everywhere(
            "return Lies()", "class Lies:\n    __class__ = property(lambda self: dict)\n    items = lambda self: []"
        ),
        "",
    ),
    Hostile(
        "length_without_end",
        "a length that no machine has, of an object that stays there",
        everywhere(
            "return Long()", "class Long:\n    __len__ = lambda self: 2**62\n    __contains__ = lambda *_: True"
        ),
        "",
    ),
    Hostile(
        "iterates_without_end",
        "a generator that the suite would go through for ever",
        STUB + "def standard_attention(*args):\n    while True:\n        yield args[0]\n",
        "",
    ),
    Hostile(
        "floats_by_itself",
        "an object with __float__, __index__ and __array__ in place of numbers",
        everywhere(
            "return dict.fromkeys(KEYS, Number())",
            "KEYS = ['Q_memory', 'K_memory', 'V_memory', 'total_memory', 'output_memory', 'attention_matrix_memory']\n"
            "class Number:\n    __float__ = lambda self: 0.0\n    __index__ = __int__ = lambda self: 0\n"
            "    __eq__ = lambda self, other: True\n    __hash__ = lambda self: 0",
        ),
        "",
    ),
    Hostile(
        "array_beyond_its_memory",
        "what lies beside an array in memory",
        everywhere(
            "x = np.lib.stride_tricks.as_strided(np.ones(4), (1 << 16,), (8,))\nreturn x, x", "import numpy as np"
        ),
        "",
    ),
    Hostile(
        "array_of_a_tebibyte",
        "one number that is shown 2**38 times",
        everywhere("x = np.broadcast_to(np.float32(1), (1 << 19, 1 << 19))\nreturn x, x", "import numpy as np"),
        "",
    ),
    Hostile(
        "array_with_fields",
        "a dtype with names, dates and texts",
        everywhere("return np.zeros(3, 'i4,f8'), np.array(['2020'], 'M8[D]')", "import numpy as np"),
        "",
    ),
    Hostile(
        "half_a_character", "a text that no encoding writes", everywhere("return '\\ud800' * 9, {'\\udfff': 1}"), ""
    ),
    Hostile(
        "keys_of_arrays",
        "a dict whose keys cannot be keys on the other side",
        everywhere("return {Key(): 1, (1, (2, Key())): 2}", "class Key(list):\n    __hash__ = lambda self: 0"),
        "",
    ),
    Hostile(
        "nests_on_the_way",
        "a tuple of dicts of sets, deeper than any reader goes",
        everywhere(
            "x = ()\nfor _ in range(300):\n    x = ({'a': frozenset([x])},) if not isinstance(x, dict) else x\nreturn x"
        ),
        "",
    ),
    Hostile(
        "a_range_of_everything", "a range of 2**62 numbers", everywhere("return range(2**62), slice(None, 2**80)"), ""
    ),
    # errors that lie
    Hostile(
        "claims_a_time_limit",
        "an exception of the course's name for too slow",
        everywhere("raise TookTooLong", "class TookTooLong(Exception): __module__ = 'labkit.suite.limits'"),
        "",
    ),
    Hostile(
        "claims_a_failed_box",
        "the judge's own excuse",
        everywhere(
            'raise BoxBroken("the judge\'s box is broken")',
            "class BoxBroken(Exception): __module__ = 'labstaff.judge.sandbox'",
        ),
        "the judge's box is broken",
    ),
    Hostile(
        "exception_of_a_strange_class",
        "an exception whose class has no name",
        everywhere(
            "raise Bad",
            "class Meta(type):\n    __name__ = property(lambda cls: 1 / 0)\nclass Bad(Exception, metaclass=Meta): pass",
        ),
        "",
    ),
    Hostile(
        "exception_that_is_its_own_cause",
        "a chain of causes without end",
        everywhere("e = ValueError('round')\ne.__context__ = e\nraise e from ValueError('and round')"),
        "",
    ),
    Hostile(
        "group_of_exceptions",
        "a group, whose kind takes other arguments",
        everywhere("raise ExceptionGroup('all passed', [ValueError(), TypeError()])"),
        "all passed",
    ),
    # hooks
    Hostile(
        "hooks_into_the_collector",
        "work while the collector runs, where no meter looks",
        everywhere("return 0", "import gc\ngc.callbacks.append(lambda phase, info: None)"),
        "uses gc.callbacks",
    ),
    Hostile(
        "swallows_the_limit_in_del",
        "never end where no exception comes out",
        STUB
        + "class Slow:\n    def __del__(self):\n        for _ in range(10**8): pass\n"
        + "def standard_attention(*args):\n    return [Slow() for _ in range(9)]\n",
        "",
    ),
    Hostile(
        "goes_on_when_it_is_given_up",
        "a generator that works when it is thrown away",
        everywhere(
            "g = g_()\nnext(g)\nreturn 0",
            "def g_():\n    try:\n        yield\n    finally:\n        for _ in range(10**6): pass",
        ),
        "",
    ),
    Hostile(
        "errors_for_warnings",
        "have every warning of a library raise",
        everywhere(
            "np.float64(1) / np.float64(0)\nreturn 0", "import warnings, numpy as np\nwarnings.simplefilter('error')"
        ),
        "RuntimeWarning",
    ),
    Hostile(
        "warns_without_end",
        "flood the error output",
        everywhere("for i in range(20_000):\n    warnings.warn('x' * 1000 + str(i))\nreturn 0", "import warnings"),
        "",
    ),
    Hostile(
        "error_state_of_numpy",
        "a function that NumPy calls for every error",
        everywhere(
            "np.float64(1) / np.float64(0)\nreturn 0",
            "import numpy as np\nnp.seterrcall(lambda *_: 1 / 0)\nnp.seterr(all='call')",
        ),
        "",
    ),
    # texts that are shown
    Hostile(
        "turns_the_text_round",
        "marks of direction in what the grader reads",
        everywhere("raise ValueError('\\u202epassed\\u2066\\u200b\\x1b[2J')"),
        "\\u202epassed",
    ),
    Hostile(
        "turns_its_name_round",
        "the same in the name of a class",
        everywhere("raise Bad('x')", "Bad = type('\\u202e0 of 0\\x1b]0;', (Exception,), {})"),
        "",
    ),
    Hostile(
        "another_encoding",
        "a cookie after which a reader of bytes reads another text",
        "# coding: utf-7\n+AGkAbQBwAG8AcgB0- math\n",
        "NameError",
    ),
]
"""Tried after everything above held: at what crosses, at what is told, at hooks."""
