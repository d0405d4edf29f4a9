"""What a step came to, once its numbers have arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drivetrain.engine.step_result import Scalars
from drivetrain.loop.guard import Guard
from drivetrain.loop.step import MinimizeCall, Step


@dataclass
class StepOutcome:
    """Means by loss, norms and reasons to stand still by network, and what the guard has to say.

    `culprit` is the first `minimize` that was not finite, where such a step is not just left out. `left_out`: some
    network did not move on account of its numbers.
    """

    losses: dict[str, float] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    moved: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    scale: float | None = None
    spikes: str = ""
    culprit: MinimizeCall | None = None
    left_out: bool = False


def outcome_of(step: Step, guard: Guard, counts: Mapping[str, int]) -> StepOutcome:
    """Read the numbers of all that a step has done, waiting for the device where it must; `guard` learns them.

    `counts` are the step's global ones.
    """
    calls, networks = step.calls, step.networks
    if not calls and (why := guard.leaves_out(step.index, counts)):
        return StepOutcome(skipped=dict.fromkeys(networks, why))
    outcome = StepOutcome()
    for one in calls:
        scalars, call = one.result.read(), one.inputs.call
        moved_before = not outcome.norms.keys().isdisjoint(scalars.norms)  # in this step
        again = f"#{call + 1}" if moved_before else ""
        alone = len(calls) == 1 and len(one.result.networks) == len(networks)
        prefix = "" if alone else f"{'+'.join(one.result.networks)}{again}."
        outcome.losses |= {prefix + name: value for name, value in scalars.losses.items()}
        outcome.norms |= {name + again: norm for name, norm in scalars.norms.items()}
        outcome.scale = scalars.scale or outcome.scale
        if spikes := guard.judge(step.index, call, scalars):
            outcome.spikes += f"{'; ' if outcome.spikes else ''}{prefix}{spikes}"
        if not scalars.why:
            outcome.moved += one.result.networks
            continue
        outcome.skipped.update({name + again: scalars.why for name in one.result.networks})
        harmless = scalars.why == "overflow" and not _exhausted(scalars, guard)
        outcome.left_out |= not harmless
        if scalars.why != "spike" and not harmless and guard.settings.nonfinite != "skip":
            outcome.culprit = outcome.culprit or one
    return outcome


def _exhausted(scalars: Scalars, guard: Guard) -> bool:
    """Whether gradients overflow though the loss scale cannot become smaller."""
    return scalars.scale is not None and scalars.scale <= guard.least_scale
