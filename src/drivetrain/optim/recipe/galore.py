"""Settings of GaLore, and of the base optimizers that it projects around."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le
from pydantic import Field

from drivetrain.optim.recipe.optimizer import CLIP, OUTPUTS, Beta, Clip, MatrixChoice, Optimizer, ParameterGroup, Parts
from drivetrain.spec.settings import Component, Count, NonNegative, Positive, Whole, bits


@dataclass(frozen=True, kw_only=True)
class Projected(Component):
    """What GaLore projects around."""

    parts: ClassVar[Parts] = "rows"
    indivisible: ClassVar[str] = ""


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
    parts: ClassVar[Parts] = "none"
    indivisible: ClassVar[str] = "adafactor takes means over whole tensors"
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

    @property
    def needs_matrix(self) -> bool:
        """Whether it gives a rank, gap or scale."""
        return bool(self.rank or self.gap or self.scale)


@dataclass(frozen=True, kw_only=True)
class GaLore(Optimizer):
    """A base optimizer on gradients projected to low rank (Zhao et al. 2024, arXiv 2403.03507), for less state.

    Without a `match` it projects what Muon would take: 2-D weights of no embedding and no output layer. The base
    optimizer moves what is not projected, too, at full rank.
    """

    factory: ClassVar[str] = "drivetrain.optim.galore:GaLore"
    parts: ClassVar[Parts] = "rows"
    kind: Annotated[Literal["galore"], bits("GaLore")] = "galore"
    lr: Annotated[NonNegative, bits("peak learning rate; that of a projected matrix is this times the scale")] = 1e-2
    weight_decay: Annotated[NonNegative, bits("decoupled; none on norms, biases and other 1-D parameters")] = 0.0
    clip: Annotated[Clip | None, bits(CLIP)] = 1.0
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

    @property
    def matrices(self) -> MatrixChoice:
        """What `match` names, or hidden weights."""
        if self.match is None:
            return MatrixChoice("match", OUTPUTS, hidden=True)
        return MatrixChoice("match", self.match, hidden=False)

    @property
    def sums_projections(self) -> bool:
        """As `reduce` says."""
        return self.reduce == "projected"

    def without_matrices(self, networks: str, parameters: str) -> tuple[str, str]:
        """A model whose layers have other names would train without a projection, and nobody would know."""
        why = "none is 2-D, no embedding and no output layer"
        if self.match is not None:
            why = f"{self.match!r} matches none with two dimensions or more that trains"
        cause = f"optimizer: galore projects no weight of {networks}: {why}"
        return cause, f"mend optimizer.match; the parameters are: {parameters}"

    def options(self, group: ParameterGroup) -> dict[str, Any]:
        """Rank, gap and scale."""
        chosen: dict[str, Any] = {}
        for name in ("rank", "gap", "scale"):
            # What no group takes comes as a plain group, which has none of the three.
            own = getattr(group, name, None)
            chosen[name] = getattr(self, name) if own is None else own
        return chosen

    def arguments(self) -> dict[str, Any]:
        """These settings: the base, and what is the same for all matrices."""
        return {"settings": self}
