"""Steps that come to the wrong numbers: who caused it, said on every rank alike."""

from __future__ import annotations

from drivetrain.engine.engine import Engine
from drivetrain.loop.step import MinimizeCall
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure

_SHOWN = 16


def guilty_samples(engine: Engine, group: Group, done: MinimizeCall) -> list[tuple[int, list[int]]]:
    """The rank and the sample ids of each micro-batch that is not finite; every rank calls it, at the same boundary.

    The weights have not moved. Each rank runs its micro-batches again, one by one, to find those that are not finite.
    """
    guilty = engine.nonfinite_micro_batches(done.result.networks, done.loss, done.inputs)
    told = group.gather_json([micro.ids.tolist() for micro in guilty])
    found = []
    for rank, micros in enumerate(told):
        found += [(rank, ids) for ids in micros]
    return found


def what_diverged(done: MinimizeCall) -> str:
    """Which networks would have moved by which numbers."""
    scalars = done.result.read()
    networks = "+".join(done.result.networks)
    numbers = ", ".join(f"{name} {value:g}" for name, value in scalars.losses.items())
    norms = ", ".join(f"{name} {value:g}" for name, value in scalars.norms.items())
    return f"not finite while {networks} moved: loss {numbers or 'unknown'}; gradient norm {norms}"


def diverged(engine: Engine, group: Group, done: MinimizeCall) -> Failure:
    """Failure(82) naming step, ranks and sample ids; every rank calls it, at the same boundary."""
    found, cause = guilty_samples(engine, group, done), what_diverged(done)
    if not found:  # on any rank: all have the same list, and raise alike
        return Failure(
            Exit.DIVERGED,
            cause,
            "each micro-batch is finite when run again alone: suspect the hardware, or a loss that couples samples",
            step=done.inputs.step,
        )
    ids: list[int] = []
    for _, samples in found:
        ids += samples
    ranks = sorted({rank for rank, _ in found})
    return Failure(
        Exit.DIVERGED,
        cause,
        "look at these samples (data order is a function of position, so a restart meets them again); "
        "lower the learning rate, lengthen the warm-up or clip",
        rank=ranks[0] if len(ranks) == 1 else ranks,
        step=done.inputs.step,
        sample_ids=shown(ids),
    )


def shown(ids: list[int]) -> list[int | str]:
    """The first of many sample ids."""
    if len(ids) <= _SHOWN:
        return [*ids]
    return [*ids[:_SHOWN], "..."]


def not_again(step: int, wrong: str) -> Failure:
    """Failure(83): a step was made again, and was not the same."""
    return Failure(
        Exit.CORRUPTION_SUSPECTED,
        f"step {step} was made again and came to other numbers ({wrong})",
        "suspect the hardware, or code that is not deterministic; `drivetrain verify` compares all steps",
        step=step,
    )
