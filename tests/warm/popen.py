"""The side of whoever starts a Python."""

from __future__ import annotations

import inspect
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warm.server import LARGEST, Request, is_run

ADDRESS = "DRIVETRAIN_TESTS_WARM"
"""In the environment of whoever may ask the server: where it listens."""
_BEGIN = "import sys, warm.server; warm.server.main(int(sys.argv[1]))"
_PARENT = f"""
import os, subprocess, sys
here = "" if sys.argv[1] == "-c" else os.getcwd()
sys.path[0] = here if sys.argv[1] in ("-c", "-m") else os.path.dirname(os.path.abspath(sys.argv[1]))
sys.path.append({str(Path(__file__).parent.parent)!r})
from warm import popen, server
sys.path.pop()
subprocess.Popen = popen.Popen
server.run(sys.argv[1:])
"""
"""A Python that cannot be a fork, and whose own Pythons are."""
_LIMITS = sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")})
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_Python = subprocess.Popen
_USUAL = {
    "executable": None,
    "preexec_fn": None,
    "close_fds": True,
    "shell": False,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
    "process_group": -1,
}
_execute = inspect.signature(_Python._execute_child)


class Popen(_Python):
    """As `subprocess.Popen`, and as it everywhere but for where some of the processes come from."""

    ready = staticmethod(lambda: None)
    _server: socket.socket | None = None  # tells the status

    def _execute_child(self, *arguments: Any) -> None:
        asked = _execute.bind(self, *arguments).arguments
        if _is_served(asked) and not _is_usual(asked):
            asked["args"] = [sys.executable, "-c", _PARENT, *asked["args"][1:]]
        elif _is_served(asked):
            self.ready()
            self._server = _connected()
            if self._fork(self._server, asked):
                self._child_created = True
                self._close_pipe_fds(*(asked[name] for name in _PIPES))
                return
            self._server = None
        super()._execute_child(*list(asked.values())[1:])

    def _fork(self, server: socket.socket, asked: dict[str, Any]) -> int:
        """Ask for the process; 0 where no fork would be the same."""
        ends = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        files = {number: number if end == -1 else end for number, end in enumerate(ends)}
        files |= {number: number for number in asked["pass_fds"]}
        request = _request(asked, list(files)).to_json()
        socket.send_fds(server, [json.dumps(request).encode()], list(files.values()))
        self.pid = int(server.recv(64))
        return self.pid

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._server is None:
            return super()._try_wait(wait_flags)
        try:
            told = self._server.recv(64, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        # Nothing: what this was forked from has ended, and has taken it along.
        return self.pid, int(told or signal.SIGKILL)

    def _internal_poll(self, *arguments: Any, **options: Any) -> int | None:
        if self._server is None:
            return super()._internal_poll(*arguments, **options)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:  # another thread was first
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _handle_exitstatus(self, sts: int, *arguments: Any) -> None:
        super()._handle_exitstatus(sts, *arguments)
        if self._server is not None:
            self._server.close()


@contextmanager
def served() -> Iterator[None]:
    """Within, Pythons that this process starts are forks of a server, which starts when it is first asked."""
    from unittest import mock  # takes longer to import than all else here

    with (
        tempfile.TemporaryDirectory() as folder,
        _Server(Path(folder) / "warm") as server,
        mock.patch.dict(os.environ, {ADDRESS: server.address}),
        mock.patch.object(subprocess, "Popen", Popen),
        mock.patch.object(Popen, "ready", server.start),
    ):
        yield


class _Server:
    """The server's process, from when it is first needed to the end."""

    def __init__(self, address: Path) -> None:
        self.address = str(address)
        # The session's own: what the test that asks first has changed would keep all others from being the same.
        self._environment = dict(os.environ)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> _Server:
        self._listener.bind(self.address)
        self._listener.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        if self._process is not None:
            self._process.communicate()

    def start(self) -> None:
        if self._process is not None:
            return
        path = [str(Path(__file__).parent.parent), *filter(None, [self._environment.get("PYTHONPATH")])]
        self._process = _Python(
            [sys.executable, "-c", _BEGIN, str(self._listener.fileno())],
            env=self._environment | {"PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.PIPE,  # whose end is the server's end: with this process
            pass_fds=[self._listener.fileno()],
        )


def _connected() -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
    server.connect(os.environ[ADDRESS])
    return server


def _is_served(asked: dict[str, Any]) -> bool:
    """Whether a Python is asked for whose environment has the server."""
    command, environment = asked["args"], os.environ if asked["env"] is None else asked["env"]
    is_python = isinstance(command, list) and command[:1] == [sys.executable] and is_run(command[1:])
    return is_python and ADDRESS in os.environ and os.environ[ADDRESS] == environment.get(ADDRESS)


def _is_usual(asked: dict[str, Any]) -> bool:
    """Whether there is nothing in it that a request cannot tell."""
    return all(asked.get(name, value) == value for name, value in _USUAL.items())


def _request(asked: dict[str, Any], files: list[int]) -> Request:
    environment = os.environ if asked["env"] is None else asked["env"]
    return Request(
        command=[os.fspath(one) for one in asked["args"][1:]],
        folder=os.path.join(os.getcwd(), os.fspath(asked["cwd"] or "")),
        environment={os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
        files=files,
        session=0 if asked["start_new_session"] else os.getsid(0),
        group=os.getpgrp(),
        limits={number: resource.getrlimit(number) for number in _LIMITS},
        umask=_umask(),
        blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        ignored=[number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
    )


def _umask() -> int:
    """As it stands; `os.umask` would have to change it for a moment."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("\nUmask:\t")[2].partition("\n")[0], 8)
