import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from drivetrain.data.dataset import MapSource
from drivetrain.data.feed import Feed
from drivetrain.data.geometry import Geometry
from drivetrain.data.order import Order
from drivetrain.data.prefetch import Bursts, Processes, Thread, prefetch
from drivetrain.data.windows import Windows
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import Custom

HERE = str(Path(__file__).parent)


def feed(source, *, batch=8, lanes=4, processes=1, micro=4, rank=0, total=1000, counts=lambda batch: {}):
    order = Order(len(source), 3, True)
    return Feed(source, order, Geometry(batch, lanes, processes, micro), rank, total, list, counts)


def windows(count=50):
    return Windows(np.arange(count * 4 + 1), 4, "")


def dataset(name, **settings):
    return MapSource(Custom(kind=f"datasets:{name}", settings=settings, folder=HERE), seed=5)


def content(share):
    return (
        share.step,
        share.start,
        share.stop,
        share.digest,
        [str(m.batch) for m in share.micro],
    )


def test_the_shares_of_all_ranks_are_the_samples_of_the_step():
    alone = feed(windows()).share(3)
    shares = [feed(windows(), processes=2, rank=rank).share(3) for rank in range(2)]
    ids = [i for share in shares for micro in share.micro for i in micro.ids.tolist()]
    assert ids == [i for micro in alone.micro for i in micro.ids.tolist()]
    assert sum(share.digest for share in shares) % 2**64 == alone.digest
    assert sum(share.counts["samples"] for share in shares) == 8


def test_counts_are_summed_over_micro_batches():
    share = feed(windows(), counts=lambda batch: {"tokens": 4 * len(batch)}).share(1)
    assert share.counts == {"samples": 8, "tokens": 32}


def test_the_last_step_may_be_ragged_and_a_share_empty():
    last = feed(windows(), processes=4, rank=3, total=11).share(2)
    assert last.micro == ()
    assert (last.start, last.stop, last.digest) == (8, 11, 0)


@pytest.mark.parametrize("kind", ["thread", "bursts", "processes"])
def test_reading_ahead_gives_the_same_shares(kind):
    source = dataset("Noisy") if kind == "processes" else windows()
    make = feed(source)
    shares = {
        "thread": lambda: Thread(make, 1, 9, 4),
        "bursts": lambda: Bursts(make, range(1, 10), 4),
        "processes": lambda: Processes(make, 1, 9, 4, workers=2),
    }[kind]()
    expected = [make.share(step) for step in range(1, 10)]
    try:
        assert [str(content(share)) for share in shares] == [str(content(share)) for share in expected]
        with pytest.raises(StopIteration):
            next(shares)
    finally:
        shares.close()


def test_slow_sources_are_read_by_a_thread_and_fast_ones_between_the_steps():
    class Slow(Windows):
        def read(self, ids, positions):
            time.sleep(0.001)
            return super().read(ids, positions)

    slow = prefetch(feed(Slow(np.arange(201), 4, "")), 1, 9, 4, 0)
    fast = prefetch(feed(windows()), 1, 9, 4, 0)
    assert isinstance(slow, Thread)
    assert isinstance(fast, Bursts)
    assert [share.step for share in slow] == list(range(1, 10))
    slow.close()


def test_closing_leaves_no_thread_and_no_process():
    Processes(feed(dataset("Noisy")), 1, 1, 1, 1).close()  # the interpreter's own forkserver stays for the next pool
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    for shares in (Thread(feed(windows()), 1, 900, 4), Processes(feed(dataset("Noisy")), 1, 900, 4, 2)):
        next(shares)
        shares.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]
    assert not [p for p in psutil.Process().children(recursive=True) if p.pid not in before]


def test_d12_an_error_while_reading_ahead_surfaces_at_its_step_with_the_sample():
    for workers in (0, 1):
        shares = prefetch(feed(dataset("Broken"), batch=4, lanes=1), 1, 5, 4, workers)
        with pytest.raises(Failure) as caught:
            list(shares)
        shares.close()
        assert caught.value.outcome.code == Exit.BAD_DATA
        assert caught.value.outcome.where["sample_id"] == 13


def test_d12_a_worker_that_dies_is_told_with_the_samples_it_may_have_been_at():
    shares = Processes(feed(dataset("Deadly"), batch=4, lanes=1), 1, 5, 1, 1)
    with pytest.raises(Failure) as caught:
        list(shares)
    shares.close()
    assert 13 in caught.value.outcome.where["sample_ids"]


def test_what_a_sample_draws_follows_from_its_position():
    source = dataset("Noisy")
    ids = np.array([4, 2])
    first, again = source.read(ids, np.array([10, 11])), source.read(ids[::-1], np.array([11, 10]))[::-1]
    assert str(first) == str(again)
    assert str(source.read(ids, np.array([30, 31]))) != str(first)


def test_an_empty_dataset_is_refused():
    with pytest.raises(Failure) as caught:
        dataset("Empty")
    assert caught.value.outcome.code == Exit.BAD_DATA


def test_a_datasets_fingerprint_follows_settings_and_content():
    assert dataset("Noisy").fingerprint == dataset("Noisy").fingerprint
    assert dataset("Noisy").fingerprint != dataset("Noisy", size=21).fingerprint
    assert dataset("Noisy").fingerprint != dataset("Broken", size=12).fingerprint
