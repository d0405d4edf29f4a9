"""Single keys at a terminal."""

import os
import pty
import resource
import signal
import sys
import termios
import time

import pytest

from drivetrain.cli.keys import HELP, keys
from drivetrain.launch.inbox import Inbox
from processes import wait_until


@pytest.fixture
def terminal(monkeypatch):
    """Both ends of one, in whose foreground we are."""
    master, slave = pty.openpty()
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
    yield master, slave
    os.close(slave)
    os.close(master)


def waiting(run):
    return [str(posted.command) for posted in Inbox(run).take()]


def test_keys_are_commands_and_others_show_what_there_is(terminal, tmp_path):
    master, slave = terminal
    before, said = termios.tcgetattr(slave), []
    with keys(tmp_path, said.append, slave):
        os.write(master, b"psx")
        wait_until(lambda: said, 10)
    assert sorted(waiting(tmp_path)) == ["pause", "save"]
    assert said == [HELP]
    assert termios.tcgetattr(slave) == before


def test_nothing_is_read_in_the_background(terminal, tmp_path, monkeypatch):
    master, slave = terminal
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
    with keys(tmp_path, lambda _: None, slave):
        os.write(master, b"q")
        time.sleep(0.3)
    assert waiting(tmp_path) == []


def test_a_standard_input_that_is_no_terminal_closed_or_absent_is_no_error(tmp_path, monkeypatch):
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with keys(tmp_path, lambda _: None):
            pass
    with keys(tmp_path, lambda _: None):  # closed
        pass
    monkeypatch.setattr(sys, "stdin", None)
    with keys(tmp_path, lambda _: None):
        pass


def test_quitting_leaves_the_terminal_as_it_was(tmp_path):
    code = "import time; from pathlib import Path; from drivetrain.cli.keys import keys\n"
    code += f"with keys(Path({str(tmp_path)!r}), print):\n    time.sleep(60)"
    process, terminal = pty.fork()
    if process == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.execv(sys.executable, [sys.executable, "-c", code])
    before = termios.tcgetattr(terminal)
    wait_until(lambda: not termios.tcgetattr(terminal)[3] & termios.ICANON, 10)
    os.write(terminal, b"\x1c")  # Ctrl-\
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGQUIT
    assert termios.tcgetattr(terminal) == before
    os.close(terminal)
