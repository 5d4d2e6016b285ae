"""Mistakes that are another algorithm: what they put in the place of the solution's functions and classes."""


class KeptWhole:
    def __init__(self, num_blocks, block_size, layers, kv_heads, head_dim, bits):
        if bits not in (2, 4, 8) or head_dim * bits % 8:
            raise ValueError(f"bits {bits}")
        self._cache = PlainBlocksCache(num_blocks, block_size, layers, kv_heads, head_dim, 32)

    def write(self, layer, blocks, places, k, v):
        self._cache.write(layer, blocks, places, k, v)

    def copy(self, old, new):
        self._cache.copy(old, new)

    def attend(self, layer, q, block_table, start):
        return self._cache.attend(layer, q, block_table, start)


class RoundedAndWhole:
    def __init__(self, num_blocks, block_size, layers, kv_heads, head_dim, bits):
        if bits not in (2, 4, 8) or head_dim * bits % 8:
            raise ValueError(f"bits {bits}")
        self._cache = PlainBlocksCache(num_blocks, block_size, layers, kv_heads, head_dim, 32)
        self._bits = bits

    def write(self, layer, blocks, places, k, v):
        self._cache.write(layer, blocks, places, *(_as_kept(x, self._bits) for x in (k, v)))

    def copy(self, old, new):
        self._cache.copy(old, new)

    def attend(self, layer, q, block_table, start):
        return self._cache.attend(layer, q, block_table, start)


def _as_kept(x, bits):
    levels = 2**bits - 1
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale, zero = ((high - low) / levels).half().float(), low.half().float()
    steps = ((x - zero) / scale).masked_fill(scale == 0, 0)
    return steps.round().clamp(0, levels) * scale + zero
