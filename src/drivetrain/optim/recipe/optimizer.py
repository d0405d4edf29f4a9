"""What the settings of every optimizer have: rates, clipping, parameter groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Lt

from drivetrain.optim.recipe.schedules import AnySchedule, WeightDecaySchedule
from drivetrain.spec.settings import Component, NonNegative, Positive, Settings, bits

Beta = Annotated[float, Ge(0), Lt(1)]
CLIP = "largest global gradient norm; {value: 0.5}: of each element, its largest absolute value; null: no clipping"
OUTPUTS = r"(^|\.)(\w*embed\w*|wte|wpe|(\w+_)?head|unembed|classifier)(\.|$)"
"""Names of output layers, and of embeddings that are no nn.Embedding."""


@dataclass(frozen=True, kw_only=True)
class ClipByValue(Settings):
    """Each element of a gradient by itself, as torch's `clip_grad_value_`."""

    value: Annotated[Positive, bits("largest absolute value of an element")]


Clip = Positive | ClipByValue
Parts = Literal["any", "rows", "whole", "none"]
"""What an optimizer can move where processes hold a part of each tensor: any part; some of the rows; any, since it puts
together whole tensors where it needs them; none."""


@dataclass(frozen=True)
class MatrixChoice:
    """Which weights an optimizer takes as matrices, in words that need no torch.

    `pattern` is searched in dotted names; `field` is the optimizer's field that gives it. With `hidden` these are the
    2-D weights of no embedding whose names do not match; without, the weights of two dimensions or more that do.
    """

    field: str
    pattern: str
    hidden: bool


@dataclass(frozen=True, kw_only=True)
class ParameterGroup(Settings):
    """Parameters chosen by a regular expression, with settings of their own. The first group that matches takes one."""

    match: Annotated[str, bits("regular expression, searched in the parameter's dotted name")]
    lr: Annotated[NonNegative | None, bits("peak learning rate; the optimizer's where absent")] = None
    weight_decay: Annotated[NonNegative | None, bits("weight decay; the optimizer's where absent")] = None
    schedule: Annotated[AnySchedule | None, bits("learning-rate schedule; the network's where absent")] = None

    @property
    def needs_matrix(self) -> bool:
        """Whether it gives what only matrices heed."""
        return False


@dataclass(frozen=True, kw_only=True)
class Optimizer(Component):
    """What every optimizer has.

    `fused_on` are the device types for which torch has a fused kernel of it, `uncompiled_on` those on which its steps
    do without torch's compiler. `parts` it can move on a mesh; where that is none, `indivisible` says why.
    One that treats matrices otherwise than the rest says so by `matrices`, and by `without_matrices` if it needs some.
    """

    fused_on: ClassVar[frozenset[str]] = frozenset()
    uncompiled_on: ClassVar[frozenset[str]] = frozenset()
    parts: ClassVar[Parts] = "none"
    indivisible: ClassVar[str] = "it moves whole tensors"
    lr: Annotated[NonNegative, bits("peak learning rate")]
    weight_decay: Annotated[NonNegative, bits("none on norms, biases and other 1-D parameters")]
    clip: Annotated[Clip | None, bits(CLIP)]
    groups: Annotated[tuple[ParameterGroup, ...], bits("parameter groups with settings of their own")] = ()
    weight_decay_schedule: Annotated[WeightDecaySchedule | None, bits("null: weight decay is constant")] = None
    layerwise: Annotated[
        bool,
        bits("parameters move one by one within the backward pass; clipping goes by the norm of the step before"),
    ] = False

    @property
    def matrices(self) -> MatrixChoice | None:
        """Which weights it treats as matrices; None: all parameters are alike to it."""
        return None

    @property
    def sums_projections(self) -> bool:
        """Whether processes sum projections of its matrices' gradients: then what is built of it is `Projecting`."""
        return False

    def without_matrices(self, networks: str, parameters: str) -> tuple[str, str]:
        """Cause and hint where `matrices` chooses none; the arguments list the networks and some of their parameters.

        Raises NotImplementedError for an optimizer to which all parameters are alike.
        """
        raise NotImplementedError

    def peak(self, matrix: bool) -> float:
        """Peak learning rate of parameters whose group gives none; `matrix`: of those that `matrices` chooses."""
        return self.lr

    def options(self, group: ParameterGroup) -> dict[str, Any]:
        """What the optimizer wants to know of a parameter group besides its rates."""
        return {}

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the torch optimizer that are the same for every group."""
        raise NotImplementedError
