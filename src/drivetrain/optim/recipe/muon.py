"""Settings of Muon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Lt

from drivetrain.optim.recipe.optimizer import CLIP, OUTPUTS, Beta, Clip, MatrixChoice, Optimizer, Parts
from drivetrain.spec.settings import NonNegative, Positive, bits


@dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """Muon for hidden matrices (Jordan 2024, https://kellerjordan.github.io/posts/muon), AdamW for all the rest.

    Hidden matrices are the 2-D weights that belong to no nn.Embedding and whose name `adamw` does not match.
    """

    factory: ClassVar[str] = "drivetrain.optim.muon:MuonAdamW"
    parts: ClassVar[Parts] = "whole"
    kind: Annotated[Literal["muon"], bits("Muon, with AdamW")] = "muon"
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-3
    weight_decay: Annotated[NonNegative, bits("decoupled; none on norms, biases and other 1-D parameters")] = 0.1
    clip: Annotated[Clip | None, bits(CLIP)] = 1.0
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

    @property
    def matrices(self) -> MatrixChoice:
        """Hidden weights."""
        return MatrixChoice("adamw", self.adamw, hidden=True)

    def without_matrices(self, networks: str, parameters: str) -> tuple[str, str]:
        """torch refuses a Muon without parameters, and plain AdamW is another optimizer than the recipe's."""
        cause = f"optimizer: muon takes no weight of {networks}: none is 2-D, no embedding and not of adamw"
        return cause, "choose another kind, or a narrower optimizer.adamw"

    def peak(self, matrix: bool) -> float:
        """`adamw_lr`, where there is one, for what Muon does not take."""
        if matrix or self.adamw_lr is None:
            return self.lr
        return self.adamw_lr

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
