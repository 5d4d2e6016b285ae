"""A storage counts with the bytes of the tensor that was seen, not its own.

Task: MemoryTracker
Killed by: TestMemoryTracker::test_a_view_counts_with_its_whole_storage
"""


class _StorageCounter(TorchDispatchMode):
    def __init__(self, round_to=1):
        super().__init__()
        self.round_to = round_to
        self.live_bytes = self.peak_bytes = 0
        self._alive = {}

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def reset(self):
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        operands = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        result = func(*args, **kwargs or {})
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in operands and storage._cdata not in self._alive:
                self._count(storage, tensor.numel() * tensor.element_size())
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return result

    def _count(self, storage, nbytes):
        key, nbytes = (storage._cdata, _rounded(nbytes, self.round_to))

        def release(_):
            del self._alive[key]
            self.live_bytes -= nbytes

        self._alive[key] = weakref.ref(storage, release)
        self.live_bytes += nbytes
