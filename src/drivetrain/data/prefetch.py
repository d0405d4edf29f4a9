"""Batches read ahead of the loop. Readers are caches addressed by step: killing them loses nothing."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

import numpy as np

from drivetrain.data.batch_reader import BatchReader, LocalBatch, Planned, read_samples
from drivetrain.data.lifeline import end_with
from drivetrain.data.source import Source
from drivetrain.data.transport import pack, unpack
from drivetrain.runtime.mistakes import failure_of
from drivetrain.spec.exits import Exit, Failure


class BatchIterator(Iterator[LocalBatch]):
    """Batches in the order of their steps; an error while one was read is raised in its place.

    `close` ends whatever reads them.
    """

    def close(self) -> None:
        """Leave no thread and no process behind."""


SLOW = 200e-6
"""Seconds from which reading a batch is worth a thread: below, handing it over costs more than reading it."""
_BURST = 2e-3  # seconds after which a burst ends, so that a slow source holds up a step by its own batch only
_AT_ONCE = 0.5e-3  # seconds of reading that may be one read, and go beyond `depth`: what they make stays in the caches
_SMALL = 32  # batches that may be ready then
_TRIED = 8  # batches that are read to see how long one takes; the first ones pay for what the others find ready
_TRYING = 5e-3  # seconds after which it is seen


def prefetch(
    batches: BatchReader,
    first: int,
    last: int,
    depth: int,
    workers: int,
    clock: Callable[[], float] = time.perf_counter,
) -> BatchIterator:
    """Batches of the steps `first` to `last`, read up to `depth` steps ahead, and further where they take microseconds.

    With workers, processes read the samples. Without, a source that may be read beside training is read by a thread
    if a batch takes long enough; everything else is read between the steps, in bursts.
    """
    if workers:
        return ProcessReader(batches, first, last, depth, workers)
    if not batches.source.thread_safe:
        return InlineReader(batches, range(first, last + 1), depth, clock=clock)
    tried, seconds = [], []
    for step in range(first, min(first + _TRIED, last + 1)):
        if sum(seconds) > _TRYING:
            break
        started = clock()
        try:
            tried.append(batches.read(step))
        except Exception as error:
            return InlineReader(batches, range(0), depth, *tried, error, clock=clock)
        seconds.append(clock() - started)
    if min(seconds, default=0.0) > SLOW:
        return ThreadReader(batches, first + len(tried), last, depth, *tried)
    return InlineReader(batches, range(first + len(tried), last + 1), depth, *tried, clock=clock)


class InlineReader(BatchIterator):
    """Reads between the steps, up to `depth` batches at a time, and more where these take microseconds: one after the
    other they find the caches warm."""

    def __init__(
        self,
        batches: BatchReader,
        steps: range,
        depth: int,
        *read: LocalBatch | Exception,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._batches = batches
        self._clock = clock
        self._steps = iter(steps)
        self._depth = depth
        self._ready = deque(read)
        self._width = 1  # steps of a read

    def __next__(self) -> LocalBatch:
        if not self._ready:
            self._fill()
        if not self._ready:
            raise StopIteration
        batch = self._ready.popleft()
        if isinstance(batch, Exception):
            raise batch
        return batch

    def _fill(self) -> None:
        began = now = self._clock()
        while steps := list(islice(self._steps, self._next_read(now - began))):
            started = now
            try:
                self._ready.extend(self._batches.read_each(steps))
            except Exception as error:
                self._ready.append(error)
                self._steps = iter(())
            now = self._clock()
            if self._batches.together is not None:
                # As many steps as a read of that length takes, by what the last one took for each.
                self._width = max(1, int(_AT_ONCE * len(steps) / max(now - started, 1e-9)))

    def _next_read(self, spent: float) -> int:
        """How many steps a burst that has lasted so many seconds reads next."""
        if spent >= _BURST:
            return 0
        most = self._depth
        if spent < _AT_ONCE:
            most = max(most, _SMALL)
        return max(0, min(self._width, most - len(self._ready)))


class ThreadReader(BatchIterator):
    """One background thread. It refills in bursts, when half of what it read is used up, since each hand-over between
    threads costs about as much as reading a small batch."""

    def __init__(self, batches: BatchReader, first: int, last: int, depth: int, *read: LocalBatch) -> None:
        self._batches = batches
        self._depth = depth
        self._left = last - first + 1 + len(read)
        self._ready: deque[LocalBatch | BaseException] = deque(read)
        self._arrived = threading.Event()
        self._wanted = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._fill, args=(first, last), name="prefetch", daemon=True)
        self._thread.start()

    def __next__(self) -> LocalBatch:
        if self._left <= 0:
            raise StopIteration
        while not self._ready:
            # Looked at again between clearing and waiting: what was added before `clear` would never be told.
            self._arrived.clear()
            if not self._ready:
                self._arrived.wait()
        batch = self._ready.popleft()
        if len(self._ready) <= self._depth // 2:
            self._wanted.set()
        if isinstance(batch, BaseException):
            self._left = 0
            raise batch
        self._left -= 1
        return batch

    def close(self) -> None:
        """Stop reading and wait for the thread."""
        self._closed = True
        self._wanted.set()
        self._thread.join()

    def _fill(self, first: int, last: int) -> None:
        try:
            for step in range(first, last + 1):
                if len(self._ready) >= self._depth:
                    self._rest()
                if self._closed:
                    return
                self._ready.append(self._batches.read(step))
                self._arrived.set()
        except BaseException as error:
            # In its place in the queue: the batches before it are whole, and are trained on.
            self._ready.append(error)
            self._arrived.set()

    def _rest(self) -> None:
        while len(self._ready) > self._depth // 2 and not self._closed:
            self._wanted.wait()
            self._wanted.clear()


class ProcessReader(BatchIterator):
    """Worker processes that read samples by id; batches are collated here."""

    def __init__(self, batches: BatchReader, first: int, last: int, depth: int, workers: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "drivetrain.data.prefetch"])
        self._batches = batches
        self._steps = iter(range(first, last + 1))
        self._workers = workers
        sent = pickle.dumps(batches.source)
        self._pool = ProcessPoolExecutor(workers, context, initializer=_open, initargs=(sent, os.getpid()))
        self._ahead: deque[tuple[int, list[Planned], list[Future[bytes]]]] = deque()
        for _ in range(depth):
            self._ask()

    def __next__(self) -> LocalBatch:
        if not self._ahead:
            raise StopIteration
        self._ask()
        # It stays in the queue until its samples are there: suspects are looked for among what was asked for.
        step, plan, futures = self._ahead[0]
        try:
            packed = [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise Failure(
                Exit.INTERNAL,
                "a data worker died",
                "look for a killed process (memory?); the samples it may have been at are named",
                step=step,
                sample_ids=self._suspects(),
            ) from error
        self._ahead.popleft()
        return self._batches.assemble(step, plan, [unpack(samples) for samples in packed])

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _ask(self) -> None:
        step = next(self._steps, None)
        if step is None:
            return
        plan = self._batches.plan(step)
        self._ahead.append((step, plan, [self._submit(planned) for planned in plan]))

    def _submit(self, planned: Planned) -> Future[bytes]:
        try:
            return self._pool.submit(_read, planned.ids, planned.positions)
        except BrokenProcessPool as error:
            # Told when its step comes: the batches before it may be there.
            lost: Future[bytes] = Future()
            lost.set_exception(error)
            return lost

    def _suspects(self) -> list[int]:
        """Ids of the samples that the workers were at: they take micro-batches in order, so the first that are lost."""
        lost: list[np.ndarray] = []
        for _, plan, futures in self._ahead:
            for planned, future in zip(plan, futures, strict=True):
                if isinstance(future.exception(), BrokenProcessPool):
                    lost.append(planned.ids)
        return np.concatenate(lost[: self._workers]).tolist()


_source: Source | Exception  # of a worker process


def _open(sent: bytes, trainer: int) -> None:
    """A worker's start: open the source, leave signals to the trainer, and end with it.

    Why a source cannot be opened here is told with the first samples: a worker that dies could not say it.
    """
    global _source
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(trainer)
    try:
        _source = pickle.loads(sent)
    except Exception as error:
        _source = error


def _read(ids: np.ndarray, positions: np.ndarray) -> bytes:
    try:
        if isinstance(_source, Exception):
            raise _source
        return pack(read_samples(_source, ids, positions))
    except Failure:
        raise
    except Exception as error:
        # The process that waits gets the words of an exception and none of its frames.
        raise failure_of(error) or error from error
