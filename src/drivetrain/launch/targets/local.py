"""Jobs in the background of this machine."""

from __future__ import annotations

import os
import platform
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from drivetrain.launch.forkserver import die_with_parent
from drivetrain.launch.job_runner import run_job
from drivetrain.launch.output import CONDUCTOR, FOLDER, private
from drivetrain.launch.states import UNKNOWN, JobStatus, State
from drivetrain.launch.submission import FILE, NodeWork, Submission
from drivetrain.launch.targets.recipe import ResourceSpec
from drivetrain.launch.targets.shared import complete_status, lay, owner, printed, require_files, unmark
from drivetrain.launch.targets.target import Listed, Request
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.settings import nothing


@dataclass(frozen=True, kw_only=True)
class LocalTarget(ResourceSpec):
    """This machine, in the background. Several nodes are several groups of processes on it, which is for trying out."""

    unused: ClassVar[tuple[str, ...]] = (
        *("accelerators", "accelerator", "cpus", "memory", "walltime", "image", "mounts"),
        *("queue", "namespace", "role", "extras"),
    )
    factory: ClassVar[str] = "drivetrain.launch.targets.local:LocalJobs"
    kind: Annotated[Literal["local"], nothing("this machine")] = "local"


class LocalJobs:
    """A process of this user conducts the job; its name is PID:START, so that a number that comes again is not it."""

    def __init__(self, settings: LocalTarget) -> None:
        self._settings = settings

    def render(self, job: Submission) -> Sequence[Request]:
        """The command line, and the file that it reads."""
        require_files(job)
        return [Request("command", shlex.join(self._command(job))), Request(str(job.folder / FILE), job.work.text())]

    def submit(self, job: Submission) -> str:
        """Start the process."""
        lay(job)
        with open(job.folder / FOLDER / CONDUCTOR, "ab", opener=private) as log:
            command = self._command(job)
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            except OSError as error:
                cause = f"target {job.target}: {command[0]} cannot be started: {error.strerror}"
                raise Failure(Exit.INPUT_MISSING, cause, "set its python, or leave that out") from error
        # A process that has ended by now has no start to be read; 0 is no process's.
        return name_of(process.pid) or f"{process.pid}:0"

    def find(self, job: Submission) -> str | None:
        """The process that has the job."""
        return owner(job)

    def look(self, job: Submission, native: str) -> JobStatus:
        """Whether the process is there, or how it has ended."""
        if _alive(native):
            return complete_status(job, JobStatus(state=State.RUNNING, native="running"))
        seen = complete_status(job, UNKNOWN)
        if seen.code is None:
            return seen
        return replace(seen, native="ended")

    def logs(self, job: Submission, native: str, rank: int | None, follow: bool) -> Iterator[str]:
        """From the files of the job's folder."""
        return printed(job, rank, (lambda: not _alive(native)) if follow else None)

    def cancel(self, job: Submission, native: str) -> None:
        """SIGTERM, which commits first."""
        if _alive(native):
            with suppress(ProcessLookupError):
                os.kill(int(native.partition(":")[0]), signal.SIGTERM)

    def requeue(self, job: Submission, native: str) -> str:
        """Another process, once this one has ended."""
        if _alive(native):
            raise Failure(Exit.BAD_COMMAND, f"{job.token} is running", "cancel it first: it goes on from its commit")
        unmark(job)
        return self.submit(job)

    def listed(self) -> Sequence[Listed]:
        """None: this machine keeps no list but the store's."""
        return ()

    def work(self, native: str) -> NodeWork:
        """Nothing: of what runs here the store has all."""
        raise Failure(
            Exit.INPUT_MISSING, f"nothing is kept of {native}", "`drivetrain jobs --all` lists what was submitted"
        )

    def reachable(self) -> str:
        """This machine."""
        return f"{platform.node()}, {os.cpu_count()} cores"

    def _command(self, job: Submission) -> list[str]:
        python = self._settings.python or sys.executable
        return [python, "-m", "drivetrain", "worker", "--conduct", "local", str(job.folder / FILE)]


class _Here:
    """The conductor's engine: every node is a process beside it."""

    elsewhere = False

    def __init__(self, work: NodeWork) -> None:
        self.native = name_of(os.getpid()) or ""
        self._nodes = work.nodes
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str], environment: Mapping[str, str]) -> _Group:
        parent = os.getpid()
        self._processes = []
        for node in range(self._nodes):
            own = {**os.environ, **environment, "DRIVETRAIN_NODE": str(node)}
            # No node outlives its conductor: nobody would stop it, and the next attempt would meet it.
            process = subprocess.Popen(command, env=own, preexec_fn=lambda: die_with_parent(parent))
            self._processes.append(process)
        return _Group(self._processes)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()

    def requeue(self) -> None:
        raise Failure(Exit.STOPPED, "a local job that was stopped stays so", "`drivetrain requeue` starts it again")

    def address(self) -> str:
        return "127.0.0.1"


class _Group:
    """Processes that end together: with the first status that is not 0."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes = processes

    def poll(self) -> int | None:
        """The status once all have ended."""
        statuses = [process.poll() for process in self._processes]
        if None in statuses:
            return None
        return next((status for status in statuses if status), 0)


def run(file: Path) -> int:
    """Conduct the job of a file on this machine."""
    return run_job(file, _Here(NodeWork.read(file)))


def name_of(pid: int) -> str | None:
    """PID:START of a process that is there; None where there is none, or only what is left of it."""
    try:
        # What follows the command's name, which may hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] == "Z":
        return None
    return f"{pid}:{fields[19]}"


def _alive(native: str) -> bool:
    pid = native.partition(":")[0]
    return pid.isdigit() and name_of(int(pid)) == native
