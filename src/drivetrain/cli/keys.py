"""Single keys at the terminal where a run was started: the same commands as `drivetrain control`."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from drivetrain.launch.inbox import post
from drivetrain.spec.commands import Command
from drivetrain.spec.exits import Failure

KEYS = {"p": "pause", "r": "resume", "s": "save", "e": "evaluate", "k": "pin", "q": "stop"}
HELP = "keys: " + ", ".join(f"{key} {verb}" for key, verb in KEYS.items())
_LOOK = 0.2  # seconds


@contextmanager
def keys(run: Path, say: Callable[[str], None], descriptor: int | None = None) -> Iterator[None]:
    """While entered, a key that is pressed becomes a command to the run, and any other one shows what there is.

    Where standard input (or `descriptor`) is no terminal or closed, or in the background, nothing is read. The terminal
    is left as it was, also where the process is quit (Ctrl-\\).
    """
    given = descriptor
    if given is None:
        given = _standard_input()
    if given is None or not os.isatty(given):
        yield
        return
    before = termios.tcgetattr(given)
    ended = threading.Event()
    reader = threading.Thread(target=_read, args=(given, run, say, ended), name="keys", daemon=True)
    reader.start()

    def end() -> None:
        ended.set()
        reader.join()
        with suppress(OSError, termios.error):  # the terminal is gone
            if _in_front(given):
                termios.tcsetattr(given, termios.TCSADRAIN, before)

    with _before_quitting(end):
        try:
            yield
        finally:
            end()


@contextmanager
def _before_quitting(end: Callable[[], None]) -> Iterator[None]:
    """While entered, SIGQUIT ends the process as it does without us, after `end`."""
    if threading.current_thread() is not threading.main_thread():  # only that one may handle signals
        yield
        return

    def quit(number: int, _: FrameType | None) -> None:
        end()
        # Sent again without a handler, so that the process ends, and dumps its core, as its parent expects.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGQUIT, quit)
    try:
        yield
    finally:
        signal.signal(signal.SIGQUIT, before)


def _read(descriptor: int, run: Path, say: Callable[[str], None], ended: threading.Event) -> None:
    try:
        while not ended.is_set():
            if not _in_front(descriptor):  # the keys are the shell's
                ended.wait(_LOOK)
                continue
            # At each turn: after Ctrl-Z and fg the shell has set the terminal back.
            tty.setcbreak(descriptor, termios.TCSADRAIN)
            ready, _, _ = select.select([descriptor], [], [], _LOOK)
            pressed = os.read(descriptor, 1).decode(errors="replace") if ready else None
            if pressed == "":
                return
            if pressed in KEYS:
                _post(run, Command(KEYS[pressed]), say)
            elif pressed is not None and pressed.isprintable():
                say(HELP)
    except OSError:
        return  # the terminal is gone: the run goes on


def _post(run: Path, command: Command, say: Callable[[str], None]) -> None:
    try:
        post(run, command)
    except Failure as failure:
        say(failure.outcome.line())


def _in_front(descriptor: int) -> bool:
    return os.tcgetpgrp(descriptor) == os.getpgrp()


def _standard_input() -> int | None:
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return None
