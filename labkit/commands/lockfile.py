"""A git clean filter for uv.lock: keeps names, versions, dependencies and markers, and no address.

uv completes such a file the first time it reads it, and keeps the versions. Reads standard input, writes standard
output; any Python runs it, without the project's environment.
"""

from __future__ import annotations

import re
import sys

ADDRESS = re.compile(r'registry = "[^"]*"')


def clean(lock: str) -> str:
    """The lock file's text without files, hashes, addresses and package metadata."""
    kept: list[str] = []
    skipping_list = skipping_table = False
    for line in lock.splitlines():
        if line.startswith("["):
            skipping_table = line.startswith("[package.metadata")
        if skipping_table:
            continue
        if skipping_list:
            skipping_list = line != "]"
            continue
        if line.startswith("wheels = ["):
            skipping_list = not line.endswith("]")
            continue
        if line.startswith("sdist = "):
            continue
        kept.append(ADDRESS.sub('registry = "pypi"', line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n") + "\n"


if __name__ == "__main__":
    sys.stdout.write(clean(sys.stdin.read()))
