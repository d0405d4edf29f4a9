"""What an attempt tells the ledger when it begins, and what it keeps of a crash before it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from drivetrain.checkpoint.compatible import deciding
from drivetrain.data.order import Sampler
from drivetrain.engine.placement import parameter_counts
from drivetrain.engine.tables.state import row_claim
from drivetrain.ledger.comparison import COUNTED
from drivetrain.ledger.records import AttemptRecord, BatchSizes, Budget, Claim, Flops, NoteRecord
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.progress import Timetable
from drivetrain.loop.reader import Reader
from drivetrain.loop.tuning import settings_digest
from drivetrain.plan.flops import peak
from drivetrain.run.context import AttemptContext
from drivetrain.run.opened import OpenedRun
from drivetrain.run.restored import RestoredRun
from drivetrain.run.streams import sizes_of, streams_of
from drivetrain.run.user_code import record_of
from drivetrain.runtime import device as devices
from drivetrain.runtime.group import Group
from drivetrain.spec.affects import bits_digest
from drivetrain.spec.code.kept import MOST, keep
from drivetrain.spec.code.scan import UserCode
from drivetrain.spec.files import write_json

_MOST_SUSPECTS = 256


def record_attempt(opened: OpenedRun, restored: RestoredRun, ledger: LedgerWriter, reader: Reader) -> None:
    """The attempt, what was loaded at the run's start, and what is to be noted, in the ledger."""
    context, group, resumer, inputs = opened.context, opened.group, opened.resumer, opened.inputs
    recipe, progress, timetable = context.recipe, restored.values.progress, restored.timetable
    device, batches = devices.name(opened.device), reader.batches
    claim, before = _claim(opened, restored), restored.history.newest
    left_out = keep(context.folder, {**context.code.files, **restored.code.late})
    sizes = timetable.scale.batches
    parameters = {}
    for name, network in restored.engine.networks.items():
        parameters[name], _ = parameter_counts(restored.engine.placement, name, network)
    sources = sizes_of(inputs.train)
    quarantine = tuple((first, tuple(ids)) for first, ids in batches.quarantine.entries)
    ramp = tuple((change[0], change[1]) for change in sizes.ramp)
    ledger.record(
        AttemptRecord(
            from_step=progress.step,
            from_position=progress.position,
            world=group.world,
            claim=claim,
            host=socket.gethostname(),
            device=device,
            started=context.job.started,
            startup=context.startup.seconds | {"ledger": ledger.lap("start")},
            overrides=tuple(context.job.overrides),
            budget=Budget(samples=timetable.total, steps=timetable.steps),
            flops=Flops(per_sample=opened.task.flops_per_sample(), peak=peak(device, recipe.precision, recipe.matmul)),
            tokens_per_sample=timetable.scale.tokens,
            parameters=parameters,
            recipe=bits_digest(recipe),
            settings=settings_digest(recipe),
            data=inputs.digests,
            environment=deciding(context.environment),
            user_code=record_of(context.code, restored.code.late, context.job.modules, context.environment["git"]),
            order=batches.order.metadata,
            quarantine=quarantine,
            batch=BatchSizes(size=sizes.size, ramp=ramp, cost=recipe.batch.cost),
            lanes=batches.geometry.lanes,
            sources=sources,
            epoch=resumer.epoch,
            after=context.job.after,
            survivors=bool(restored.commit and restored.commit.volatile),
            replay=restored.replay and restored.replay.run,
            resident=context.startup.resident,
        )
    )
    for text in [*_notes(opened, before, claim), *_notes_on_code(context.code, left_out)]:
        ledger.record(NoteRecord(text=text))
    for report in restored.initial:
        ledger.record(report)


def _notes(opened: OpenedRun, before: AttemptRecord | None, claim: Claim) -> Iterator[str]:
    """What whoever reads the ledger should know of this start; `before` is the record of the attempt before."""
    recipe, group = opened.context.recipe, opened.group
    if recipe.guard.recompute and group.world == 1:
        yield "guard.recompute: the same process computes twice, since there is no other"
    yield from [*opened.resumer.notes, *opened.inputs.notes, *opened.task.notes]
    if before is not None and replace(before.claim, code=claim.code) != claim:
        resized = before.world != group.world and not recipe.exact
        was = f"{before.world} processes" if resized else "another machine or setting"
        yield f"the samples are those of before, but sums may round differently: the attempt before had {was}"


def _notes_on_code(code: UserCode, left_out: Sequence[str]) -> Iterator[str]:
    """What is not kept of the user's code, or not known."""
    if left_out:
        yield f"kept by its digest only, since an attempt keeps {MOST >> 20} MB of sources: {', '.join(left_out)}"
    if code.unread:
        yield f"nothing is known of this code, so that a change of it is not noticed: {', '.join(code.unread)}"


def keep_suspects(context: AttemptContext, group: Group, order: Sampler, timetable: Timetable) -> None:
    """After a crash: keep the samples of the step that was under way, should it crash there again."""
    after = context.job.after or {}
    step = after.get("step", 0)
    if group.leader and step:
        first, stop = timetable.scale.batches.span(step)
        # The loop fetches one step ahead: the sample that crashed may be of the next step.
        if after.get("phase") == "data":
            _, stop = timetable.scale.batches.span(step + 1)
        ids = order.ids(first, min(stop, timetable.total)).tolist()
        write_json(context.folder / "logs" / "suspects.json", {"step": step, "sample_ids": ids[:_MOST_SUSPECTS]})


def _claim(opened: OpenedRun, restored: RestoredRun) -> Claim:
    """Which class of bits is promised, and digests of what they depend on (docs/exactness.md)."""
    code, kind = restored.code.digest or None, "same-world"
    shape: dict[str, Any] = {"world": opened.group.world}
    tables = restored.engine.placement.tables
    if tables and (claim := row_claim(tables)):
        shape["tables"] = claim
    if not opened.mesh.replicated:
        shape |= opened.mesh.sizes.there
    if opened.mesh.virtual_stages > 1:  # else the stages follow from the sizes
        shape["virtual_stages"] = opened.mesh.virtual_stages
    if opened.mesh.folded:
        shape["folded"] = True
    if opened.context.recipe.exact:
        kind, shape = "exact", {"lanes": restored.lanes}
    if any(stream.how == "count" for stream in streams_of(opened.inputs.train).values()):
        kind = COUNTED
    return Claim(class_=kind, key=devices.claim_key(opened.device, **shape), code=code)
