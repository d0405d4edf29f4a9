"""What targets have in common whose jobs run in containers: what they can be given, and how they begin there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from drivetrain.launch.forkserver import die_with_parent
from drivetrain.launch.submission import FILE, NodeWork, Submission
from drivetrain.launch.targets.remote import wrong
from drivetrain.spec.exits import Exit
from drivetrain.spec.files import write_private

AGAIN = Exit.PEER_UNAVAILABLE
"""What a container ends with for all that is worth another attempt, where an engine has no room for more codes."""
ENDED_BY_SIGNAL = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
"""What engines see of a container that was ended from outside: its machine was needed, or its memory was short."""
WORTH_AGAIN = tuple(sorted(int(code) for code in Exit if code.retryable))
"""The exit codes with which an engine that has room for them starts a job again."""
_TICK = 0.1  # seconds


def require_container(job: Submission, *kept: str) -> None:
    """Raises Failure(78) where a container cannot do the job: it has no image, code would have to be brought, or its
    run directory is neither mirrored nor below one of the folders that outlive it (`kept`, and writable mounts)."""
    settings = job.settings
    if not settings.image:
        raise wrong(job, "image is missing", "name one that has drivetrain and what your recipe needs")
    if settings.code.kind != "as_it_stands":
        raise wrong(
            job, f"code.kind {settings.code.kind} cannot be brought into a container", "build it into the image"
        )
    places = list(kept)
    for mount in settings.mounts:
        if not mount.read_only:
            places.append(mount.path)
    mirrored = job.work.job.recipe.get("checkpoint", {}).get("mirror")
    if not mirrored and not any(job.run.is_relative_to(place) for place in places):
        cause = f"the run directory {job.run} goes with the container"
        raise wrong(job, cause, "set runs to a URL, or to a folder below one of the mounts, with read_only: false")


def moved(job: Submission) -> NodeWork:
    """The work as it is in an image, where the folder it was submitted from lies at the target's `folder`."""
    work, folder = job.work, Path(job.settings.folder)  # type: ignore[attr-defined]
    modules = work.job.modules
    if modules and Path(modules).is_relative_to(work.cwd):
        modules = str(folder / Path(modules).relative_to(work.cwd))
    return replace(work, cwd=str(folder), job=replace(work.job, modules=modules))


def own_address() -> str:
    """The address under which other machines reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # An address for documents. UDP sends nothing at a connect: only the way out is chosen, and with it the address.
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]


def start_worker(folder: Path, text: str, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `drivetrain worker` on a work's JSON, which may be longer than one variable can be: it goes into a file of
    this folder. It ends with this process."""
    file, parent = folder / FILE, os.getpid()
    write_private(file, text.encode())
    command = [sys.executable, "-m", "drivetrain", "worker", str(file)]
    environment = {**os.environ, **variables}
    return subprocess.Popen(command, env=environment, preexec_fn=lambda: die_with_parent(parent))


def run_worker(text: str, variables: Mapping[str, str]) -> int:
    """Run `drivetrain worker` on a work's JSON to its end, passing on what asks for a stop; returns its exit code.

    A worker that was killed is told as 69, or as 75 where it was asked to stop before it could hear that.
    """
    received: list[int] = []
    asked = False
    # Before the worker is there: as process 1 of a container this one has no default handlers, and a SIGTERM that comes
    # early would be lost.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: received.append(number))
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
        process = start_worker(Path(folder), text, variables)
        while (code := process.poll()) is None:
            while received:
                process.send_signal(received.pop())
                asked = True
            time.sleep(_TICK)
    if code >= 0:
        return code
    return Exit.STOPPED if asked else AGAIN
