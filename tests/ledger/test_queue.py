"""Records on their way to a disk that stalls, is full, or is no longer ours."""

import errno
import os
import threading

import pytest

from clock import Clock
from drivetrain.ledger.ledger import LedgerFile, read
from drivetrain.ledger.queue import LedgerQueue, Patience
from drivetrain.spec.exits import Exit, Failure


class Disk:
    """A ledger's file whose writes and fsyncs wait for `go`, and fail with `error`."""

    def __init__(self, path):
        self._file = LedgerFile.open(path)
        self.tail = self._file.tail
        self.go = threading.Event()
        self.go.set()
        self.error = None
        self.synced = 0

    def write(self, whole, tail):
        self._answer()
        self._file.write(whole, tail)

    def sync(self):
        self._answer()
        self.synced += 1
        self._file.sync()

    def close(self):
        self._answer()
        self._file.close()

    def _answer(self):
        assert self.go.wait(30)
        if self.error:
            raise Failure(Exit.STORAGE, f"the ledger cannot be written: {os.strerror(self.error)}")


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path / "l")
    yield disk
    disk.go.set()


def note(number):
    return {"kind": "note", "time": 1.0, "text": f"n{number}"}


def texts(path):
    return [record.text for record in read(path)]


def test_a_disk_that_stalls_holds_nobody_up_and_gets_all_in_order(tmp_path, disk):
    queue = LedgerQueue(disk, Patience(tmp_path))
    disk.go.clear()
    tails = []
    for number in range(100):
        queue.append(note(number))
        tails.append(queue.tail)
    assert len(set(tails)) == 100
    assert texts(tmp_path / "l") == []
    disk.go.set()
    queue.sync()
    assert texts(tmp_path / "l") == [f"n{number}" for number in range(100)]
    assert [record.chain for record in read(tmp_path / "l")] == tails
    queue.close()


def test_what_is_durable_is_known_only_then(tmp_path, disk):
    queue = LedgerQueue(disk, Patience(tmp_path))
    disk.go.clear()
    queue.append(note(1))
    ticket = queue.request()
    assert not queue.reached(ticket, 0.05)
    disk.go.set()
    assert queue.reached(ticket, 30)
    assert disk.synced == 1
    queue.close()


def test_what_failed_is_told_with_the_next_record_and_tried_again(tmp_path, disk):
    """None is lost, and none is written twice: the one that was not taken is handed over again."""
    queue = LedgerQueue(disk, Patience(tmp_path))
    disk.error = errno.ENOSPC
    queue.append(note(1))
    with pytest.raises(Failure) as caught:
        queue.sync()
    assert caught.value.outcome.code is Exit.STORAGE
    disk.error = None
    with pytest.raises(Failure, match="No space left"):
        queue.append(note(2))
    queue.append(note(2))
    queue.close()
    assert texts(tmp_path / "l") == ["n1", "n2"]


def test_a_disk_that_is_silent_for_too_long_ends_the_run_with_74_and_is_not_waited_for(tmp_path, disk):
    clock = Clock()
    queue = LedgerQueue(disk, Patience(tmp_path, seconds=60.0), clock=clock)
    disk.go.clear()
    queue.append(note(1))
    clock.now += 59.0
    queue.append(note(2))
    assert queue.behind
    clock.now += 2.0
    with pytest.raises(Failure, match=r"nothing could be written to it for 61.0 s; .*stop.stall allows 60 s"):
        queue.append(note(3))
    with pytest.raises(Failure):
        queue.sync()
    queue.close()


def test_a_disk_that_gets_on_may_be_slow_for_as_long_as_it_likes(tmp_path, disk):
    clock = Clock()
    queue = LedgerQueue(disk, Patience(tmp_path, seconds=60.0), clock=clock)
    for number in range(5):
        disk.go.clear()
        queue.append(note(number))
        clock.now += 50.0
        disk.go.set()
        queue.sync()
    clock.now += 1000.0  # nothing is asked for
    queue.append(note(5))
    queue.close()
    assert len(texts(tmp_path / "l")) == 6


def test_more_than_may_wait_ends_the_run_with_74(tmp_path, disk):
    queue = LedgerQueue(disk, Patience(tmp_path, most=1000))
    disk.go.clear()
    queue.append(note(1) | {"text": "x" * 1000})
    with pytest.raises(Failure, match=r"0.0 MB of records wait in memory, at most 0.0 MB may wait") as caught:
        queue.append(note(2))
    assert caught.value.outcome.code is Exit.STORAGE


def test_nothing_is_written_once_the_directory_is_anothers(tmp_path, disk):
    lost = []

    def require():
        if lost:
            raise Failure(Exit.OWNED_ELSEWHERE, "another run has taken over")

    queue = LedgerQueue(disk, Patience(tmp_path), require)
    queue.append(note(1))
    queue.sync()
    lost.append(True)
    queue.append(note(2))
    with pytest.raises(Failure) as caught:
        queue.sync()
    assert caught.value.outcome.code is Exit.OWNED_ELSEWHERE
    for _ in range(3):
        with pytest.raises(Failure):
            queue.sync()
    with pytest.raises(Failure):
        queue.append(note(3))
    queue.close()
    assert texts(tmp_path / "l") == ["n1"]


def test_a_failure_that_nobody_has_heard_is_told_at_the_end(tmp_path, disk):
    queue = LedgerQueue(disk, Patience(tmp_path))
    disk.error = errno.EIO
    queue.append(note(1))
    with pytest.raises(Failure, match="Input/output error"):
        queue.close()
