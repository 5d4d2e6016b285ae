"""Times of the solutions, as ratios to a baseline in the same run: `python -m benchmarks`. Not tests."""

import os
import sys

if not {"numpy", "torch"} & sys.modules.keys():  # the libraries read these variables when they are imported
    for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ[_variable] = "1"
