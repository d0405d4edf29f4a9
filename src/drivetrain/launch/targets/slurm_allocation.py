"""What conducts a Slurm job from inside its batch job: the allocation as the job runner's engine."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from drivetrain.launch.job_runner import run_job
from drivetrain.launch.submission import NodeWork
from drivetrain.launch.targets.slurm_commands import duration, run_slurm, unix_time
from drivetrain.spec.exits import Exit, Failure

_RETRY = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # seconds between tries while slurmctld is away
_TIMEOUT = 30.0  # seconds that one of Slurm's commands may take inside a job
_WAIT = 20  # seconds that srun gives the other nodes once one has ended


class Allocation:
    """The conductor's engine: the batch job that it is in."""

    elsewhere = True

    def __init__(self, work: NodeWork, environment: Mapping[str, str]) -> None:
        self._nodes, self._cpus = work.nodes, environment.get("SLURM_CPUS_PER_TASK")
        self._environment = environment
        self.native = environment["SLURM_JOB_ID"]

    def start(self, command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """srun, one task a node. It does not take over the batch job's CPUs by itself."""
        tasks = [f"--nodes={self._nodes}", f"--ntasks={self._nodes}", "--ntasks-per-node=1"]
        if self._cpus:
            tasks.append(f"--cpus-per-task={self._cpus}")
        # srun kills no node at another's failure: each has `_WAIT` seconds to say how it ended.
        ends = ["--kill-on-bad-exit=0", f"--wait={_WAIT}", "--input=none", "--mpi=none"]
        # What newer Slurms tell by themselves: by it the trainer stops in time.
        end = {"SLURM_JOB_END_TIME": str(round(self._limit() or 0) or "")}
        return subprocess.Popen(["srun", *tasks, *ends, *command], env={**os.environ, **end, **environment})

    def stop(self) -> None:
        """Through Slurm: srun itself would kill the tasks at a SIGTERM."""
        run_slurm(["scancel", "--signal=TERM", self.native], _TIMEOUT)

    def requeue(self) -> None:
        """Unless the job is being cancelled, which shows in its state."""
        # A job that requeues itself undoes a scancel: it would come back, and train to its end.
        state = _patiently("squeue", "-h", "-j", self.native, "-o", "%T").strip()
        if state != "RUNNING" and not self._out_of_time():
            raise Failure(Exit.STOPPED, f"Slurm is ending the job ({state})", "`drivetrain requeue` starts it again")
        _patiently("scontrol", "requeue", self.native)

    def address(self) -> str:
        """The first node's NodeAddr: its name need not resolve."""
        first = _patiently("scontrol", "show", "hostnames", self._environment["SLURM_JOB_NODELIST"]).split()[0]
        match = re.search(r"\bNodeAddr=(\S+)", _patiently("scontrol", "show", "node", first))
        if match is None:
            return first
        return match.group(1)

    def _out_of_time(self) -> bool:
        limit = self._limit()
        return limit is not None and limit <= time.time()

    def _limit(self) -> float | None:
        """When the job's time is up, in Unix seconds; None for never. Its end is another thing: a cancel moves that."""
        start, _, limit = _patiently("squeue", "-h", "-j", self.native, "-o", "%S|%l").strip().partition("|")
        began, seconds = unix_time(start), duration(limit)
        if began is None or seconds is None:
            return None
        return began + seconds


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
    return run_job(file, Allocation(NodeWork.read(file), os.environ))
