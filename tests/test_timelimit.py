"""What never ends is ended, by name, and nothing else is touched."""

from __future__ import annotations

import signal
import threading

import pytest

from labkit.suite.limits import TookTooLong, time_limit
from labkit.suite.verdict import State, explain


def spin():
    while True:
        pass


def spin_and_catch():
    while True:
        try:
            spin()
        except Exception:
            continue


@pytest.mark.parametrize("endless", [spin, spin_and_catch])
def test_an_endless_loop_is_stopped(endless):
    with pytest.raises(TookTooLong, match=r"still running after 0\.1 s"), time_limit(0.1):
        endless()


def test_what_ends_in_time_is_not_stopped_and_leaves_no_alarm():
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(60):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is before


def test_outside_the_main_thread_there_is_no_limit():
    done = []

    def body():
        with time_limit(0.001):
            done.append(sum(range(100_000)))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done


def test_the_verdict_names_the_function_and_the_line(tmp_path):
    file = tmp_path / "profiling.py"
    file.write_text("def spin():\n    while True:\n        pass\n", encoding="utf-8")
    namespace = {}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), namespace)
    with pytest.raises(TookTooLong) as caught, time_limit(0.1):
        namespace["spin"]()
    state, lines = explain(caught.value, [file])
    assert state is State.TOO_SLOW
    assert lines[0].startswith("spin was still running after 0.1 s, last seen at profiling.py:")
