"""Whether a run directory answers: what looks like a hang may be a disk that stalls."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

_WRITE = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
os.write(descriptor, b"?")
os.fsync(descriptor)
os.unlink(sys.argv[1])
"""


class DirectoryProbe:
    """Writes a small file where it is asked to, from a process of its own: on a disk that stalls the kernel may let
    none end that writes."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = folder / "logs" / ".probe"
        self._clock = clock
        self._writer: subprocess.Popen[bytes] | None = None
        self._since = 0.0

    def silent(self, within: float) -> float:
        """Seconds for which the directory has not answered; 0 where it does so in so many seconds, or refuses."""
        if self._writer is None:
            self._since = self._clock()
            command = [sys.executable, "-I", "-S", "-c", _WRITE, str(self._file)]
            self._writer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            self._writer.wait(within)
        except subprocess.TimeoutExpired:
            return self._clock() - self._since
        self._writer = None
        return 0.0
