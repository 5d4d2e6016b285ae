"""The entry point of `lab`: what a user can mend, and Ctrl-C at any moment, is one line and an exit status."""

from __future__ import annotations

import sys

from labkit.commands import INTERRUPTED


def main() -> None:
    """Run `lab`. All that takes time to import is imported in here: Ctrl-C may be pressed while it is."""
    try:
        _run()
    except KeyboardInterrupt:
        print("\nlab: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _run() -> None:
    from labkit.commands.app import app, of_the_disk
    from labkit.labs.catalog import UnknownLab
    from labkit.labs.manifest import ManifestError

    try:
        app()
    except (ManifestError, UnknownLab) as error:
        sys.exit(f"lab: {error.args[0]}")
    except OSError as error:
        if (said := of_the_disk(error)) is None:
            raise
        sys.exit(f"lab{''.join(f' {word}' for word in sys.argv[1:2])}: {said}")


if __name__ == "__main__":
    main()
