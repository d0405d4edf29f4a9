"""What a step came to, once its numbers have arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drivetrain.engine.step_result import Scalars
from drivetrain.loop.guard import Guard
from drivetrain.loop.step import MinimizeCall, Step


@dataclass
class StepOutcome:
    """Means and weights by loss, norms and reasons to stand still by network, and what the guard has to say.

    `culprit` is the first `minimize` that was not finite, where such a step is not just left out. `left_out`: some
    network did not move on account of its numbers.
    """

    losses: dict[str, float] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    moved: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    scale: float | None = None
    weights: dict[str, float] = field(default_factory=dict)
    spikes: str = ""
    culprit: MinimizeCall | None = None
    left_out: bool = False


def outcome_of(step: Step, guard: Guard, counts: Mapping[str, int]) -> StepOutcome:
    """Read the numbers of all that a step has done, waiting for the device where it must; `guard` learns them.

    `counts` are the step's global ones.
    """
    if not step.calls and (why := guard.leaves_out(step.index, counts)):
        return StepOutcome(skipped=dict.fromkeys(step.networks, why))
    outcome = StepOutcome()
    for call in step.calls:
        scalars = call.result.read()
        again = _again(call, scalars, outcome)
        prefix = ""
        if not _is_the_step(call, step):
            prefix = f"{'+'.join(call.result.networks)}{again}."
        outcome.losses |= {prefix + name: value for name, value in scalars.losses.items()}
        outcome.weights |= {prefix + name: weight for name, weight in scalars.weights.items()}
        outcome.norms |= {name + again: norm for name, norm in scalars.norms.items()}
        outcome.scale = scalars.scale or outcome.scale
        if spikes := guard.judge(step.index, call.inputs.call, scalars):
            if outcome.spikes:
                outcome.spikes += "; "
            outcome.spikes += prefix + spikes
        if scalars.why:
            outcome.skipped.update({name + again: scalars.why for name in call.result.networks})
            _blame(call, scalars, outcome, guard)
        else:
            outcome.moved += call.result.networks
    return outcome


def _again(call: MinimizeCall, scalars: Scalars, outcome: StepOutcome) -> str:
    """What is added to names of networks that have moved in this step before: the number of the call."""
    moved_before = not outcome.norms.keys().isdisjoint(scalars.norms)
    return f"#{call.inputs.call + 1}" if moved_before else ""


def _is_the_step(call: MinimizeCall, step: Step) -> bool:
    """Whether a step is this call alone, for all networks: then its losses need no other name than their own."""
    return len(step.calls) == 1 and len(call.result.networks) == len(step.networks)


def _blame(call: MinimizeCall, scalars: Scalars, outcome: StepOutcome, guard: Guard) -> None:
    """What follows from a call that did not move its networks."""
    # An overflow halves the loss scale, and the next step is made with that: no fault, as long as it can be halved.
    if scalars.why == "overflow" and not _exhausted(scalars, guard):
        return
    outcome.left_out = True
    if scalars.why != "spike" and guard.settings.nonfinite != "skip":
        outcome.culprit = outcome.culprit or call


def _exhausted(scalars: Scalars, guard: Guard) -> bool:
    """Whether gradients overflow though the loss scale cannot become smaller."""
    return scalars.scale is not None and scalars.scale <= guard.least_scale
