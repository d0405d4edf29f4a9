"""A job as it is handed to a target: what is trained, what it asks for, and a token that makes it one job for ever."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drivetrain.launch.job import Job
from drivetrain.launch.targets.recipe import ResourceSpec
from drivetrain.spec.exits import Exit, Failure

FILE = "work.json"
"""What `drivetrain worker` reads, in the job's folder or wherever its target puts it."""


@dataclass(frozen=True, kw_only=True)
class NodeWork:
    """What every node of a job is told; plain data that travels as JSON, never as part of a script or manifest.

    `token` is the job's name everywhere: [a-z0-9-], at most 33 characters. `folder` is the job's own, below the run
    directory: its logs, and marks that outlive attempts. `cwd` is where relative paths of the recipe begin. `root` is
    the repository whose code was packed and travels with the job, None: the code is there already.
    """

    token: str
    job: Job
    folder: str
    nodes: int
    retries: int
    fruitless: int
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    cwd: str
    root: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NodeWork:
        """The work that `to_json` described."""
        return cls(**{**data, "job": Job(**data["job"])})

    @classmethod
    def read(cls, path: Path) -> NodeWork:
        """The work of a file; Failure(65) where that cannot be read."""
        try:
            return cls.parse(path.read_text(encoding="utf-8"), str(path))
        except (OSError, ValueError) as error:
            raise Failure(Exit.BAD_DATA, f"{path} is no job: {error}", "it is what `submit` leaves") from error

    @classmethod
    def parse(cls, text: str, place: str) -> NodeWork:
        """The work of a file's content, or of what else has it; Failure(65) where it is none."""
        try:
            return cls.from_json(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise Failure(Exit.BAD_DATA, f"{place} is no job: {error}", "it is what `submit` leaves") from error

    def text(self) -> str:
        """The content of its file."""
        return json.dumps(self.to_json())


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job that one target is to run: `target` is its name, `settings` are those of its kind."""

    target: str
    settings: ResourceSpec
    work: NodeWork

    @property
    def token(self) -> str:
        """The name of the job, here and at the engine."""
        return self.work.token

    @property
    def run(self) -> Path:
        """The run directory, as the job sees it."""
        return Path(self.work.job.folder)

    @property
    def folder(self) -> Path:
        """The job's own folder in it."""
        return Path(self.work.folder)
