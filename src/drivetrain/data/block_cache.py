"""Blocks that were made last, and those that are wanted next, which threads make ahead."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Block = TypeVar("Block")


class BlockCache(Generic[Key, Block]):
    """Blocks by their keys, at least those that are wanted and the last few, and else up to a number of bytes.

    Each is made by a thread of its own pool, so that several are made at once, and beside who waits for one.
    """

    def __init__(self, make: Callable[[Key], Block], size: Callable[[Block], int], limit: int, threads: int) -> None:
        """`make` may be called by several threads; `size` is a block's in bytes."""
        self._make, self._size, self._limit, self._threads = make, size, limit, threads
        self._blocks: OrderedDict[Key, Block] = OrderedDict()
        self._bytes = 0
        self._pending: dict[Key, Future[Block]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self.wanted: frozenset[Key] = frozenset()
        self.least = 1
        """Blocks that are kept, however large they are."""

    def want(self, keys: Sequence[Key]) -> None:
        """These are needed soon, in this order: those that are not there are made, and none of them is dropped."""
        with self._lock:
            self.wanted = frozenset(keys)
            for key in keys:
                if key not in self._blocks and key not in self._pending:
                    self._begin(key)

    def get(self, key: Key) -> Block:
        """A block; raises what making it raises."""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
                return block
            made = self._pending.get(key) or self._begin(key)
        return made.result()

    def _begin(self, key: Key) -> Future[Block]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="blocks")
        self._pending[key] = made = self._pool.submit(self._made, key)
        return made

    def _made(self, key: Key) -> Block:
        """Make a block and keep it. An error is kept by nobody: who needs the block waits, and is told."""
        try:
            block = self._make(key)
        except BaseException:
            with self._lock:
                del self._pending[key]
            raise
        with self._lock:
            del self._pending[key]
            self._blocks[key] = block
            self._bytes += self._size(block)
            self._drop()
        return block

    def _drop(self) -> None:
        """Drop what was not used for longest, as long as it is too much."""
        for key in list(self._blocks):
            if self._bytes <= self._limit or len(self._blocks) <= self.least:
                return
            if key not in self.wanted:
                self._bytes -= self._size(self._blocks.pop(key))
