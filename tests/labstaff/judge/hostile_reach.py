"""Texts that reach for what no answer may have, by ways on which the name does not stand in the text.

Each puts what it got into `GOT`, and is to leave that empty: `load_answer` refuses it, or it raises when it runs. Where
something is changed rather than got, `GOT` is given a word when it has worked. `SECRET` stands for the name of an
attribute that leads from a function to its module.
"""

from __future__ import annotations

SECRET = "'__glo' + 'bals__'"
CATCH = "class Catch:\n    def __setattr__(self, name, value):\n        GOT.append(value)\n"
FAKE = "types.SimpleNamespace(name='aten::neg')"
OPERATOR = "import torch, types\nop = torch.ops.aten.mm.default\n"
TOLD = "if op._schema.name == 'aten::neg':\n    GOT.append('renamed')\n"

REACHING = {
    # Python's own protocol, called with a name
    "protocol_of_object": f"GOT.append(object.__getattribute__(lambda: 0, {SECRET}))",
    "protocol_of_its_class": f"f = lambda: 0\nGOT.append(type(f).__getattribute__(f, {SECRET}))",
    "protocol_by_a_text": f"GOT.append(getattr(object, '__getattribute__')(lambda: 0, {SECRET}))",
    "protocol_of_a_descriptor": "f = lambda: 0\n"
    f"d = type.__getattribute__(type(f), {SECRET})\nGOT.append(d.__get__(f))",
    "protocol_of_a_module": "import torch\nGOT.append(torch.__getattr__('_dynamo'))",
    "protocol_bound_to_another": "import types\nf = types.MethodType(object.__getattribute__, lambda: 0)\n"
    f"GOT.append(f({SECRET}))",
    "protocol_of_the_protocol": f"f = object.__getattribute__(lambda: 0, '__getattribute__')\nGOT.append(f({SECRET}))",
    "template_of_a_lying_base": "def f(self, x):\n    return super(S, self).format(x)\n"
    "S = type('S', (str,), {'f': f, '__se' + 'lf__': 'x'})\nGOT.append(S('{0.__globals__}').f(lambda: 0))",
    "changes_a_module_by_protocol": "import numpy as np\nobject.__setattr__(np, 'changed', 1)\nGOT.append(np.changed)",
    "changes_a_class_by_protocol": "import torch\ntype.__setattr__(torch.nn.Module, 'new', 1)\nGOT.append('changed')",
    "changes_by_its_own_protocol": "import torch\nclass K:\n    __setattr__ = object.__setattr__\n"
    "K.__setattr__(torch.ops.aten.mm, 'new', 1)\nGOT.append('changed')",
    # functions that fetch or set what they are told to
    "update_wrapper": f"import functools\n{CATCH}"
    f"functools.update_wrapper(Catch(), lambda: 0, assigned=({SECRET},), updated=())",
    "wraps": f"import functools\n{CATCH}functools.wraps(lambda: 0, ({SECRET},), ())(Catch())",
    "update_wrapper_of_a_method": f"import functools, statistics\n{CATCH}"
    f"functools.update_wrapper(Catch(), statistics.mean, assigned=[{SECRET}], updated=[])",
    "total_ordering_of_a_library": "import functools, torch\n"
    "functools.total_ordering(torch.storage.TypedStorage)\nGOT.append('changed')",
    "state_of_a_copy": f"import copy\n{OPERATOR}"
    f"R = type('R', (), {{'__reduce' + '_ex__': lambda *_: (lambda: op, (), (None, {{'_schema': {FAKE}}}))}})\n"
    f"copy.copy(R())\n{TOLD}",
    "state_of_a_deep_copy": f"import copy\n{OPERATOR}"
    f"R = type('R', (), {{'__reduce' + '__': lambda *_: (lambda: op, (), {{'_schema': {FAKE}}})}})\n"
    f"copy.deepcopy([R()])\n{TOLD}",
    "state_of_a_copy_in_a_class": f"import copy\n{OPERATOR}class R:\n    def __reduce_ex__(self, _):\n"
    f"        return (lambda: op), (), (None, {{'_schema': {FAKE}}})\ncopy.copy(R())\n{TOLD}",
    # texts that are run
    "measure": "import numpy as np\nnp.testing.measure('GOT.append((lambda: 0).__globals__)')",
    "measure_by_another_name": "import numpy as np\nt = np.testing\nt.measure('GOT.append((lambda: 0).__globals__)')",
    "measure_in_parts": "import numpy as np\n"
    "getattr(np.testing, 'mea' + 'sure')('GOT.append((lambda: 0).__globals__)')",
    "annotation_of_a_dispatcher": "import functools\n@functools.singledispatch\ndef f(x): pass\n"
    "@f.register\ndef g(x: 'GOT.append((lambda: 0).__globals__)'): pass",
    "annotation_as_hints": "import typing_extensions\ndef f(x: 'GOT.append((lambda: 0).__globals__)'): pass\n"
    "typing_extensions.get_type_hints(f)",
    "annotation_evaluated": "import typing_extensions\ndef f(x: 'GOT.append((lambda: 0).__globals__)'): pass\n"
    "getattr(typing_extensions, 'get_annotations')(f, eval_str=True)",
    "name_of_a_field": "import dataclasses\nclass A: pass\n"
    "A.__annotations__ = {'x: GOT.append((lambda: 0).__globals__)': int}\ndataclasses.dataclass(A)",
    "template_of_a_base": "class S(str):\n    def f(self, x):\n        return super().format(x)\n"
    "GOT.append(S('{0.__globals__}').f(lambda: 0))",
    "template_in_a_wrapper": "import collections\n"
    "GOT.append(collections.UserString('{0.__globals__}').format(lambda: 0))",
    # names of libraries that the text gives as well
    "private_of_enum": "import enum\ndef _convert_(): pass\nGOT.append((0, enum.Enum)[1]._convert_)",
    "private_of_its_base": "import enum\nname = '_convert_'\nclass E(enum.Enum): pass\nGOT.append(E._convert_)",
    "private_by_an_alias": "import enum, types\nname = '_convert_'\nclass N(types.GenericAlias): pass\n"
    "GOT.append(N(enum.Enum, ())._convert_)",
    "private_of_a_tensor": "import torch\nname = '_make_subclass'\nGOT.append((0, torch.Tensor)[1]._make_subclass)",
    "changes_a_class_by_its_alias": "import torch, typing\n"
    "typing.Annotated[torch.nn.Module, 1].new = 1\nGOT.append('changed')",
    # what meters go by
    "renames_an_operator": f"{OPERATOR}op._schema = {FAKE}\n{TOLD}",
    "renames_it_where_it_lies": f"{OPERATOR}torch.ops.aten.mm.default._schema = {FAKE}\n{TOLD}",
    "renames_it_by_a_text": f"{OPERATOR}setattr(op, '_sch' + 'ema', {FAKE})\n{TOLD}",
    "renames_it_by_a_cache": f"import functools\n{OPERATOR}cache = functools.cached_property(lambda self: 1)\n"
    "cache.__set_name__(object, 'cached')\ncache.__get__(op, type(op))\nGOT.append('changed')",
    "calls_it_past_the_meters": f"{OPERATOR}GOT.append(op.redispatch)",
    "past_the_meters_by_its_class": f"{OPERATOR}GOT.append(type(op).redispatch)",
    "past_the_meters_by_a_proxy": f"import weakref\n{OPERATOR}GOT.append(weakref.proxy(op).redispatch)",
    "past_the_meters_by_an_alias": f"{OPERATOR}GOT.append(types.GenericAlias(type(op), ()).redispatch)",
    "past_the_meters_by_a_pattern": f"{OPERATOR}match op:\n    case object(redispatch=r):\n        GOT.append(r)",
    "past_the_meters_by_its_pattern": f"{OPERATOR}class M(type):\n    def __instancecheck__(cls, x):\n"
    "        return True\nclass K(metaclass=M): pass\nmatch op:\n    case K(redispatch=r):\n        GOT.append(r)",
    "keys_of_the_dispatcher": "import torch\nGOT.append((0, torch)[1].DispatchKeySet)",
    "what_is_a_container": "import torch\np = torch.utils._pytree\nGOT.append(p.SUPPORTED_NODES)",
    "a_thread": "import numpy as np\nnp.testing.run_threaded(lambda *_: GOT.append(1), 1)",
    "a_thread_by_another_name": "import numpy as np\nt = np.testing\nt.run_threaded(lambda *_: GOT.append(1), 1)",
    "a_value_in_a_pattern": "import torch\nname = '_C'\nt = (0, torch)[1]\nclass Spy:\n    def __eq__(self, x):\n"
    "        GOT.append(x)\nmatch Spy():\n    case t._C: pass",
    "garbage_kept": "import gc\nGOT.append((0, gc)[1].garbage)",
    "a_file_as_memory": "import torch\nt = (0, torch)[1]\nGOT.append(t.UntypedStorage.from_file)",
    "an_address": "import numpy as np\nGOT.append(np.ones(1).ctypes)",
}

HONEST = {
    "private_to_a_class": "class A:\n    def __init__(self):\n        self.__x = 1\n"
    "    def f(self):\n        return self.__x\nclass B(A):\n    def __init__(self):\n"
    "        super().__init__()\n        self.__x = 2\nassert B().f() == 1",
    "private_names": "class A:\n    def _f(self):\n        return 1\nclass B(A):\n    def _f(self):\n"
    "        return super()._f() + 1\nassert getattr(B(), '_f')() == 2",
    "a_module_with_buffers": "import torch\nclass M(torch.nn.Module):\n"
    "    def __init__(self):\n        super().__init__()\n"
    "        self._w = torch.nn.Parameter(torch.ones(1))\n        self.register_buffer('_b', torch.ones(1))\n"
    "    def forward(self, x):\n        return self._w * x + self._b\nassert M()(torch.ones(1)) == 2",
    "what_ctx_keeps": "import torch\nclass F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
    "        ctx._kept = 3\n        return x * 3\n"
    "    @staticmethod\n    def backward(ctx, g):\n        return g * ctx._kept\n"
    "x = torch.ones(1, requires_grad=True)\nF.apply(x).backward()\nassert x.grad == 3\nx.grad = None",
    "what_functions_carry": "import functools\ndef f():\n    f._calls = getattr(f, '_calls', 0) + 1\nf()\nf()\n"
    "assert f._calls == 2\n@functools.wraps(f)\ndef g(): pass\ng.kept = 1\nassert g.__name__ == 'f'",
    "its_own_set_attribute": "class A:\n    def __setattr__(self, name, value):\n"
    "        super().__setattr__(name, value)\n        object.__setattr__(self, '_last', name)\n"
    "    def __getattr__(self, name):\n        return 0\na = A()\na.x = 1\nassert (a._last, a.y) == ('x', 0)",
    "dataclasses_and_enums": "from __future__ import annotations\nimport dataclasses, enum\n"
    "from typing import ClassVar\n@dataclasses.dataclass\nclass D:\n    x: int\n    kind: ClassVar[int] = 3\n"
    "    y: list[int] = dataclasses.field(default_factory=list)\n"
    "class E(enum.Enum):\n    A = 1\nmatch E.A:\n    case E.A: d = D(1)\nmatch d:\n    case D(x=1): pass\n"
    "    case _: raise ValueError\nassert d == D(1, [])",
    "copies": "import copy, collections, torch, numpy as np\nclass A:\n    def __init__(self):\n        self.x = [1]\n"
    "for each in (A(), torch.ones(1), np.ones(1), torch.nn.Linear(1, 1), collections.defaultdict(list), {1: [2]},\n"
    "             np.random.default_rng(1), ValueError('x')):\n    copy.copy(each), copy.deepcopy(each)",
    "a_module_of_a_package": "import torch\nassert torch.utils._pytree.tree_leaves([1, (2,)]) == [1, 2]",
    "an_object_of_a_library": "from torch.nn.attention.flex_attention import create_block_mask\n"
    "mask = create_block_mask(lambda b, h, i, j: j <= i, 1, 1, 128, 128, device='cpu')\n"
    "mask.mask_mod = lambda b, h, i, j: j < i",
    "operators": "import torch\nop = torch.ops.aten.mm.default\nassert op(torch.ones(1, 1), torch.ones(1, 1)) == 1\n"
    "assert op.overloadpacket is torch.ops.aten.mm and op._schema.name == 'aten::mm'",
}
"""Texts that do with their own what the others do with what is not: they run to their end."""
