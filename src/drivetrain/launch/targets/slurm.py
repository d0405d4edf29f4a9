"""Jobs of a Slurm cluster: sbatch, squeue, scancel and scontrol, and a file system that all nodes share.

The output of `--json` differs between Slurm's versions, so states are read from formats that do not.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from drivetrain.launch import attempts
from drivetrain.launch.patience import OutagePatience
from drivetrain.launch.states import UNKNOWN, JobStatus, State
from drivetrain.launch.submission import FILE, NodeWork, Submission
from drivetrain.launch.targets.recipe import ResourceSpec, Text
from drivetrain.launch.targets.shared import (
    complete_status,
    lay,
    owner,
    printed,
    require_files,
    require_shared,
    unmark,
    unmark_cancelled,
)
from drivetrain.launch.targets.slurm_commands import GONE, SlurmRefused, run_slurm, seen_as
from drivetrain.launch.targets.target import Listed, Request
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_private
from drivetrain.spec.settings import Count, NonNegative, nothing, seconds_of

SCRIPT = """#!/bin/bash
# The same for every job: what is particular to one comes as arguments. A signal that comes before the conductor
# can hear it is not to end the job.
trap '' USR1 TERM
umask 077
exec >> "${2%/*}/output/conductor.log" 2>&1
[ -z "$3" ] || . "$3" || exit 66
exec "$1" -m drivetrain worker --conduct slurm "$2"
"""
COMMENT = "drivetrain"
"""What tells our jobs from others."""
OURS = frozenset(
    {
        *("job-name", "comment", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "mem", "gpus-per-node", "time"),
        *("partition", "account", "signal", "requeue", "no-requeue", "open-mode", "output", "error", "chdir"),
        *("dependency", "parsable", "export", "export-file", "wrap", "array", "input", "test-only", "wait"),
        *("clusters", "help", "usage", "version", "uid", "gid"),
    }
)
"""Options of sbatch that follow from the job's description, and those that would make another kind of job of it."""
_PENDING = re.compile(r"Job is pending execution")  # of a requeued job whose lost nodes Slurm still waits for
_SCRIPT = re.compile(r"\bCommand=(.*?)/job\.sh\b", re.DOTALL)
_SELDOM = 5.0  # seconds between two looks of someone who follows a job


@dataclass(frozen=True, kw_only=True)
class SlurmTarget(ResourceSpec):
    """A Slurm cluster whose commands work where the job is submitted, and a file system that all its nodes share."""

    unused: ClassVar[tuple[str, ...]] = ("image", "mounts", "namespace")
    factory: ClassVar[str] = "drivetrain.launch.targets.slurm:Slurm"
    kind: Annotated[Literal["slurm"], nothing("sbatch, squeue, scancel, scontrol")] = "slurm"
    setup: Annotated[Text | None, nothing("a shell file on the shared file system that every node reads first")] = None
    lead: Annotated[NonNegative, nothing("seconds before the walltime at which Slurm signals it; 0: never")] = 120.0
    timeout: Annotated[Count, nothing("seconds that one of Slurm's commands may take")] = 30


class Slurm:
    """Every attempt is one batch job; on its first node the conductor starts one worker a node by srun."""

    def __init__(self, settings: SlurmTarget) -> None:
        self._settings = settings

    def render(self, job: Submission) -> Sequence[Request]:
        """The sbatch command, its script, and the file that the job reads."""
        settings = self._settings
        require_files(job)
        require_shared(job)
        if settings.walltime is not None and seconds_of(settings.walltime) <= settings.lead:
            cause = f"target {job.target}: a walltime of {settings.walltime} <= lead, {settings.lead:g} s"
            raise Failure(Exit.BAD_RECIPE, cause, "ask for more time, or set lead")
        return [
            Request("command", shlex.join(_sbatch(job, self._settings))),
            Request(str(job.folder / "job.sh"), SCRIPT),
            Request(str(job.folder / FILE), job.work.text()),
        ]

    def submit(self, job: Submission) -> str:
        """sbatch; one job of a token at a time, by Slurm's `singleton`, and one for ever, by the conductor's claim."""
        lay(job)
        write_private(job.folder / "job.sh", SCRIPT.encode())
        said = self._run(*_sbatch(job, self._settings)).strip()
        if not said.isdigit():
            raise Failure(Exit.BAD_RECIPE, f"sbatch: {said!r} names no job", "see the target's extras")
        return said

    def find(self, job: Submission) -> str | None:
        """The newest job of this name, or the one that has the job's folder."""
        known = self._run("squeue", "--me", "-h", "-t", "all", "-n", job.token, "-o", "%i").split()
        if known:
            return max(known, key=int)
        # slurmctld forgets a job minutes after its end: the conductor's claim and accounting remember it longer.
        return owner(job) or self._remembered(job)

    def look(self, job: Submission, native: str) -> JobStatus:
        """From squeue; of a job that slurmctld has forgotten, from accounting and the job's own folder."""
        try:
            line = self._run("squeue", "-h", "-t", "all", "-j", native, "-o", "%T|%r|%S").strip()
        except SlurmRefused as refused:
            if not GONE.search(refused.outcome.cause):
                raise
            line = ""
        if not line:
            line = self._accounted("-j", native, "-o", "State,Reason,Start")
        if not line:
            return complete_status(job, UNKNOWN)
        word, reason, start = line.splitlines()[0].split("|")[:3]
        seen = complete_status(job, seen_as(word, reason, start))
        if _waits_again(job, seen.state):
            return replace(seen, state=State.REQUEUED)
        return seen

    def logs(self, job: Submission, native: str, rank: int | None, follow: bool) -> Iterator[str]:
        """From the files of the job's folder."""
        if not follow:
            return printed(job, rank, None)
        return printed(job, rank, _seldom(lambda: self.look(job, native).state.final))

    def cancel(self, job: Submission, native: str) -> None:
        """No requeue any more, neither ours nor Slurm's; then scancel, whose SIGTERM commits."""
        # In this order: Slurm would start a job again that it may requeue, and a cancelled one would train to its end.
        for command in (("scontrol", "update", f"JobId={native}", "Requeue=0"), ("scancel", native)):
            try:
                self._run(*command)
            except SlurmRefused as refused:
                if not GONE.search(refused.outcome.cause):
                    raise

    def requeue(self, job: Submission, native: str) -> str:
        """`scontrol requeue`, or another job where Slurm does not want this one any more."""
        seen = self.look(job, native)
        if seen.state in (State.PENDING, State.REQUEUED):
            unmark_cancelled(job)
            return native
        if not seen.state.final:
            try:
                self._run("scontrol", "requeue", native)
            except SlurmRefused as refused:
                if not _PENDING.search(refused.outcome.cause):
                    raise
            # Only now: had Slurm refused, the job's own cancel would still hold.
            unmark_cancelled(job)
            return native
        unmark(job)
        return self.submit(job)

    def listed(self) -> Sequence[Listed]:
        """From squeue."""
        lines = self._run("squeue", "--me", "-h", "-t", "all", "-o", "%k|%j|%i|%T|%r|%S").splitlines()
        jobs = []
        for line in lines:
            if line.startswith(f"{COMMENT}|"):
                _, name, native, *rest = line.split("|")
                jobs.append(Listed(name, native, seen_as(*rest)))
        return jobs

    def work(self, native: str) -> NodeWork:
        """From the job's folder, where its script lies."""
        match = _SCRIPT.search(self._run("scontrol", "show", "job", "-o", native))
        if match is None:
            cause = f"Slurm job {native} has another script than ours"
            raise Failure(Exit.INPUT_MISSING, cause, "it was not submitted by this program")
        return NodeWork.read(Path(match.group(1)) / FILE)

    def reachable(self) -> str:
        """The controller's answer, and its partitions."""
        version = self._run("squeue", "--version").strip()
        partitions = self._run("sinfo", "-h", "-o", "%P").split()
        return f"{version}, partitions {', '.join(partitions)}"

    def _remembered(self, job: Submission) -> str | None:
        since = time.strftime("%Y-%m-%d", time.localtime(job.work.job.started))
        known = self._accounted("--name", job.token, "-S", since, "-o", "JobID").split()
        return max(known, key=int, default=None)

    def _accounted(self, *arguments: str) -> str:
        """What sacct says; nothing where the cluster keeps no accounts."""
        try:
            return self._run("sacct", "-X", "-n", "-P", *arguments)
        except SlurmRefused:
            return ""

    def _run(self, *command: str) -> str:
        return run_slurm(command, self._settings.timeout)


def _sbatch(job: Submission, settings: SlurmTarget) -> list[str]:
    """The command that submits a job. Nothing of the job is text of a script: all of it are arguments."""
    gpus = None
    if settings.accelerators:
        kind = f"{settings.accelerator}:" if settings.accelerator else ""
        gpus = f"{kind}{settings.accelerators}"
    minutes = signal = None
    if settings.walltime is not None:
        minutes = math.ceil(seconds_of(settings.walltime) / 60)
        if settings.lead:
            # B: only the script gets it. Every process of a step would end at a USR1 that it does not handle.
            signal = f"B:USR1@{round(settings.lead)}"
    options: dict[str, object] = {
        "job-name": job.token,
        "comment": COMMENT,
        # One job of a name at a time: a request that was sent twice must not train beside itself.
        "dependency": "singleton",
        "nodes": settings.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": settings.cpus,
        "mem": settings.memory,
        "gpus-per-node": gpus,
        "time": minutes,
        "partition": settings.queue,
        "account": settings.role,
        "signal": signal,
        "requeue": True,
        "open-mode": "append",
        # The script has an output of its own: Slurm would read % and \\ in a path.
        "output": "/dev/null",
        **_checked(job.target, settings.extras),
    }
    command = ["sbatch", "--parsable"]
    for name, value in options.items():
        if value is True:
            command.append(f"--{name}")
        elif value is not None and value is not False:
            command.append(f"--{name}={value}")
    python = settings.python or sys.executable
    return [*command, str(job.folder / "job.sh"), python, str(job.folder / FILE), settings.setup or ""]


def _waits_again(job: Submission, state: State) -> bool:
    """Whether it has begun before: a requeued job is COMPLETING for as long as one of its nodes does not answer."""
    if state is State.STOPPING:
        return attempts.read(job.folder).state == "requeued"
    return state is State.PENDING and owner(job) is not None


def _seldom(look: Callable[[], bool]) -> Callable[[], bool]:
    """Whether a job has ended, as it was when last asked, every few seconds; its files are read meanwhile."""
    following, ended, patience = -math.inf, False, OutagePatience()

    def ask() -> bool:
        nonlocal following, ended
        # Files are read several times a second; squeue so often would be a burden on every user's controller.
        if time.monotonic() >= following:
            pause = _SELDOM
            try:
                ended = look()
                patience.answered()
            except Failure as failure:
                pause = patience.bear(failure)
            following = time.monotonic() + pause
        return ended

    return ask


def _checked(target: str, extras: Mapping[str, object]) -> dict[str, object]:
    """Options that are passed through by name. They are arguments, not text of the script, so their values are free."""
    for name in extras:
        if len(name) == 1 or any(ours.startswith(name) for ours in OURS):  # sbatch takes what begins an option for it
            cause = f"target {target}: extras.{name} follows from the job's description"
            raise Failure(Exit.BAD_RECIPE, cause, "use long names; set nodes, cpus, memory, walltime, queue and so on")
    return dict(extras)
