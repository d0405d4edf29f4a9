"""Settings of the engine that are more than one word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, Literal

from annotated_types import Gt, Lt
from pydantic import Field

from drivetrain.spec.amount import Amount, Scale
from drivetrain.spec.batches import Batches, Change
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.mesh import AXES, MeshSizes
from drivetrain.spec.recipe import Activations
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
    cost: Annotated[
        Count | None,
        bits(
            "what a step's samples cost at most, of sources with a `cost`; then `size` is the most samples", later=True
        ),
    ] = None

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
        # By a power of two a number is scaled and back to the same bits; by any other it is rounded.
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
class Network(Settings):
    """What holds for one network where there are several; null: what holds for all of them.

    Steps are the run's, whoever moves. In step 1 every network is tried; one whose first turn comes later is tried at a
    learning rate of zero, so that a late start cannot fail late. Its schedule begins with that turn.
    """

    start: Annotated[Count, bits("the step from which it takes part; in step 1 it is tried in any case")] = 1
    turns: Annotated[
        tuple[Count, Count], bits("[n, m]: it moves in n of m steps, evenly: in those with floor(step * n / m) grown")
    ] = (1, 1)
    micro: Annotated[
        Count | None, bits("samples per forward pass when it moves; at most batch.micro, which it cuts")
    ] = None
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"] | None, bits("of forward and backward when it moves; evaluation has the run's")
    ] = None
    average: Annotated[Average | None, bits("a moving average of its weights")] = None
    activations: Annotated[Activations | None, cost("which of its activations are kept for the backward pass")] = None
    freeze: Annotated[bool, bits("it does not train, and is in evaluation mode")] = False

    def __post_init__(self) -> None:
        if self.turns[0] > self.turns[1]:
            raise ValueError(f"turns [{self.turns[0]}, {self.turns[1]}] are more moves than steps")

    def joined(self, step: int) -> bool:
        """Whether it takes part in a step, be it its turn or not."""
        return step == 1 or step >= self.start

    def moves(self, step: int) -> bool:
        """Whether it moves in a step."""
        return step == 1 or (step >= self.start and self._due(step))

    @property
    def first(self) -> int:
        """The step of its first turn."""
        return next(step for step in count(self.start) if self._due(step))

    def _due(self, step: int) -> bool:
        moves, steps = self.turns
        # A function of the step alone: a resume needs no counter, and any two ranks agree.
        return step * moves // steps > (step - 1) * moves // steps


def waits_of(networks: Mapping[str, Network]) -> dict[str, int]:
    """How many steps each network stands still for before its first turn."""
    return {name: own.first - 1 for name, own in networks.items()}


@dataclass(frozen=True, kw_only=True)
class Statistics(Settings):
    """What is measured of gradients and weights now and then."""

    every: Annotated[Amount, cost("between measurements")]
    gradients: Annotated[bool, cost("the gradient noise scale: how large a batch pays")] = True
    weights: Annotated[bool, cost("the size of the weights and of a step's change")] = True
    histograms: Annotated[bool, cost("how the weights, and a step's change of them, are distributed")] = False


@dataclass(frozen=True, kw_only=True)
class OwnKernel(Settings):
    """What computes modules in their classes' place: `kind` is its import path, other keys are its arguments."""

    tolerance: Annotated[
        Positive | None, cost("the largest difference from the module, of its largest number; null: by precision")
    ] = None
    own: Annotated[Any, bits("its kind, and its arguments", inline=True)] = None


@dataclass(frozen=True, kw_only=True)
class Parameters(Settings):
    """What the networks' weights are kept as. Gradients and the optimizers' state are fp32 in any case."""

    dtype: Annotated[Literal["fp32", "bf16"], bits("of the weights in forward and backward", later=True)] = "fp32"
    master: Annotated[
        Literal["fp32", "none"],
        bits(
            "with bf16: what the optimizer moves, and commits keep beside the weights; none: only they last", later=True
        ),
    ] = "fp32"
    rounding: Annotated[
        Literal["nearest", "stochastic"],
        bits("with bf16: how a step's result becomes weights; stochastic: up or down by chance", later=True),
    ] = "nearest"


@dataclass(frozen=True, kw_only=True)
class Parallel(Settings):
    """How the processes are laid out. Their product are all processes of the run; one of them may be `auto`: as many as
    are left. `replicate` is so by default, and 1 where another one is `auto`."""

    replicate: Annotated[Count | Literal["auto"], cost("processes that hold the same and read other samples")] = "auto"
    shard: Annotated[
        Count | Literal["auto"], cost("processes that hold a part of every tensor each and read other samples (FSDP)")
    ] = 1
    context: Annotated[Count | Literal["auto"], cost("processes that share each sample's positions")] = 1
    tensor: Annotated[
        Count | Literal["auto"], cost("processes that split the matrices of a layer and read the same samples")
    ] = 1
    pipeline: Annotated[Count | Literal["auto"], cost("processes that hold some of the layers each")] = 1
    pipeline_schedule: Annotated[
        Literal["1f1b", "interleaved", "zero_bubble", "zbv", "gpipe"],
        cost("with pipeline: in which order its stages work on a step's micro-batches"),
    ] = "1f1b"
    virtual_stages: Annotated[Count, cost("with interleaved, zero_bubble or zbv: stages on each process")] = 1
    sequence: Annotated[bool, cost("with tensor: what lies between split layers is shared out by positions")] = True

    accumulate: Annotated[
        Literal["whole", "parts"],
        bits(
            "with shard: where micro-batches add up. whole: gradients of all, summed over processes once a step; parts:"
            " those of what is here, summed after each micro-batch: less memory, more messages",
            later=True,
        ),
    ] = "whole"

    def __post_init__(self) -> None:
        free = [axis for axis in self._free if axis != "replicate"]
        if len(free) > 1:
            raise ValueError(f"{' and '.join(free)} are auto, and only one can be what is left")
        several = self.pipeline_schedule in ("interleaved", "zero_bubble", "zbv")
        if self.virtual_stages > 1 and not several:
            raise ValueError(f"virtual_stages {self.virtual_stages}: {self.pipeline_schedule} has 1 on each process")
        if self.pipeline_schedule == "interleaved" and self.virtual_stages == 1:
            raise ValueError("interleaved: give virtual_stages, 2 or more")
        if self.pipeline_schedule == "zbv" and self.virtual_stages != 2:
            raise ValueError("zbv: give virtual_stages: 2, one on the way there and one on the way back")

    def sizes(self, processes: int) -> MeshSizes:
        """The mesh of so many processes. Raises ValueError where they are not its product; the message says what would
        be."""
        free, given = self._free, {axis: getattr(self, axis) for axis in AXES}
        # `replicate` is auto unless it is given, so another auto is the one that is meant.
        if len(free) > 1:
            given["replicate"] = 1
            free.remove("replicate")
        fixed = math.prod(size for axis, size in given.items() if axis not in free)
        told = " x ".join(f"{axis} {size}" for axis, size in given.items() if axis not in free and size != 1)
        if free:
            if processes % fixed:
                raise ValueError(f"{told} takes a multiple of {fixed} processes, and there are {processes}")
            given[free[0]] = processes // fixed
        elif fixed != processes:
            raise ValueError(f"{told or 'one process'} takes {fixed} processes, and there are {processes}")
        return MeshSizes(**given)

    @property
    def stages(self) -> dict[str, Any]:
        """How many stages lie at each place along `pipeline`, and how, as a mesh wants it told."""
        return {"virtual_stages": self.virtual_stages, "folded": self.pipeline_schedule == "zbv"}

    @property
    def _free(self) -> list[str]:
        return [axis for axis in AXES if getattr(self, axis) == "auto"]


def scale_of(batch: Batch, tokens: int | None, epoch: int) -> Scale:
    """What steps, tokens and epochs are in samples: `tokens` in a sample (None: not fixed), `epoch` samples in one.

    Raises Failure(78) where the batch sizes of the ramp do not begin one after the other.
    """
    scale = Scale(Batches(batch.size), tokens, epoch)
    changes: tuple[Change, ...] = ()
    for place, change in enumerate(batch.ramp):
        after = scale.batches.steps(change.from_.samples_at(scale))
        before = changes[-1].after if changes else 0
        # Also one that rounds to the same step: of two sizes for one step neither would be the recipe's.
        if after <= before:
            cause = f"batch.ramp[{place}] begins after step {after}, not after the one before it"
            raise Failure(Exit.BAD_RECIPE, cause, "list the sizes in the order in which they begin, from beyond 0 on")
        changes += (Change(after, change.size),)
        # An amount of steps is as many samples as they take: where the next change begins depends on those before it.
        scale = Scale(Batches(batch.size, changes), tokens, epoch)
    return scale
