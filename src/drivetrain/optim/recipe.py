"""Settings of optimizers and schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Lt

from drivetrain.spec.amount import Amount
from drivetrain.spec.settings import Component, Fraction, NonNegative, Positive, Settings, bits

Beta = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True, kw_only=True)
class Group(Settings):
    """Parameters chosen by a regular expression, with settings of their own. The first group that matches takes one."""

    match: Annotated[str, bits("regular expression, searched in the parameter's dotted name")]
    lr: Annotated[NonNegative | None, bits("peak learning rate; the optimizer's where absent")] = None
    weight_decay: Annotated[NonNegative | None, bits("weight decay; the optimizer's where absent")] = None


@dataclass(frozen=True, kw_only=True)
class Optimizer(Component):
    """What every optimizer has."""

    lr: Annotated[NonNegative, bits("peak learning rate")]
    weight_decay: Annotated[NonNegative, bits("decoupled for AdamW; none on norms, biases and other 1-D parameters")]
    clip: Annotated[Positive | None, bits("largest global gradient norm; null: no clipping")]
    groups: Annotated[tuple[Group, ...], bits("parameter groups with settings of their own")] = ()

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the torch optimizer that are the same for every group."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101)."""

    factory: ClassVar[str] = "torch.optim:AdamW"
    kind: Annotated[Literal["adamw"], bits("AdamW")] = "adamw"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-3
    weight_decay: Annotated[NonNegative, bits("decoupled; none on norms, biases and other 1-D parameters")] = 0.01
    clip: Annotated[Positive | None, bits("largest global gradient norm; null: no clipping")] = 1.0
    betas: Annotated[tuple[Beta, Beta], bits("decay of the first and second moment")] = (0.9, 0.999)
    eps: Annotated[Positive, bits("added to the denominator")] = 1e-8

    def arguments(self) -> dict[str, Any]:
        """Betas and eps."""
        return {"betas": self.betas, "eps": self.eps}


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum by choice."""

    factory: ClassVar[str] = "torch.optim:SGD"
    kind: Annotated[Literal["sgd"], bits("SGD")] = "sgd"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-2
    weight_decay: Annotated[NonNegative, bits("L2 penalty; none on norms, biases and other 1-D parameters")] = 0.0
    clip: Annotated[Positive | None, bits("largest global gradient norm; null: no clipping")] = None
    momentum: Annotated[Beta, bits("decay of the velocity")] = 0.0
    nesterov: Annotated[bool, bits("Nesterov's momentum")] = False

    def __post_init__(self) -> None:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above zero")

    def arguments(self) -> dict[str, Any]:
        """Momentum and its kind."""
        return {"momentum": self.momentum, "nesterov": self.nesterov}


@dataclass(frozen=True, kw_only=True)
class Schedule(Component):
    """What every schedule has: a factor on the peak learning rate, as a function of the samples consumed.

    The rate of a step is the factor at the samples consumed *with* that step, so no step is wasted on a rate of zero.
    """

    warmup: Annotated[Amount | None, bits("linear rise from zero; null: none")] = None


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The peak, after the warm-up."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:constant"
    kind: Annotated[Literal["constant"], bits("constant after the warm-up")] = "constant"


@dataclass(frozen=True, kw_only=True)
class Decay(Schedule):
    """A fall from the peak to `floor` times the peak at the end of the budget."""

    floor: Annotated[Fraction, bits("where the decay ends, as a fraction of the peak")] = 0.0


@dataclass(frozen=True, kw_only=True)
class Linear(Decay):
    """A straight fall."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:linear"
    kind: Annotated[Literal["linear"], bits("linear decay")] = "linear"


@dataclass(frozen=True, kw_only=True)
class Cosine(Decay):
    """Half a cosine (Loshchilov & Hutter 2017, arXiv 1608.03983, without restarts)."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:cosine"
    kind: Annotated[Literal["cosine"], bits("cosine decay")] = "cosine"
