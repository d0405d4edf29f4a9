"""A job as it is handed to a target: what is trained, what it asks for, and a token that makes it one job for ever."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from drivetrain.launch.code import root_of
from drivetrain.launch.job import Job, plan_job
from drivetrain.launch.targets.recipe import Described
from drivetrain.spec.affects import bits_digest
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load

FILE = "work.json"
"""What `drivetrain worker` reads, in the job's folder or wherever its target puts it."""
SCRATCH = Path("/var/tmp/drivetrain")
"""Where run directories are on machines that share none: commits and ledger are copied to a mirror from there."""
_SLUG = re.compile(r"[^a-z0-9]+")
_NAME = 24  # characters of a recipe's name in a token: engines add their own to 63


@dataclass(frozen=True, kw_only=True)
class Work:
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
    def from_json(cls, data: Mapping[str, Any]) -> Work:
        """The work that `to_json` described."""
        return cls(**{**data, "job": Job(**data["job"])})

    @classmethod
    def read(cls, path: Path) -> Work:
        """The work of a file; Failure(65) where that cannot be read."""
        try:
            return cls.parse(path.read_text(encoding="utf-8"), str(path))
        except (OSError, ValueError) as error:
            raise Failure(Exit.BAD_DATA, f"{path} is no job: {error}", "it is what `submit` leaves") from error

    @classmethod
    def parse(cls, text: str, place: str) -> Work:
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
    settings: Described
    work: Work

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


def plan(
    recipe: str,
    overrides: Sequence[str],
    target: str,
    settings: Described,
    *,
    started: float,
    run: str | None = None,
    resume: str = "auto",
    override: Sequence[str] = (),
) -> Submission:
    """The submission of a recipe to a target, checked as a whole; nothing is written and nobody is asked.

    `run` is its run directory, or the URL of its mirror; by default it is made below the target's `runs`. Raises
    Failure(78) for what is wrong with the recipe on so many processes, or with what the target was asked for, 66 where
    its code is in no repository.
    """
    _require_fitting(target, settings)
    processes = f"launch.processes={settings.nodes * settings.processes}"
    for one in overrides:
        if one.startswith("launch.processes=") and one != processes:
            cause = f"{one}, but target {target} has {settings.nodes} nodes of {settings.processes} processes"
            raise Failure(Exit.BAD_RECIPE, cause, "set nodes and processes of the target")
    asked = [*overrides, processes]
    resolved = load(recipe, asked)
    name = f"{resolved.recipe.name}-{bits_digest(resolved.recipe)}"
    place = run if run is not None else f"{settings.runs.rstrip('/')}/{name}"
    folder = Path(place).absolute()
    if "://" in place:
        asked.append(f"checkpoint.mirror={json.dumps(place)}")
        resolved = load(recipe, asked)
        folder = SCRATCH / hashlib.sha256(place.encode()).hexdigest()[:8] / name  # another one for each mirror
    job = plan_job(resolved, run=folder, overrides=asked, resume=resume, override=override, started=started)
    token = new_token(resolved.recipe.name)
    code = root_of(Path.cwd()) if settings.code.kind != "as_it_stands" else None
    work = Work(
        token=token,
        job=replace(job, processes=settings.processes),
        folder=str(folder / "launch" / token),
        nodes=settings.nodes,
        retries=settings.retries,
        fruitless=settings.fruitless,
        environment=dict(settings.environment),
        secrets=dict(settings.secrets),
        cwd=os.getcwd(),
        root=str(code) if code else None,
    )
    return Submission(target=target, settings=settings, work=work)


def new_token(name: str) -> str:
    """A name that no other job has, of the recipe's own and 32 random bits."""
    slug = _SLUG.sub("-", name.lower()).strip("-")[:_NAME].strip("-") or "job"
    return f"{slug if slug[0].isalpha() else 'job-' + slug}-{secrets.token_hex(4)}"


def _require_fitting(target: str, settings: Described) -> None:
    """Raises Failure(78) where something is asked for that this kind of target has no use for."""
    plain = {field.name: field.default for field in fields(type(settings))}
    for name in settings.unused:
        given = getattr(settings, name)
        if given and given != plain[name]:
            cause = f"target {target}: {name} means nothing to kind {getattr(settings, 'kind', '?')}"
            raise Failure(Exit.BAD_RECIPE, cause, f"leave {name} out, or take another target")
    for name in (*settings.environment, *settings.secrets):
        if name.startswith(("DRIVETRAIN_", "SLURM_")) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            cause = f"target {target}: environment {name} is the launcher's own"
            raise Failure(Exit.BAD_RECIPE, cause, "give it another name")
