"""Code that never ends is stopped with its name; other code is not stopped."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from labkit.suite import limits, plugin
from labkit.suite.limits import TookTooLong, cpu_seconds_of, not_repeated, stop_clocks, time_limit
from labkit.suite.messages import explain, failure_lines
from labkit.suite.results import State

MANY = 300_000_000
"""Steps of a loop that takes seconds: it stands for an endless one, and ends where a limit fails to stop it."""


def spin(steps=MANY):
    for _ in range(steps):
        pass


def spin_and_catch():
    for _ in range(MANY // 1000):
        try:
            spin(1000)
        except Exception:
            continue


def spin_in_a_thread():
    over = threading.Event()
    thread = threading.Thread(target=lambda: [spin(1000) for _ in iter(over.is_set, True)])
    thread.start()
    try:
        while True:
            thread.join(0.05)
    finally:
        over.set()


@pytest.mark.parametrize("endless", [spin, spin_and_catch, spin_in_a_thread])
def test_an_endless_loop_is_stopped(endless):
    with pytest.raises(TookTooLong, match=r"still running after 0\.1 s of CPU time"), time_limit(0.1):
        endless()


def test_waiting_is_stopped_by_the_clock():
    with pytest.raises(TookTooLong, match="still running after 1 s by the clock") as caught, time_limit(60, 1):
        time.sleep(20)
    assert caught.value.exceeded.used < limits.WAITING_SHARE


def test_a_signal_as_the_body_ends_leaves_no_limit_behind(monkeypatch):
    set_timers = limits._set_timers

    def signal_comes_first(*seconds):
        if seconds == (0, 0):
            signal.raise_signal(signal.SIGPROF)
        set_timers(*seconds)

    monkeypatch.setattr(limits, "_set_timers", signal_comes_first)
    previous = signal.getsignal(signal.SIGPROF)
    with time_limit(60):
        pass
    assert limits._limit is None
    assert signal.getsignal(signal.SIGPROF) is previous


def test_a_slow_machine_is_not_taken_for_waiting(monkeypatch):
    spent = itertools.count(0.0, 30.0)
    monkeypatch.setattr(limits, "worker_clocks", [lambda: next(spent)])
    monkeypatch.setattr(limits, "REPEAT_SECONDS", 0.05)
    with time_limit(1000, 0.1):
        time.sleep(0.3)


def test_what_waits_after_it_has_computed_is_stopped(monkeypatch):
    n_asked = itertools.count()
    monkeypatch.setattr(limits, "worker_clocks", [lambda: 0.02 * (next(n_asked) > 0)])
    with pytest.raises(TookTooLong, match="by the clock"), time_limit(60, 0.1):
        time.sleep(20)
    assert next(n_asked) > 2


def test_the_limit_is_raised_again_while_the_body_goes_on(monkeypatch):
    monkeypatch.setattr(limits, "REPEAT_SECONDS", 0.02)
    n_raised = 0
    with time_limit(0.02):
        for _ in range(3):
            try:
                spin()
            except TookTooLong:
                n_raised += 1
                with not_repeated():
                    spin(5_000_000)
    assert n_raised == 3


def test_waiting_costs_no_cpu_time():
    with time_limit(0.05):
        time.sleep(0.2)


def test_nothing_is_left_behind():
    before = signal.getsignal(signal.SIGPROF), signal.getsignal(signal.SIGALRM)
    with time_limit(60):
        assert signal.getitimer(signal.ITIMER_PROF)[0] > 0
    assert signal.getitimer(signal.ITIMER_PROF)[0] == signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert (signal.getsignal(signal.SIGPROF), signal.getsignal(signal.SIGALRM)) == before


def test_a_limit_inside_another_is_none_of_its_own():
    def body():
        with time_limit(0.1):
            spin(5_000_000)
        with time_limit(0.1):
            spin()

    with pytest.raises(TookTooLong, match=r"after 0\.3 s"), time_limit(0.3):
        body()


def test_a_stopped_clock_counts_nothing_and_goes_on_afterwards():
    reached = []

    def body():
        resume = stop_clocks()
        spin(5_000_000)
        reached.append("the end of the stop")
        resume()
        spin()

    with pytest.raises(TookTooLong, match=r"after 0\.05 s"), time_limit(0.05):
        body()
    assert reached
    with time_limit(60, 0.1):
        resume = stop_clocks()
        time.sleep(0.2)
        resume()


def test_a_process_that_works_for_the_body_gets_what_is_left(monkeypatch):
    spent = 0.0
    monkeypatch.setattr(limits, "worker_clocks", [lambda: spent])
    assert limits.worker_seconds_left() is None
    with time_limit(60):
        before = limits.worker_seconds_left()
        spent = 40.0
        after = limits.worker_seconds_left()
        assert limits.worker_took_too_long().exceeded.allowed == 60
    assert 55 < before < 60
    assert 15 < after < 20


def test_cpu_time_of_a_process():
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with time_limit(60, 60):
            while cpu_seconds_of(child.pid) < 0.2:
                time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
    assert cpu_seconds_of(child.pid) == 0


def test_outside_the_main_thread_there_is_no_limit():
    done = []

    def body():
        with time_limit(0.001):
            done.append(sum(range(100_000)))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done


@pytest.mark.parametrize(
    ("allowed", "first", "second"),
    [
        (
            (0.1, 60),
            "spin was still running after 0.1 s of CPU time, last seen at profiling.py:",
            "The limit is ten times what the slowest correct solution of this lab needs for a test: it is slow, or it "
            "never ends",
        ),
        (
            (60, 0.1),
            "spin was still running after 0.1 s by the clock, last seen at profiling.py:",
            "It used only 0.0 s of CPU time: it waits for something that never comes, or other programs keep this "
            "machine busy",
        ),
    ],
)
def test_the_verdict_names_the_function_and_the_line(tmp_path, allowed, first, second):
    file = tmp_path / "profiling.py"
    body = "    for _ in range(300_000_000):\n        pass\n" if allowed[0] < 1 else "    time.sleep(20)\n"
    file.write_text("import time\ndef spin():\n" + body, encoding="utf-8")
    namespace = {}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), namespace)
    with pytest.raises(TookTooLong) as caught, time_limit(*allowed):
        namespace["spin"]()
    state, failure = explain(caught.value, [file])
    lines = failure_lines(state, failure)
    assert state is State.TOO_SLOW
    assert failure.exceeded == caught.value.exceeded
    assert (failure.place.file, failure.place.function) == (file.name, "spin")
    assert lines[0].startswith(first)
    assert lines[1] == second


@pytest.mark.parametrize(("marks", "seconds"), [((), 20.0), (("gpu",), 120.0)])
def test_a_test_may_wait_longer_for_a_device(marks, seconds):
    """Its kernels are compiled in another process, whose CPU time is not the test's."""
    item = SimpleNamespace(get_closest_marker=dict.fromkeys(marks, True).get)
    assert plugin._wall_seconds(item) == seconds
