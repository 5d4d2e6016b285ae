"""The device is not in the key: the mask lies where the first caller wanted it.

Task: BlockMaskCache
Killed by: TestBlockMaskCache::test_devices_are_not_confused
Says: the device belongs in the key
"""


class BlockMaskCache:
    def __init__(self, maxsize: int) -> None:
        _check(maxsize=maxsize)
        self._maxsize = maxsize
        self._masks: OrderedDict[tuple[int, int, int, torch.device], torch.Tensor] = OrderedDict()

    def get(self, seq_len: int, window: int, block: int, device: str | torch.device = "cpu") -> torch.Tensor:
        key = (seq_len, window, block)
        if key in self._masks:
            self._masks.move_to_end(key)
            return self._masks[key]
        kinds = classify_tiles(seq_len, window, block)
        codes = np.select([kinds == "full", kinds == "partial"], [2, 1], 0)
        self._masks[key] = torch.tensor(codes, dtype=torch.int8, device=device)
        if len(self._masks) > self._maxsize:
            self._masks.popitem(last=False)
        return self._masks[key]

    def clear(self) -> None:
        self._masks.clear()

    def __len__(self) -> int:
        return len(self._masks)
