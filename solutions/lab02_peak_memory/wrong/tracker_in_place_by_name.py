"""In-place operators are known by the underscore behind their names, which an out= argument does not have.

Task: MemoryTracker
Killed by: TestMemoryTracker::test_what_was_there_before_adds_nothing
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
            in_place = func._schema.name.endswith("_") or any(
                value.alias_info is not None and not value.alias_info.is_write for value in func._schema.returns
            )
            if not in_place and storage._cdata not in self._alive:
                self._count(storage)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return result

    def _count(self, storage):
        key, nbytes = (storage._cdata, _rounded(storage.nbytes(), self.round_to))

        def release(_):
            del self._alive[key]
            self.live_bytes -= nbytes

        self._alive[key] = weakref.ref(storage, release)
        self.live_bytes += nbytes
