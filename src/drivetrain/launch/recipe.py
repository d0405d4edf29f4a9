"""Settings of the place where a run is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from drivetrain.spec.settings import Component, Count, cost


@dataclass(frozen=True, kw_only=True)
class Local(Component):
    """Processes on this machine, under a supervisor. Inside torchrun or srun the environment decides instead."""

    factory: ClassVar[str] = "drivetrain.launch.supervisor:supervise"
    kind: Annotated[Literal["local"], cost("this machine")] = "local"
    processes: Annotated[Count, cost("training processes")] = 1
    threads: Annotated[Count | None, cost("CPU threads per process; null: the cores, shared out evenly")] = None
