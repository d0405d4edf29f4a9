"""Settings of evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from drivetrain.spec.amount import Amount
from drivetrain.spec.settings import Count, Settings, cost


@dataclass(frozen=True, kw_only=True)
class Evaluate(Settings):
    """When the validation sets are scored. They are scored at the end in any case."""

    every: Annotated[Amount | None, cost("between evaluations; null: only at the end")] = None
    batch: Annotated[
        Count | None, cost("samples per forward pass and process; the training micro-batch where absent")
    ] = None
