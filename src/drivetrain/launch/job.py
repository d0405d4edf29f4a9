"""What every process of a run is told: plain data that travels as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.spec.affects import bits_digest
from drivetrain.spec.load import Resolved


@dataclass(frozen=True, kw_only=True)
class Job:
    """One start of a run.

    `recipe` is the resolved tree, `origins` where each of its values comes from, `text` the file
    as it was written, `modules` the folder in which a user's
    own modules are looked up. `resume` is auto, never or must; `override` names the fields whose change is accepted.
    `started` is when the command began, in Unix seconds.
    """

    folder: str
    recipe: Mapping[str, Any]
    origins: Mapping[str, str]
    text: str = ""
    modules: str | None = None
    overrides: Sequence[str] = ()
    resume: str = "auto"
    override: Sequence[str] = ()
    processes: int = 1
    started: float = field(default_factory=time.time)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `Job(**data)` is the job again."""
        return asdict(self)


def plan_job(
    resolved: Resolved,
    *,
    run: Path | None,
    overrides: Sequence[str],
    resume: str,
    override: Sequence[str],
    started: float,
) -> Job:
    """The job of a checked recipe, in the run directory that it names or that its digest gives it."""
    recipe = resolved.recipe
    folder = run if run is not None else Path("runs") / f"{recipe.name}-{bits_digest(recipe)}"
    return Job(
        folder=str(folder.absolute()),
        recipe=resolved.tree,
        origins={path: str(origin) for path, origin in resolved.origins.items()},
        text=resolved.text,
        modules=str(resolved.folder) if resolved.folder else None,
        overrides=tuple(overrides),
        resume=resume,
        override=tuple(override),
        processes=recipe.launch.processes,
        started=started,
    )
