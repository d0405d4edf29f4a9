"""A dry run: everything is built, the first batch of each set is tried, and nothing that is kept is trained."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from drivetrain.data.batch_reader import LocalBatch
from drivetrain.data.source import Source
from drivetrain.engine.engine import Engine
from drivetrain.engine.placement import Placement, parameter_counts
from drivetrain.engine.stages import stages_of
from drivetrain.engine.tables.state import row_shares
from drivetrain.engine.transfer import to_device
from drivetrain.launch.job import DRY_RUN
from drivetrain.loop.lane_metrics import MetricSets
from drivetrain.loop.loop import Loop
from drivetrain.loop.telemetry import held
from drivetrain.run.opened import OpenedRun
from drivetrain.run.streams import sizes_of
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.spec.files import write_json


def dry_run(loop: Loop, opened: OpenedRun) -> Outcome:
    """Try one step and one batch of each set, and leave a summary in the folder: the networks are thrown away."""
    batches, timetable, group, inputs = loop.reader.batches, loop.commands.tuning.timetable, opened.group, opened.inputs
    batch = batches.read(1)
    _try_step(loop, batch)
    engine = loop.state.engine
    networks = {name: _parameters(engine.placement, name, network) for name, network in engine.networks.items()}
    sources = sizes_of(inputs.train)
    shown = _try_show(loop)
    summary = {
        "networks": networks,
        "device": str(engine.device),
        "processes": group.world,
        "lanes": batches.geometry.lanes,
        **_held_parts(engine.placement, engine.networks),
        "steps": timetable.steps,
        "samples": timetable.total,
        "sources": sources,
        "validation": _try_sets(engine, opened, inputs.validation),
        "test": _try_sets(engine, opened, inputs.test),
        "shown": shown,
        "first_step": {"samples": batch.stop - batch.start, "micro_batches": group.gather_json(_told(batch))},
        "bytes": held(engine, loop.state.tensors),
    }
    if group.leader:
        write_json(opened.context.folder / DRY_RUN, summary)
    # Whoever waits for the first end finds the summary.
    group.barrier()
    return Outcome(code=Exit.DONE, cause="a dry run: nothing was trained and nothing is kept", hint="", where={})


def _told(batch: LocalBatch) -> list[dict[str, Any]]:
    """This rank's micro-batches."""
    return [{"samples": micro.size, "batch": _shapes(micro.batch)} for micro in batch.micro_batches]


def _held_parts(placement: Placement, networks: Mapping[str, nn.Module]) -> dict[str, Any]:
    """What the first rank that has it holds of each parameter, which modules stages have, and how many numbers each
    rank has. Every rank calls it."""
    here, parts, own = {}, {}, 0
    for name, part in placement.held.items():
        here[name] = {"whole": list(part.box.whole), "here": list(part.box.shape), "along": list(part.along)}
        own += part.box.size
    everybody = placement.mesh.stages(tuple(range(placement.mesh.sizes.pipeline)))
    for told in everybody.gather_json(here):
        parts |= {name: part for name, part in told.items() if name not in parts}
    own += sum(part.box.size for part in placement.rows.values())
    shares = row_shares(placement.tables) if placement.tables else {}
    ranks = placement.group.gather_json(own)
    found = {"mesh": str(placement.mesh.sizes), "parts": parts, "ranks": ranks, "tables": shares}
    return found | {"stages": _told_stages(networks, placement.mesh)}


def _told_stages(networks: Mapping[str, nn.Module], mesh: Mesh) -> list[dict[str, Any]]:
    """The modules of each stage, and the ranks that have it."""
    found = []
    for network in networks.values():
        if stages := stages_of(network):
            for names, place in zip(stages.names, stages.places, strict=True):
                found.append({"modules": list(names), "ranks": list(mesh.sharing((), (place,)))})
    return found


def _try_step(loop: Loop, batch: LocalBatch) -> None:
    """The first step as the loop would make it, whatever it comes to."""
    counts: dict[str, int] = {}
    for own in loop.state.engine.placement.data.gather_json(batch.counts):
        for unit, number in own.items():
            counts[unit] = counts.get(unit, 0) + number
    loop.runner.run(batch, counts)


def _try_show(loop: Loop) -> list[str]:
    """What the task shows, into a folder that is gone at once."""
    if not loop.group.leader:
        return loop.due.showing.rehearse(None)
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
        return loop.due.showing.rehearse(Path(folder))


def _parameters(placement: Placement, name: str, network: nn.Module) -> dict[str, int]:
    """How many numbers a network's parameters have, and how many of them train."""
    whole, trainable = parameter_counts(placement, name, network)
    return {"parameters": whole, "trainable": trainable}


def _try_sets(engine: Engine, opened: OpenedRun, sources: Mapping[str, Source]) -> dict[str, dict[str, Any]]:
    """Each set's size, and its first samples collated and scored as in an evaluation."""
    task, tried = opened.task, {}
    metrics = MetricSets(task, opened.context.recipe.evaluate.metrics)
    for name, source in sources.items():
        engine.heartbeat.enter("evaluation")
        ids = np.arange(min(2, len(source)), dtype=np.int64)
        batch = task.collate(source.read(ids, ids))
        with engine.evaluating() as networks:
            made = metrics.fresh(engine.device)
            metrics.feed(made, task.evaluate(networks, to_device(batch, engine.device), made.filled))
        tried[name] = {"samples": len(source), "batch": _shapes(batch)}
    return tried


def _shapes(batch: Any) -> dict[str, str]:
    """Type and shape of each tensor of a batch, by its place there."""
    leaves, _ = tree_flatten_with_path(batch)
    shapes = {}
    for path, leaf in leaves:
        if isinstance(leaf, Tensor):
            shapes[keystr(path)] = f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"
    return shapes
