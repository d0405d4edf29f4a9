"""Settings of what moves rows of tables: only those that a step has looked up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Lt
from pydantic import Field

from drivetrain.optim.recipe.optimizer import Beta
from drivetrain.spec.settings import NonNegative, Positive, Settings, bits


@dataclass(frozen=True, kw_only=True)
class RowOptimizer(Settings):
    """What all of them have. Weight decay reaches the rows that move, and no others."""

    factory: ClassVar[str]
    fused: ClassVar[str] = ""
    """What fbgemm calls it, where its kernels for a CPU have it."""
    lr: Annotated[NonNegative, bits("peak learning rate")]
    weight_decay: Annotated[NonNegative, bits("of the rows that move, in a step in which they do")] = 0.0


@dataclass(frozen=True, kw_only=True)
class SGDRows(RowOptimizer):
    """w -= lr (g + weight_decay w)."""

    factory: ClassVar[str] = "drivetrain.optim.rows:SGD"
    fused: ClassVar[str] = "EXACT_SGD"
    kind: Annotated[Literal["sgd"], bits("plain steps")] = "sgd"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 0.1


@dataclass(frozen=True, kw_only=True)
class AdagradRows(RowOptimizer):
    """Duchi et al. 2011: each number has a sum of squared gradients (g + weight_decay w)."""

    factory: ClassVar[str] = "drivetrain.optim.rows:Adagrad"
    fused: ClassVar[str] = "EXACT_ADAGRAD"
    kind: Annotated[Literal["adagrad"], bits("a sum of squares for each number")] = "adagrad"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 0.05
    eps: Annotated[Positive, bits("added to the root")] = 1e-8
    initial: Annotated[NonNegative, bits("what the sums begin at")] = 0.0


@dataclass(frozen=True, kw_only=True)
class RowwiseAdagradRows(RowOptimizer):
    """Adagrad with one sum for each row: of the mean squares of its gradients (as in fbgemm)."""

    factory: ClassVar[str] = "drivetrain.optim.rows:RowwiseAdagrad"
    fused: ClassVar[str] = "EXACT_ROWWISE_ADAGRAD"
    kind: Annotated[Literal["rowwise_adagrad"], bits("a sum of squares for each row")] = "rowwise_adagrad"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 0.05
    eps: Annotated[Positive, bits("added to the root")] = 1e-8
    initial: Annotated[NonNegative, bits("what the sums begin at")] = 0.0


@dataclass(frozen=True, kw_only=True)
class AdamRows(RowOptimizer):
    """Kingma & Ba 2015, on the rows that move: moments of others rest, and the bias correction counts all steps that
    were made. Weight decay is decoupled (Loshchilov & Hutter 2019)."""

    factory: ClassVar[str] = "drivetrain.optim.rows:Adam"
    kind: Annotated[Literal["adam"], bits("moments for each number")] = "adam"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-3
    betas: Annotated[tuple[Beta, Beta], bits("how much of the moments stays")] = (0.9, 0.999)
    eps: Annotated[Positive, bits("added to the root")] = 1e-8


@dataclass(frozen=True, kw_only=True)
class LambRows(AdamRows):
    """You et al. 2020: Adam's step of a row, as long as the row itself."""

    factory: ClassVar[str] = "drivetrain.optim.rows:Lamb"
    kind: Annotated[Literal["lamb"], bits("Adam's steps, as long as their rows")] = "lamb"


@dataclass(frozen=True, kw_only=True)
class LarsRows(RowOptimizer):
    """You et al. 2017: momentum, with a rate for each row that follows its length over its gradient's."""

    factory: ClassVar[str] = "drivetrain.optim.rows:Lars"
    kind: Annotated[Literal["lars"], bits("rates that follow the rows' lengths")] = "lars"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 0.1
    momentum: Annotated[float, Ge(0), Lt(1), bits("how much of the last move stays")] = 0.9
    trust: Annotated[Positive, bits("the factor of a row's length over its gradient's")] = 1e-3
    eps: Annotated[Positive, bits("added to the gradient's length")] = 1e-8


AnyRowOptimizer = Annotated[
    SGDRows | AdagradRows | RowwiseAdagradRows | AdamRows | LambRows | LarsRows, Field(discriminator="kind")
]
