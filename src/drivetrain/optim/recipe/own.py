"""Settings of optimizers and schedules of the user's own: what they have beside their constructors' arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from drivetrain.optim.recipe.optimizer import CLIP, Clip, Optimizer, Parts
from drivetrain.optim.recipe.schedules import Schedule
from drivetrain.spec.amount import Amount
from drivetrain.spec.settings import NonNegative, bits, cost


@dataclass(frozen=True, kw_only=True)
class OwnOptimizer(Optimizer):
    """Any `torch.optim.Optimizer`: `kind` is its import path, other keys than these are its constructor's arguments."""

    lr: Annotated[NonNegative, bits("peak learning rate")]
    weight_decay: Annotated[NonNegative, bits("as the class has it; none on norms, biases, other 1-D parameters")] = 0.0
    clip: Annotated[Clip | None, bits(CLIP)] = None
    elementwise: Annotated[
        bool, cost("each number moves by its own gradient and state alone: then a process may hold a part of a tensor")
    ] = False
    own: Annotated[Any, bits("its kind, and its constructor's arguments", inline=True)] = None

    @property
    def parts(self) -> Parts:
        """Any where it is `elementwise`."""
        return "any" if self.elementwise else "none"

    @property
    def indivisible(self) -> str:
        """Nobody else can tell."""
        return "a class of your own may look at whole tensors (elementwise: true, where each number moves by itself)"

    def __post_init__(self) -> None:
        if self.layerwise:
            raise ValueError("layerwise is for drivetrain's own kinds: this one may look at all parameters together")


@dataclass(frozen=True, kw_only=True)
class OwnSchedule(Schedule):
    """A function or a class of the user's own; other keys than these are its arguments."""

    factory: ClassVar[str] = "drivetrain.optim.own:own_schedule"
    every: Annotated[
        Amount | None, bits("the validation sets are scored so often for it; null: it reads no scores")
    ] = None
    own: Annotated[Any, bits("its kind, and its arguments", inline=True)] = None

    @property
    def reads_scores(self) -> Amount | None:
        """As `every` says."""
        return self.every
