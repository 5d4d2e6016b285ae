"""Submissions that hide from a machine or a meter what they move or hold: every byte must be counted all the same."""

from __future__ import annotations

from tests.labstaff.judge.hostile import Hostile

WASTEFUL = """
from labkit.simulated_memory import Machine

_honest = tiled_traffic


def tiled_traffic(machine, Q, K, V, block_q, block_k):
    _check_blocks(block_q, block_k)
    machine.load(Q, np.s_[:1])
    n = Q.shape[1] * Q.itemsize
    {trick}
    return _honest(machine, Q, K, V, block_q, block_k)
"""
"""Added to Lab 04's solution: it loads a row for nothing, and hides that by a trick."""


def trick(name: str, tries: str, lines: str, says: str, before: str = "") -> Hostile:
    """A file for Lab 04."""
    body = lines.strip().replace("\n", "\n    ")
    return Hostile(name, tries, before + WASTEFUL.replace("{trick}", body), says)


LIAR = "class Liar(Machine):\n    __slots__ = ()\n    loaded = property(lambda self: 0)\n"
ON_THE_MACHINE = [
    trick("books_by_name", "the counter, by its name", "machine._ledger.loaded -= n", "uses _ledger"),
    trick(
        "books_of_self",
        "the same in a function that looks like a method",
        "def put_back(self): self._ledger.loaded -= n\nput_back(machine)",
        "uses _ledger",
    ),
    trick(
        "books_by_a_text",
        "the name put together while it runs",
        "books = getattr(machine, '_led' + 'ger')\nbooks.loaded -= n",
        "_ledger: a graded answer may not use it",
    ),
    trick("books_of_its_state", "what copying would take", "machine.__getstate__()[1].popitem()", "uses __getstate__"),
    trick(
        "contents_by_a_template",
        "format fetches attributes",
        "text = '{0._led' + 'ger_content}'\ntext.format(Q)",
        "_ledger_content: a graded answer may not use it",
    ),
    trick(
        "contents_by_a_pattern",
        "a pattern fetches attributes",
        "match Q:\n    case Machine(x): pass",
        "matches a class by position",
    ),
    trick(
        "another_property",
        "a counter that says what one likes",
        "wanted = machine.loaded - n\ntype(machine).loaded = property(lambda self: wanted)",
        "a graded answer may not change what is not its own",
    ),
    trick(
        "another_property_by_setattr",
        "the same by another door",
        "wanted = machine.loaded - n\nsetattr(type(machine), 'loaded', property(lambda self: wanted))",
        "a graded answer may not change what is not its own",
    ),
    trick(
        "another_property_by_wraps",
        "and by a third one",
        "functools.wraps(Liar, assigned=('loaded',), updated=())(type(machine))",
        "",
        "import functools\nfrom labkit.simulated_memory import Machine\n" + LIAR,
    ),
    trick("another_class", "the machine becomes one of the answer's", "machine.__class__ = Machine", ""),
    trick(
        "another_class_by_setattr",
        "the same by another door",
        "setattr(machine, '__class__', Liar)",
        "",
        "from labkit.simulated_memory import Machine\n" + LIAR,
    ),
    trick(
        "set_up_again",
        "counters that begin anew",
        "machine.__init__(machine.sram_bytes, machine.sealed)",
        "a machine is set up once",
    ),
    trick(
        "own_loaded_from",
        "a method of the machine's own",
        "machine.loaded_from = lambda array: 0",
        "loaded_from",
    ),
    trick(
        "numpy_by_another_name",
        "have NumPy hand over what the machine copies",
        "library = np\nlibrary.array = np.asarray",
        "a graded answer may not change what is not its own",
    ),
]
"""Files for Lab 04 that try to move bytes which the simulated machine does not count."""


COLLECTED = {
    "by_a_finaliser": "late = Late(); late.me, late.do = late, {do}; del late; gc.collect(); done or {do}()",
    "by_a_weak_reference": "node = Node(); node.me = node; seen = weakref.ref(node, lambda _: {do}()); del node; "
    "gc.collect(); done or {do}()",
    "by_a_generator": "node = Node(); node.me, node.words = node, last_words({do}); next(node.words); del node; "
    "gc.collect(); done or {do}()",
}
"""Ways to have `{do}`, a function, called by the garbage collector; and in the open, where it failed there."""

BEFORE_COLLECTED = """import gc, weakref
done = []
class Node: pass
class Late:
    def __del__(self):
        self.do()
def last_words(do):
    try:
        yield
    finally:
        do()
"""
OF_NUMPY = "(lambda: done.append(np.ones((len(Q), len(K)), np.float32).sum()))"
OF_TORCH = "(lambda: done.append(torch.ones(len(Q), len(K)).sum()))"

HIDING_NUMPY = {
    "in_the_open": "S = np.empty((len(Q), len(K)), np.float32)",
    "workspace_of_the_module": "S = WORKSPACE[: len(Q), : len(K)]",
    "workspace_of_a_class": "S = Kept.matrix",
    "workspace_as_a_default": "S = kept()",
    "workspace_of_a_cache": "S = matrix()",
    "rows_one_by_one": "S = [np.empty(len(K), np.float32) for _ in range(len(Q))]",
    "texts": "S = [bytearray(4 * len(K)) for _ in range(len(Q))]",
    "half_precision": "S = np.empty((len(Q), len(K)), np.float16)",
    **{name: f"done.clear(); {lines.format(do=OF_NUMPY)}" for name, lines in COLLECTED.items()},
}
"""Ways to make the whole matrix in a function of Q and K: the lines, with `BEFORE_NUMPY` above the function."""

BEFORE_NUMPY = {
    "workspace_of_the_module": "WORKSPACE = np.ones((4096, 4096), np.float32)",
    "workspace_of_a_class": "class Kept:\n    matrix = np.ones((4096, 4096), np.float32)",
    "workspace_as_a_default": "def kept(matrix=np.ones((4096, 4096), np.float32)):\n    return matrix",
    "workspace_of_a_cache": "import functools\n@functools.lru_cache\ndef matrix():\n"
    "    return np.empty((4096, 4096), np.float32)\nmatrix()[...] = 0",
    **dict.fromkeys(COLLECTED, BEFORE_COLLECTED),
}

HIDING_TORCH = {
    "in_the_open": "S = torch.empty(len(Q), len(K))",
    "numpy_in_its_place": "S = np.empty((len(Q), len(K)), np.float32)",
    "workspace_of_the_module": "S = WORKSPACE",
    "workspace_out_of_sight": "S = torch.empty(0).set_(WORKSPACE.untyped_storage())",
    "by_growing_a_storage": "S = torch.empty(1); S.resize_(len(Q), len(K))",
    "lists": "S = [bytearray(4 * len(K)) for _ in range(len(Q))]",
    **{name: f"done.clear(); {lines.format(do=OF_TORCH)}" for name, lines in COLLECTED.items()},
}
BEFORE_TORCH = dict.fromkeys(
    ("workspace_of_the_module", "workspace_out_of_sight"), "WORKSPACE = torch.ones(4096, 4096)"
) | dict.fromkeys(COLLECTED, BEFORE_COLLECTED)
