"""What this machine's kernel tells and offers: out-of-memory kills, core files, memory that looks like a folder."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from drivetrain.spec.exits import Exit, Failure

_MEMORY = Path("/dev/shm")
_PREFIX = "drivetrain-"
_ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri")
_OOM = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def require_supervision() -> None:
    """Raises Failure(78) where the system has no way to hear of any process's end at once, as Linux has."""
    if not hasattr(os, "pidfd_open"):
        cause = f"a supervisor watches processes as Linux lets it (pidfd), and this is {sys.platform}"
        hint = "start the processes by torchrun, or train in one: drivetrain.train(recipe) from Python"
        raise Failure(Exit.BAD_RECIPE, cause, hint)


def oom_kills() -> int:
    """How many processes the kernel has ended for want of memory, in this cgroup or else here; 0 if unknown."""
    for place in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        try:
            match = _OOM.search(Path(place).read_text())
        except OSError:
            continue
        if match:
            return int(match.group(1))
    return 0


def has_accelerator() -> bool:
    """Whether there seems to be a device beside the CPU, as far as can be told without torch."""
    return sys.platform == "darwin" or any(map(os.path.exists, _ACCELERATORS))


def core_pattern() -> str:
    """Where the kernel puts cores."""
    try:
        return Path("/proc/sys/kernel/core_pattern").read_text().strip()
    except OSError:
        return "unknown"


def volatile_folder() -> Path:
    """A new folder, 0700, in memory where there is such a place; those of supervisors that are dead are removed."""
    place = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    # A supervisor that was killed cannot give its memory back: the next one does.
    for old in place.glob(f"{_PREFIX}*"):
        owner = old.name.removeprefix(_PREFIX).partition("-")[0]
        with suppress(OSError):  # another supervisor may just have removed it
            if owner.isdigit() and not Path(f"/proc/{owner}").exists() and old.stat().st_uid == os.getuid():
                shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place))
