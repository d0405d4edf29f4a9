"""Signs of life: what each process is doing, in memory that the supervisor reads without asking. Imports no torch."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass

PHASES = (
    "start",
    "data",
    "forward",
    "backward",
    "reduce",
    "optimizer",
    "compile",
    "pulse",
    "evaluation",
    "show",
    "callback",
    "snapshot",
    "commit",
    "profile",
    "pause",
    "compare",
    "rollback",
    "handover",
    "teardown",
)
"""What a process can be at. Behind these, commits pass through write, publish and rotate on a thread of their own."""
_NUMBERS = {name: number for number, name in enumerate(PHASES)}
_SLOT = struct.Struct("<QQQQd")
SIZE = 64
"""Bytes of a process's slot: a cache line."""
ROOM = 1 << 16
"""Bytes for what each process says last; behind all the slots, and taken from memory only where it is used."""
_LENGTH = struct.Struct("<Q")
LONGEST = ROOM - _LENGTH.size
BEAT = 0.5


@dataclass(frozen=True)
class HeartbeatSlot:
    """One look at a process.

    `beats` grows while its threads can run, `moves` while it gets anywhere; `seconds` is what its last step took, 0
    before the first one.
    """

    beats: int
    moves: int
    step: int
    phase: str
    seconds: float


class Heartbeat:
    """Written by one process, from its start to its end."""

    def __init__(self, memory: mmap.mmap | None = None, rank: int = 0) -> None:
        """`memory` is shared with a supervisor; without, nobody looks."""
        if memory is None:
            memory, rank = mmap.mmap(-1, SIZE + ROOM), 0
        self._memory = memory
        self._at = rank * SIZE
        self._word = _place_of_word(memory, rank)
        self._beats = 0
        self._moves = 0
        self.step = 0
        self.seconds = 0.0
        self._phase = 0
        self._since = time.perf_counter()
        self._spent = [0.0] * len(PHASES)

    @classmethod
    def shared(cls, descriptor: int, rank: int) -> Heartbeat:
        """With the memory behind a descriptor that the supervisor passed on."""
        return cls(mmap.mmap(descriptor, 0), rank)

    def start(self) -> None:
        """Beat from now on, on a thread: a process that is stopped, or holds the interpreter's lock, does not."""
        self.enter("start")
        threading.Thread(target=self._beat, args=(threading.Event(),), name="heartbeat", daemon=True).start()

    def enter(self, phase: str) -> None:
        """The process is at this phase from now on; said again, that it got on within it."""
        now, number = time.perf_counter(), _NUMBERS[phase]
        self._spent[self._phase] += now - self._since
        self._phase, self._since = number, now
        # A number and no time: the supervisor's clock alone decides, and a process that is stopped writes none.
        self._moves += 1
        # Two threads write the first number. It only tells whether something moves, so one that is lost is made up for
        # by the next.
        _SLOT.pack_into(self._memory, self._at, self._beats, self._moves, self.step, number, self.seconds)

    @property
    def phase(self) -> str:
        """What the process is at."""
        return PHASES[self._phase]

    def again(self) -> None:
        """It waits for what has a bound of its own, such as a disk that stalls: that is no hang."""
        self.enter(PHASES[self._phase])

    def spent(self) -> dict[str, float]:
        """Seconds by phase since this was last asked; phases that took none are left out."""
        now = time.perf_counter()
        self._spent[self._phase] += now - self._since
        self._since = now
        spent, self._spent = self._spent, [0.0] * len(PHASES)
        found: dict[str, float] = {}
        for phase, seconds in zip(PHASES, spent, strict=True):
            if seconds:
                found[phase] = seconds
        return found

    def say(self, word: bytes) -> None:
        """How this process ends, in `LONGEST` bytes, for a supervisor that may not find it on a disk."""
        at = self._word + _LENGTH.size
        self._memory[at : at + len(word)] = word
        _LENGTH.pack_into(self._memory, self._word, len(word))  # last: until now nothing was said

    def passing(self, phase: str, step: int) -> None:
        """A commit's own thread is at this phase. Nobody is told: drills put their faults here."""

    def _beat(self, never: threading.Event) -> None:
        while not never.wait(BEAT):
            self._beats += 1
            # Only this number: `enter` writes the others, from the thread that trains.
            struct.pack_into("<Q", self._memory, self._at, self._beats)


class HeartbeatMemory:
    """The supervisor's side: memory for some processes, and looks at it."""

    def __init__(self, processes: int) -> None:
        self.descriptor = os.memfd_create("drivetrain-signs", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, (SIZE + ROOM) * processes)
        self._memory = mmap.mmap(self.descriptor, 0)
        self._processes = processes

    def look(self) -> list[HeartbeatSlot]:
        """What each process is doing now."""
        return [self._sign(rank) for rank in range(self._processes)]

    def said(self, rank: int) -> bytes:
        """What a process has said last; empty where it has not."""
        at = _place_of_word(self._memory, rank)
        (length,) = _LENGTH.unpack_from(self._memory, at)
        return self._memory[at + _LENGTH.size : at + _LENGTH.size + length]

    def clear(self) -> None:
        """Before the processes are started again."""
        # Else the newly started would look as far as those before had come.
        self._memory[: SIZE * self._processes] = bytes(SIZE * self._processes)
        for rank in range(self._processes):
            _LENGTH.pack_into(self._memory, _place_of_word(self._memory, rank), 0)

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        os.close(self.descriptor)

    def _sign(self, rank: int) -> HeartbeatSlot:
        beats, moves, step, phase, seconds = _SLOT.unpack_from(self._memory, rank * SIZE)
        return HeartbeatSlot(beats, moves, step, PHASES[phase % len(PHASES)], seconds)


def _place_of_word(memory: mmap.mmap, rank: int) -> int:
    return len(memory) // (SIZE + ROOM) * SIZE + rank * ROOM
