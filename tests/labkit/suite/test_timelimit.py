"""What never ends is ended, by name, and nothing else is touched."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from labkit.suite import apart, limits, wall_clock
from labkit.suite.limits import TookTooLong, clock_stopped, cpu_seconds_of, not_interrupted, time_limit
from labkit.suite.verdict import State, explain
from labkit.suite.wall_clock import queued_seconds_of

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


@pytest.mark.parametrize("endless", [spin, spin_and_catch])
def test_an_endless_loop_is_stopped(endless):
    with pytest.raises(TookTooLong, match=r"still running after 0\.1 s of CPU time"), time_limit(0.1):
        endless()


def test_what_may_not_be_cut_in_two_ends_first():
    done = []

    def half_and_half():
        with not_interrupted(), not_interrupted():
            spin(3_000_000)
            done.append("inside")
        done.append("after it")
        spin()

    with pytest.raises(TookTooLong), time_limit(0.02):
        half_and_half()
    assert done == ["inside"]


def test_what_ends_in_time_is_not_stopped_and_leaves_no_alarm():
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(60):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is before


def test_waiting_for_a_busy_machine_costs_no_time():
    with time_limit(0.1):
        time.sleep(0.5)


def test_what_other_threads_do_costs_no_time():
    others = [threading.Thread(target=spin, args=(5_000_000,)) for _ in range(2)]
    with time_limit(0.05):
        for thread in others:
            thread.start()
        for thread in others:
            thread.join()


def test_what_waits_for_ever_is_stopped_by_the_clock():
    with pytest.raises(TookTooLong, match=r"still running after 0\.2 s by the clock"), time_limit(60, 0.2):
        time.sleep(20)


STARVED = """
import os, subprocess, sys
from labkit.suite.limits import TookTooLong, time_limit

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
os.nice(10)
try:
    with time_limit(0.1, 0.3):
        while True: pass
except TookTooLong as error:
    print(error)
finally:
    other.kill()
"""
"""A loop that has a tenth of one processor: what it waits for the processor, and for nothing else."""


def test_a_loop_that_waits_for_a_processor_does_not_wait_for_what_never_comes():
    said = subprocess.run([sys.executable, "-c", STARVED], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    assert said.stdout.strip() == "still running after 0.1 s of CPU time"


def test_what_another_process_waits_for_a_processor_costs_no_time(monkeypatch):
    began = time.monotonic()
    monkeypatch.setattr(wall_clock, "queues_elsewhere", [lambda: time.monotonic() - began])
    with time_limit(60, 0.1):
        time.sleep(0.3)


def test_what_a_process_waits_for_a_processor_holds_its_children(monkeypatch):
    monkeypatch.setattr(wall_clock, "_queued_seconds", lambda folder: 1.0)
    shell = subprocess.Popen(["/bin/sh", "-c", "sleep 600 & echo $!; wait"], stdout=-1)
    try:
        inner = int(shell.stdout.readline())
        assert queued_seconds_of(inner) == 1
        assert queued_seconds_of(shell.pid) == 2
    finally:
        os.kill(inner, signal.SIGKILL)
        shell.wait()
    assert queued_seconds_of(shell.pid) == 0


def test_a_process_that_waits_for_a_processor_may_be_silent_so_much_longer(monkeypatch):
    queued = iter([0.0, 0.05, 0.05, 0.05])
    monkeypatch.setattr(apart, "LEAST_QUEUED_SECONDS", 0.01)
    monkeypatch.setattr(apart, "queued_seconds_of", lambda pid: next(queued))
    child = subprocess.Popen(["sleep", "600"])
    silence = apart._Silence(child, 0.05)
    assert child.wait(60) == -signal.SIGKILL
    assert silence.too_long
    assert list(queued) == [], "it was asked again before it was ended"


def test_another_process_may_say_that_the_time_is_over():
    usual = signal.getsignal(signal.SIGUSR1)
    limits.stop_when_told()
    try:
        os.kill(os.getpid(), signal.SIGUSR1)  # nothing that is limited runs
        with pytest.raises(TookTooLong), time_limit(60):
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, usual)


def test_a_limit_goes_on_when_one_inside_it_has_ended():
    seen = []

    def body():
        with time_limit(60):
            pass
        try:
            with time_limit(0.1):
                spin()
        except TookTooLong as error:
            seen.append(error.seconds)
        spin()

    with pytest.raises(TookTooLong, match=r"after 0\.3 s"), time_limit(0.3):
        body()
    assert seen == [0.1]


def test_a_limit_reaches_into_one_inside_it():
    def body():
        with contextlib.suppress(TookTooLong), time_limit(60):
            spin()
        spin()

    with pytest.raises(TookTooLong, match=r"after 0\.1 s"), time_limit(0.1), time_limit(60):
        spin()
    with pytest.raises(TookTooLong, match=r"after 0\.1 s"), time_limit(0.1):
        body()


def test_a_stopped_clock_counts_nothing_and_goes_on_afterwards():
    reached = []

    def body():
        with clock_stopped():
            spin(20_000_000)
        reached.append("the end of the stop")
        spin()

    with pytest.raises(TookTooLong, match=r"after 0\.1 s"), time_limit(0.1):
        body()
    assert reached
    with time_limit(60, 0.2), clock_stopped():
        time.sleep(0.4)


def test_time_spent_elsewhere_counts(monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    monkeypatch.setattr(limits, "clocks_elsewhere", [lambda: cpu_seconds_of(child.pid)])
    try:
        with pytest.raises(TookTooLong, match=r"after 0\.3 s of CPU time"), time_limit(0.3, 120):
            child.wait()
    finally:
        child.kill()
        child.wait()


def test_cpu_time_of_a_process_holds_its_descendants():
    shell = subprocess.Popen(["/bin/sh", "-c", f"'{sys.executable}' -c 'while True: pass' & echo $!; wait"], stdout=-1)
    try:
        inner = int(shell.stdout.readline())
        with time_limit(60, 60):
            while cpu_seconds_of(shell.pid) < 0.2:
                time.sleep(0.05)
    finally:
        os.kill(inner, signal.SIGKILL)
        shell.wait()
        shell.stdout.close()
    assert cpu_seconds_of(shell.pid) == 0


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
            "Right answers of this course need at most 11 s for a test: it is slow, or it never ends",
        ),
        (
            (60, 0.1),
            "spin was still running after 0.1 s by the clock, last seen at profiling.py:",
            "It used little CPU time: it waits for something that does not come",
        ),
    ],
)
def test_the_verdict_names_the_function_and_the_line_and_claims_no_more(tmp_path, allowed, first, second):
    file = tmp_path / "profiling.py"
    body = "    for _ in range(300_000_000):\n        pass\n" if allowed[0] < 1 else "    time.sleep(20)\n"
    file.write_text("import time\ndef spin():\n" + body, encoding="utf-8")
    namespace = {}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), namespace)
    with pytest.raises(TookTooLong) as caught, time_limit(*allowed):
        namespace["spin"]()
    state, lines = explain(caught.value, [file])
    assert state is State.TOO_SLOW
    assert lines[0].startswith(first)
    assert lines[1] == second
