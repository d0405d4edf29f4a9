"""From a checked recipe to what is run: the job of every process, and the submission of it to a target."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from drivetrain.launch.code import root_of
from drivetrain.launch.job import Job
from drivetrain.launch.rundir import SCRATCH
from drivetrain.launch.submission import NodeWork, Submission
from drivetrain.launch.targets.recipe import ResourceSpec
from drivetrain.spec.affects import bits_digest
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import Resolved, load
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.registry import Custom
from drivetrain.spec.tree import Origin, RecipeMistakes

_SLUG = re.compile(r"[^a-z0-9]+")
_NAME = 24  # characters of a recipe's name in a token: engines add their own to 63


def prepare_job(
    resolved: Resolved,
    *,
    run: Path | None,
    overrides: Sequence[str],
    resume: str,
    override: Sequence[str],
    started: float,
    ignore: Sequence[str] = (),
    strict_environment: bool = False,
    most_steps: int | None = None,
    replay: str | None = None,
) -> Job:
    """The job of a checked recipe, in the run directory that it names or that its digest gives it."""
    recipe = resolved.recipe
    folder = run if run is not None else Path("runs") / f"{recipe.name}-{bits_digest(recipe)}"
    return Job(
        folder=str(folder.absolute()),
        recipe=resolved.tree,
        origins={path: str(origin) for path, origin in resolved.origins.items()},
        text=resolved.text,
        modules=str(resolved.folder) if resolved.folder else None,
        preload=_needed(recipe),
        overrides=tuple(overrides),
        resume=resume,
        override=tuple(override),
        ignore=tuple(ignore),
        strict_environment=strict_environment,
        most_steps=most_steps,
        replay=replay,
        processes=recipe.launch.processes,
        hang_after=recipe.launch.hang_after or 0.0,
        slow_after=recipe.launch.slow_after,
        compiles=recipe.compile,
        most_restarts=recipe.launch.restarts,
        started=started,
        began=started,
    )


def plan(
    recipe: str,
    overrides: Sequence[str],
    target: str,
    settings: ResourceSpec,
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
    try:
        resolved = load(recipe, asked)
    except RecipeMistakes as wrong:
        raise _by_the_target(wrong, processes, f"{target}: {settings.nodes} nodes of {settings.processes}") from None
    name = f"{resolved.recipe.name}-{bits_digest(resolved.recipe)}"
    place = run if run is not None else f"{settings.runs.rstrip('/')}/{name}"
    folder = Path(place).absolute()
    if "://" in place:
        asked.append(f"checkpoint.mirror={json.dumps(place)}")
        resolved = load(recipe, asked)
        folder = SCRATCH / hashlib.sha256(place.encode()).hexdigest()[:8] / name  # another one for each mirror
    job = prepare_job(resolved, run=folder, overrides=asked, resume=resume, override=override, started=started)
    token = new_token(resolved.recipe.name)
    code = root_of(Path.cwd()) if settings.code.kind != "as_it_stands" else None
    work = NodeWork(
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


def _by_the_target(wrong: RecipeMistakes, processes: str, said: str) -> RecipeMistakes:
    """The same mistakes, but what nobody has typed is told as the target's."""
    origin = Origin("target", text=said)
    return RecipeMistakes(
        [replace(one, origin=origin) if one.origin.text == processes else one for one in wrong.mistakes]
    )


def new_token(name: str) -> str:
    """A name that no other job has, of the recipe's own and 32 random bits."""
    slug = _SLUG.sub("-", name.lower()).strip("-")[:_NAME].strip("-") or "job"
    return f"{slug if slug[0].isalpha() else 'job-' + slug}-{secrets.token_hex(4)}"


def _require_fitting(target: str, settings: ResourceSpec) -> None:
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


def _needed(recipe: Recipe) -> tuple[str, ...]:
    """The modules of the shipped components that a recipe names. A user's own are not imported before they run."""
    sources = (*recipe.data.train.sources, *recipe.data.validation.values(), *recipe.data.test.values())
    parts = [part for part in (recipe.task, *sources) if not isinstance(part, Custom)]
    return tuple(dict.fromkeys(part.factory.partition(":")[0] for part in parts))
