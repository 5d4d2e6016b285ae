"""Shows what a lab's manifest promises, its outcomes, in the handout and on the course map."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.labs.manifest import Lab
from labstaff.derive.regions import with_region

BEGIN, END = "<!-- from lab.toml, by `lab build`: begin -->", "<!-- from lab.toml: end -->"


def handout(lab: Lab) -> str:
    """Return the lab's handout with its outcomes, derived from the manifest.

    Raises:
        ValueError: the handout has not one region for them.
    """
    file = lab.folder / "README.md"
    derived = f"**After this lab you can**\n\n{as_list(lab)}"
    return with_region(file.read_text(encoding="utf-8"), BEGIN, END, derived, str(file))


def by_lab(labs: Iterable[Lab]) -> str:
    """Return the outcomes of the labs that are no drafts as Markdown; links are relative to docs/."""
    return "\n".join(
        f"**[{lab.number} {lab.title}](../labs/{lab.folder.name}/README.md)**\n\n{as_list(lab)}"
        for lab in labs
        if not lab.draft
    )


def as_list(lab: Lab) -> str:
    """Return the outcomes as a Markdown list that is one sentence."""
    return ";\n".join(f"- {outcome}" for outcome in lab.outcomes) + ".\n"
