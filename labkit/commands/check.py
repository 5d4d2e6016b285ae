"""`lab check`: runs a lab's suite on the student's file, with progress, and prints the results."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from labkit.commands import INTERRUPTED
from labkit.commands.counts import count_tables
from labkit.labs.manifest import Lab, Task
from labkit.suite.finder import file_problem, platform_problem, untouched_tasks
from labkit.suite.forked import run_forked
from labkit.suite.main_block import without_main_block
from labkit.suite.messages import ending_text, interrupted_text, run_lines, unusable_lines
from labkit.suite.results import (
    How,
    Kind,
    State,
    TaskResult,
    TestResult,
    store,
    store_whole_tasks,
    stored,
)
from labkit.suite.run import Listener, SuiteRun
from labkit.suite.source_check import Finding, check_source
from labkit.suite.source_text import read_source
from labkit.trace.offer import can_be_traced

LONG_SECONDS = 15.0
REPORT_SECONDS = 10.0
"""How often progress is printed where it cannot be shown in place."""
MAX_FINDINGS = 10


def check_lab(
    lab: Lab,
    tasks: Sequence[Task] = (),
    *,
    everything: bool = False,
    show_prints: bool = False,
    first_failure: bool = False,
) -> int:
    """Run the suite of `lab`, print its results, and return the exit status: 0 when every test passed.

    Args:
        tasks: run the tests of these only; of all when empty.
        everything: show every failure in full.
        show_prints: let what the file prints, and a debugger that it opens, have the terminal.
        first_failure: stop there.
    """
    console = new_console()
    if problem := platform_problem(lab) or file_problem(lab.student_file):
        print_lines(console, unusable_lines(lab, problem))
        return 1
    print_lines(console, finding_lines(lab.student_file, source_findings(lab)))
    began = time.monotonic()
    if stubs := stub_results(lab, tasks or lab.tasks):
        return _check_stubs(console, lab, stubs)
    progress = Progress(lab)
    run = _run(lab, tasks, show_prints, first_failure, progress)
    if run.ended.how is How.INTERRUPTED:
        print_lines(console, interrupted_lines("lab check", run, progress))
        if not run.results:
            return INTERRUPTED
    elif run.ended.is_no_verdict:
        console.print(Text(f"{lab.label}: the suite could not be run\n{ending_text(run.ended)}", style="red"))
        return 2
    elif not run.results and run.ended.how is not How.FINISHED:
        print_lines(console, unusable_lines(lab, ending_text(run.ended)))
        return 1
    print_lines(console, run_lines(lab, run.results, everything=everything, whole_suite=run.collected))
    print_lines(console, trace_lines(lab, run.results))
    for table in count_tables(lab, run.results):
        console.print()
        console.print(table, soft_wrap=False)
    if run.ended.how is How.INTERRUPTED:
        return INTERRUPTED
    _store(console, lab, run, time.monotonic() - began)
    return 0 if all(result.passed for result in run.results) else 1


def stub_results(lab: Lab, tasks: Sequence[Task]) -> list[TestResult]:
    """What a run of the tests would show where none of `tasks` is begun, by reading the file; nothing where one is."""
    if not {task.name for task in tasks} <= untouched_tasks(lab):
        return []
    return [TestResult("", task.name, State.NOT_STARTED) for task in tasks]


def new_console() -> Console:
    """A console for lines that a terminal wraps by itself."""
    return Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 200)


def interrupted_lines(command: str, run: SuiteRun, progress: Progress) -> list[str]:
    """The place that Ctrl-C interrupted, and after how many tests."""
    where = f" in {progress.test}, {interrupted_text(run.ended)}" if progress.test else ""
    return [f"{command}: interrupted{where}, after {progress.n_done} of {progress.n_tests} tests", ""]


def print_lines(console: Console, lines: Sequence[str]) -> None:
    """Print lines, each in its style."""
    for line in lines:
        console.print(Text(line, style=getattr(line, "style", "")))


def trace_lines(lab: Lab, results: Sequence[TestResult]) -> list[str]:
    """The commands that show the memory of tasks that need too much."""
    large = {
        result.task for result in results if result.kind in (Kind.COST, Kind.MEMORY) and result.state is State.WRONG
    }
    tasks = [task for task in lab.tasks if task.name in large and can_be_traced(lab, task)]
    return [f"see its memory: uv run lab trace {lab.number} {task.name}" for task in tasks]


def source_findings(lab: Lab) -> list[Finding]:
    """What the source check shows of the student's file, as it will run when it is graded."""
    return check_source(without_main_block(read_source(lab.student_file), lab), lab)


def finding_lines(file: Path, found: Sequence[Finding]) -> list[str]:
    """The lines of the student's `file` that the source check will show the instructor."""
    if not found:
        return []
    lines = [f"  {each}" for each in found[:MAX_FINDINGS]]
    if len(found) > MAX_FINDINGS:
        lines.append(f"  and {len(found) - MAX_FINDINGS} more")
    return [f"When {file.name} is graded, your instructor will see:", *lines, ""]


class Progress(Listener):
    """Progress of a run: the current test, its time, and how many are done."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._began = time.monotonic()
        self.test = ""
        self.n_done = self.n_tests = self.n_too_slow = 0

    def on_start(self, task: str, test: str, run: SuiteRun) -> None:
        """See `Listener`."""
        self.test, self.n_tests, self._began = test, run.n_collected, time.monotonic()

    def on_result(self, result: TestResult, run: SuiteRun) -> None:
        """See `Listener`."""
        self.n_done += 1
        self.n_too_slow += result.state is State.TOO_SLOW

    def line(self) -> Text:
        """Progress in one line."""
        test = f"{self.n_done} of {self.n_tests} tests · {self.test}" if self.test else "importing"
        line = f"{self._lab.label} · {test} · {time.monotonic() - self._began:.0f} s"
        if self.n_too_slow:
            line += f" · {self.n_too_slow} too slow: Ctrl-C ends the run, and shows what was found"
        return Text(line, style="dim")

    @contextlib.contextmanager
    def shown(self, console: Console) -> Iterator[None]:
        """Show the line in place on a terminal; elsewhere print it every few seconds."""
        if console.is_terminal:
            with Live(get_renderable=self.line, console=console, transient=True):
                yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._print_repeatedly, args=(console, over))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _print_repeatedly(self, console: Console, over: threading.Event) -> None:
        while not over.wait(REPORT_SECONDS):
            console.print(self.line(), soft_wrap=True)


def _run(lab: Lab, tasks: Sequence[Task], show_prints: bool, first_failure: bool, progress: Progress) -> SuiteRun:
    tests = [task.tests for task in tasks]
    options = ["-x"] if first_failure else []
    if show_prints:
        return run_forked(lab, *options, tests=tests, listener=progress, show_prints=True)
    console = Console(stderr=True)
    if (usual_seconds := stored(lab).suite_seconds) >= LONG_SECONDS and not tasks:
        console.print(f"{lab.label}: the last run took {usual_seconds:.0f} s", style="dim", highlight=False)
    with progress.shown(console):
        return run_forked(lab, *options, tests=tests, listener=progress)


def _check_stubs(console: Console, lab: Lab, stubs: Sequence[TestResult]) -> int:
    """Print and store `stub_results`, in no time: torch alone takes seconds to import."""
    print_lines(console, run_lines(lab, stubs))
    try:
        store(lab, {stub.task: TaskResult(stub.task, 0, 0, started=False) for stub in stubs})
    except OSError as error:
        _print_not_stored(console, lab, error)
    return 1


def _print_not_stored(console: Console, lab: Lab, error: OSError) -> None:
    console.print(Text(f"the results of {lab.label} could not be stored: {error.strerror}", style="red"))


def _store(console: Console, lab: Lab, run: SuiteRun, seconds: float) -> None:
    """Store how long a run of all tests took, and the results of a run whose process ended before it stored them."""
    try:
        is_whole = run.ended.how is How.FINISHED
        if not is_whole:
            store_whole_tasks(lab, run.results, {task: set(tests) for task, tests in run.collected.items()})
        if is_whole and len(run.results) >= run.n_collected and len(run.collected) == len(lab.tasks):
            store(lab, {}, suite_seconds=seconds)
    except OSError as error:
        _print_not_stored(console, lab, error)
