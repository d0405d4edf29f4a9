"""Settings of the engine that are more than one word."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Lt
from pydantic import Field

from drivetrain.spec.amount import Amount, Scale
from drivetrain.spec.batches import Batches, Change
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.settings import Count, Positive, Settings, bits, cost


@dataclass(frozen=True, kw_only=True)
class Ramp(Settings):
    """Another batch size from some point of the run on."""

    from_: Annotated[Amount, Field(alias="from"), bits("where it begins, rounded up to a whole step")]
    size: Annotated[Count, bits("samples per optimizer step from there on")]


@dataclass(frozen=True, kw_only=True)
class Batch(Settings):
    """The global batch and its micro-batches."""

    size: Annotated[Count, bits("samples per optimizer step, over all processes; a multiple of the lanes")]
    micro: Annotated[Count | None, bits("samples per forward pass; null: a process's whole share")] = None
    ramp: Annotated[tuple[Ramp, ...], bits("later batch sizes, in the order in which they begin")] = ()

    @property
    def sizes(self) -> list[int]:
        """Every batch size of the run, in order."""
        return [self.size, *(change.size for change in self.ramp)]


@dataclass(frozen=True, kw_only=True)
class Scaling(Settings):
    """The factor on the loss with `precision: fp16`; every number is a power of two."""

    start: Annotated[Positive, bits("at the start of the run")] = 65536.0
    window: Annotated[Count, bits("moves of a network without an overflow after which it is doubled")] = 2000
    least: Annotated[Positive, bits("it is never smaller; an overflow there is an error")] = 1.0
    most: Annotated[Positive, bits("it is never larger")] = 2.0**32

    def __post_init__(self) -> None:
        numbers = (self.least, self.start, self.most)
        if not all(math.frexp(number)[0] == 0.5 for number in numbers):
            raise ValueError("start, least and most are powers of two")
        if list(numbers) != sorted(numbers):
            raise ValueError("least is at most start, and start at most most")


@dataclass(frozen=True, kw_only=True)
class Average(Settings):
    """An exponential moving average of the weights, kept beside them."""

    decay: Annotated[float, Gt(0), Lt(1), bits("how much of it stays in each step")] = 0.999
    warmup: Annotated[bool, bits("step n keeps (1 + n) / (10 + n) where that is less")] = True
    evaluate: Annotated[bool, cost("the average is what is evaluated and exported, not the weights")] = True


@dataclass(frozen=True, kw_only=True)
class Statistics(Settings):
    """What is measured of gradients and weights now and then."""

    every: Annotated[Amount, cost("between measurements")]
    gradients: Annotated[bool, cost("the gradient noise scale: how large a batch pays")] = True
    weights: Annotated[bool, cost("the size of the weights and of a step's change")] = True


def scale_of(batch: Batch, tokens: int | None, epoch: int) -> Scale:
    """What steps, tokens and epochs are in samples: `tokens` in a sample (None: not fixed), `epoch` samples in one.

    Raises Failure(78) where the batch sizes of the ramp do not begin one after the other.
    """
    scale = Scale(Batches(batch.size), tokens, epoch)
    changes: tuple[Change, ...] = ()
    for place, change in enumerate(batch.ramp):
        after = scale.batches.steps(change.from_.samples_at(scale))
        if after <= (changes[-1].after if changes else 0):
            cause = f"batch.ramp[{place}] begins after step {after}, not after the one before it"
            raise Failure(Exit.BAD_RECIPE, cause, "list the sizes in the order in which they begin, from beyond 0 on")
        changes += (Change(after, change.size),)
        scale = Scale(Batches(batch.size, changes), tokens, epoch)
    return scale
