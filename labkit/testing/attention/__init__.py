"""Attention on arrays and on tensors: cases, what comes out of them, and the mistakes usual in it."""
