"""What a message of a failed test comes to, in the course's own words alone: nothing in it is a student's.

A message may quote an answer: a line of code, an exception's text, a value that came back, and with them a name. What
is told of a class keeps only words that stand in the course itself; numbers, which differ from one to the next, go.
"""

from __future__ import annotations

import builtins
import re

from labkit.labs.catalog import ROOT
from labkit.labs.manifest import MANIFEST_NAME, Lab
from labstaff.derive.build import derive_stub

LEFT_OUT = "…"
NUMBER = re.compile(r"(?<!\w)[-+−]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?(?!\w)", re.IGNORECASE)
WORD = re.compile(r"\w+")
RAISED = re.compile(r"\A(\w+ raised \w+)(?::.*?)?(?=\n\s*at \S+:\d+: |\Z)", re.DOTALL)
"""How `labkit.suite.messages` begins what it says of an exception; then comes what the answer has said."""
SEEN_AT = re.compile(r", last seen at .*")
CODE = re.compile(r"\s*at \S+:\d+: ")
SEVERAL_LEFT_OUT = re.compile(rf"{LEFT_OUT}(?:[\W_]*{LEFT_OUT})+")
KNOWN_CAUSE = re.compile(r"(?:That is exactly what comes out when|Usual cause:) (.+)")
"""The suites' words before what they take for the mistake: `labkit.testing.compare` and others."""
ENDED = re.compile(r"^\w+ raised \w+$|still running after|process ended")
LONGEST = 400


class Words:
    """The words and the characters of the course that a lab's messages may consist of."""

    def __init__(self, lab: Lab) -> None:
        files = [*sorted((ROOT / "labkit").rglob("*.py")), *lab.suite_files, lab.folder / MANIFEST_NAME]
        text = "\n".join([*(file.read_text(encoding="utf-8") for file in files), derive_stub(lab)])
        self.words = frozenset(WORD.findall(text)) | frozenset(dir(builtins))
        self.characters = frozenset(text)

    def gist(self, message: str) -> str:
        """The lines of `message`, without numbers and without any word that the course does not say."""
        lines = [line for line in RAISED.sub(r"\1", message).splitlines() if line.strip() and not CODE.match(line)]
        told = [self._line(SEEN_AT.sub("", line).strip()) for line in lines]
        return _cut("\n".join(dict.fromkeys(line for line in told if line.strip(f"{LEFT_OUT} "))) or LEFT_OUT)

    def _line(self, line: str) -> str:
        line = NUMBER.sub("#", "".join(each if each in self.characters else LEFT_OUT for each in line))
        line = WORD.sub(lambda found: found[0] if found[0] in self.words else LEFT_OUT, line)
        return SEVERAL_LEFT_OUT.sub(LEFT_OUT, line)


def cause(gist: str) -> str:
    """What a gist says of why: the suite's own guess, or how the code ended; nothing where it says only what is off."""
    if found := KNOWN_CAUSE.search(" ".join(gist.splitlines())):
        return found[1]
    return next((line for line in gist.splitlines() if ENDED.search(line)), "")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + LEFT_OUT
