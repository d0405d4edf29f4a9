"""Weights & Biases: rows go to its library's own journal in the run directory, from which that uploads them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from drivetrain.watch.recipe import Wandb
from drivetrain.watch.trackers import PATIENCE, About, Row, require

_BEGIN = 30.0  # seconds to reach the server in; the next try comes later


class WandbTracker:
    """The library's own step is the number of the row, so that it drops one that comes again; `step` is the axis."""

    name = "wandb"

    def __init__(self, settings: Wandb) -> None:
        """Raises Failure(78) where the package is missing."""
        require("wandb")
        self.target = f"{settings.entity}/{settings.project}/{settings.mode}"
        self.left = "`wandb sync` sends what lies in the folders `wandb/*run-*` of the run directory"
        self._settings = settings
        self._run: Any = None

    def open(self, about: About) -> None:
        """Begin or resume the run of this id."""
        wandb = import_module("wandb")
        if self._run is not None:
            with suppress(Exception):
                self._run.finish()
            self._run = None
        if self._settings.mode == "online" and not wandb.login(prompt=False):  # it would ask on the terminal
            raise RuntimeError("no key is set: wandb login, or WANDB_API_KEY")
        self._run = wandb.init(
            project=self._settings.project,
            entity=self._settings.entity,
            mode=self._settings.mode,
            id=about.id,
            name=about.name,
            resume="allow",
            dir=str(about.folder),
            config=dict(about.config),
            reinit="create_new",  # beside a run that the user's own code may have begun
            settings=_quiet(wandb),
        )
        self._run.define_metric("*", step_metric="step")

    def send(self, rows: Sequence[Row]) -> None:
        """Hand the rows to the journal."""
        for row in rows:
            self._run.log({**row.values, "step": row.step, "_timestamp": row.time}, step=row.number, commit=True)
            if row.notes:
                self._run.summary.update(dict(row.notes))

    def close(self) -> None:
        """Upload what is left; raises TimeoutError where that takes too long."""
        self._run.finish()


def _quiet(wandb: Any) -> Any:
    """Neither output nor anything about machine, environment or code, which may hold secrets; never a long wait."""
    return wandb.Settings(
        silent=True,
        console="off",
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
        init_timeout=_BEGIN,
        finish_timeout=PATIENCE - 1,
        finish_timeout_raises=True,
    )
