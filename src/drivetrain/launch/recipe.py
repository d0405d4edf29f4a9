"""Settings of the place where a run is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from drivetrain.spec.settings import Component, Count, Positive, Whole, cost, nothing


@dataclass(frozen=True, kw_only=True)
class Local(Component):
    """Processes on this machine, under a supervisor. Inside torchrun or srun the environment decides instead."""

    factory: ClassVar[str] = "drivetrain.launch.supervisor:supervise"
    kind: Annotated[Literal["local"], cost("this machine")] = "local"
    processes: Annotated[Count, cost("training processes")] = 1
    threads: Annotated[Count | None, cost("CPU threads per process; null: the cores, shared out evenly")] = None
    restarts: Annotated[
        Whole, nothing("restarts after a killed, hanging or lost process, if no new step is committed")
    ] = 3
    hang_after: Annotated[
        Positive | None,
        nothing(
            "seconds without a sign of life after which a process hangs (at least three median steps); null: never"
        ),
    ] = 10.0
    slow_after: Annotated[
        Positive, nothing("the same for what may take long: opening data, compiling, writing, a task's show")
    ] = 600.0
    targets: Annotated[
        Mapping[str, Mapping[str, Any]], nothing("where `drivetrain submit` can send it, by name; see docs/launch")
    ] = field(default_factory=dict)
