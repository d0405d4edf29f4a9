"""The stop policy for losses and gradients that are not finite: who caused it, said on every rank alike."""

from __future__ import annotations

from drivetrain.engine.engine import Engine
from drivetrain.loop.step import Done
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure

_SHOWN = 16


def diverged(engine: Engine, group: Group, done: Done) -> Failure:
    """Failure(82) naming step, ranks and sample ids; every rank calls it, at the same boundary.

    The weights have not moved. Each rank runs its micro-batches again, one by one, to find those that are not finite.
    """
    guilty = engine.culprits(done.move.networks, done.loss, done.work)
    found = [
        (rank, micro["start"], ids)
        for rank, micros in enumerate(group.gather_json([{"start": m.start, "ids": m.ids.tolist()} for m in guilty]))
        for micro in micros
        for ids in [micro["ids"]]
    ]
    scalars = done.move.read()
    networks = "+".join(done.move.networks)
    numbers = ", ".join(f"{name} {value:g}" for name, value in scalars.losses.items())
    norms = ", ".join(f"{name} {value:g}" for name, value in scalars.norms.items())
    cause = f"not finite while {networks} moved: loss {numbers or 'unknown'}; gradient norm {norms}"
    if not found:
        return Failure(
            Exit.DIVERGED,
            cause,
            "each micro-batch is finite when run again alone: suspect the hardware, or a loss that couples samples",
            step=done.work.step,
        )
    ids = [sample for _, _, samples in found for sample in samples]
    return Failure(
        Exit.DIVERGED,
        cause,
        "look at these samples (data order is a function of position, so a restart meets them again); "
        "lower the learning rate, lengthen the warm-up or clip",
        rank=found[0][0] if len({rank for rank, _, _ in found}) == 1 else sorted({rank for rank, _, _ in found}),
        step=done.work.step,
        sample_ids=ids[:_SHOWN] + (["..."] if len(ids) > _SHOWN else []),
    )
