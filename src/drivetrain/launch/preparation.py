"""From a checked recipe to what is run: the job of every process, and the submission of it to a target."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from drivetrain.launch.code import exported, root_of
from drivetrain.launch.job import Job, StartOptions
from drivetrain.launch.machine import has_accelerator
from drivetrain.launch.rundir import SCRATCH
from drivetrain.launch.submission import NodeWork, Submission
from drivetrain.launch.targets.recipe import ResourceSpec
from drivetrain.ledger.ledger import parse_line
from drivetrain.ledger.records import AttemptRecord
from drivetrain.spec.affects import bits_digest, customs
from drivetrain.spec.code.scan import UserCode, run_digest, scan
from drivetrain.spec.custom import Custom
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.given import is_object, object_of
from drivetrain.spec.load import Resolved, load
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.settings import seconds_of
from drivetrain.spec.tree import Origin, RecipeMistakes

_SLUG = re.compile(r"[^a-z0-9]+")
_SHOWN = 3  # runs that are named beside a new one
_LONGEST = 8 << 20  # bytes of a ledger's first line
CUTTING = "drivetrain.engine.layout"
"""What imports torch's engines for tensors that are cut."""
COMPILER = "torch._dynamo"
"""What most optimizers import at their first step, in more than a second."""
STAGING = "drivetrain.engine.pipeline"
"""What imports torch's schedules for stages."""
_NAME = 24  # characters of a recipe's name in a token: engines add their own to 63


def prepare_job(
    resolved: Resolved,
    *,
    run: Path | None,
    overrides: Sequence[str],
    options: StartOptions,
    code: UserCode | None = None,
) -> Job:
    """The job of a checked recipe, in the run directory that is given or that the digest of recipe and code gives it.

    `overrides` are the KEY=VALUE of the command line that `resolved` was loaded with, `code` the user's own where it is
    not what lies there now.
    """
    recipe = resolved.recipe
    _require_importable(recipe)
    code = code or scan(recipe)
    folder = run
    if folder is None:
        folder = Path("runs") / f"{recipe.name}-{run_digest(recipe, code)}"
    modules = None
    if resolved.folder:
        modules = str(resolved.folder)
    return Job(
        # A node of a submitted job changes its working directory before it trains.
        folder=str(folder.absolute()),
        recipe=resolved.tree,
        origins=resolved.places,
        text=resolved.text,
        source=resolved.source,
        given=resolved.given,
        modules=modules,
        code=code.digest,
        preload=_needed(recipe),
        overrides=tuple(overrides),
        resume=options.resume,
        override=tuple(options.override),
        ignore=tuple(options.ignore),
        strict_environment=options.strict_environment,
        most_steps=options.most_steps,
        replay=options.replay,
        processes=recipe.launch.processes,
        hang_after=recipe.launch.hang_after or 0.0,
        slow_after=recipe.launch.slow_after,
        compiles=bool(recipe.compile),
        stall=seconds_of(recipe.stop.stall),
        most_restarts=recipe.launch.restarts,
        started=options.started,
        began=options.started,
    )


def _require_importable(recipe: Recipe) -> None:
    """Raises Failure(78) where processes that train or read need a class or an object that only this one has; and where
    this one does not have an object either."""
    objects = [custom.kind for custom, _ in customs(recipe) if is_object(custom.kind)]
    for kind in objects:
        object_of(kind)
    in_script = hasattr(sys.modules["__main__"], "__file__")  # whose classes those that read import
    if recipe.launch.processes > 1:
        require_importable(recipe, f"{recipe.launch.processes} processes (launch.processes)")
    elif recipe.data.train.workers and (objects or not in_script):
        require_importable(recipe, f"processes that read samples (data.train.workers: {recipe.data.train.workers})")


def require_importable(recipe: Recipe, asked: str) -> None:
    """Raises Failure(78) where a class is in this process alone, of a notebook or of a script, or an object is; `asked`
    are the others, in words."""
    kinds = [custom.kind for custom, _ in customs(recipe)]
    objects = [kind for kind in kinds if is_object(kind)]
    mine = [*objects, *(kind for kind in kinds if kind.startswith("__main__:"))]
    if not mine:
        return
    place = getattr(sys.modules["__main__"], "__file__", None)
    where = f"the script {Path(place).name}" if place else "the notebook"
    name = mine[0].partition(":")[2]
    hint = f"put it in a module beside {where}, and write 'module:{name}'"
    if objects:
        cause = f"{name} is an object of this process, which {asked} do not have"
        raise Failure(Exit.BAD_RECIPE, cause, f"{hint}, with its arguments")
    raise Failure(Exit.BAD_RECIPE, f"{mine[0]} is a class of {where}, which {asked} cannot import", hint)


def runs_with_other_code(job: Job, recipe: Recipe) -> list[str]:
    """Lines on what lies beside a run directory that does not exist yet: runs of the same recipe with other code, or
    with none that was recorded, and how to go on with one. Empty where the recipe names no code."""
    folder = Path(job.folder)
    if not job.code or folder.exists():
        return []
    lines: list[str] = []
    for path in sorted(folder.parent.glob(f"{glob.escape(recipe.name)}-*"), key=_age):
        begun = _first_attempt(path)
        if begun is None or begun.recipe != bits_digest(recipe) or begun.claim.code == job.code:
            continue
        how = f"drivetrain train {shlex.quote(os.path.relpath(path))}"
        if begun.claim.code is None:
            lines.append(f"a run of this recipe kept no record of its code; to go on with it: {how}")
        else:
            lines.append(f"a run of this recipe was made by other code; to go on with it: {how} --override code")
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"and {len(lines) - _SHOWN} more such runs in {os.path.relpath(folder.parent)}"]
    return lines


def _age(path: Path) -> float:
    """Newest first."""
    return -path.stat().st_mtime


def _first_attempt(run: Path) -> AttemptRecord | None:
    """The record that a run's ledger begins with; None where it is no run."""
    try:
        with (run / "ledger.jsonl").open("rb") as file:
            record = parse_line(file.readline(_LONGEST), "")
    except (OSError, ValueError):
        return None
    return record if isinstance(record, AttemptRecord) else None


def plan(
    recipe: str,
    overrides: Sequence[str],
    target: str,
    settings: ResourceSpec,
    *,
    run: str | None = None,
    options: StartOptions,
) -> Submission:
    """The submission of a recipe to a target, checked as a whole; nothing is written and nobody is asked.

    `run` is its run directory, or the URL of its mirror; by default it is made below the target's `runs`. Raises
    Failure(78) for what is wrong with the recipe on so many processes, or with what the target was asked for, 66 where
    its code is in no repository.
    """
    _require_fitting(target, settings)
    asked, resolved = _load_for(target, settings, recipe, overrides)
    sent = _sent_code(resolved, settings)
    name = f"{resolved.recipe.name}-{run_digest(resolved.recipe, sent)}"
    place = run
    if place is None:
        place = f"{settings.runs.rstrip('/')}/{name}"
    folder = Path(place).absolute()
    if "://" in place:
        # The mirror is the run's home. Nodes work in a scratch folder: another one for each mirror, since two mirrors
        # may hold runs of the same recipe.
        asked.append(f"checkpoint.mirror={json.dumps(place)}")
        resolved = load(recipe, asked)
        folder = SCRATCH / hashlib.sha256(place.encode()).hexdigest()[:8] / name
    job = prepare_job(resolved, run=folder, overrides=asked, options=options, code=sent)
    token = new_token(resolved.recipe.name)
    code = None
    if settings.code.kind != "as_it_stands":
        code = root_of(Path.cwd())
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


def _sent_code(resolved: Resolved, settings: ResourceSpec) -> UserCode:
    """The user's code that the job will run: what lies there now, or where a commit is sent, that commit's."""
    here = resolved.folder
    if settings.code.kind != "commit" or here is None or not any(customs(resolved.recipe)):
        return scan(resolved.recipe)
    root = root_of(Path.cwd())
    if not here.is_relative_to(root):
        return scan(resolved.recipe)
    with exported(root, settings.code.commit) as there:
        return scan(resolved.recipe, str(there / here.relative_to(root)))


def _load_for(target: str, settings: ResourceSpec, recipe: str, overrides: Sequence[str]) -> tuple[list[str], Resolved]:
    """The recipe on as many processes as the target has, and the overrides that it was loaded with."""
    processes = f"launch.processes={settings.nodes * settings.processes}"
    for one in overrides:
        if one.startswith("launch.processes=") and one != processes:
            cause = f"{one}, but target {target} has {settings.nodes} nodes of {settings.processes} processes"
            raise Failure(Exit.BAD_RECIPE, cause, "set nodes and processes of the target")
    asked = [*overrides, processes]
    try:
        return asked, load(recipe, asked)
    except RecipeMistakes as wrong:
        # The user has not typed `processes`: a mistake in it is told as the target's.
        origin = Origin("target", text=f"{target}: {settings.nodes} nodes of {settings.processes}")
        told = []
        for one in wrong.mistakes:
            if one.origin.text == processes:
                one = replace(one, origin=origin)
            told.append(one)
        raise RecipeMistakes(told) from None


def new_token(name: str) -> str:
    """A name that no other job has, of the recipe's own and 32 random bits."""
    slug = _SLUG.sub("-", name.lower()).strip("-")[:_NAME].strip("-") or "job"
    # A token is also the name of a Kubernetes service, which has to begin with a letter.
    if not slug[0].isalpha():
        slug = f"job-{slug}"
    return f"{slug}-{secrets.token_hex(4)}"


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
    modules = [COMPILER] if _needs_compiler(recipe) else []
    for part in (recipe.task, *sources):
        if not isinstance(part, Custom):
            modules.append(part.factory.partition(":")[0])
    if not recipe.parallel.sizes(recipe.launch.processes).replicated:
        modules.append(CUTTING)
    if recipe.parallel.sizes(recipe.launch.processes).pipeline > 1:
        modules.append(STAGING)
    return tuple(dict.fromkeys(modules))


def _needs_compiler(recipe: Recipe) -> bool:
    """Whether the run imports torch's compiler sooner or later: before workers are forked that costs them nothing."""
    optimizers = [recipe.optimizer]
    if isinstance(recipe.optimizer, Mapping):
        optimizers = list(recipe.optimizer.values())
    device = recipe.device
    if device == "auto" and not has_accelerator():
        device = "cpu"
    eager = not recipe.compile and recipe.activations == "keep"
    whole = recipe.parallel.sizes(recipe.launch.processes).replicated
    return not (eager and whole and all(device in getattr(optimizer, "uncompiled_on", ()) for optimizer in optimizers))
