"""A process that has torch loaded and forks workers from itself: the first starts in a second, later ones at once.

Requests and answers are JSON messages on a Unix socket; no pickle. Whoever dies takes what it started with it: the
server ends when the supervisor's end of the socket closes, and the kernel ends the workers with the server.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

_LARGEST = 1 << 20
_MOST_DESCRIPTORS = 4
_PR_SET_PDEATHSIG = 1
_BEGIN = """
import sys
sys.path[:] = filter(None, sys.path)  # not the current folder: a random.py there is not Python's
from drivetrain.launch.forkserver import main
main(sys.argv[1:])
"""


class ForkServer:
    """The supervisor's side."""

    def __init__(self, preload: Sequence[str]) -> None:
        """Start the server; it imports the `preload` modules while the caller goes on."""
        self._preload = preload
        self._begin()

    def _begin(self) -> None:
        # SEQPACKET keeps messages apart, and passes descriptors with the one that they belong to.
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
        with theirs:
            # A session of its own, so that a terminal's Ctrl-C reaches the supervisor only.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BEGIN, str(theirs.fileno()), *self._preload],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def fileno(self) -> int:
        """For select: readable when there is news."""
        return self._socket.fileno()

    def start(self, worker: str, rank: int, arguments: Sequence[Any], descriptors: Sequence[int] = ()) -> None:
        """Fork a worker that calls `worker` (`package.module:name`) with these arguments (JSON data).

        Its last argument is the list of its own copies of `descriptors`.
        """
        message = json.dumps({"worker": worker, "rank": rank, "arguments": list(arguments)}).encode()
        socket.send_fds(self._socket, [message], list(descriptors))

    def news(self) -> dict[str, Any]:
        """The next message: {"rank", "pid"} when a worker has started, {"rank", "pid", "status"} when it has ended.

        `status` is its exit code, or minus the signal that ended it. Raises ConnectionError where the server has died.
        """
        data = self._socket.recv(_LARGEST)
        if not data:
            raise ConnectionError("the forkserver has died")
        return json.loads(data)

    def status(self) -> int:
        """How the server has ended, once it has died: its exit code, or minus the signal that ended it."""
        return self._process.wait()

    def revive(self) -> None:
        """Start it again, where it has died."""
        if self._process.poll() is not None:
            self._socket.close()
            self._begin()

    def close(self) -> None:
        """End the server, and with it every worker."""
        self._socket.close()
        self._process.wait()


def serve(control: socket.socket) -> None:
    """The server's side: fork at each request, tell each end, until the supervisor is gone."""
    children: dict[int, tuple[int, int]] = {}  # pidfd: (rank, pid)
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd != control.fileno():
                    rank, pid = children.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    control.send(json.dumps({"rank": rank, "pid": pid, "status": status}).encode())
                    continue
                message, descriptors, _, _ = socket.recv_fds(control, _LARGEST, _MOST_DESCRIPTORS)
                # A request outlives whoever sent it, and may have waited for the imports.
                if not message or _is_gone(control):
                    return
                request = json.loads(message)
                pid = _fork(control, request, list(descriptors))
                for descriptor in descriptors:
                    os.close(descriptor)
                # The number cannot be another process's yet: nobody but this loop waits for the child.
                handle = os.pidfd_open(pid)
                children[handle] = request["rank"], pid
                selector.register(handle, selectors.EVENT_READ)
                control.send(json.dumps({"rank": request["rank"], "pid": pid}).encode())


def _is_gone(control: socket.socket) -> bool:
    """Whether the supervisor's end is closed, whatever still waits to be read from it."""
    look = select.poll()
    look.register(control, select.POLLRDHUP)
    return bool(look.poll(0))


def _fork(control: socket.socket, request: dict[str, Any], descriptors: list[int]) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        die_with_parent(server)
        control.close()
        module, _, name = request["worker"].partition(":")
        code = getattr(import_module(module), name)(*request["arguments"], descriptors)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 70
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; at once if that has happened."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The kernel sends nothing for a parent that had died before the request.
    if os.getppid() != parent:
        os._exit(70)


def main(arguments: Sequence[str]) -> None:
    """The server's process: DESCRIPTOR MODULE ..."""
    control = socket.socket(fileno=int(arguments[0]))
    control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
    # Workers inherit this: a request to stop waits until they can hear it.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    code = 70
    try:
        for module in arguments[1:]:
            import_module(module)
        serve(control)
        code = 0
    except (BrokenPipeError, ConnectionResetError):  # the supervisor has gone since it was looked for
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def _leave(code: int) -> NoReturn:
    """End this process at once: the teardown of what is loaded takes seconds, in which a server's workers would go
    on."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
