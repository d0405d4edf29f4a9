"""Commands that need torch or the user's own code, as processes of their own: with an end to their time and their
output, below everything else in priority, and gone when the board is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from drivetrain.spec.exits import Exit, Failure

_AT_ONCE = 2
_NICE = 10
_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
_OUTPUT = 32 << 20  # bytes


@dataclass
class Children:
    """The commands of one board."""

    _free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    _running: set[asyncio.subprocess.Process] = field(default_factory=set)

    async def ask(self, *words: str, seconds: float = 60.0) -> Any:
        """What `drivetrain WORDS --json` prints, as one value. Raises what `lines` raises, and Failure(70) where it is
        something else."""
        return _parsed(await self._printed(words, seconds), words)

    async def lines(self, *words: str, seconds: float = 60.0) -> list[Any]:
        """The same where each line that it prints is a value. Raises Failure with the command's own code and sentence,
        69 where it takes longer."""
        return [_parsed(line, words) for line in (await self._printed(words, seconds)).splitlines()]

    async def _printed(self, words: Sequence[str], seconds: float) -> bytes:
        async with self._free:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "drivetrain", *words, "--json"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                preexec_fn=_last_in_line,
            )
            self._running.add(child)
            try:
                out, said = await asyncio.wait_for(_read(child), seconds)
            except asyncio.TimeoutError:
                hint = "the same in a terminal has no such bound"
                raise Failure(Exit.PEER_UNAVAILABLE, f"{words[0]} took more than {seconds:g} s", hint) from None
            finally:
                await _end(child)
                self._running.discard(child)
        if child.returncode:
            raise _failure(child.returncode, said)
        return out

    async def close(self) -> None:
        """End those that still run."""
        await asyncio.gather(*map(_end, list(self._running)))


async def _read(child: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    assert child.stdout is not None
    assert child.stderr is not None
    parts = await asyncio.gather(_bounded(child.stdout), _bounded(child.stderr))
    await child.wait()
    return parts[0], parts[1]


async def _bounded(stream: asyncio.StreamReader) -> bytes:
    """To its end, of which what is beyond the bound is let go: a child that nobody reads would stand still."""
    parts, size = [], 0
    while part := await stream.read(1 << 16):
        size += len(part)
        if size <= _OUTPUT:
            parts.append(part)
    return b"".join(parts)


async def _end(child: asyncio.subprocess.Process) -> None:
    """End it and what it started, which are a group of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(child.wait(), _GRACE)


def _last_in_line() -> None:
    os.nice(_NICE)


def _failure(code: int, said: bytes) -> Failure:
    lines = [line for line in said.decode(errors="replace").splitlines() if line.startswith("drivetrain: ")]
    known = code in list(Exit)
    cause = lines[-1].removeprefix("drivetrain: ").removeprefix(f"{code} ") if lines else f"it ended with {code}"
    return Failure(Exit(code) if known else Exit.INTERNAL, cause)


def _parsed(out: bytes, words: Sequence[str]) -> Any:
    try:
        return json.loads(out)
    except ValueError:
        raise Failure(Exit.INTERNAL, f"{words[0]} printed no JSON", "see the same in a terminal") from None
