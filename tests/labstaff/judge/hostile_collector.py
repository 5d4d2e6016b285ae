"""Ways to have work done by what the garbage collector calls, at a moment when a meter does not look.

A meter of tensors is paused while it notes an operator. What the collector finds then is finalised there, and what that
computes nobody sees. Each way is a function `done(work)` that makes garbage, has it collected while an operator is
noted, and returns what `work()` gave; where it was not, the work is done in the open.
"""

from __future__ import annotations

BEGIN = "import gc\nimport weakref\nimport torch\n\n\nclass Node:\n    pass\n\n\n"
COLLECT = """    gc.set_threshold(1)
    x = torch.zeros(1)
    {enable}()
    x.neg()
    gc.set_threshold(700)
    if not results:
        results.append(work())
    return results[0]
"""

GARBAGE = {
    "finaliser": """class Late:
    def __del__(self):
        self.results or self.results.append(self.work())


def done(work):
    results = []
    gc.disable()
    late = Late()
    late.me, late.results, late.work = late, results, work
    del late
""",
    "weak_reference": """def done(work):
    results = []
    gc.disable()
    node = Node()
    node.me = node
    seen = weakref.ref(node, lambda _: results or results.append(work()))
    del node
""",
    "generator": """def last_words(results, work):
    try:
        yield
    finally:
        results or results.append(work())


def done(work):
    results = []
    gc.disable()
    node = Node()
    node.me, node.words = node, last_words(results, work)
    next(node.words)
    del node
""",
}
"""Garbage in three spellings, whose end does the work."""

ENABLE = {"by_name": "gc.enable", "in_parts": "getattr(gc, 'ena' + 'ble')", "by_another_name": "(0, gc)[1].enable"}
"""How the collector is switched on again, in three spellings."""


def ways(**enable: str) -> dict[str, str]:
    """Every garbage, with every spelling of `enable`: a text that defines `done`."""
    return {
        f"{kind}-{spelling}": BEGIN + garbage + COLLECT.replace("{enable}", call)
        for kind, garbage in GARBAGE.items()
        for spelling, call in enable.items()
    }


LEFT_ON = {f"{kind}-left_on": text.replace("    gc.disable()\n", "") for kind, text in ways(left_on="bool").items()}
"""The same where the collector is left as it is: it runs whenever one more container is made."""

OF_ATTENTION = '''

def {task}(Q, K, V, causal=False, block_q=64, block_k=64):
    """The whole attention by torch's own kernel."""
    def work():
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        O, L = kernel(Q[None, None], K[None, None], V[None, None], 0.0, causal)[:2]
        return O[0, 0], L[0, 0]
    return done(work)
'''
"""Added to Lab 05's solution: its forward pass by torch's own kernel, for inputs without leading axes."""
