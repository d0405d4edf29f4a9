"""Settings of torch's own optimizers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le

from drivetrain.optim.recipe.optimizer import CLIP, Beta, Clip, Optimizer, Parts
from drivetrain.spec.settings import NonNegative, Positive, bits


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, arXiv 1412.6980)."""

    factory: ClassVar[str] = "torch.optim:Adam"
    parts: ClassVar[Parts] = "any"
    fused_on: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda", "xpu", "mps"})
    uncompiled_on: ClassVar[frozenset[str]] = frozenset({"cpu"})
    kind: Annotated[Literal["adam"], bits("Adam")] = "adam"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-3
    weight_decay: Annotated[NonNegative, bits("L2 penalty; none on norms, biases and other 1-D parameters")] = 0.0
    clip: Annotated[Clip | None, bits(CLIP)] = 1.0
    betas: Annotated[tuple[Beta, Beta], bits("decay of the first and second moment")] = (0.9, 0.999)
    eps: Annotated[Positive, bits("added to the denominator")] = 1e-8
    amsgrad: Annotated[bool, bits("divide by the largest second moment so far (Reddi et al. 2018)")] = False

    def arguments(self) -> dict[str, Any]:
        """Betas, eps and amsgrad."""
        return {"betas": self.betas, "eps": self.eps, "amsgrad": self.amsgrad}


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101)."""

    factory: ClassVar[str] = "torch.optim:AdamW"
    kind: Annotated[Literal["adamw"], bits("AdamW")] = "adamw"
    weight_decay: Annotated[NonNegative, bits("decoupled; none on norms, biases and other 1-D parameters")] = 0.01


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum by choice."""

    factory: ClassVar[str] = "torch.optim:SGD"
    parts: ClassVar[Parts] = "any"
    fused_on: ClassVar[frozenset[str]] = Adam.fused_on
    kind: Annotated[Literal["sgd"], bits("SGD")] = "sgd"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-2
    weight_decay: Annotated[NonNegative, bits("L2 penalty; none on norms, biases and other 1-D parameters")] = 0.0
    clip: Annotated[Clip | None, bits(CLIP)] = None
    momentum: Annotated[Beta, bits("decay of the velocity")] = 0.0
    nesterov: Annotated[bool, bits("Nesterov's momentum")] = False

    def __post_init__(self) -> None:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above zero")

    def arguments(self) -> dict[str, Any]:
        """Momentum and its kind."""
        return {"momentum": self.momentum, "nesterov": self.nesterov}


@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi, Hazan & Singer 2011, JMLR 12)."""

    factory: ClassVar[str] = "torch.optim:Adagrad"
    parts: ClassVar[Parts] = "any"
    fused_on: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    kind: Annotated[Literal["adagrad"], bits("Adagrad")] = "adagrad"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-2
    weight_decay: Annotated[NonNegative, bits("L2 penalty; none on norms, biases and other 1-D parameters")] = 0.0
    clip: Annotated[Clip | None, bits(CLIP)] = None
    lr_decay: Annotated[NonNegative, bits("the rate is divided by 1 + this times the steps before")] = 0.0
    initial: Annotated[NonNegative, bits("what the sums of squares begin with")] = 0.0
    eps: Annotated[Positive, bits("added to the denominator")] = 1e-10

    def arguments(self) -> dict[str, Any]:
        """Decay of the rate, initial sums and eps."""
        return {"lr_decay": self.lr_decay, "initial_accumulator_value": self.initial, "eps": self.eps}


@dataclass(frozen=True, kw_only=True)
class Adafactor(Optimizer):
    """Adafactor (Shazeer & Stern 2018, arXiv 1804.04235): of a matrix's second moments, only rows and columns.

    The step size of a tensor is max(scale_floor, RMS(tensor)) * min(lr, 1 / sqrt(step)), as torch has it.
    """

    factory: ClassVar[str] = "torch.optim:Adafactor"
    indivisible: ClassVar[str] = "adafactor takes means over whole tensors"
    kind: Annotated[Literal["adafactor"], bits("Adafactor")] = "adafactor"
    lr: Annotated[NonNegative, bits("peak of the largest step size, relative to a tensor's RMS")] = 1e-2
    weight_decay: Annotated[NonNegative, bits("decoupled; none on norms, biases and other 1-D parameters")] = 0.0
    clip: Annotated[Clip | None, bits(CLIP)] = None
    beta2_decay: Annotated[float, Le(0), bits("the second moment's decay is 1 - step ** this")] = -0.8
    eps: Annotated[Positive | None, bits("least denominator; null: the type's machine epsilon")] = None
    scale_floor: Annotated[Positive, bits("least RMS of a tensor that its step size follows")] = 1e-3
    threshold: Annotated[float, Ge(1), bits("largest RMS of an update, before the step size")] = 1.0

    def arguments(self) -> dict[str, Any]:
        """Decay of the second moment, both eps and the update's threshold."""
        return {"beta2_decay": self.beta2_decay, "eps": (self.eps, self.scale_floor), "d": self.threshold}


@dataclass(frozen=True, kw_only=True)
class RMSprop(Optimizer):
    """RMSprop (Tieleman & Hinton 2012, lecture 6.5; centered: Graves 2013, arXiv 1308.0850)."""

    factory: ClassVar[str] = "torch.optim:RMSprop"
    parts: ClassVar[Parts] = "any"
    kind: Annotated[Literal["rmsprop"], bits("RMSprop")] = "rmsprop"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-2
    weight_decay: Annotated[NonNegative, bits("L2 penalty; none on norms, biases and other 1-D parameters")] = 0.0
    clip: Annotated[Clip | None, bits(CLIP)] = None
    alpha: Annotated[Beta, bits("decay of the second moment")] = 0.99
    momentum: Annotated[Beta, bits("decay of the velocity")] = 0.0
    centered: Annotated[bool, bits("divide by the variance, not by the second moment")] = False
    eps: Annotated[Positive, bits("added to the denominator")] = 1e-8

    def arguments(self) -> dict[str, Any]:
        """Decays, eps and whether it is centered."""
        return {"alpha": self.alpha, "momentum": self.momentum, "centered": self.centered, "eps": self.eps}
