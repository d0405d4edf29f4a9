"""Commands that need torch or the user's own code, as processes of their own: with an end to their time, memory and
output, below everything else in priority, and gone when the board is."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.secrets import error_without_secrets

_AT_ONCE = 2
_LONG = 150.0  # seconds from which on a command is a long one, of which one runs at a time: a page never waits for two
_NICE = 10
_MEMORY = 8 << 30  # bytes of data, not of addresses, of which an accelerator's driver takes any number
_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
_OUTPUT = 32 << 20  # bytes
_SAID = 64 << 10  # bytes of stderr
_FIRST_TO_GO = "1000"
# The user's folder may hold any names, such as a random.py: `-m` would look there first.
_COMMAND = "import sys; sys.path = [p for p in sys.path if p]; from drivetrain.cli.main import main; main()"
_OUTLIVED = frozenset({"requeue"})
"""Commands that start a run, which must not inherit the place of a child."""


@dataclass
class Children:
    """The commands of one board."""

    _free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    _long: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    _running: set[asyncio.subprocess.Process] = field(default_factory=set)
    _closed: bool = False

    async def ask(self, *words: str, seconds: float = 60.0) -> Any:
        """What `drivetrain WORDS --json` prints, as one value. Raises what `lines` raises, and Failure(70) where it is
        something else, or too much."""
        out = await self._printed(words, seconds)
        if out.cut:
            cause = f"{words[0]} printed more than {_OUTPUT >> 20} MiB"
            raise Failure(Exit.INTERNAL, cause, "the same in a terminal has no such bound")
        return _parsed(out.text, words)

    async def lines(
        self, *words: str, seconds: float = 60.0, told: Callable[[Any], None] = lambda value: None
    ) -> list[Any]:
        """The same where each line that it prints is a value: the newest ones, where there are more than are kept;
        `told` is given the newest of them while it runs. Raises Failure with the command's own code and sentence, 69
        where it takes longer, or the board ends."""

        def seen(text: bytes) -> None:
            whole = text[: text.rfind(b"\n") + 1].splitlines()
            if whole:
                told(_parsed(whole[-1], words))

        out = await self._printed(words, seconds, seen)
        lines = out.text.splitlines()
        # Where the beginning was let go, the first line is the rest of one.
        if out.cut:
            del lines[0]
        return [_parsed(line, words) for line in lines]

    async def close(self) -> None:
        """End those that still run; none begins any more."""
        self._closed = True
        await asyncio.gather(*map(_end, list(self._running)))

    async def _printed(
        self, words: Sequence[str], seconds: float, seen: Callable[[bytes], None] = lambda text: None
    ) -> _Tail:
        async with self._long if seconds > _LONG else nullcontext(), self._free, self._started(words) as child:
            try:
                out, said = await asyncio.wait_for(_read(child, seen), seconds)
            except asyncio.TimeoutError:
                hint = "the same in a terminal has no such bound"
                raise Failure(Exit.PEER_UNAVAILABLE, f"{words[0]} took more than {seconds:g} s", hint) from None
        if child.returncode:
            raise _failure(child.returncode, words, said.text)
        return out

    @asynccontextmanager
    async def _started(self, words: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
        if self._closed:
            raise Failure(Exit.PEER_UNAVAILABLE, "the board ends", "ask again once it is back")
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _COMMAND, *words, "--json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._running.add(child)
        try:
            if words[0] not in _OUTLIVED:
                _put_last(child.pid)
            if self._closed:  # while it started
                await _end(child)
            yield child
        finally:
            await _end(child)
            self._running.discard(child)


@dataclass
class _Tail:
    """The end of what was printed; `cut`: there was more."""

    text: bytes
    cut: bool


async def _read(child: asyncio.subprocess.Process, seen: Callable[[bytes], None]) -> tuple[_Tail, _Tail]:
    assert child.stdout is not None
    assert child.stderr is not None
    tails = await asyncio.gather(_tail(child.stdout, _OUTPUT, seen), _tail(child.stderr, _SAID))
    await child.wait()
    return tails[0], tails[1]


async def _tail(stream: asyncio.StreamReader, most: int, seen: Callable[[bytes], None] = lambda text: None) -> _Tail:
    """To its end, of which the last bytes are kept: a child that nobody reads would stand still. `seen` is given them
    each time there are more."""
    kept, cut = bytearray(), False
    while part := await stream.read(1 << 16):
        kept += part
        if len(kept) > most:
            del kept[:-most]
            cut = True
        seen(bytes(kept))
    return _Tail(bytes(kept), cut)


async def _end(child: asyncio.subprocess.Process) -> None:
    """End it, and what it started, which are a group of their own."""
    if child.returncode is None:
        await _tell(child, signal.SIGTERM)
    # Also where it has ended by itself: what it started may be left.
    await _tell(child, signal.SIGKILL)


async def _tell(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError, asyncio.TimeoutError):
        os.killpg(child.pid, number)
        await asyncio.wait_for(child.wait(), _GRACE)


def _put_last(pid: int) -> None:
    """Runs go first, for processors and for memory. From here, since a fork of a process with threads must not run
    Python; the child is still at its own start."""
    with suppress(OSError):  # it has ended
        os.setpriority(os.PRIO_PROCESS, pid, _NICE)
        resource.prlimit(pid, resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        Path(f"/proc/{pid}/oom_score_adj").write_text(_FIRST_TO_GO)


def _failure(code: int, words: Sequence[str], said: bytes) -> Failure:
    if code < 0:
        name = signal.Signals(-code).name
        return Failure(Exit.PEER_UNAVAILABLE, f"{words[0]} was ended by {name}", "see whether memory is short")
    lines = [line for line in said.decode(errors="replace").splitlines() if line.startswith("drivetrain: ")]
    cause = lines[-1].removeprefix("drivetrain: ").removeprefix(f"{code} ") if lines else f"it ended with {code}"
    known = Exit(code) if code in list(Exit) else Exit.INTERNAL
    return Failure(known, error_without_secrets(ChildProcessError(cause)))


def _parsed(out: bytes, words: Sequence[str]) -> Any:
    try:
        return json.loads(out)
    except (ValueError, RecursionError):
        raise Failure(Exit.INTERNAL, f"{words[0]} printed no JSON", "see the same in a terminal") from None
