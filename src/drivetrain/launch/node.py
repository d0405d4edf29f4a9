"""What a node of a submitted job does before it trains: variables, secrets, code, the folder it works in."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from drivetrain.launch.code import ARCHIVE, unpack
from drivetrain.launch.job import Job
from drivetrain.launch.submission import NodeWork
from drivetrain.spec.exits import Exit, Failure

FROM_FILE = "file:"
"""How a secret is named whose value is the content of a file that only the job's user can read."""


def prepare_node(work: NodeWork, job: Job) -> Job:
    """Make this process fit for a job, and return the job as it is here.

    Variables are set, secrets that are files are read; others are the engine's to set, and only looked for. Packed code
    is unpacked. Raises Failure(66) where a secret, the archive or the folder is not there.
    """
    os.environ.update(work.environment)
    for name, reference in work.secrets.items():
        if reference.startswith(FROM_FILE):
            os.environ[name] = _secret(name, Path(reference.removeprefix(FROM_FILE)))
        elif name not in os.environ:
            cause = f"{name} is not set, which {reference} should have done"
            raise Failure(Exit.INPUT_MISSING, cause, "see that the target can read it")
    here = Path(work.cwd)
    if work.root is not None:
        root, unpacked = Path(work.root), _unpacked(Path(work.folder) / ARCHIVE)
        here = unpacked / here.relative_to(root)
        # A user's own classes come from the packed code too, and not from what the repository has become since.
        if job.modules and Path(job.modules).is_relative_to(root):
            job = replace(job, modules=str(unpacked / Path(job.modules).relative_to(root)))
    try:
        os.chdir(here)
    except OSError as error:
        cause = f"{here} is not there: {error}"
        raise Failure(Exit.INPUT_MISSING, cause, "submit from a folder that every node sees") from error
    return job


def _secret(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except (OSError, ValueError) as error:
        # Neither the error's words nor its chain: those of a decoding error hold a piece of the secret.
        cause = f"secret {name}: {path} cannot be read: {type(error).__name__}"
        raise Failure(Exit.INPUT_MISSING, cause, "see that every node can read it") from None


def _unpacked(archive: Path) -> Path:
    try:
        return unpack(archive)
    except OSError as error:
        cause = f"{archive} cannot be unpacked: {error}"
        raise Failure(Exit.INPUT_MISSING, cause, "submit it again") from error
