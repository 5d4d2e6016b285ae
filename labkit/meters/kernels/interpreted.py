"""Importing this imports Triton with its interpreter, unless the environment forbids it, before a submission can."""

import contextlib
import os

from labkit.meters.kernels.adapter import SWITCH

os.environ.setdefault(SWITCH, "1")
with contextlib.suppress(ImportError):
    import triton.runtime.interpreter
with contextlib.suppress(ImportError):
    import triton.experimental.gluon.nvidia.hopper  # noqa: F401  (or the first launch does)
