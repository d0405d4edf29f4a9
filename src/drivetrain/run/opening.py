"""What an attempt tells the ledger when it begins, and what it keeps of a crash before it."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from drivetrain.checkpoint.commits import Found
from drivetrain.checkpoint.compatible import BITS
from drivetrain.data.order import Ordering
from drivetrain.ledger.derive import Record
from drivetrain.loop.parts import Parts
from drivetrain.loop.progress import Progress, Timetable
from drivetrain.loop.tuning import settings_digest
from drivetrain.plan.flops import peak
from drivetrain.run.build import Inputs
from drivetrain.run.replay import Replay
from drivetrain.run.resume import Takeover
from drivetrain.run.wiring import Start
from drivetrain.runtime import device as devices
from drivetrain.runtime.group import Group
from drivetrain.spec.files import write_json

_MOST_SUSPECTS = 256


def record_attempt(
    start: Start,
    startup: Mapping[str, float],
    takeover: Takeover,
    replay: Replay | None,
    parts: Parts,
    inputs: Inputs,
    progress: Progress,
    found: Found | None,
    before: Record | None,
) -> None:
    """The attempt, and what is to be noted about its start, in the ledger. `startup` are the seconds that each part of
    it took, `before` is the record of the attempt before."""
    journal, group, timetable, networks = parts.journal, parts.group, parts.timetable, parts.engine.networks
    recipe, device = start.recipe, devices.name(parts.engine.device)
    claim = _claim(parts, exact=recipe.exact)
    journal.record(
        "attempt",
        from_step=progress.step,
        from_position=progress.position,
        world=group.world,
        claim=claim,
        host=socket.gethostname(),
        device=device,
        started=start.job.started,
        startup=dict(startup) | {"ledger": journal.lap("start")},
        overrides=list(start.job.overrides),
        budget={"samples": timetable.total, "steps": timetable.steps},
        flops={"per_sample": parts.task.flops_per_sample(), "peak": peak(device, recipe.precision, recipe.matmul)},
        tokens_per_sample=timetable.scale.tokens,
        parameters={name: sum(p.numel() for p in net.parameters()) for name, net in networks.items()},
        recipe=parts.facts["recipe"],
        settings=settings_digest(recipe),
        data=parts.facts["data"],
        environment={name: start.environment[name] for name in BITS},
        order=parts.feed.order.facts,
        quarantine=[[first, list(ids)] for first, ids in parts.feed.quarantine.entries],
        batch={"size": timetable.scale.batches.size, "ramp": [list(c) for c in timetable.scale.batches.ramp]},
        lanes=parts.feed.geometry.lanes,
        sources={name: len(source) for name, source in inputs.train.items()},
        epoch=takeover.epoch,
        after=start.job.after,
        survivors=bool(found and found.volatile),
        replay=replay and replay.run,
    )
    if recipe.guard.recompute and group.world == 1:
        journal.record("note", text="guard.recompute: the same process computes twice, since there is no other")
    for note in [*takeover.notes, *inputs.notes, *parts.task.notes]:
        journal.record("note", text=note)
    if before is not None and before["claim"] != claim:
        resized = before["world"] != group.world and not recipe.exact
        was = f"{before['world']} processes" if resized else "another machine or setting"
        text = f"the samples are those of before, but sums may round differently: the attempt before had {was}"
        journal.record("note", text=text)


def keep_suspects(start: Start, group: Group, order: Ordering, timetable: Timetable) -> None:
    """After a crash: keep the samples of the step that was under way, should it crash there again."""
    after = start.job.after or {}
    step = after.get("step", 0)
    if group.leader and step:
        first, stop = timetable.scale.batches.span(step)
        if after.get("phase") == "data":  # the loop fetches one step ahead
            _, stop = timetable.scale.batches.span(step + 1)
        ids = order.ids(first, min(stop, timetable.total)).tolist()
        write_json(start.folder / "logs" / "suspects.json", {"step": step, "sample_ids": ids[:_MOST_SUSPECTS]})


def _claim(parts: Parts, *, exact: bool) -> dict[str, str]:
    """Which class of bits is promised, and a digest of what they depend on (docs/exactness.md)."""
    device = parts.engine.device
    if exact:
        return {"class": "exact", "key": devices.claim_key(device, lanes=parts.feed.geometry.lanes)}
    return {"class": "same-world", "key": devices.claim_key(device, world=parts.group.world)}
