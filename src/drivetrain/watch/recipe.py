"""Settings of sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from drivetrain.spec.settings import Settings, nothing


@dataclass(frozen=True, kw_only=True)
class Watch(Settings):
    """Which sinks replay the ledger beside the console."""

    tensorboard: Annotated[bool, nothing("event files in the run directory (extra: tensorboard)")] = False
