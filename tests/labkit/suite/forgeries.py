"""Submissions that tamper with their counters, or have a library do the task's work: name → source, by lab."""


def tiled_traffic(lines: str, before: str = "") -> str:
    """Lab 04's task, which loads an unneeded row and hides it with `lines`."""
    body = "\n    ".join(lines.split("\n"))
    return f"""import numpy as np
from labkit.simulated_memory import Machine
{before}

def tiled_traffic(machine, Q, K, V, block_q, block_k):
    machine.load(Q, np.s_[:1])
    n = Q.shape[1] * Q.itemsize
    {body}
"""


def flash_forward(lines: str, before: str = "") -> str:
    """Lab 05's first task, with `lines` in its body."""
    body = "\n    ".join(lines.split("\n"))
    return f"import torch\n{before}\n\ndef flash_forward(Q, K, V, causal=False):\n    {body}\n"


SDPA = "torch.nn.functional.scaled_dot_product_attention(Q, K, V)"
OPERATOR = "op = torch.ops.aten.mm.default\n"

FORGERIES = {
    "01": {
        "ends_the_trace": "import tracemalloc\ndef standard_attention(Q, K, V):\n    tracemalloc.stop()\n",
    },
    "04": {
        "books_by_name": tiled_traffic("machine._ledger.loaded -= n"),
        "books_of_self": tiled_traffic("def put_back(self): self._ledger.loaded -= n\nput_back(machine)"),
        "books_by_a_text": tiled_traffic("books = getattr(machine, '_led' + 'ger')\nbooks.loaded -= n"),
        "books_by_a_protocol": tiled_traffic("object.__getattribute__(machine, '_ledger').loaded -= n"),
        "books_of_its_state": tiled_traffic("machine.__getstate__()[1].popitem()"),
        "books_among_all_objects": tiled_traffic(
            "for each in gc.get_objects():\n    if type(each).__name__ == 'Ledger': each.loaded = 0", "import gc"
        ),
        "books_of_the_caller": tiled_traffic("sys._getframe(1).f_locals['machine'] = Machine()", "import sys"),
        "books_by_a_traceback": tiled_traffic(
            "try: machine.load(1)\nexcept TypeError as error: error.__traceback__.tb_next.tb_frame.f_locals.clear()"
        ),
        "contents_by_a_template": tiled_traffic("text = '{0._led' + 'ger_content}'\ntext.format(Q)"),
        "contents_by_a_pattern": tiled_traffic("match Q:\n    case Machine(_ledger=x): x.loaded = 0"),
        "contents_by_an_address": tiled_traffic("Q.__array_interface__['data']"),
        "contents_next_to_an_array": tiled_traffic(
            "x = np.lib.stride_tricks.as_strided(np.ones(4), (1 << 40,), (8,))\nx[:] = 0"
        ),
        "contents_by_ctypes": tiled_traffic("ctypes.memset(id(machine), 0, 8)", "import ctypes"),
        "another_property": tiled_traffic("type(machine).loaded = property(lambda self: 0)"),
        "another_property_by_setattr": tiled_traffic("setattr(type(machine), 'loaded', property(lambda self: 0))"),
        "another_property_by_wraps": tiled_traffic(
            "functools.wraps(Liar, assigned=('loaded',), updated=())(type(machine))",
            "import functools\nclass Liar(Machine):\n    loaded = property(lambda self: 0)",
        ),
        "set_up_again": tiled_traffic("machine.__init__(machine.sram_bytes)"),
        "another_class": tiled_traffic("machine.__class__ = Machine"),
        "another_class_by_setattr": tiled_traffic("setattr(machine, '__class__', Machine)"),
        "another_property_by_a_name": tiled_traffic("kind = type(machine)\nkind.loaded = property(lambda self: 0)"),
        "another_property_in_a_loop": tiled_traffic(
            "for name in ('loaded',): setattr(type(machine), name, property(lambda self: 0))"
        ),
        "books_by_a_table": tiled_traffic(
            "TABLE.update(x='_led' + 'ger')\ngetattr(machine, TABLE['x']).loaded -= n", "TABLE = {'x': 'load'}"
        ),
        "numpy_by_another_name": tiled_traffic("library = np\nlibrary.array = np.asarray"),
    },
    "05": {
        "torch_by_another_name": flash_forward(
            "return attend(Q, K, V)", "from torch.nn.functional import scaled_dot_product_attention as attend"
        ),
        "torch_when_it_is_unpacked": flash_forward(
            "return Late((Q, K, V))",
            f"class Late(tuple):\n    def __iter__(self):\n        Q, K, V = self\n        yield {SDPA}",
        ),
        "torch_in_a_finaliser": flash_forward(
            "late = Late()\nlate.me = late", f"class Late:\n    def __del__(self): self.done = {SDPA}"
        ),
        "torch_in_a_callback": flash_forward("weakref.finalize(Q, torch.matmul, Q, K)\nreturn Q", "import weakref"),
        "torch_in_a_generator": flash_forward(
            "g = late()\nnext(g)", "def late():\n    try: yield\n    finally: torch.nn.MultiheadAttention(8, 8)"
        ),
        "torch_in_another_thread": flash_forward(
            "t = threading.Thread(target=torch.mm, args=(Q, K))\nt.start()\nt.join()", "import threading"
        ),
        "torch_by_a_name": flash_forward(
            "return getattr(torch.nn.functional, 'scaled_dot_product_attention')(Q, K, V)"
        ),
        "in_another_thread_by_a_star": flash_forward("Thread(target=torch.mm, args=(Q, K))", "from threading import *"),
        "runs_as_if_by_hand": flash_forward(
            "return Q", "__name__ = '__main__'\nif __name__ == '__main__':\n    eval('1')"
        ),
        "calls_what_is_run_by_hand": flash_forward(
            "return globals()['ma' + 'in']()",
            "def main(): return eval('1')\nif __name__ == '__main__':\n    main()",
        ),
        "torch_by_a_computed_name": flash_forward("return getattr(torch.nn.functional, 'scaled_' + NAME)(Q, K, V)"),
        "torch_by_its_operator": flash_forward(
            "return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(Q, K, V)"
        ),
        "torch_by_its_binding": flash_forward("return torch._C._nn.scaled_dot_product_attention(Q, K, V)"),
        "torch_from_a_text": flash_forward(f"return eval('{SDPA}')"),
        "torch_by_its_dispatcher": flash_forward(f"{OPERATOR}op.redispatch(torch._C.DispatchKeySet(1), Q, K)"),
        "renames_an_operator": flash_forward(f"{OPERATOR}op._schema = type('S', (), {{'name': 'aten::neg'}})"),
        "renames_by_a_cache": flash_forward(
            f"cache = functools.cached_property(len)\n{OPERATOR}cache.__set_name__(object, 'x')\ncache.__get__(op)",
            "import functools",
        ),
        "takes_the_meters_away": flash_forward(
            "with torch.utils._python_dispatch._disable_current_modes(): return Q @ K.mT"
        ),
        "what_is_a_container": flash_forward("torch.utils._pytree.SUPPORTED_NODES.clear()"),
        "a_tensor_of_its_own": flash_forward(
            "return Q.as_subclass(Own)",
            "class Own(torch.Tensor):\n    @classmethod\n    def __torch_dispatch__(cls, op, kinds, args, kwargs): ...",
        ),
        "a_storage_that_grows": flash_forward("S = torch.empty(0)\nS.set_(WORKSPACE.untyped_storage())"),
        "numpy_in_place_of_torch": flash_forward(
            "return torch.from_numpy(np.matmul(Q.numpy(), K.numpy().T))", "import numpy as np"
        ),
        "changes_the_meter": flash_forward("products.ProductMeter.fused = False", "from labkit.meters import products"),
        "changes_it_by_its_module": flash_forward(
            "sys.modules['labkit.meters.products'].ProductMeter = None", "import sys"
        ),
        "a_meter_that_never_looks": flash_forward("torch.overrides.get_overridable_functions().clear()"),
        "hides_the_time_it_takes": flash_forward("sys.settrace(lambda *_: None)", "import sys"),
    },
}
