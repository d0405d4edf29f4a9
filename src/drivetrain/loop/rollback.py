"""What becomes of a step whose numbers are wrong: a note, the end, or the way back without a restart.

A bad step is undone by putting an earlier state back, and leaving out the samples that did it from there on.
"""

from __future__ import annotations

from typing import NamedTuple

from drivetrain.checkpoint.state import put_back
from drivetrain.loop.divergence import diverged, guilty_samples, shown, what_diverged
from drivetrain.loop.guard import Undone
from drivetrain.loop.outcome import StepOutcome
from drivetrain.loop.parts import Parts
from drivetrain.loop.progress import Progress
from drivetrain.loop.ring import Ring
from drivetrain.spec.exits import Exit, Failure


class Bad(NamedTuple):
    """A step that is to be undone: why, and the samples that did it."""

    step: int
    why: str
    samples: tuple[int, ...]


def act_on(parts: Parts, outcome: StepOutcome, step: int) -> Bad | None:
    """What the guard wants after a step; all ranks call it alike, at that step's boundary.

    Returns the step where it is to be undone. Raises Failure(82) where the run ends.
    """
    guard = parts.guard
    if outcome.culprit and guard.settings.nonfinite == "stop":
        raise diverged(parts.engine, parts.group, outcome.culprit)
    if outcome.spikes:
        parts.journal.record("spike", step=step, text=outcome.spikes)
    if outcome.culprit or (outcome.spikes and guard.undoes_spikes):
        return _bad(parts, outcome, step)
    too_many = guard.count(left_out=outcome.left_out, moved=bool(outcome.moved))
    if why := (outcome.spikes if guard.stops_at_spikes else "") or too_many:
        raise Failure(Exit.DIVERGED, why, "lower the learning rate, or look at the samples", step=step)
    return None


def _bad(parts: Parts, outcome: StepOutcome, step: int) -> Bad:
    """Who made a step go wrong: the micro-batches that are not finite when run again alone, else the whole step.

    Raises Failure(82) where there were too many such steps.
    """
    culprit = outcome.culprit
    found = guilty_samples(parts.engine, parts.group, culprit) if culprit else []
    samples = [sample for _, ids in found for sample in ids] or parts.feed.ids(step)
    why = what_diverged(culprit) if culprit else outcome.spikes
    if too_many := parts.guard.too_many(step):
        hint = "lower the learning rate, or look at the samples"
        raise Failure(Exit.DIVERGED, f"{too_many}; {why}", hint, step=step, sample_ids=shown(samples))
    return Bad(step, why, tuple(dict.fromkeys(samples)))


def undo(parts: Parts, ring: Ring, bad: Bad) -> Progress:
    """Put the state back that the ring has for this, on every rank alike, and quarantine the samples from there on.

    Returns the progress there; the ledger is told. Raises Failure(83) where the ring's memory has changed.
    """
    engine, guard = parts.engine, parts.guard
    boundary = ring.before(bad.step)
    put_back(boundary.pieces, engine.networks, engine.optimizers, engine.others)
    to = boundary.progress.step
    guard.go_back(boundary.guard, Undone(bad.step, to, bad.samples))
    seconds = parts.journal.lap("rollback")
    told = {"step": bad.step, "to": to, "why": bad.why, "samples": list(bad.samples)}
    parts.journal.record("rollback", **told, seconds=seconds)
    return boundary.progress
