"""All trackers share one count.

Task: MemoryTracker
Killed by: TestMemoryTracker::test_one_inside_another
"""

_living = {"bytes": 0, "peak": 0}


class _StorageCounter(TorchDispatchMode):
    def __init__(self, round_to=1):
        super().__init__()
        self.round_to = round_to
        self._alive = {}

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __enter__(self):
        _living.update(bytes=0, peak=0)
        return super().__enter__()

    @property
    def live_bytes(self):
        return _living["bytes"]

    @property
    def peak_bytes(self):
        return _living["peak"]

    def reset(self):
        _living["peak"] = _living["bytes"]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        operands = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        result = func(*args, **kwargs or {})
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in operands and storage._cdata not in self._alive:
                self._count(storage)
        _living["peak"] = max(_living["peak"], _living["bytes"])
        return result

    def _count(self, storage):
        key, nbytes = storage._cdata, _rounded(storage.nbytes(), self.round_to)

        def release(_):
            del self._alive[key]
            _living["bytes"] -= nbytes

        self._alive[key] = weakref.ref(storage, release)
        _living["bytes"] += nbytes
