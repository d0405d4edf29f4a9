"""Slurm's commands: how they are called, what their refusals mean, and the words and times that they show."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence

from drivetrain.launch.states import JobStatus, State
from drivetrain.spec.exits import Exit, Failure

KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "SLURM_CONF")
"""What sbatch, and so the job, sees of the environment it is called from: nothing else leaks into jobs."""
STATES: Mapping[str, State] = {
    **dict.fromkeys(("PENDING", "CONFIGURING"), State.PENDING),
    **dict.fromkeys(("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"), State.RUNNING),
    **dict.fromkeys(("COMPLETING", "STAGE_OUT"), State.STOPPING),
    **dict.fromkeys(("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"), State.REQUEUED),
    "COMPLETED": State.SUCCEEDED,
    "CANCELLED": State.CANCELLED,
}
"""What is none of these has failed: FAILED, TIMEOUT, NODE_FAIL, PREEMPTED, OUT_OF_MEMORY, BOOT_FAIL, DEADLINE."""
_LIMIT = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")
_AWAY = re.compile(
    r"contact slurm controller|Connection refused|Socket timed out|try again|munge|authentication"
    r"|configuration source",  # of a cluster that hands its configuration out
    re.IGNORECASE,
)
GONE = re.compile(r"Invalid job id|already completing or completed|Job has already finished", re.IGNORECASE)
"""What Slurm says of a job that it no longer knows, or that has ended."""


class SlurmRefused(Failure):
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
    raise SlurmRefused(Exit.BAD_RECIPE, f"{command[0]}: {said}", "Slurm refuses it")


def seen_as(word: str, reason: str, start: str) -> JobStatus:
    """What squeue's and sacct's words mean: `CANCELLED by 1000` too."""
    native = "?"
    if words := word.split():
        native = words[0].rstrip("+")
    reason = "" if reason in ("None", "(null)") else reason
    return JobStatus(state=STATES.get(native, State.FAILED), native=native, reason=reason, began=unix_time(start))


def unix_time(shown: str) -> float | None:
    """Unix seconds of a time as Slurm shows it; None where that is none."""
    try:
        return time.mktime(time.strptime(shown, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def duration(shown: str) -> float | None:
    """Seconds of a time limit as Slurm shows it, D-HH:MM:SS from the first part that is not 0; None for UNLIMITED."""
    match = _LIMIT.fullmatch(shown)
    if match is None:
        return None
    days, hours, minutes, seconds = [int(part or 0) for part in match.groups()]
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
