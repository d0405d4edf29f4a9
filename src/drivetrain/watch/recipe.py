"""Settings of sinks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from drivetrain.spec.settings import Settings, nothing

_Name = Annotated[str, MinLen(1)]


@dataclass(frozen=True, kw_only=True)
class Wandb(Settings):
    """Weights & Biases. The key is its library's to find (`wandb login`, WANDB_API_KEY), never a recipe's to hold."""

    project: Annotated[_Name, nothing("project there")]
    entity: Annotated[_Name | None, nothing("user or team there; null for the key's own")] = None
    mode: Annotated[
        Literal["online", "offline"], nothing("offline keeps all in the run directory, for `wandb sync`")
    ] = "online"


@dataclass(frozen=True, kw_only=True)
class Mlflow(Settings):
    """MLflow: a server or a database."""

    uri: Annotated[
        _Name | None, nothing("https://host, sqlite:///runs.db; null for MLFLOW_TRACKING_URI, then MLflow's default")
    ] = None
    experiment: Annotated[_Name, nothing("experiment there; made where it is not")] = "drivetrain"

    def __post_init__(self) -> None:
        if self.uri and re.search(r"://[^/]*@", self.uri):
            raise ValueError(
                "holds a user or a password, and a recipe is kept in the run directory; "
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_URI"
            )


@dataclass(frozen=True, kw_only=True)
class Trackio(Settings):
    """Trackio, on this machine."""

    project: Annotated[_Name, nothing("project there")]


@dataclass(frozen=True, kw_only=True)
class Watch(Settings):
    """Which sinks replay the ledger beside the console."""

    tensorboard: Annotated[bool, nothing("event files in the run directory (extra: tensorboard)")] = False
    wandb: Annotated[Wandb | None, nothing("Weights & Biases (extra: wandb)")] = None
    mlflow: Annotated[Mlflow | None, nothing("MLflow (extra: mlflow)")] = None
    trackio: Annotated[Trackio | None, nothing("Trackio (extra: trackio)")] = None
    sinks: Annotated[tuple[Any, ...], nothing("your own: kinds as package.module:Name")] = ()
