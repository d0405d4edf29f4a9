"""Settings of the engine that are more than one word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from drivetrain.spec.settings import Count, Settings, bits


@dataclass(frozen=True, kw_only=True)
class Batch(Settings):
    """The global batch and its micro-batches."""

    size: Annotated[Count, bits("samples per optimizer step, over all processes; a multiple of the lanes")]
    micro: Annotated[Count | None, bits("samples per forward pass; null: a process's whole share")] = None
