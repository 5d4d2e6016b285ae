"""The text of a review: what each task's tests say about the student's own module, right versions and wrong ones."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from labkit.labs.manifest import Lab
from labkit.review.runs import Job
from labkit.review.stored import Verdict
from labkit.review.versions import Kind, Version
from labkit.suite.messages import Line

BAR_WIDTH = 20
MARKER = "### "
"""Begins the lines around what a stub leaves out: they tell nothing of a version."""
DIFF_STYLES = {"-": "red", "+": "green", "@": "cyan"}
IN_FULL = 3
"""Newly found mistakes that are shown with their diff; of more, the sentences."""


@dataclass
class TaskReview:
    """What a task's tests say.

    Attributes:
        task: its name.
        n_right, n_wrong: how many versions there are.
        own: about the student's own module; None where it was not run.
        right, wrong: about versions, as far as they were run.
    """

    task: str
    n_right: int = 0
    n_wrong: int = 0
    own: Verdict | None = None
    right: dict[Version, Verdict] = field(default_factory=dict)
    wrong: dict[Version, Verdict] = field(default_factory=dict)

    def add(self, job: Job, verdict: Verdict) -> None:
        """Add a verdict."""
        if not job.version.name:
            self.own = verdict
        elif job.version.is_right:
            self.right[job.version] = verdict
        else:
            self.wrong[job.version] = verdict

    @property
    def refusals(self) -> list[Verdict]:
        """What refuses right versions."""
        return [verdict for verdict in self.right.values() if not verdict.accepted]

    @property
    def accepts_right(self) -> bool:
        """Whether every right version was run and accepted."""
        return len(self.right) == self.n_right and not self.refusals

    @property
    def found(self) -> list[Version]:
        """The wrong versions that are found, in their order."""
        return sorted((version for version, said in self.wrong.items() if not said.accepted), key=_order)

    @property
    def left(self) -> list[Version]:
        """Those that are not."""
        return sorted((version for version, said in self.wrong.items() if said.accepted), key=_order)

    @property
    def is_whole(self) -> bool:
        """Whether the right versions pass, and every wrong one is found."""
        return self.accepts_right and len(self.found) == self.n_wrong


def review_lines(lab: Lab, review: TaskReview, shown: Collection[str] = (), *, everything: bool = False) -> list[Line]:
    """The lines of a task; of what is found, what is not in `shown`, or everything."""
    lines = [Line(f"{lab.label} · {review.task}", "bold"), *_own_lines(lab, review.own)]
    if refusals := review.refusals:
        lines.append(Line(f"  right versions: {len(refusals)} of {review.n_right} refused", "red"))
        for refusal in dict.fromkeys(refusals):
            lines += [Line(f"    by {refusal.failed}"), *(Line(f"      {line}") for line in refusal.lines)]
        lines.append(Line("      They are right, so the test asks for too much. The wrong ones wait until they pass."))
        return lines
    if review.n_right:
        lines.append(Line(f"  right versions: {len(review.right)} of {review.n_right} pass"))
    if not review.wrong:
        return lines
    style = "green" if review.is_whole else ""
    lines.append(Line(f"  wrong versions: {bar(len(review.found), review.n_wrong)} {ladder(review.wrong)}", style))
    if len(review.wrong) < review.n_wrong:
        lines.append(Line(f"      {review.n_wrong - len(review.wrong)} were not run"))
    new = [version for version in review.found if everything or version.name not in shown]
    for version in new:
        lines.append(Line(f"  ✓ {version.what} ({review.wrong[version].failed})", "green"))
        if everything or len(new) <= IN_FULL:
            lines += [Line(f"      {line}", DIFF_STYLES.get(line[:1], "")) for line in version.diff]
    if not review.found:
        lines.append(Line("      Your tests accept every version: what do they assert?"))
    return lines


def read_lines(lab: Lab, reviews: Sequence[TaskReview]) -> list[Line]:
    """The first wrong version that is not found: what its task uses of it."""
    for review in reviews:
        for version in review.left:
            text = version.source.splitlines()
            shown = [
                Line(f"{number:4}  {text[number - 1]}")
                for number in _used_lines(version.source, review.task)
                if not text[number - 1].strip().startswith(MARKER)
            ]
            title = f"{lab.label} · {review.task}: your tests accept this version, and it is wrong ({version.kind})."
            return [Line(title, "bold"), Line("Where is the mistake?"), Line(""), *shown]
    return [Line("no wrong version is left that your tests accept")]


def _used_lines(source: str, task: str) -> Iterator[int]:
    """The numbers of a module's lines that define a task and, however far away, what it names."""
    statements = [node for node in ast.parse(source).body if not isinstance(node, ast.Import | ast.ImportFrom)]
    names = [{node.id for node in ast.walk(each) if isinstance(node, ast.Name)} for each in statements]
    made = [{each.name} if isinstance(each, ast.FunctionDef | ast.ClassDef) else _assigned(each) for each in statements]
    wanted, used = {task}, set[int]()
    while new := {number for number, own in enumerate(made) if own & wanted} - used:
        used |= new
        wanted |= set().union(*(names[number] for number in new))
    for number in sorted(used):
        first, last = statements[number].lineno, statements[number].end_lineno or 0
        decorators = getattr(statements[number], "decorator_list", [])
        yield from range(min([first, *(each.lineno for each in decorators)]), last + 1)


def _assigned(statement: ast.stmt) -> set[str]:
    """The names to which a statement gives a value."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def ladder(verdicts: Mapping[Version, Verdict]) -> str:
    """How many of the wrong versions are found, of all and of each kind: `24 of 35 found   results 14 of 15 · …`."""
    n_found = sum(not verdict.accepted for verdict in verdicts.values())
    rungs = []
    for kind in Kind:
        of_kind = [verdict for version, verdict in verdicts.items() if version.kind is kind]
        if of_kind:
            rungs.append(f"{kind} {sum(not verdict.accepted for verdict in of_kind)} of {len(of_kind)}")
    return f"{n_found} of {len(verdicts)} found   {' · '.join(rungs)}"


def bar(n_found: int, n_all: int) -> str:
    """A bar of `BAR_WIDTH` characters."""
    full = BAR_WIDTH * n_found // n_all if n_all else 0
    return "█" * full + "░" * (BAR_WIDTH - full)


def _own_lines(lab: Lab, verdict: Verdict | None) -> Iterator[Line]:
    if verdict is None:
        return
    if verdict.accepted:
        yield Line("  your own code: your tests accept it")
    elif verdict.is_unwritten:
        yield Line("  your own code: not written yet")
    else:
        yield Line(f"  your own code: {verdict.failed} fails: your code or your test is wrong", "yellow")
        yield from (Line(f"      {line}") for line in verdict.lines)


def _order(version: Version) -> tuple[int, str]:
    return list(Kind).index(version.kind), version.name
