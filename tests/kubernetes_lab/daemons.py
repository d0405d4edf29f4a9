"""Programs that are started, waited for and ended by their process ids."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class Daemons:
    """Long-running programs of one folder, each with its log there; they end in the reverse order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: object) -> int:
        """Start a program in a session of its own, and return its process id."""
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running.append(
                subprocess.Popen(
                    [str(word) for word in command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                    start_new_session=True,
                )
            )
        return self._running[-1].pid

    def end(self) -> None:
        """End them all, the last one first."""
        while self._running:
            process = self._running.pop()
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def until(ask: Callable[[], Any], what: str, timeout: float = 120.0) -> Any:
    """The first answer that is true. Raises TimeoutError, with what was waited for."""
    end = time.monotonic() + timeout
    while not (answer := ask()):
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.2)
    return answer


def processes_with(mark: bytes, name: str) -> list[int]:
    """The processes of this machine that have a text in their `cmdline` or `environ`, the oldest first."""
    found = []
    for pid in sorted(int(one) for one in os.listdir("/proc") if one.isdigit() and int(one) != os.getpid()):
        with suppress(OSError):  # it has ended
            if mark in Path(f"/proc/{pid}/{name}").read_bytes():
                found.append(pid)
    return found


@contextmanager
def bridge(name: str, address: str) -> Iterator[None]:
    """A network of this machine's own, as long as it is wanted."""
    subprocess.run(["ip", "link", "add", name, "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "address", "add", address, "dev", name], check=True)
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
        yield
    finally:
        subprocess.run(["ip", "link", "delete", name], check=True)
