"""Jobs of a Slurm cluster: sbatch, squeue, scancel and scontrol, and a file system that all nodes share.

The output of `--json` differs between Slurm's versions, so states are read from formats that do not.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from drivetrain.launch import attempts
from drivetrain.launch.job_runner import run_job
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
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "SLURM_CONF")
"""What sbatch, and so the job, sees of the environment it is called from: nothing else leaks into jobs."""
OURS = frozenset(
    {
        *("job-name", "comment", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "mem", "gpus-per-node", "time"),
        *("partition", "account", "signal", "requeue", "no-requeue", "open-mode", "output", "error", "chdir"),
        *("dependency", "parsable", "export", "export-file", "wrap", "array", "input", "test-only", "wait"),
        *("clusters", "help", "usage", "version", "uid", "gid"),
    }
)
"""Options of sbatch that follow from the job's description, and those that would make another kind of job of it."""
STATES: Mapping[str, State] = {
    **dict.fromkeys(("PENDING", "CONFIGURING"), State.PENDING),
    **dict.fromkeys(("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"), State.RUNNING),
    **dict.fromkeys(("COMPLETING", "STAGE_OUT"), State.STOPPING),
    **dict.fromkeys(("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"), State.REQUEUED),
    "COMPLETED": State.SUCCEEDED,
    "CANCELLED": State.CANCELLED,
}
"""What is none of these has failed: FAILED, TIMEOUT, NODE_FAIL, PREEMPTED, OUT_OF_MEMORY, BOOT_FAIL, DEADLINE."""
_PENDING = re.compile(r"Job is pending execution")  # of a requeued job whose lost nodes Slurm still waits for
_LIMIT = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")
_SCRIPT = re.compile(r"\bCommand=(.*?)/job\.sh\b", re.DOTALL)
_GONE = re.compile(r"Invalid job id|already completing or completed|Job has already finished", re.IGNORECASE)
_AWAY = re.compile(
    r"contact slurm controller|Connection refused|Socket timed out|try again|munge|authentication"
    r"|configuration source",  # of a cluster that hands its configuration out
    re.IGNORECASE,
)
_RETRY = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # seconds between tries while slurmctld is away
_TIMEOUT = 30.0  # seconds that one of Slurm's commands may take inside a job
_SELDOM = 5.0  # seconds between two looks of someone who follows a job
_WAIT = 20  # seconds that srun gives the other nodes once one has ended


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
            Request("command", shlex.join(self._command(job))),
            Request(str(job.folder / "job.sh"), SCRIPT),
            Request(str(job.folder / FILE), job.work.text()),
        ]

    def submit(self, job: Submission) -> str:
        """sbatch; one job of a token at a time, by Slurm's `singleton`, and one for ever, by the conductor's claim."""
        lay(job)
        write_private(job.folder / "job.sh", SCRIPT.encode())
        said = self._run(*self._command(job)).strip()
        if not said.isdigit():
            raise Failure(Exit.BAD_RECIPE, f"sbatch: {said!r} names no job", "see the target's extras")
        return said

    def find(self, job: Submission) -> str | None:
        """The newest job of this name, or the one that has the job's folder."""
        known = self._run("squeue", "--me", "-h", "-t", "all", "-n", job.token, "-o", "%i").split()
        return max(known, key=int) if known else owner(job) or self._remembered(job)

    def look(self, job: Submission, native: str) -> JobStatus:
        """From squeue; of a job that slurmctld has forgotten, from accounting and the job's own folder."""
        try:
            line = self._run("squeue", "-h", "-t", "all", "-j", native, "-o", "%T|%r|%S").strip()
        except _Refused as refused:
            if not _GONE.search(refused.outcome.cause):
                raise
            line = ""
        if not line:
            line = self._accounted("-j", native, "-o", "State,Reason,Start")
        if not line:
            return complete_status(job, UNKNOWN)
        word, reason, start = line.splitlines()[0].split("|")[:3]
        seen = complete_status(job, seen_as(word, reason, start))
        return replace(seen, state=State.REQUEUED) if self._waits_again(job, seen.state) else seen

    def logs(self, job: Submission, native: str, rank: int | None, follow: bool) -> Iterator[str]:
        """From the files of the job's folder."""
        return printed(job, rank, self._ended(job, native) if follow else None)

    def cancel(self, job: Submission, native: str) -> None:
        """No requeue any more, neither ours nor Slurm's; then scancel, whose SIGTERM commits."""
        for command in (("scontrol", "update", f"JobId={native}", "Requeue=0"), ("scancel", native)):
            try:
                self._run(*command)
            except _Refused as refused:
                if not _GONE.search(refused.outcome.cause):
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
            except _Refused as refused:
                if not _PENDING.search(refused.outcome.cause):
                    raise
            unmark_cancelled(job)
            return native
        unmark(job)
        return self.submit(job)

    def listed(self) -> Sequence[Listed]:
        """From squeue."""
        lines = self._run("squeue", "--me", "-h", "-t", "all", "-o", "%k|%j|%i|%T|%r|%S").splitlines()
        ours = [line.split("|") for line in lines if line.startswith(f"{COMMENT}|")]
        return [Listed(name, native, seen_as(*rest)) for _, name, native, *rest in ours]

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

    def _command(self, job: Submission) -> list[str]:
        settings = self._settings
        gpus = f"{settings.accelerator}:" if settings.accelerator else ""
        options: dict[str, object] = {
            "job-name": job.token,
            "comment": COMMENT,
            "dependency": "singleton",
            "nodes": settings.nodes,
            "ntasks-per-node": 1,
            "cpus-per-task": settings.cpus,
            "mem": settings.memory,
            "gpus-per-node": f"{gpus}{settings.accelerators}" if settings.accelerators else None,
            "time": math.ceil(seconds_of(settings.walltime) / 60) if settings.walltime is not None else None,
            "partition": settings.queue,
            "account": settings.role,
            "signal": f"B:USR1@{round(settings.lead)}" if settings.walltime is not None and settings.lead else None,
            "requeue": True,
            "open-mode": "append",
            "output": "/dev/null",  # the script has one of its own: Slurm would read % and \\ in a path
            **_checked(job.target, settings.extras),
        }
        given = {name: value for name, value in options.items() if value is not None and value is not False}
        written = [f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items()]
        python = settings.python or sys.executable
        arguments = [str(job.folder / "job.sh"), python, str(job.folder / FILE), settings.setup or ""]
        return ["sbatch", "--parsable", *written, *arguments]

    def _waits_again(self, job: Submission, state: State) -> bool:
        """Whether it has begun before: a requeued job is COMPLETING for as long as one of its nodes does not answer."""
        if state is State.STOPPING:
            return attempts.read(job.folder).state == "requeued"
        return state is State.PENDING and owner(job) is not None

    def _ended(self, job: Submission, native: str) -> Callable[[], bool]:
        """Whether a job has ended, as it was when last asked, every few seconds; its files are read meanwhile."""
        following, ended, patience = -math.inf, False, OutagePatience()

        def ask() -> bool:
            nonlocal following, ended
            if time.monotonic() >= following:
                pause = _SELDOM
                try:
                    ended = self.look(job, native).state.final
                    patience.answered()
                except Failure as failure:
                    pause = patience.bear(failure)
                following = time.monotonic() + pause
            return ended

        return ask

    def _remembered(self, job: Submission) -> str | None:
        since = time.strftime("%Y-%m-%d", time.localtime(job.work.job.started))
        known = self._accounted("--name", job.token, "-S", since, "-o", "JobID").split()
        return max(known, key=int, default=None)

    def _accounted(self, *arguments: str) -> str:
        """What sacct says; nothing where the cluster keeps no accounts."""
        try:
            return self._run("sacct", "-X", "-n", "-P", *arguments)
        except _Refused:
            return ""

    def _run(self, *command: str) -> str:
        return run_slurm(command, self._settings.timeout)


class _Refused(Failure):
    """Slurm answered, and does not do it."""


def run_slurm(command: Sequence[str], timeout: float) -> str:
    """The output of one of Slurm's commands. Raises Failure: 66 where it is not installed, 69 where there is no answer
    in `timeout` seconds or the controller is away, 78 where it is refused."""
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout, env=environment, check=False
        )
    except FileNotFoundError as error:
        raise Failure(Exit.INPUT_MISSING, f"{command[0]} is not installed here", "submit where Slurm is") from error
    except OSError as error:
        raise Failure(Exit.BAD_RECIPE, f"{command[0]}: {error}", "an argument is too long for this system") from error
    except subprocess.TimeoutExpired as error:
        cause = f"{command[0]}: no answer in {timeout:g} s"
        raise Failure(Exit.PEER_UNAVAILABLE, cause, "ask again; nothing is lost") from error
    if done.returncode == 0:
        return done.stdout
    said = " ".join(done.stderr.split()) or f"status {done.returncode}"
    if _AWAY.search(said):
        raise Failure(Exit.PEER_UNAVAILABLE, f"{command[0]}: {said}", "ask again; nothing is lost")
    raise _Refused(Exit.BAD_RECIPE, f"{command[0]}: {said}", "Slurm refuses it")


def seen_as(word: str, reason: str, start: str) -> JobStatus:
    """What squeue's and sacct's words mean: `CANCELLED by 1000` too."""
    native = word.split()[0].rstrip("+") if word.split() else "?"
    reason = "" if reason in ("None", "(null)") else reason
    return JobStatus(state=STATES.get(native, State.FAILED), native=native, reason=reason, began=_unix(start))


def _checked(target: str, extras: Mapping[str, object]) -> dict[str, object]:
    """Options that are passed through by name. They are arguments, not text of the script, so their values are free."""
    for name in extras:
        if len(name) == 1 or any(ours.startswith(name) for ours in OURS):  # sbatch takes what begins an option for it
            cause = f"target {target}: extras.{name} follows from the job's description"
            raise Failure(Exit.BAD_RECIPE, cause, "use long names; set nodes, cpus, memory, walltime, queue and so on")
    return dict(extras)


class _Allocation:
    """The conductor's engine: the batch job that it is in."""

    elsewhere = True

    def __init__(self, work: NodeWork, environment: Mapping[str, str]) -> None:
        self._nodes, self._cpus = work.nodes, environment.get("SLURM_CPUS_PER_TASK")
        self._environment = environment
        self.native = environment["SLURM_JOB_ID"]

    def start(self, command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """srun, one task a node. It does not take over the batch job's CPUs by itself."""
        cpus = [f"--cpus-per-task={self._cpus}"] if self._cpus else []
        tasks = [f"--nodes={self._nodes}", f"--ntasks={self._nodes}", "--ntasks-per-node=1", *cpus]
        ends = ["--kill-on-bad-exit=0", f"--wait={_WAIT}", "--input=none", "--mpi=none"]
        end = {"SLURM_JOB_END_TIME": str(round(self._limit() or 0) or "")}  # what newer Slurms tell by themselves
        return subprocess.Popen(["srun", *tasks, *ends, *command], env={**os.environ, **end, **environment})

    def stop(self) -> None:
        """Through Slurm: srun itself would kill the tasks at a SIGTERM."""
        run_slurm(["scancel", "--signal=TERM", self.native], _TIMEOUT)

    def requeue(self) -> None:
        """Unless the job is being cancelled, which shows in its state."""
        state = _patiently("squeue", "-h", "-j", self.native, "-o", "%T").strip()
        if state != "RUNNING" and not self._out_of_time():
            raise Failure(Exit.STOPPED, f"Slurm is ending the job ({state})", "`drivetrain requeue` starts it again")
        _patiently("scontrol", "requeue", self.native)

    def address(self) -> str:
        """The first node's NodeAddr: its name need not resolve."""
        first = _patiently("scontrol", "show", "hostnames", self._environment["SLURM_JOB_NODELIST"]).split()[0]
        match = re.search(r"\bNodeAddr=(\S+)", _patiently("scontrol", "show", "node", first))
        return match.group(1) if match else first

    def _out_of_time(self) -> bool:
        limit = self._limit()
        return limit is not None and limit <= time.time()

    def _limit(self) -> float | None:
        """When the job's time is up, in Unix seconds; None for never. Its end is another thing: a cancel moves that."""
        start, _, limit = _patiently("squeue", "-h", "-j", self.native, "-o", "%S|%l").strip().partition("|")
        began, seconds = _unix(start), _duration(limit)
        return began + seconds if began is not None and seconds is not None else None


def _unix(shown: str) -> float | None:
    """Unix seconds of a time as Slurm shows it; None where that is none."""
    try:
        return time.mktime(time.strptime(shown, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def _duration(shown: str) -> float | None:
    """Seconds of a time limit as Slurm shows it, D-HH:MM:SS from the first part that is not 0; None for UNLIMITED."""
    match = _LIMIT.fullmatch(shown)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _patiently(*command: str) -> str:
    """`run_slurm`, again and again for a while where the controller is away."""
    for pause in _RETRY:
        try:
            return run_slurm(command, _TIMEOUT)
        except Failure as failure:
            if failure.outcome.code is not Exit.PEER_UNAVAILABLE:
                raise
            time.sleep(pause)
    return run_slurm(command, _TIMEOUT)


def run(file: Path) -> int:
    """Conduct the job of a file from inside its batch job."""
    if "SLURM_JOB_ID" not in os.environ:
        raise Failure(Exit.BAD_COMMAND, "this is no batch job of Slurm", "`drivetrain submit` starts it")
    return run_job(file, _Allocation(NodeWork.read(file), os.environ))
