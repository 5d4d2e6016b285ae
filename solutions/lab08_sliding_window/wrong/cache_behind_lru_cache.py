"""A functools.lru_cache stands behind the cache and holds on to every mask that clear() lets go.

Task: BlockMaskCache
Killed by: TestBlockMaskCache::test_clear_frees_the_memory
Says: lru_cache
"""

from functools import lru_cache


@lru_cache(maxsize=64)
def _made(seq_len, window, block, device):
    kinds = classify_tiles(seq_len, window, block)
    return torch.tensor(np.select([kinds == "full", kinds == "partial"], [2, 1], 0), dtype=torch.int8, device=device)


class BlockMaskCache:
    def __init__(self, maxsize: int) -> None:
        _check(maxsize=maxsize)
        self._maxsize = maxsize
        self._masks: OrderedDict[tuple[int, int, int, torch.device], torch.Tensor] = OrderedDict()

    def get(self, seq_len: int, window: int, block: int, device: str | torch.device = "cpu") -> torch.Tensor:
        key = (seq_len, window, block, torch.empty(0, device=device).device)
        if key in self._masks:
            self._masks.move_to_end(key)
            return self._masks[key]
        self._masks[key] = _made(seq_len, window, block, device)
        if len(self._masks) > self._maxsize:
            self._masks.popitem(last=False)
        return self._masks[key]

    def clear(self) -> None:
        self._masks.clear()

    def __len__(self) -> int:
        return len(self._masks)
