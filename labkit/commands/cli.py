"""The entry point of `lab`: an error that the user can fix, and Ctrl-C, gives one line and an exit status."""

from __future__ import annotations

import signal
import sys

from labkit.commands import INTERRUPTED

DEFAULT_GROUPS = frozenset(("cloudpickle", "gguf", "nbgrader", "sphinx", "starlette", "tokenizers", "torch", "uvicorn"))
"""Modules of groups that `uv run` installs, unless it runs with --no-default-groups."""


def main() -> None:
    """Run `lab`. Slow imports happen in here, since Ctrl-C may be pressed meanwhile."""
    try:
        _run()
    except KeyboardInterrupt:
        print("\nlab: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:  # libraries clean up while Python ends, and would show a traceback after a second Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run() -> None:
    from labkit.commands.app import app, file_error
    from labkit.labs.catalog import UnknownLab
    from labkit.labs.manifest import ManifestError
    from labkit.suite.finder import missing_library

    command = " ".join(["lab", *sys.argv[1:2]])
    try:
        app()
    except (ManifestError, UnknownLab) as error:
        sys.exit(f"lab: {error.args[0]}")
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in DEFAULT_GROUPS:
            raise
        sys.exit(f"{command}: {missing_library(package)}")
    except OSError as error:
        message = file_error(error)
        if message is None:
            raise
        sys.exit(f"{command}: {message}")


if __name__ == "__main__":
    main()
