"""Weights for others: each network as a safetensors file with a config beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, nn

from drivetrain.checkpoint.commits import LoadedCommit
from drivetrain.checkpoint.snapshot import pieces_of
from drivetrain.checkpoint.state import network_tensors
from drivetrain.checkpoint.tensors import write_tensors
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_json, write_private


class Exported(NamedTuple):
    """A network for others: its tensors, a configuration, what their two files are called, and more files, perhaps in
    folders. A network may come to several, each in a folder of its own.

    `marked`: the configuration may say which commit it is of.
    """

    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]
    weights: str = "model"
    settings: str = "config"
    files: Mapping[str, bytes] = MappingProxyType({})
    marked: bool = True
    folder: str = ""


Layout = Callable[[Mapping[str, Tensor]], "Exported | list[Exported] | tuple[dict[str, Tensor], dict[str, Any]]"]
"""A pair is tensors and configuration."""


def export(
    found: LoadedCommit,
    to: Path,
    layouts: Mapping[str, Layout | None],
    tied: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> list[Path]:
    """Write each network of a commit to `to` (a new or empty folder), in its layout; returns the files.

    `tied` are each network's names of weights that have another name, too, under which they are written; where no
    layout says something else, the configuration tells them.

    One network goes straight into the folder, as `model.safetensors` and `config.json` where its layout says nothing
    else, several go into folders of their names. Raises Failure(73) where the folder cannot be used.
    """
    networks = network_tensors(found.state.tensors)
    _require_empty(to)
    written = []
    for name, tensors in networks.items():
        folder = to
        if len(networks) > 1:
            folder = to / name
        layout = layouts.get(name)
        for made in _made(tensors, layout):
            told = {"step": found.metadata["step"], "commit": found.path.name}
            if tied.get(name) and not layout:
                told["tied"] = dict(tied[name])
            written += _write(folder / made.folder, made, told)
    return written


def _made(tensors: Mapping[str, Tensor], layout: Layout | None) -> list[Exported]:
    """What a network comes to in its layout."""
    if layout is None:
        return [Exported(dict(tensors), {})]
    made = layout(tensors)
    if isinstance(made, Exported):
        return [made]
    if isinstance(made, list):
        return made
    return [Exported(*made)]


def _write(folder: Path, made: Exported, mark: Mapping[str, Any]) -> list[Path]:
    """Write the files of one, its configuration with the mark, if it may have it."""
    folder.mkdir(parents=True, exist_ok=True)
    weights, settings = folder / f"{made.weights}.safetensors", folder / f"{made.settings}.json"
    write_tensors(weights, pieces_of(made.tensors), {"format": "pt"})
    config = dict(made.config)
    if made.marked:
        config["drivetrain"] = dict(mark)
    write_json(settings, config)
    for extra, content in made.files.items():
        (folder / extra).parent.mkdir(exist_ok=True)
        write_private(folder / extra, content)
    return [weights, settings, *(folder / extra for extra in made.files)]


def tied_names(network: nn.Module) -> dict[str, str]:
    """The names of weights that were met before, each with the name under which a commit has them."""
    first: dict[int, str] = {}
    found = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        known = first.setdefault(id(tensor), name)
        if known != name:
            found[name] = known
    return found


def _require_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.listdir(folder):
            raise Failure(Exit.CANNOT_CREATE, f"{folder} is not empty", "export to a new folder")
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{folder} cannot be used: {error}", "export to another folder") from error
