"""Speed, as ratios side by side in one run: `python -m benchmarks`. Nothing here is a test."""

import os
import sys

if not {"numpy", "torch"} & sys.modules.keys():  # libraries read these when they are imported
    for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ[_variable] = "1"
