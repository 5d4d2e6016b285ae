"""Python's garbage collector is asked for tensors whenever somebody reads.

Task: MemoryTracker
Killed by: TestMemoryTracker::test_a_temporary_raises_the_peak
Killed by: TestMemoryTracker::test_what_autograd_keeps
"""

import gc


class _StorageCounter:
    def __init__(self, round_to=1):
        self.round_to = round_to
        self.there_before = {}
        self.highest = 0

    def __enter__(self):
        self.there_before = self.storages()
        return self

    def __exit__(self, *error):
        pass

    def storages(self):
        tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]
        return {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}

    @property
    def live_bytes(self):
        new = {key: nbytes for key, nbytes in self.storages().items() if key not in self.there_before}
        self.highest = max(self.highest, sum(new.values()))
        return sum(new.values())

    @property
    def peak_bytes(self):
        return max(self.live_bytes, self.highest)

    def reset(self):
        self.highest = 0
