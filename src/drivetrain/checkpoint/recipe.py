"""Settings of commits and of initial weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from drivetrain.spec.amount import Amount
from drivetrain.spec.settings import Count, Settings, bits, cost


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Settings):
    """When state is committed, and how many commits are kept."""

    every: Annotated[Amount | None, cost("between commits; null: only when a run ends or is stopped")] = None
    keep: Annotated[Count, cost("newest verified commits that are kept")] = 3


@dataclass(frozen=True, kw_only=True)
class Init(Settings):
    """Initial weights from elsewhere; names and shapes must fit exactly."""

    path: Annotated[str, bits("a run directory (its newest commit), a commit, or a safetensors file")]
    network: Annotated[str | None, bits("load only this network; null: every network")] = None
