"""`drivetrain train --steps 0`: a dry run in a folder of its own, which is gone afterwards."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from drivetrain.api import start
from drivetrain.launch.job import DRY_RUN, Job
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.spec.load import Resolved, load
from drivetrain.watch.report import state_size
from drivetrain.watch.sinks import require_sinks


def dry_run(job: Job, resolved: Resolved, *, in_process: bool, tells: bool, as_json: bool) -> Outcome:
    """Build all that a job, of this resolved recipe, would train with, as its first start would. What was found is
    printed where `tells`.

    Raises what the start of a run raises.
    """
    require_sinks(resolved.recipe.watch)
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
        recipe = {**job.recipe, "watch": {}, "checkpoint": {**job.recipe["checkpoint"], "mirror": None}}
        dry = replace(job, folder=folder, recipe=recipe, resume="auto", most_restarts=0)
        quiet = load(recipe, folder=resolved.folder, origins=job.origins)
        outcome = start(dry, quiet, None, in_process=in_process)
        if outcome.code is Exit.DONE and tells:
            found = {"task": job.recipe["task"]["kind"], **json.loads((Path(folder) / DRY_RUN).read_text())}
            typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))
    return outcome


def _lines(found: dict[str, Any]) -> Iterator[str]:
    networks = found["networks"].items()
    words = [f"{name} ({n['parameters']:,} parameters, {n['trainable']:,} of them train)" for name, n in networks]
    yield f"task            {found['task']}: {', '.join(words)}"
    yield f"sources         {', '.join(f'{name} ({size:,} samples)' for name, size in found['sources'].items())}"
    for part in ("validation", "test"):
        sets = [f"{name} ({s['samples']:,} samples)" for name, s in found[part].items()]
        yield f"{part:<16}{', '.join(sets) or 'none'}"
    yield f"budget          {found['steps']:,} steps, {found['samples']:,} samples"
    yield f"processes       {found['processes']}, with {found['lanes']} lanes, on {found['device']}"
    micros = found["first_step"]["micro_batches"]
    yield f"first step      {found['first_step']['samples']} samples; micro-batches by process: " + ", ".join(
        str(len(own)) for own in micros
    )
    batch = next((own[0]["batch"] for own in micros if own), {})
    yield f"first batch     {_shapes(batch)}"
    size = found["bytes"]
    yield "memory          " + ", ".join(f"{kind} {size[kind] / 2**20:,.1f} MiB" for kind in size) + ", a process"
    yield f"                {state_size(size)}"
    yield "a dry run: nothing was trained and nothing is kept"


def _shapes(batch: dict[str, str]) -> str:
    return ", ".join(f"{name or 'batch'} {shape}" for name, shape in batch.items())
