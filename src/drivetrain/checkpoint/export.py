"""Weights for others: each network as a safetensors file with a config beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from drivetrain.checkpoint.commits import Found
from drivetrain.checkpoint.snapshot import pieces_of
from drivetrain.checkpoint.state import network_tensors
from drivetrain.checkpoint.tensors import write_tensors
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_json

Layout = Callable[[Mapping[str, Tensor]], "tuple[dict[str, Tensor], dict[str, Any]]"]


def export(found: Found, to: Path, layouts: Mapping[str, Layout | None]) -> list[Path]:
    """Write each network of a commit to `to` (a new or empty folder), in its layout; returns the files.

    One network goes straight into the folder as `model.safetensors` and `config.json`, several into folders of their
    names. Raises Failure(73) where the folder cannot be used.
    """
    networks = network_tensors(found.state.tensors)
    _require_empty(to)
    written = []
    for name, tensors in networks.items():
        folder = to if len(networks) == 1 else to / name
        folder.mkdir(parents=True, exist_ok=True)
        layout = layouts.get(name)
        renamed, config = layout(tensors) if layout else (tensors, {})
        write_tensors(folder / "model.safetensors", pieces_of(renamed), {"format": "pt"})
        write_json(
            folder / "config.json", config | {"drivetrain": {"step": found.facts["step"], "commit": found.path.name}}
        )
        written += [folder / "model.safetensors", folder / "config.json"]
    return written


def _require_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.listdir(folder):
            raise Failure(Exit.CANNOT_CREATE, f"{folder} is not empty", "export to a new folder")
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{folder} cannot be used: {error}", "export to another folder") from error
