"""A dry run: everything is built, the first batch of each set is tried, and nothing that is kept is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from drivetrain.checkpoint.state import capture
from drivetrain.data.feed import Share
from drivetrain.data.source import Source
from drivetrain.engine.transfer import to_device
from drivetrain.launch.job import REHEARSAL
from drivetrain.loop.parts import Parts
from drivetrain.loop.step import Step
from drivetrain.loop.telemetry import held
from drivetrain.run.build import Inputs
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.spec.files import write_json


def rehearse(parts: Parts, inputs: Inputs) -> Outcome:
    """Try one step and one batch of each set, and leave a summary in the folder: the networks are thrown away."""
    feed, timetable, group = parts.feed, parts.timetable, parts.group
    share = feed.share(1)
    _try_step(parts, share)
    own = [{"samples": micro.size, "batch": _shapes(micro.batch)} for micro in share.micro]
    sets = {
        part: {name: _first(parts, source) for name, source in sources.items()}
        for part, sources in (("validation", inputs.validation), ("test", inputs.test))
    }
    engine = parts.engine
    summary = {
        "networks": {
            name: {
                "parameters": sum(p.numel() for p in network.parameters()),
                "trainable": sum(p.numel() for p in network.parameters() if p.requires_grad),
            }
            for name, network in engine.networks.items()
        },
        "device": str(engine.device),
        "processes": group.world,
        "lanes": feed.geometry.lanes,
        "steps": timetable.steps,
        "samples": timetable.total,
        "sources": {name: len(source) for name, source in inputs.train.items()},
        **sets,
        "first_step": {"samples": share.stop - share.start, "micro_batches": group.gather_json(own)},
        "bytes": held(engine, capture(engine.networks, engine.optimizers, engine.others)),
    }
    if group.leader:
        write_json(parts.folder / REHEARSAL, summary)
    group.barrier()  # whoever waits for the first end finds it
    return Outcome(code=Exit.DONE, cause="a dry run: nothing was trained and nothing is kept", hint="", where={})


def _try_step(parts: Parts, share: Share) -> None:
    """The first step as the loop would make it, whatever it comes to."""
    told = parts.group.gather_json(share.counts)
    counts = {unit: sum(own.get(unit, 0) for own in told) for unit in {unit for own in told for unit in own}}
    for updater in parts.engine.updaters.values():
        updater.advance(share.stop)
    parts.engine.buffers.begin()
    if not parts.guard.leaves_out(share.step, counts):
        parts.task.update(Step(parts.engine, share, counts))


def _first(parts: Parts, source: Source) -> dict[str, Any]:
    """A set's size, and its first samples collated and scored as in an evaluation."""
    ids = np.arange(min(2, len(source)), dtype=np.int64)
    batch = parts.task.collate(source.read(ids, ids))
    with parts.engine.evaluating() as networks:
        parts.task.evaluate(networks, to_device(batch, parts.engine.device), parts.task.metrics())
    return {"samples": len(source), "batch": _shapes(batch)}


def _shapes(batch: Any) -> dict[str, str]:
    """Type and shape of each tensor of a batch, by its place there."""
    leaves, _ = tree_flatten_with_path(batch)
    return {
        keystr(path): f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"
        for path, leaf in leaves
        if isinstance(leaf, Tensor)
    }
