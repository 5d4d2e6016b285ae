"""Importing this imports torch, and what its first meta tensor and its first backward pass would import: seconds each.

It computes nothing on the CPU: a parent that is to fork must not have started torch's threads.
"""

import importlib

import torch

importlib.import_module("torch.fx.experimental.symbolic_shapes")
_ = (torch.ones(1, 1, device="meta") @ torch.ones(1, 1, device="meta")).exp()
