"""`lab watch`: runs a lab's suite again on every save, and prints what changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from rich.console import Console
from rich.text import Text

from labkit.commands.check import Progress, interrupted_lines, new_console, print_lines, stub_results
from labkit.labs.manifest import Lab, Task
from labkit.suite.finder import file_problem, platform_problem
from labkit.suite.forked import heavy_modules, run_forked, start_server
from labkit.suite.messages import change_lines, ending_text, run_lines, unusable_lines
from labkit.suite.results import How, SuiteRun, TaskResult, add_up, fingerprint, load

DEBOUNCE_MS = 100


def follow_lab(
    lab: Lab, *, first_failure: bool = False, saves: Iterable[object] | None = None, console: Console | None = None
) -> None:
    """Watch the lab's tasks one after the other: each until it is done, and gets its ★; returns after the last."""
    console = console or new_console()
    stored = load(lab)
    for task in [each for each in lab.tasks if each.name not in stored or not stored[each.name].done]:
        console.print(f"{lab.label} · {task.name}", style="bold", highlight=False)
        if not watch_lab(lab, [task], first_failure=first_failure, saves=saves, console=console, until_done=True):
            return
        console.print(f"★ {task.name} is done\n", style="green", highlight=False)
    console.print(f"★ Lab {lab.number}, {lab.title}, is done.\n", style="green", highlight=False)


def watch_lab(
    lab: Lab,
    tasks: Sequence[Task] = (),
    *,
    first_failure: bool = False,
    saves: Iterable[object] | None = None,
    console: Console | None = None,
    until_done: bool = False,
) -> bool:
    """Run the suite of `lab`, and again for each item of `saves`; by default, each change in its `src/` folder.

    A run with other results than the one before prints what changed. `tasks` and `first_failure` as in `check_lab`.
    With `until_done` it ends when all `tasks` are done. Returns whether they are.

    Raises:
        KeyboardInterrupt: Ctrl-C, also while the suite runs.
    """
    from watchfiles import watch

    console = console or new_console()
    if saves is None:
        saves = watch(lab.student_file.parent, debounce=DEBOUNCE_MS)
    before: dict[str, TaskResult] = {}
    where = lab.student_file.relative_to(lab.folder.parent.parent)
    console.print(f"watching {where}: save it to run again, Ctrl-C to end", style="dim")
    start_server(heavy_modules(*lab.suite_files, lab.student_file))
    options = ["-x"] if first_failure else []
    for _ in chain([None], saves):
        tested = None
        while tested != fingerprint(lab):  # it may be saved while it runs, when nothing watches for that
            tested = fingerprint(lab)
            if problem := platform_problem(lab) or file_problem(lab.student_file):
                console.rule(style="dim")
                print_lines(console, unusable_lines(lab, problem))
                continue
            if stubs := stub_results(lab, tasks or lab.tasks):
                console.rule(style="dim")
                print_lines(console, run_lines(lab, stubs))
                before = {stub.task: TaskResult(stub.task, 0, 0, started=False) for stub in stubs}
                continue
            progress = Progress(lab)
            with progress.shown(Console(stderr=True)):
                run = run_forked(lab, *options, tests=[task.tests for task in tasks], listener=progress)
            if run.ended.how is How.INTERRUPTED:
                print_lines(console, interrupted_lines("lab watch", run, progress))
                if run.results:
                    print_lines(console, run_lines(lab, run.results, whole_suite=run.collected))
                raise KeyboardInterrupt
            before = _show(run, lab, before, console)
            if until_done and tasks and all(task.name in before and before[task.name].done for task in tasks):
                return True
    return False


def _show(run: SuiteRun, lab: Lab, before: dict[str, TaskResult], console: Console) -> dict[str, TaskResult]:
    if not run.results:
        console.print(Text(f"{lab.label}: {ending_text(run.ended)}", style="red"))
        return before
    console.rule(style="dim")
    more = f"uv run lab check {lab.number} -v"
    print_lines(console, run_lines(lab, run.results, whole_suite=run.collected, more=more))
    if len(run.results) < run.n_collected:
        return before
    now = add_up(lab, run.results)
    if before:
        print_lines(console, change_lines(lab, before, now) or ["no change: the same tests pass"])
    return now
