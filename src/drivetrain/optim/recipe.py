"""Settings of optimizers and schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import Field

from drivetrain.spec.amount import Amount
from drivetrain.spec.settings import Component, Count, Fraction, NonNegative, Positive, Settings, Whole, bits

Beta = Annotated[float, Ge(0), Lt(1)]
Ratio = Annotated[float, Gt(0), Le(1)]

# Schedules


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
    """A fall from the peak to `floor` times the peak, where it stays."""

    floor: Annotated[Fraction, bits("where the decay ends, as a fraction of the peak")] = 0.0
    length: Annotated[Amount | None, bits("from the run's start to the decay's end; null: the budget")] = None


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


@dataclass(frozen=True, kw_only=True)
class Polynomial(Decay):
    """A power of what is left of the way."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:polynomial"
    kind: Annotated[Literal["polynomial"], bits("polynomial decay")] = "polynomial"
    power: Annotated[Positive, bits("exponent; 1: linear")] = 2.0


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay(Decay):
    """The peak, then a decay in the last stretch (Hu et al. 2024, arXiv 2404.06395, section 4.2)."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:warmup_stable_decay"
    kind: Annotated[Literal["wsd"], bits("warm-up, stable, decay")] = "wsd"
    decay: Annotated[Amount, bits("how long the decay at the end is")]
    shape: Annotated[
        Literal["linear", "cosine", "sqrt", "exponential"], bits("of the decay; exponential needs a floor above 0")
    ] = "linear"

    def __post_init__(self) -> None:
        if self.shape == "exponential" and self.floor == 0:
            raise ValueError("an exponential decay needs a floor above zero")


@dataclass(frozen=True, kw_only=True)
class CosineRestarts(Schedule):
    """Half a cosine, again and again (Loshchilov & Hutter 2017, arXiv 1608.03983)."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:cosine_restarts"
    kind: Annotated[Literal["cosine_restarts"], bits("cosine decay with warm restarts")] = "cosine_restarts"
    floor: Annotated[Fraction, bits("where each cycle ends, as a fraction of the peak")] = 0.0
    period: Annotated[Amount, bits("length of the first cycle, which begins after the warm-up")]
    multiplier: Annotated[Count, bits("each cycle is this many times as long as the one before")] = 1
    decay: Annotated[Ratio, bits("each cycle begins at this fraction of the one before, but not below the floor")] = 1.0


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(Schedule):
    """A fall with the square root of the samples, without an end (Vaswani et al. 2017, arXiv 1706.03762)."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:inverse_sqrt"
    kind: Annotated[Literal["inverse_sqrt"], bits("inverse square root")] = "inverse_sqrt"
    floor: Annotated[Fraction, bits("the least factor")] = 0.0
    timescale: Annotated[
        Amount | None, bits("this long after the warm-up 1 / sqrt(2) of the peak is left; null: the warm-up's length")
    ] = None

    def __post_init__(self) -> None:
        if self.timescale is None and self.warmup is None:
            raise ValueError("inverse_sqrt needs a warm-up or a timescale")


@dataclass(frozen=True, kw_only=True)
class Exponential(Schedule):
    """The same factor for every stretch of the same length, without an end."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:exponential"
    kind: Annotated[Literal["exponential"], bits("exponential decay")] = "exponential"
    floor: Annotated[Fraction, bits("the least factor")] = 0.0
    rate: Annotated[Ratio, bits("factor of each stretch")]
    every: Annotated[Amount, bits("length of a stretch, counted from the end of the warm-up")]
    staircase: Annotated[bool, bits("fall at the end of each stretch only")] = False


@dataclass(frozen=True, kw_only=True)
class Milestone(Settings):
    """Where a new factor begins."""

    at: Annotated[Amount, bits("from the run's start; the first step that goes beyond it has the new factor")]
    factor: Annotated[Fraction, bits("of the peak (not of the factor before)")]


@dataclass(frozen=True, kw_only=True)
class StepSchedule(Schedule):
    """Factors set by hand."""

    factory: ClassVar[str] = "drivetrain.optim.schedules:steps"
    kind: Annotated[Literal["steps"], bits("factors from milestones on")] = "steps"
    milestones: Annotated[tuple[Milestone, ...], MinLen(1), bits("in order; before the first: the peak")]


AnySchedule = Annotated[
    Constant
    | Linear
    | Cosine
    | Polynomial
    | WarmupStableDecay
    | CosineRestarts
    | InverseSqrt
    | Exponential
    | StepSchedule,
    Field(discriminator="kind"),
]
"""A schedule inside other settings, where its kind must be given."""


@dataclass(frozen=True, kw_only=True)
class WeightDecaySchedule(Settings):
    """A factor on every group's weight decay: `start` at the run's start, `end` at the end, then constant."""

    kind: Annotated[Literal["linear", "cosine"], bits("a straight line, or half a cosine")] = "linear"
    start: Annotated[NonNegative, bits("factor at the start")] = 1.0
    end: Annotated[NonNegative, bits("factor at the end")] = 0.0
    length: Annotated[Amount | None, bits("from the run's start to the end; null: the budget")] = None


# Optimizers

OUTPUTS = r"(^|\.)(\w*embed\w*|wte|wpe|(\w+_)?head|unembed|classifier)(\.|$)"
"""Names of output layers, and of embeddings that are no nn.Embedding."""


@dataclass(frozen=True, kw_only=True)
class ParameterGroup(Settings):
    """Parameters chosen by a regular expression, with settings of their own. The first group that matches takes one."""

    match: Annotated[str, bits("regular expression, searched in the parameter's dotted name")]
    lr: Annotated[NonNegative | None, bits("peak learning rate; the optimizer's where absent")] = None
    weight_decay: Annotated[NonNegative | None, bits("weight decay; the optimizer's where absent")] = None
    schedule: Annotated[AnySchedule | None, bits("learning-rate schedule; the network's where absent")] = None


@dataclass(frozen=True, kw_only=True)
class Optimizer(Component):
    """What every optimizer has.

    `fused_on` are the device types for which torch has a fused kernel of it.
    """

    fused_on: ClassVar[frozenset[str]] = frozenset()
    lr: Annotated[NonNegative, bits("peak learning rate")]
    weight_decay: Annotated[NonNegative, bits("none on norms, biases and other 1-D parameters")]
    clip: Annotated[Positive | None, bits("largest global gradient norm; null: no clipping")]
    groups: Annotated[tuple[ParameterGroup, ...], bits("parameter groups with settings of their own")] = ()
    weight_decay_schedule: Annotated[WeightDecaySchedule | None, bits("null: weight decay is constant")] = None
    layerwise: Annotated[
        bool,
        bits("parameters move one by one within the backward pass; clipping goes by the norm of the step before"),
    ] = False

    def peak(self, matrix: bool) -> float:
        """Peak learning rate of parameters whose group gives none; `matrix`: of those that Muon takes."""
        return self.lr

    def options(self, group: ParameterGroup) -> dict[str, Any]:
        """What the optimizer wants to know of a parameter group besides its rates."""
        return {}

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the torch optimizer that are the same for every group."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, arXiv 1412.6980)."""

    factory: ClassVar[str] = "torch.optim:Adam"
    fused_on: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda", "xpu", "mps"})
    kind: Annotated[Literal["adam"], bits("Adam")] = "adam"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-3
    weight_decay: Annotated[NonNegative, bits("L2 penalty; none on norms, biases and other 1-D parameters")] = 0.0
    clip: Annotated[Positive | None, bits("largest global gradient norm; null: no clipping")] = 1.0
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
    fused_on: ClassVar[frozenset[str]] = Adam.fused_on
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
class Adagrad(Optimizer):
    """Adagrad (Duchi, Hazan & Singer 2011, JMLR 12)."""

    factory: ClassVar[str] = "torch.optim:Adagrad"
    fused_on: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    kind: Annotated[Literal["adagrad"], bits("Adagrad")] = "adagrad"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-2
    weight_decay: Annotated[NonNegative, bits("L2 penalty; none on norms, biases and other 1-D parameters")] = 0.0
    clip: Annotated[Positive | None, bits("largest global gradient norm; null: no clipping")] = None
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
    kind: Annotated[Literal["adafactor"], bits("Adafactor")] = "adafactor"
    lr: Annotated[NonNegative, bits("peak of the largest step size, relative to a tensor's RMS")] = 1e-2
    weight_decay: Annotated[NonNegative, bits("decoupled; none on norms, biases and other 1-D parameters")] = 0.0
    clip: Annotated[Positive | None, bits("largest global gradient norm; null: no clipping")] = None
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
    kind: Annotated[Literal["rmsprop"], bits("RMSprop")] = "rmsprop"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-2
    weight_decay: Annotated[NonNegative, bits("L2 penalty; none on norms, biases and other 1-D parameters")] = 0.0
    clip: Annotated[Positive | None, bits("largest global gradient norm; null: no clipping")] = None
    alpha: Annotated[Beta, bits("decay of the second moment")] = 0.99
    momentum: Annotated[Beta, bits("decay of the velocity")] = 0.0
    centered: Annotated[bool, bits("divide by the variance, not by the second moment")] = False
    eps: Annotated[Positive, bits("added to the denominator")] = 1e-8

    def arguments(self) -> dict[str, Any]:
        """Decays, eps and whether it is centered."""
        return {"alpha": self.alpha, "momentum": self.momentum, "centered": self.centered, "eps": self.eps}


@dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """Muon for hidden matrices (Jordan 2024, https://kellerjordan.github.io/posts/muon), AdamW for all the rest.

    Hidden matrices are the 2-D weights that belong to no nn.Embedding and whose name `adamw` does not match.
    """

    factory: ClassVar[str] = "drivetrain.optim.muon:MuonAdamW"
    kind: Annotated[Literal["muon"], bits("Muon, with AdamW")] = "muon"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-3
    weight_decay: Annotated[NonNegative, bits("decoupled; none on norms, biases and other 1-D parameters")] = 0.1
    clip: Annotated[Positive | None, bits("largest global gradient norm; null: no clipping")] = 1.0
    momentum: Annotated[Beta, bits("decay of the velocity")] = 0.95
    nesterov: Annotated[bool, bits("Nesterov's momentum")] = True
    iterations: Annotated[int, Ge(1), Lt(100), bits("of Newton and Schulz, in bfloat16")] = 5
    adjust: Annotated[
        Literal["match_rms_adamw", "original"],
        bits("factor on lr: 0.2 sqrt(max(rows, columns)) (arXiv 2502.16982), or sqrt(max(1, rows / columns))"),
    ] = "match_rms_adamw"
    adamw: Annotated[str, bits("regular expression of 2-D weights for AdamW besides embeddings: output layers")] = (
        OUTPUTS
    )
    adamw_lr: Annotated[NonNegative | None, bits("AdamW's peak learning rate; null: the same")] = None
    betas: Annotated[tuple[Beta, Beta], bits("AdamW's decay of the first and second moment")] = (0.9, 0.95)
    eps: Annotated[Positive, bits("added to AdamW's denominator")] = 1e-8

    def peak(self, matrix: bool) -> float:
        """`adamw_lr`, where there is one, for what Muon does not take."""
        return self.lr if matrix or self.adamw_lr is None else self.adamw_lr

    def arguments(self) -> dict[str, Any]:
        """Those of both."""
        return {
            "muon": {
                "momentum": self.momentum,
                "nesterov": self.nesterov,
                "ns_steps": self.iterations,
                "adjust_lr_fn": self.adjust,
            },
            "adamw": {"betas": self.betas, "eps": self.eps},
        }


@dataclass(frozen=True, kw_only=True)
class LowBitAdamW(Optimizer):
    """AdamW with moments in few bits, by another library. Tensors of fewer than 4096 numbers keep theirs whole."""

    name: ClassVar[str]
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-3
    weight_decay: Annotated[NonNegative, bits("decoupled; none on norms, biases and other 1-D parameters")] = 0.01
    clip: Annotated[Positive | None, bits("largest global gradient norm; null: no clipping")] = 1.0
    betas: Annotated[tuple[Beta, Beta], bits("decay of the first and second moment")] = (0.9, 0.999)
    eps: Annotated[Positive, bits("added to the denominator")] = 1e-8

    def arguments(self) -> dict[str, Any]:
        """The library's name for it, betas and eps."""
        return {"name": self.name, "betas": self.betas, "eps": self.eps}


@dataclass(frozen=True, kw_only=True)
class TorchaoAdamW8bit(LowBitAdamW):
    """torchao's, with a scale for each 256 numbers (Dettmers et al. 2021, arXiv 2110.02861)."""

    factory: ClassVar[str] = "drivetrain.optim.lowbit:torchao"
    name: ClassVar[str] = "AdamW8bit"
    kind: Annotated[Literal["torchao_adamw8bit"], bits("AdamW in 8 bits, by torchao")] = "torchao_adamw8bit"
    compiled: Annotated[bool, bits("by torch.compile, once for each shape; false: slower steps, but at once")] = True

    def arguments(self) -> dict[str, Any]:
        """Whether it is compiled, besides."""
        return super().arguments() | {"compiled": self.compiled}


@dataclass(frozen=True, kw_only=True)
class TorchaoAdamW4bit(TorchaoAdamW8bit):
    """torchao's, with a scale for each 128 numbers (Li et al. 2023, arXiv 2309.01507)."""

    name: ClassVar[str] = "AdamW4bit"
    kind: Annotated[Literal["torchao_adamw4bit"], bits("AdamW in 4 bits, by torchao")] = "torchao_adamw4bit"


@dataclass(frozen=True, kw_only=True)
class BitsandbytesAdamW8bit(LowBitAdamW):
    """bitsandbytes', with a scale for each 256 numbers (Dettmers et al. 2021, arXiv 2110.02861)."""

    factory: ClassVar[str] = "drivetrain.optim.lowbit:bitsandbytes"
    name: ClassVar[str] = "AdamW8bit"
    kind: Annotated[Literal["bitsandbytes_adamw8bit"], bits("AdamW in 8 bits, by bitsandbytes")] = (
        "bitsandbytes_adamw8bit"
    )


# GaLore


@dataclass(frozen=True, kw_only=True)
class Projected(Component):
    """What GaLore projects around."""


@dataclass(frozen=True, kw_only=True)
class ProjectedAdamW(Projected):
    """AdamW, with eps added before the bias correction."""

    factory: ClassVar[str] = "drivetrain.optim.bases:AdamW"
    kind: Annotated[Literal["adamw"], bits("AdamW")] = "adamw"
    betas: Annotated[tuple[Beta, Beta], bits("decay of the first and second moment")] = (0.9, 0.999)
    eps: Annotated[Positive, bits("added to the denominator, before the bias correction")] = 1e-6


@dataclass(frozen=True, kw_only=True)
class ProjectedAdamW8bit(ProjectedAdamW):
    """The same with moments in 8 bits, each block of 256 numbers with a scale (arXiv 2110.02861)."""

    factory: ClassVar[str] = "drivetrain.optim.bases:AdamW8bit"
    kind: Annotated[Literal["adamw8bit"], bits("AdamW with moments in 8 bits")] = "adamw8bit"


@dataclass(frozen=True, kw_only=True)
class ProjectedAdafactor(Projected):
    """Adafactor whose step size is the learning rate itself."""

    factory: ClassVar[str] = "drivetrain.optim.bases:Adafactor"
    kind: Annotated[Literal["adafactor"], bits("Adafactor")] = "adafactor"
    beta2_decay: Annotated[float, Le(0), bits("the second moment's decay is 1 - step ** this")] = -0.8
    eps: Annotated[Positive, bits("added to squared gradients")] = 1e-30
    threshold: Annotated[float, Ge(1), bits("largest RMS of an update, before the learning rate")] = 1.0
    momentum: Annotated[Beta, bits("decay of the mean update; 0: none is kept")] = 0.0


@dataclass(frozen=True, kw_only=True)
class ProjectedSGD(Projected):
    """Stochastic gradient descent, with momentum by choice."""

    factory: ClassVar[str] = "drivetrain.optim.bases:SGD"
    kind: Annotated[Literal["sgd"], bits("SGD")] = "sgd"
    momentum: Annotated[Beta, bits("decay of the velocity")] = 0.0


AnyProjected = Annotated[
    ProjectedAdamW | ProjectedAdamW8bit | ProjectedAdafactor | ProjectedSGD, Field(discriminator="kind")
]


@dataclass(frozen=True, kw_only=True)
class GaLoreGroup(ParameterGroup):
    """A group whose matrices may be projected in a way of their own."""

    rank: Annotated[Count | None, bits("the optimizer's where absent")] = None
    gap: Annotated[Count | None, bits("the optimizer's where absent")] = None
    scale: Annotated[Positive | None, bits("the optimizer's where absent")] = None


@dataclass(frozen=True, kw_only=True)
class GaLore(Optimizer):
    """A base optimizer on gradients projected to low rank (Zhao et al. 2024, arXiv 2403.03507), for less state.

    Without a `match` it projects what Muon would take: 2-D weights of no embedding and no output layer. The base
    optimizer moves what is not projected, too, at full rank.
    """

    factory: ClassVar[str] = "drivetrain.optim.galore:GaLore"
    kind: Annotated[Literal["galore"], bits("GaLore")] = "galore"
    lr: Annotated[NonNegative, bits("peak learning rate; that of a projected matrix is this times the scale")] = 1e-2
    weight_decay: Annotated[NonNegative, bits("decoupled; none on norms, biases and other 1-D parameters")] = 0.0
    clip: Annotated[Positive | None, bits("largest global gradient norm; null: no clipping")] = 1.0
    groups: Annotated[tuple[GaLoreGroup, ...], bits("parameter groups with settings of their own")] = ()
    base: Annotated[AnyProjected, bits("what moves the projected matrices and all the rest")] = ProjectedAdamW()
    match: Annotated[
        str | None,
        bits("regular expression of names to project, of two dimensions or more; null: hidden matrices"),
    ] = None
    rank: Annotated[Count, bits("of the projected gradients; more than a matrix has is all it has")] = 128
    gap: Annotated[Count, bits("steps from one basis of a matrix to the next")] = 200
    scale: Annotated[Positive, bits("factor on what is projected back")] = 0.25
    projection: Annotated[
        Literal["std", "reverse_std", "left", "right", "full"],
        bits("std: along the smaller side; reverse_std: the larger; left: rows; right: columns; full: both"),
    ] = "std"
    refresh: Annotated[
        Literal["subspace", "randomized", "exact", "random"],
        bits("a basis: by iterations from the last one, or from random numbers; all singular vectors; random numbers"),
    ] = "subspace"
    update: Annotated[
        Literal["projected", "scaled"],
        bits("what moves a matrix: the base's update, projected back; or its gradient, scaled as the base would"),
    ] = "projected"
    growth: Annotated[float, Gt(1), bits("a scaled update, before lr, is at most so many times the last one")] = 1.01
    iterations: Annotated[Whole, bits("power iterations of a refresh that is not exact")] = 2
    stagger: Annotated[bool, bits("matrices take turns, so that no step but the first refreshes all of them")] = True
    moments: Annotated[Literal["keep", "rotate", "reset"], bits("what becomes of moments when the basis changes")] = (
        "keep"
    )
    seed: Annotated[Whole, bits("of the random numbers that a basis is found with")] = 0
    reduce: Annotated[
        Literal["whole", "projected"],
        bits("what processes sum of a matrix's gradient: all; or, but when its basis is made, its projection"),
    ] = "whole"

    def options(self, group: ParameterGroup) -> dict[str, Any]:
        """Rank, gap and scale."""
        own = {name: getattr(group, name, None) for name in ("rank", "gap", "scale")}
        return {name: getattr(self, name) if value is None else value for name, value in own.items()}

    def arguments(self) -> dict[str, Any]:
        """The base, and what is the same for all matrices."""
        names = ("base", "projection", "refresh", "iterations", "update", "growth", "stagger", "moments", "seed")
        return {name: getattr(self, name) for name in names}
