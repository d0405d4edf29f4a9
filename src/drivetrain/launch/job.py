"""What every process of a run is told: plain data that travels as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

DRY_RUN = "rehearsal.json"
"""Where a dry run leaves what it found, in its folder."""


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """What one start is asked for beside its recipe; what each field means, `Job` says."""

    resume: str = "auto"
    override: Sequence[str] = ()
    ignore: Sequence[str] = ()
    strict_environment: bool = False
    most_steps: int | None = None
    replay: str | None = None
    started: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class Job(StartOptions):
    """One start of a run.

    `recipe` is the resolved tree, `origins` where each of its values comes from, `text` the file as it was written,
    `source` that file's path or the shipped name, `given` all overrides on top of it,
    `modules` the folder in which a user's own modules are looked up, `code` the digest of what these do ("" for none),
    `preload` the shipped modules that it needs.
    `resume` is auto, never or must; `override` names the fields whose change is accepted, `ignore` parts of a commit
    that are not restored; `strict_environment` refuses to resume in another environment; after `most_steps` steps the
    run is stopped (0: a dry run, in a folder of its own). `replay` is the run whose commands are done again. `started`
    is when this start began, `began` when the first one did, in Unix seconds.

    The supervisor adds: `silent`, the epoch of an owner of the run directory that gives no sign of life; `volatile`,
    the folder in memory where survivors leave their state; `restarts`, how often it has started the processes again;
    `after`, how the start before ended. `output` begins the names of files that take what each rank prints (None: it
    goes where the supervisor's does). `most_restarts`, the watchdog's patience (0 for none), whether networks are
    compiled, and for how many seconds the run directory may stall are the recipe's.
    """

    folder: str
    recipe: Mapping[str, Any]
    origins: Mapping[str, str]
    text: str = ""
    source: str = ""
    given: Sequence[str] = ()
    modules: str | None = None
    code: str = ""
    preload: Sequence[str] = ()
    overrides: Sequence[str] = ()
    processes: int = 1
    hang_after: float = 0.0
    slow_after: float = 0.0
    compiles: bool = False
    stall: float = 1800.0
    silent: int | None = None
    volatile: str | None = None
    restarts: int = 0
    most_restarts: int = 0
    after: Mapping[str, Any] | None = None
    output: str | None = None
    began: float = field(default_factory=time.time)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `Job(**data)` is the job again."""
        return asdict(self)
