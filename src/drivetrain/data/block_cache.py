"""Blocks that were made last, and those that are wanted next, which threads make ahead."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Block = TypeVar("Block")

_THREADS = 2


class BlockCache(Generic[Block]):
    """Blocks by number, at least those that are wanted, and else up to a number of bytes.

    Each is made by a thread of its own pool, so that several are made at once, and beside who waits for one.
    """

    def __init__(self, make: Callable[[int], Block], size: Callable[[Block], int], limit: int) -> None:
        """`make` may be called by several threads; `size` is a block's in bytes."""
        self._make, self._size, self._limit = make, size, limit
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self._bytes = 0
        self._pending: dict[int, Future[Block]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self.wanted: frozenset[int] = frozenset()

    def want(self, numbers: Sequence[int]) -> None:
        """These are needed soon, in this order: those that are not there are made, and none of them is dropped."""
        with self._lock:
            self.wanted = frozenset(numbers)
            for number in numbers:
                if number not in self._blocks and number not in self._pending:
                    self._begin(number)

    def get(self, number: int) -> Block:
        """A block; raises what making it raises."""
        with self._lock:
            block = self._blocks.get(number)
            if block is not None:
                self._blocks.move_to_end(number)
                return block
            made = self._pending.get(number) or self._begin(number)
        return made.result()

    def _begin(self, number: int) -> Future[Block]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="blocks")
        self._pending[number] = made = self._pool.submit(self._made, number)
        return made

    def _made(self, number: int) -> Block:
        """Make a block and keep it. An error is kept by nobody: who needs the block waits, and is told."""
        try:
            block = self._make(number)
        except BaseException:
            with self._lock:
                del self._pending[number]
            raise
        with self._lock:
            del self._pending[number]
            self._blocks[number] = block
            self._bytes += self._size(block)
            self._drop()
        return block

    def _drop(self) -> None:
        """Drop what was not used for longest, as long as it is too much."""
        for number in list(self._blocks):
            if self._bytes <= self._limit:
                return
            if number not in self.wanted:
                self._bytes -= self._size(self._blocks.pop(number))
