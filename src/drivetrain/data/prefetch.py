"""Shares read ahead of the loop. Readers are caches addressed by step: killing them loses nothing."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any

import numpy as np

from drivetrain.data.feed import Feed, Share
from drivetrain.data.source import Source
from drivetrain.spec.exits import Exit, Failure


class Shares(Iterator[Share]):
    """Shares in the order of their steps; `close` ends whatever reads them."""

    def close(self) -> None:
        """Leave no thread and no process behind."""


SLOW = 200e-6
"""Seconds from which reading a share is worth a thread: below, handing it over costs more than reading it."""
_TRIED = 3  # shares that are read to see how long one takes; the first pays for what the others find ready


def prefetch(
    feed: Feed, first: int, last: int, depth: int, workers: int, clock: Callable[[], float] = time.perf_counter
) -> Shares:
    """Shares of the steps `first` to `last`, read up to `depth` steps ahead.

    With workers, processes read the samples. Without, a source that may be read beside training is read by a thread
    if a share takes long enough; everything else is read between the steps, in bursts.
    """
    if workers:
        return Processes(feed, first, last, depth, workers)
    if not feed.source.thread_safe:
        return Bursts(feed, range(first, last + 1), depth)
    tried, seconds = [], []
    for step in range(first, min(first + _TRIED, last + 1)):
        started = clock()
        tried.append(feed.share(step))
        seconds.append(clock() - started)
    if min(seconds, default=0.0) > SLOW:
        return Thread(feed, first + len(tried), last, depth, *tried)
    return Bursts(feed, range(first + len(tried), last + 1), depth, *tried)


class Bursts(Shares):
    """Reads between the steps, `depth` shares at a time: one after the other they find the caches warm."""

    def __init__(self, feed: Feed, steps: range, depth: int, *read: Share) -> None:
        self._feed = feed
        self._steps = iter(steps)
        self._depth = depth
        self._ready = deque(read)

    def __next__(self) -> Share:
        if not self._ready:
            self._ready.extend(self._feed.share(step) for step in islice(self._steps, self._depth))
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()


class Thread(Shares):
    """One background thread. It refills in bursts, when half of what it read is used up, since each hand-over between
    threads costs about as much as reading a small batch."""

    def __init__(self, feed: Feed, first: int, last: int, depth: int, *read: Share) -> None:
        self._feed = feed
        self._depth = depth
        self._left = last - first + 1 + len(read)
        self._ready: deque[Share | BaseException] = deque(read)
        self._arrived = threading.Event()
        self._wanted = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._fill, args=(first, last), name="prefetch", daemon=True)
        self._thread.start()

    def __next__(self) -> Share:
        if self._left <= 0:
            raise StopIteration
        while not self._ready:
            self._arrived.clear()
            if not self._ready:
                self._arrived.wait()
        share = self._ready.popleft()
        if len(self._ready) <= self._depth // 2:
            self._wanted.set()
        if isinstance(share, BaseException):
            self._left = 0
            raise share
        self._left -= 1
        return share

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
                self._ready.append(self._feed.share(step))
                self._arrived.set()
        except BaseException as error:
            self._ready.append(error)
            self._arrived.set()

    def _rest(self) -> None:
        while len(self._ready) > self._depth // 2 and not self._closed:
            self._wanted.wait()
            self._wanted.clear()


class Processes(Shares):
    """Worker processes that read samples by id; batches are collated here."""

    def __init__(self, feed: Feed, first: int, last: int, depth: int, workers: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "drivetrain.data.prefetch"])
        self._feed = feed
        self._steps = iter(range(first, last + 1))
        self._pool = ProcessPoolExecutor(workers, context, initializer=_open, initargs=(feed.source,))
        self._ahead: deque[tuple[int, list[tuple[Any, np.ndarray]], list[Future]]] = deque()
        for _ in range(depth):
            self._ask()

    def __next__(self) -> Share:
        if not self._ahead:
            raise StopIteration
        step, plan, futures = self._ahead.popleft()
        self._ask()
        try:
            samples = [future.result() for future in futures]
        except BrokenProcessPool as error:
            ids = [int(i) for _, chunk in plan for i in chunk]
            raise Failure(
                Exit.INTERNAL,
                "a data worker died",
                "look for a killed process (memory?); the samples it may have been at are named",
                step=step,
                sample_ids=ids[:16],
            ) from error
        return self._feed.assemble(step, plan, samples)

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _ask(self) -> None:
        step = next(self._steps, None)
        if step is None:
            return
        plan = self._feed.plan(step)
        futures = [self._pool.submit(_read, ids, np.arange(chunk.start, chunk.stop)) for chunk, ids in plan]
        self._ahead.append((step, plan, futures))


_source: Source  # of a worker process


def _open(source: Source) -> None:
    """A worker's start: keep the source, leave signals to the trainer, and die with it."""
    global _source
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the forkserver ends with the trainer
    _source = source


def _read(ids: np.ndarray, positions: np.ndarray) -> Sequence[Any]:
    return _source.read(ids, positions)
