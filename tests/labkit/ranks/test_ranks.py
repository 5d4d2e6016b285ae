"""Ranks as threads: their exchanges, the counted bytes, and the message of a deadlock."""

from __future__ import annotations

import threading

import pytest
import torch

from labkit.ranks.comm import Deadlock
from labkit.ranks.threads import run_ranks
from labkit.suite.limits import Exceeded, Limit, TookTooLong, time_limit


def sides(comm):
    """The rank to which a rank of a ring sends, and the one from which it receives."""
    return (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size


def numbers(world_size, shape=(2, 3)):
    """A tensor with each rank's number."""
    return [(torch.full(shape, float(rank)),) for rank in range(world_size)]


def once_round(comm, x):
    """Every rank's tensor, in the order in which they arrive."""
    seen = [x]
    for _ in range(comm.world_size - 1):
        (x,) = comm.send_recv((x,), *sides(comm)).wait()
        seen.append(x)
    return torch.stack(seen)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_a_ring(world_size):
    ran = run_ranks(once_round, numbers(world_size))
    for rank, seen in enumerate(ran.results):
        assert seen[:, 0, 0].tolist() == [(rank - step) % world_size for step in range(world_size)]
    assert run_ranks(once_round, numbers(world_size)).operations == ran.operations


def test_messages_arrive_in_their_order_with_their_contents():
    def two_at_once(comm, x):
        first, second = (comm.send_recv((x + add, x), *sides(comm)) for add in (10, 20))
        later = second.wait()[0]
        return first.wait()[0], later

    for rank, (first, later) in enumerate(run_ranks(two_at_once, numbers(3)).results):
        before = (rank - 1) % 3
        assert (first[0, 0], later[0, 0]) == (before + 10, before + 20)


def test_sender_and_receiver_may_ask_one_after_the_other():
    def one_way(comm, x):
        to, from_ = (1, None) if comm.rank == 0 else (None, 0)
        return comm.send_recv((x,), to, from_).wait()

    sent, received = run_ranks(one_way, numbers(2)).results
    assert sent == ()
    assert received[0][0, 0] == 0


def test_buffers_hold_nan_until_wait_and_what_was_sent_may_change_after_it():
    def changes_later(comm, x):
        handle = comm.send_recv((x,), *sides(comm))
        assert handle.tensors[0].isnan().all()
        (received,) = handle.wait()
        x += 100
        comm.all_gather(x)
        return received

    assert [received[0, 0].item() for received in run_ranks(changes_later, numbers(3)).results] == [2, 0, 1]


def test_all_gather_and_all_to_all():
    def both(comm, x):
        gathered = comm.all_gather(x)
        exchanged = comm.all_to_all([x + 10 * rank for rank in range(comm.world_size)])
        return [each[0, 0].item() for each in gathered], [each[0, 0].item() for each in exchanged]

    for rank, result in enumerate(run_ranks(both, numbers(3)).results):
        assert result == ([0, 1, 2], [other + 10 * rank for other in range(3)])


@pytest.mark.parametrize(
    "function",
    [once_round, lambda comm, x: comm.all_gather(x), lambda comm, x: comm.all_to_all([x] * 4)],
    ids=["ring", "all_gather", "all_to_all"],
)
def test_bytes_and_messages(function):
    ran = run_ranks(function, numbers(4))
    assert [(each.messages, each.sent_bytes, each.received_bytes) for each in ran.traffic] == [(3, 72, 72)] * 4


def test_a_message_to_oneself_is_no_traffic():
    ran = run_ranks(lambda comm, x: comm.send_recv((x,), 0, 0).wait(), numbers(1))
    assert ran.results[0][0][0, 0] == 0
    assert ran.traffic[0].sent_bytes == ran.traffic[0].messages == 0


def test_held_bytes_count_until_the_last_reader_lets_go():
    def passes_on(comm, x):
        for _ in range(comm.world_size - 1):
            (x,) = comm.send_recv((x,), *sides(comm)).wait()

    assert run_ranks(passes_on, numbers(6)).traffic[0].held_bytes == 2 * 24
    assert run_ranks(once_round, numbers(6)).traffic[0].held_bytes == 5 * 24


def test_memory_and_work_belong_to_the_rank_that_has_them():
    def works(comm, x):
        if comm.rank == 1:
            return torch.zeros(1000, dtype=torch.float64), x @ x
        return comm.rank

    ran = run_ranks(works, numbers(2, (4, 4)))
    assert ran.peak_bytes == [0, 8000 + 64]
    assert ran.flops == [0, 2 * 4**3]
    assert run_ranks(lambda comm, x: comm.all_gather(x), numbers(4)).peak_bytes == [3 * 24] * 4


WRONG = {}


def wrong(*says):
    """Register a function of ranks that must fail, and parts of its message."""

    def note(function):
        WRONG[function.__name__] = (function, says)
        return function

    return note


@wrong("rank 0 waits", "until rank 1 receives what it sends", "every rank sends before it receives")
def sends_first(comm, x):
    to, from_ = sides(comm)
    comm.send_recv((x,), to, None).wait()
    return comm.send_recv((x,), None, from_).wait()


@wrong("for a message from rank 1", "`to` and `from_` do not fit", "0 → 1 → 2 → 3 → 0")
def from_where_it_sends(comm, x):
    return comm.send_recv((x,), sides(comm)[0], sides(comm)[0]).wait()


@wrong("rank 1 has returned, after sending 1 tensors", "rank 1 has left too early", "rank 2 waits in line")
def one_returns_early(comm, x):
    for step in range(3):
        if comm.rank == 1 and step == 1:
            return x
        (x,) = comm.send_recv((x,), *sides(comm)).wait()
    return x


@wrong("in all_gather for rank 0", "a call that all ranks must make is not made by all")
def one_does_not_gather(comm, x):
    return comm.all_gather(x) if comm.rank else x


@wrong("calls all_gather", "other ranks call all_to_all")
def another_call(comm, x):
    return comm.all_gather(x) if comm.rank == 3 else comm.all_to_all([x] * 4)


@wrong("returned without wait() for what it sends to rank 1", "send_recv in line")
def never_waits(comm, x):
    comm.send_recv((x,), *sides(comm))


@wrong("changed what it was sending before wait()")
def changes_what_it_sends(comm, x):
    handle = comm.send_recv((x,), *sides(comm))
    x += 1
    return handle.wait()


@wrong("changed a buffer it was receiving into before wait()")
def writes_into_a_buffer(comm, x):
    handle = comm.send_recv((x,), *sides(comm))
    handle.tensors[0].zero_()
    return handle.wait()


@wrong("rank 1 expects (2, 3) float32 from rank 0", "which sends (1, 3) float32")
def other_shapes(comm, x):
    return comm.send_recv((x[: 1 if comm.rank == 0 else 2],), *sides(comm)).wait()


@wrong("in all_gather rank 1 has (2, 3) float32", "rank 0 (1, 3) float32")
def gathers_other_shapes(comm, x):
    return comm.all_gather(x[: 1 if comm.rank == 0 else 2])


@pytest.mark.parametrize("name", WRONG)
def test_a_deadlock_or_broken_rule_is_explained(name):
    function, says = WRONG[name]
    n_threads = threading.active_count()
    with pytest.raises(Deadlock) as error:
        run_ranks(function, numbers(4))
    for text in says:
        assert text in str(error.value)
    assert threading.active_count() == n_threads


def test_an_error_of_one_rank_ends_all():
    def fails(comm, x):
        if comm.rank == 2:
            raise KeyError("of rank 2")
        comm.all_gather(x)

    with pytest.raises(KeyError, match="of rank 2"):
        run_ranks(fails, numbers(4))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda comm, x: comm.send_recv(x, 0, 0), TypeError, "list or tuple of tensors, got Tensor"),
        (lambda comm, x: comm.send_recv((x,), 2, 0), ValueError, "to=2 is no rank"),
        (lambda comm, x: comm.all_to_all([x]), ValueError, "one tensor for each of 2 ranks, got 1"),
        (lambda comm, x: comm.all_to_all([x, x[0]]), ValueError, "of one shape and dtype"),
    ],
)
def test_bad_arguments(call, kind, message):
    with pytest.raises(kind, match=message):
        run_ranks(call, numbers(2))


def test_an_endless_rank_is_stopped_and_its_line_is_known():
    def endless(comm, x):
        while comm.rank == 1:
            try:
                while True:
                    x = x + 1
            except Exception:
                pass
        comm.all_gather(x)

    with pytest.raises(TookTooLong) as error, time_limit(0.3):
        run_ranks(endless, numbers(3))
    assert error.value.exceeded == Exceeded(Limit.CPU_TIME, 0.3)
    assert "endless" in [frame.name for frame in error.traceback]
