"""Meters that count bytes exactly: NumPy arrays, tensors on CPU, meta and CUDA."""
