"""Work in numbered blocks, dealt to this process and to others that it starts, and put together in order.

Block k is made by process k % processes. Each of the others sends its blocks through a socket of its own and
waits where that is full: however long the work is, nobody holds more than a few blocks.
"""

from __future__ import annotations

import json
import socket
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import cycle
from typing import IO, Any

from drivetrain.launch.forkserver import ForkServer
from drivetrain.runtime.mistakes import failure_of
from drivetrain.spec.exits import Exit, Failure, Outcome


@contextmanager
def others(worker: str, arguments: Sequence[Any], processes: int, preload: Sequence[str]) -> Iterator[list[Iterator]]:
    """The shares of processes 1 .. processes - 1, which call `worker` (`package.module:name`) with these arguments
    (JSON data), their number and how many there are, and end in `send_share`.

    A share raises Failure with what its process ended with. All processes are gone once this is left.
    """
    with ExitStack() as stack:
        server = stack.enter_context(closing(ForkServer(preload)))
        shares: list[Iterator] = []
        for rank in range(1, processes):
            ours, theirs = socket.socketpair()
            stack.enter_context(ours)
            # Ours is closed at once: the end of a process is then the end of what it sends.
            with theirs:
                server.start(worker, rank, [*arguments, rank, processes], [theirs.fileno()])
            shares.append(_heard(stack.enter_context(ours.makefile("rb")), server, rank))
        yield shares


def dealt(shares: Iterable[Iterator[Any]]) -> Iterator[Any]:
    """The blocks of all shares, in their order."""
    for share in cycle(shares):
        try:
            block = next(share)
        except StopIteration:  # blocks are numbered without a gap, so the first one missing is the end
            return
        yield block


def send_share(descriptor: int, blocks: Callable[[], Iterable[Any]]) -> int:
    """Send a share's blocks (JSON data), and then how it ended, unless nobody listens any more."""
    with socket.socket(fileno=descriptor) as sender, suppress(BrokenPipeError, ConnectionResetError):
        for message in _messages(blocks):
            sender.sendall(f"{json.dumps(message)}\n".encode())
    return int(Exit.DONE)


def _messages(blocks: Callable[[], Iterable[Any]]) -> Iterator[dict[str, Any]]:
    failure = Failure(Exit.DONE, "")
    try:
        for block in blocks():
            yield {"block": block}
    except Exception as error:
        failure = _failure(error)
    yield {"end": failure.outcome.to_json(), "details": failure.details, "trace": failure.trace}


def _failure(error: Exception) -> Failure:
    """An exception of a share as a failure, with its traceback where it is no failure already."""
    if isinstance(error, Failure):
        return error
    failure = failure_of(error)
    if failure is None:
        failure = Failure(Exit.INTERNAL, f"{type(error).__name__}: {error}", "the traceback is above")
        failure.details = "".join(traceback.format_exception(error)).rstrip()
    return failure


def _heard(file: IO[bytes], server: ForkServer, rank: int) -> Iterator[Any]:
    """The blocks that a process sends."""
    while True:
        line = file.readline()
        if not line.endswith(b"\n"):
            raise _unsaid(server, rank)
        message = json.loads(line)
        if "end" not in message:
            yield message["block"]
            continue
        outcome = Outcome.from_json(message["end"])
        if outcome.code is Exit.DONE:
            return
        failure = Failure.of(outcome)
        failure.details, failure.trace = message["details"], message["trace"]
        raise failure


def _unsaid(server: ForkServer, rank: int) -> Failure:
    """What it comes to that a process has ended without a word."""
    status = None
    try:
        while status is None:
            news = server.news()
            if news["rank"] == rank:
                status = news.get("status")
    except ConnectionError:
        status = server.status()
    how = f"with {status}"
    if status < 0:
        how = f"by signal {-status}"
    hint = "look for who ended it (out of memory?); fewer --processes take less"
    return Failure(Exit.INTERNAL, f"process {rank} ended {how}, without saying why", hint)
