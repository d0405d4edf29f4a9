"""From raw values to scores, without the rest of Drivetrain: `Scorer`. An export has a copy of this folder, which needs
torch and numpy only; training makes its features by the same functions."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .scorer import Scorer as Scorer

__all__ = ["Scorer"]


def __getattr__(name: str) -> Any:
    if name == "Scorer":  # it imports torch, which hashes do without
        return import_module(".scorer", __name__).Scorer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
