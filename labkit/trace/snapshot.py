"""Reads a CUDA memory snapshot (`torch.cuda.memory._dump_snapshot`) as traces, one for each device that has a history.

The format is the one that `torch.cuda.memory._snapshot` documents. As in torch's own viewer, a block counts from
"alloc" to "free_completed", with the bytes that were requested.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from labkit.meters.arrays import collector_waits
from labkit.meters.tracing import Life, Line, Stack, Step, Trace
from labkit.trace.shapes import CannotTrace

ACTIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")
NO_HISTORY = "No history was recorded: call torch.cuda.memory._record_memory_history() before the code to trace."


def read_snapshot(file: Path) -> list[tuple[str, Trace]]:
    """The traces of the snapshot in `file`, each with a name.

    Only plain data is unpickled: a file that asks for any class or function is refused.

    Raises:
        CannotTrace: the file is no such snapshot, or holds nothing.
    """
    try:
        with file.open("rb") as stream, collector_waits():  # it would look through millions of objects, again and again
            snapshot = _PlainUnpickler(stream).load()
            blocks = _blocks_by_device(snapshot["segments"])
            histories = dict(enumerate(snapshot["device_traces"]))
            found = [
                (f"{file.name}, GPU {device}", _Replay(histories.get(device, []), blocks.get(device, [])).trace)
                for device in sorted(histories.keys() | blocks)
                if histories.get(device) or blocks.get(device)
            ]
    except (pickle.UnpicklingError, EOFError) as error:
        raise CannotTrace(f"{file.name}: {error or 'no pickle'}") from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise CannotTrace(f"{file.name} is not a snapshot of torch.cuda.memory._dump_snapshot") from None
    if not found:
        raise CannotTrace(f"{file.name}: nothing is allocated in this snapshot")
    return found


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"asks for {module}.{name}, but a snapshot holds only plain data")


def _blocks_by_device(segments: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    """The blocks in use when the snapshot was taken, each with its address."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] in ACTIVE:
                found.setdefault(segment.get("device", 0), []).append({"address": address, **block})
            address += block["size"]
    return found


class _Replay:
    """Replays a history from its first entry to its last."""

    def __init__(self, history: Sequence[Mapping[str, Any]], blocks: Sequence[Mapping[str, Any]]) -> None:
        self.trace = Trace()
        self._alive: dict[int, Life] = {}
        self._numbers: dict[Line, int] = {}
        self._stacks: dict[Stack, int] = {}
        self._stack_of_frames: dict[tuple[int, ...], int] = {}
        self._live = 0  # over what was there before
        for entry in history:
            self._play(entry)
        for block in blocks:
            if block["address"] not in self._alive:
                self._add_before(block.get("requested_size", block["size"]), self._stack_of(block))
        if not history:
            self.trace.steps.append(Step("snapshot", None, None, False, 0))
            self.trace.notes.append(NO_HISTORY)

    def _play(self, entry: Mapping[str, Any]) -> None:
        action, here = entry["action"], len(self.trace.steps)
        if action == "annotate" and entry["addr"] in self._alive:
            self._alive[entry["addr"]].name = str(entry.get("user_metadata") or "")
        if action not in ("alloc", "free_completed", "oom"):
            return  # segments, requests and names change nothing that tensors hold
        stack = self._stack_of(entry)
        if action == "alloc":
            kind, name = "allocated", str(entry.get("user_metadata") or "")
            life = Life(entry["size"], (), "", "alloc", None, stack, here, None, kind, name)
            self._alive[entry["addr"]] = life
            self.trace.lives.append(life)
            self._live += entry["size"]
        elif action == "free_completed":
            address = entry["addr"]
            life = self._alive.pop(address) if address in self._alive else self._add_before(entry["size"], None)
            life.died = here
            self._live -= life.nbytes
        else:
            action = f"out of memory: {entry['size']:,} bytes requested, {entry['device_free']:,} free"
        self.trace.steps.append(Step(action, None, stack, False, self._live))

    def _add_before(self, nbytes: int, stack: int | None) -> Life:
        life = Life(nbytes, (), "", "alloc", None, stack, 0, None, "before", "")
        self.trace.lives.append(life)
        return life

    def _stack_of(self, entry: Mapping[str, Any]) -> int | None:
        frames = entry.get("frames") or []
        if not frames:
            return None
        key = tuple(map(id, frames))  # torch writes a frame once, and it is one object in all entries
        if key not in self._stack_of_frames:
            self._stack_of_frames[key] = self._stack_number(frames)
        return self._stack_of_frames[key]

    def _stack_number(self, frames: Sequence[Mapping[str, Any]]) -> int:
        shown = [frame for frame in frames if _is_user_code(frame["filename"])] or frames
        lines = [Line(frame["filename"].rsplit("/")[-1], frame["line"], frame["name"], "") for frame in shown]
        for line in lines:
            if line not in self._numbers:
                self._numbers[line] = len(self.trace.lines)
                self.trace.lines.append(line)
        stack = Stack(tuple(self._numbers[line] for line in lines))
        if stack not in self._stacks:
            self._stacks[stack] = len(self.trace.stacks)
            self.trace.stacks.append(stack)
        return self._stacks[stack]


@cache
def _is_user_code(file: str) -> bool:
    """Whether a file is Python code outside torch. The paths are those of another machine."""
    return (file.endswith(".py") or file.startswith("<ipython")) and "-packages/torch/" not in file
