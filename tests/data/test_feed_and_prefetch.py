import dataclasses
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import adversarial
from clock import Clock
from drivetrain.data.batch_reader import BatchReader
from drivetrain.data.dataset import MapSource
from drivetrain.data.geometry import Geometry
from drivetrain.data.order import Order, digest
from drivetrain.data.prefetch import InlineReader, ProcessReader, ThreadReader, prefetch
from drivetrain.data.windows import Windows
from drivetrain.spec.batches import Batches
from drivetrain.spec.custom import Custom
from drivetrain.spec.exits import Exit, Failure

HERE = str(Path(__file__).parent)


def feed(source, *, batch=8, lanes=4, processes=1, micro=4, rank=0, total=1000, counts=lambda batch: {}):
    order = Order(len(source), 3, True)
    return BatchReader(source, order, Geometry(Batches(batch), lanes, processes, micro), rank, total, list, counts)


def in_order(source):
    """Four samples a step, in the order of the source."""
    return BatchReader(
        source, Order(len(source), 3, False), Geometry(Batches(4), 1, 1, 4), 0, 1000, list, lambda batch: {}
    )


def windows(count=50):
    return Windows(np.arange(count * 4 + 1), 4, "")


def dataset(name, **settings):
    return MapSource(Custom(section="source", kind=f"map_style:{name}", settings=settings, folder=HERE), seed=5)


def content(share):
    return (
        share.step,
        share.start,
        share.stop,
        share.digest,
        [str(m.batch) for m in share.micro_batches],
    )


def test_the_shares_of_all_ranks_are_the_samples_of_the_step():
    alone = feed(windows()).read(3)
    shares = [feed(windows(), processes=2, rank=rank).read(3) for rank in range(2)]
    ids = [i for share in shares for micro in share.micro_batches for i in micro.ids.tolist()]
    assert ids == [i for micro in alone.micro_batches for i in micro.ids.tolist()]
    assert sum(share.digest for share in shares) % 2**64 == alone.digest
    assert sum(share.counts["samples"] for share in shares) == 8


@settings(max_examples=40)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 60))
def test_each_position_is_read_once_by_one_rank_whatever_the_shape_and_the_total(d, per_rank, size, micro, total):
    """And the digests add up to that of all samples that one process would read."""
    batch, lanes = d * per_rank * size, d * per_rank
    source = windows(17)
    read, digests = {}, 0
    for rank in range(d):
        part = feed(source, batch=batch, lanes=lanes, processes=d, micro=micro, rank=rank, total=total)
        for step in range(1, -(-total // batch) + 1):
            share = part.read(step)
            digests += share.digest
            for m in share.micro_batches:
                for position, sample in enumerate(m.ids.tolist(), m.start):
                    assert position not in read
                    read[position] = sample
    order = Order(len(source), 3, True)
    assert [read[p] for p in range(total)] == order.ids(0, total).tolist()
    assert len(read) == total
    assert digests % 2**64 == digest(order.ids(0, total), np.arange(total))


def test_counts_are_summed_over_micro_batches():
    share = feed(windows(), counts=lambda batch: {"tokens": 4 * len(batch)}).read(1)
    assert share.counts == {"samples": 8, "tokens": 32}


def test_the_last_step_may_be_ragged_and_a_share_empty():
    last = feed(windows(), processes=4, rank=3, total=11).read(2)
    assert last.micro_batches == ()
    assert (last.start, last.stop, last.digest) == (8, 11, 0)


@pytest.mark.parametrize("kind", ["thread", "bursts", "processes"])
def test_reading_ahead_gives_the_same_shares(kind):
    source = dataset("Noisy") if kind == "processes" else windows()
    make = feed(source)
    shares = {
        "thread": lambda: ThreadReader(make, 1, 9, 4),
        "bursts": lambda: InlineReader(make, range(1, 10), 4),
        "processes": lambda: ProcessReader(make, 1, 9, 4, workers=2),
    }[kind]()
    expected = [make.read(step) for step in range(1, 10)]
    try:
        assert [str(content(share)) for share in shares] == [str(content(share)) for share in expected]
        with pytest.raises(StopIteration):
            next(shares)
    finally:
        shares.close()


def test_slow_sources_are_read_by_a_thread_and_fast_ones_between_the_steps():
    slow = prefetch(feed(Counting(np.arange(201), 4, "", pause=0.001)), 1, 9, 4, 0)
    fast = prefetch(feed(windows()), 1, 9, 4, 0)
    assert isinstance(slow, ThreadReader)
    assert isinstance(fast, InlineReader)
    assert [share.step for share in slow] == list(range(1, 10))
    slow.close()


def test_closing_leaves_no_thread_and_no_process():
    ProcessReader(
        feed(dataset("Noisy")), 1, 1, 1, 1
    ).close()  # the interpreter's own forkserver stays for the next pool
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    for shares in (ThreadReader(feed(windows()), 1, 900, 4), ProcessReader(feed(dataset("Noisy")), 1, 900, 4, 2)):
        next(shares)
        shares.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]
    assert not [p for p in psutil.Process().children(recursive=True) if p.pid not in before]


def steps_before_failure(shares, pause=0.0):
    """The steps that came, and the error that came instead of the next; `pause` is what a training step takes."""
    seen = []
    try:
        for share in shares:
            seen.append(share.step)
            time.sleep(pause)
    except Exception as error:
        return seen, error
    finally:
        shares.close()
    return seen, None


@pytest.mark.parametrize("workers", [0, 1])
def test_d12_an_error_while_reading_ahead_surfaces_at_its_step_with_the_sample(workers):
    broken = in_order(dataset("Broken"))  # sample 13 is in step 4
    seen, failure = steps_before_failure(prefetch(broken, 1, 5, 5, workers))
    assert seen == [1, 2, 3]
    assert failure.outcome.code == Exit.BAD_DATA
    assert failure.outcome.where["sample_id"] == 13


def collate_that_raises(error, at):
    calls = []

    def collate(samples):
        calls.append(samples)
        if len(calls) == at:
            raise error
        return list(samples)

    return collate


@pytest.mark.parametrize("at", [1, 2, 5])
def test_d12_an_error_while_the_first_shares_are_timed_surfaces_at_its_step_too(at):
    wrong = dataclasses.replace(in_order(windows()), collate=collate_that_raises(ValueError("no"), at))
    seen, error = steps_before_failure(prefetch(wrong, 1, 9, 4, 0))
    assert seen == list(range(1, at))
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("make", [ThreadReader, lambda f, a, b, depth: InlineReader(f, range(a, b + 1), depth)])
def test_a_task_that_raises_stop_iteration_does_not_end_the_data(make):
    wrong = dataclasses.replace(in_order(windows()), collate=collate_that_raises(StopIteration(), 5))
    seen, error = steps_before_failure(make(wrong, 1, 9, 4))
    assert seen == [1, 2, 3, 4]
    assert isinstance(error, RuntimeError)


class Ended(Windows):
    """Raises StopIteration where it reads the first sample of step 5."""

    def read(self, ids, positions):
        return iter(()).__next__() if 16 in ids else super().read(ids, positions)

    def read_each(self, batches):
        return [self.read(ids, ids) for ids in batches]


@pytest.mark.parametrize("make", [ThreadReader, lambda f, a, b, depth: InlineReader(f, range(a, b + 1), depth)])
@pytest.mark.parametrize("thread_safe", [True, False])
def test_a_source_that_raises_stop_iteration_does_not_end_the_data(make, thread_safe):
    source = Ended(np.arange(401), 4, "")
    source.thread_safe = thread_safe
    seen, error = steps_before_failure(make(in_order(source), 1, 9, 4))
    assert seen == [1, 2, 3, 4]
    assert isinstance(error, RuntimeError)
    seen, error = steps_before_failure(prefetch(in_order(source), 1, 9, 4, 0))
    assert seen == [1, 2, 3, 4]
    assert isinstance(error, RuntimeError)


def test_a_rank_without_samples_does_not_end_the_data_either():
    wrong = dataclasses.replace(
        feed(windows(), processes=4, rank=3, total=11), collate=collate_that_raises(StopIteration(), 1)
    )
    with pytest.raises(RuntimeError, match="StopIteration"):
        wrong.read(2)


class Counting(Windows):
    """How many batches each read was of; reading takes as long as it is told to."""

    def __init__(self, *args, pause=0.0, sleep=time.sleep):
        super().__init__(*args)
        self.pause, self.sleep, self.reads = pause, sleep, []

    def read(self, ids, positions):
        return self.read_each([ids])[0]

    def read_each(self, batches):
        self.reads.append(len(batches))
        self.sleep(self.pause * len(batches))
        return super().read_each(batches)


def test_fast_steps_are_read_together_and_slow_ones_alone():
    clock = Clock()
    fast, slow = (Counting(np.arange(401), 4, "", pause=pause, sleep=clock.sleep) for pause in (1e-5, 0.002))
    for source in (fast, slow):
        shares = InlineReader(in_order(source), range(1, 25), 8, clock=clock)
        assert [share.step for share in shares] == list(range(1, 25))
    assert fast.reads[0] == 1  # nothing is known of it yet
    assert max(fast.reads) > 8  # more than `depth`, since they take microseconds
    assert set(slow.reads) == {1}


def test_the_micro_batches_of_a_step_are_read_together():
    source = Counting(np.arange(401), 4, "")
    (share,) = feed(source, micro=2).read_each([1])
    assert source.reads == [4]
    assert [micro.size for micro in share.micro_batches] == [2, 2, 2, 2]


@pytest.mark.parametrize(("pause", "reads"), [(0.0, 32), (2e-5, 25), (1e-4, 5), (6e-4, 2), (3e-3, 1)])
def test_a_burst_reads_beyond_its_depth_only_what_takes_microseconds(pause, reads):
    clock = Clock()

    class Alone(Windows):
        """Not one that reads together."""

        read_each = None
        reads = 0

        def read(self, ids, positions):
            self.reads += 1
            clock.sleep(pause)
            return super().read_each([ids])[0]

    source = Alone(np.arange(4001), 4, "")
    next(InlineReader(in_order(source), range(1, 200), 2, clock=clock))
    assert source.reads == reads


@pytest.mark.parametrize("at", [2, 6, 24])
def test_d12_an_error_among_steps_that_are_read_together_surfaces_at_its_own(at):
    class Broken(Counting):
        def read_each(self, batches):
            if any((at - 1) * 4 in ids for ids in batches):
                raise Failure(Exit.BAD_DATA, "broken", "mend it")
            return super().read_each(batches)

    source = Broken(np.arange(401), 4, "")
    seen, failure = steps_before_failure(InlineReader(in_order(source), range(1, 25), 8))
    assert seen == list(range(1, at))
    assert failure.outcome.code == Exit.BAD_DATA


@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize("workers", [1, 2])
def test_d12_a_worker_that_dies_is_told_with_the_samples_it_may_have_been_at(ahead, workers):
    shares = ProcessReader(in_order(dataset("Deadly", size=200)), 1, 50, ahead, workers)
    seen, failure = steps_before_failure(shares, pause=0.02)
    assert seen == [1, 2, 3][: len(seen)]  # the other worker's share may be lost with it
    assert failure.outcome.code == Exit.INTERNAL
    assert 13 in failure.outcome.where["sample_ids"]
    assert len(failure.outcome.where["sample_ids"]) <= 4 * workers


def test_workers_send_tensors_as_they_are_and_compute_with_as_many_threads():
    source = dataset("Tensors")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        shares = ProcessReader(feed(source), 1, 1, 1, 1)
        (first, _), expected = (
            (m.batch for m in next(shares).micro_batches),
            feed(source).read(1).micro_batches[0].batch,
        )
        shares.close()
    finally:
        torch.set_num_threads(threads)
    for sent, read in zip(first, expected, strict=True):
        assert sent.keys() == read.keys()
        for name in sent:
            assert sent[name].dtype == read[name].dtype
            assert torch.equal(sent[name], read[name])
            assert sent[name].requires_grad == read[name].requires_grad


def test_a_slow_dataset_holds_up_a_step_by_its_own_share_only():
    shares = prefetch(in_order(dataset("Slow")), 1, 9, 8, 0)
    started = time.perf_counter()
    next(shares)
    assert time.perf_counter() - started < 0.15  # eight shares would take 0.32


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


def test_a_fingerprint_is_of_what_objects_hold_not_of_where_they_lie():
    assert dataset("Odd").fingerprint == dataset("Odd").fingerprint
    assert dataset("Odd").fingerprint != dataset("Odd", size=19).fingerprint


@pytest.mark.usefixtures("importable")
def test_trainloop_4_data_smaller_than_a_batch_are_taken_again_and_fewer_than_lanes_refused(tmp_path):
    small = adversarial.recipe(data={"train": {"sources": [{"kind": "adversarial:Ring", "size": 5}]}})
    run = adversarial.train(small, tmp_path / "run").run
    assert [step["counts"]["samples"] for step in adversarial.made(run)] == [16] * 12
    with pytest.raises(Failure, match="3 samples, fewer than 4 lanes") as caught:
        adversarial.train(small, tmp_path / "few", "data.train.sources[0].size=3")
    assert caught.value.outcome.code == Exit.BAD_RECIPE
