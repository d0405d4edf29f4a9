"""`drivetrain train --steps 0`: a dry run in a folder of its own, which is gone afterwards."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from drivetrain.api import start
from drivetrain.launch.job import DRY_RUN, Job
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.spec.load import Resolved, load
from drivetrain.watch.report import state_size
from drivetrain.watch.sinks import require_sinks

_ANY = re.compile(r"(?<=\.)\d+(?=\.)")
"""The number of a layer, in a name."""


def dry_run(job: Job, resolved: Resolved, *, in_process: bool, tells: bool, as_json: bool) -> Outcome:
    """Build all that a job, of this resolved recipe, would train with, as its first start would. What was found is
    printed where `tells`.

    Raises what the start of a run raises.
    """
    require_sinks(resolved.recipe.watch)
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
        # Neither trackers nor the mirror hear of it: the mirror would even be asked for commits to go on from.
        recipe = {**job.recipe, "watch": {}, "checkpoint": {**job.recipe["checkpoint"], "mirror": None}}
        dry = replace(job, folder=folder, recipe=recipe, resume="auto", most_restarts=0)
        quiet = load(recipe, folder=resolved.folder, origins=job.origins)
        outcome = start(dry, quiet, None, in_process=in_process)
        if outcome.code is Exit.DONE and tells:
            found = {"task": job.recipe["task"]["kind"], **json.loads((Path(folder) / DRY_RUN).read_text())}
            if as_json:
                typer.echo(json.dumps(found, indent=2))
            else:
                typer.echo("\n".join(_lines(found)))
        return _with_kept_traceback(outcome, Path(folder))


def _with_kept_traceback(outcome: Outcome, folder: Path) -> Outcome:
    """The outcome, where the traceback that its hint names is a file that outlives the dry run's folder."""
    for file in (folder / "logs").glob("traceback-*.txt"):
        if str(file) in outcome.hint:
            with tempfile.NamedTemporaryFile("wb", prefix="drivetrain-traceback-", suffix=".txt", delete=False) as kept:
                kept.write(file.read_bytes())
            return replace(outcome, hint=outcome.hint.replace(str(file), kept.name))
    return outcome


def task_line(found: dict[str, Any]) -> str:
    """The task, and the parameters of its networks."""
    networks = []
    for name, own in found["networks"].items():
        networks.append(f"{name} ({own['parameters']:,} parameters, {own['trainable']:,} of them train)")
    return f"task            {found['task']}: {', '.join(networks)}"


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield task_line(found)
    yield f"sources         {_counted(found['sources'])}"
    for part in ("validation", "test"):
        sizes = {name: tried["samples"] for name, tried in found[part].items()}
        yield f"{part:<16}{_counted(sizes) or 'none'}"
    if found["shown"]:
        yield f"shows           {', '.join(found['shown'])}"
    yield f"budget          {found['steps']:,} steps, {found['samples']:,} samples"
    yield f"processes       {found['processes']}, with {found['lanes']} lanes, on {found['device']}"
    yield from _parts(found)
    yield from _tables(found["tables"])
    first = found["first_step"]
    micros = first["micro_batches"]
    counts = ", ".join(str(len(own)) for own in micros)
    yield f"first step      {first['samples']} samples; micro-batches by process: {counts}"
    # A short step may leave processes without a sample.
    batch = next((own[0]["batch"] for own in micros if own), {})
    shapes = ", ".join(f"{name or 'batch'} {shape}" for name, shape in batch.items())
    yield f"first batch     {shapes}"
    sizes = found["bytes"]
    held = ", ".join(f"{kind} {size / 2**20:,.1f} MiB" for kind, size in sizes.items())
    yield f"memory          {held}, a process"
    yield f"                {state_size(sizes)}"
    yield "a dry run: nothing was trained and nothing is kept"


def _parts(found: dict[str, Any]) -> Iterator[str]:
    """Who holds what, where tensors are cut: of layers that are alike, one line."""
    if not found["parts"]:
        return
    yield f"mesh            {found['mesh']}"
    for number, stage in enumerate(found.get("stages", ())):
        ranks = ", ".join(map(str, stage["ranks"]))
        yield f"                stage {number} (rank {ranks}): {', '.join(_folded(stage['modules']))}"
    told: dict[str, str] = {}
    on_each = "whole on each process of its stage" if found.get("stages") else "whole on every process"
    for name, part in found["parts"].items():
        whole, here = (" x ".join(map(str, part[key])) for key in ("whole", "here"))
        along = f"{here} here, along {' and '.join(part['along'])}" if part["along"] else on_each
        told.setdefault(f"{_ANY.sub('*', name)} {whole}", along)
    for what, along in told.items():
        yield f"                {what}: {along}"
    numbers = ", ".join(f"{count:,}" for count in found["ranks"])
    yield f"                numbers held by process: {numbers}"


def _folded(modules: Sequence[str]) -> Iterator[str]:
    """Modules in their order, of neighbours that differ in a number the first and the last."""
    for _, alike in groupby(modules, lambda name: _ANY.sub("*", f"{name}.")):
        first, *others = alike
        yield f"{first} to {others[-1]}" if others else first


def _tables(tables: dict[str, Any]) -> Iterator[str]:
    """Who holds which rows of embedding tables, and the memory of all of them by process."""
    word = "tables"
    for name, table in tables.items():
        rows, dim = table["shape"]
        by_rank = ", ".join(f"{count:,}" for count in table["rows"])
        if table["each"] or len(table["rows"]) == 1:
            by_rank = "whole on every process"
        yield f"{word:<16}{name} {rows:,} x {dim}: {by_rank}"
        word = ""
    if tables:
        sizes = map(sum, zip(*[table["bytes"] for table in tables.values()], strict=True))
        told = ", ".join(f"{size / 2**20:,.1f}" for size in sizes)
        yield f"                MiB of rows and what moves them, by process: {told}"


def _counted(sizes: dict[str, int | None]) -> str:
    told = []
    for name, size in sizes.items():
        told.append(f"{name} (a stream)" if size is None else f"{name} ({size:,} samples)")
    return ", ".join(told)
