"""Weights for others: each network as a safetensors file with a config beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from drivetrain.checkpoint.commits import LoadedCommit
from drivetrain.checkpoint.files import written
from drivetrain.checkpoint.mapped import BLOCK
from drivetrain.checkpoint.snapshot import wide_first
from drivetrain.checkpoint.state import network_tensors
from drivetrain.checkpoint.tensors import header_of
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_json, write_private


class Exported(NamedTuple):
    """A network for others: its tensors, a configuration, what their two files are called, and more files, perhaps in
    folders. A network may come to several, each in a folder of its own.

    `marked`: the configuration may say which commit it is of. `types` are those in which some tensors are written,
    where that is not their own.
    """

    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]
    weights: str = "model"
    settings: str = "config"
    files: Mapping[str, bytes] = MappingProxyType({})
    marked: bool = True
    folder: str = ""
    types: Mapping[str, torch.dtype] = MappingProxyType({})


Layout = Callable[[Mapping[str, Tensor]], "Exported | list[Exported] | tuple[dict[str, Tensor], dict[str, Any]]"]
"""A pair is tensors and configuration."""


def export(
    found: LoadedCommit,
    to: Path,
    layouts: Mapping[str, Layout | None],
    tied: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    forget: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Write each network of a commit to `to` (a new or empty folder), in its layout; returns the files.

    `forget` is called whenever some of the tensors' bytes were written, which are not looked at again.

    `tied` are each network's names of weights that have another name, too, under which they are written; where no
    layout says something else, the configuration tells them.

    One network goes straight into the folder, as `model.safetensors` and `config.json` where its layout says nothing
    else, several go into folders of their names. Raises Failure(73) where the folder cannot be used.
    """
    networks = network_tensors(found.state.tensors)
    require_empty(to)
    files = []
    for name, tensors in networks.items():
        folder = to
        if len(networks) > 1:
            folder = to / name
        layout = layouts.get(name)
        for made in _made(tensors, layout):
            told = {"step": found.metadata["step"], "commit": found.path.name}
            if tied.get(name) and not layout:
                told["tied"] = dict(tied[name])
            files += _write(folder / made.folder, made, told, forget)
    return files


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


def _write(folder: Path, made: Exported, mark: Mapping[str, Any], forget: Callable[[], None]) -> list[Path]:
    """Write the files of one, its configuration with the mark, if it may have it."""
    folder.mkdir(parents=True, exist_ok=True)
    weights, settings = folder / f"{made.weights}.safetensors", folder / f"{made.settings}.json"
    _write_weights(weights, made, forget)
    config = dict(made.config)
    if made.marked:
        config["drivetrain"] = dict(mark)
    write_json(settings, config)
    for extra, content in made.files.items():
        (folder / extra).parent.mkdir(exist_ok=True)
        write_private(folder / extra, content)
    return [weights, settings, *(folder / extra for extra in made.files)]


def _write_weights(path: Path, made: Exported, forget: Callable[[], None]) -> None:
    """A new safetensors file, block by block: tensors that are pages of files take no memory that lasts."""
    typed = {name: made.types.get(name, tensor.dtype) for name, tensor in made.tensors.items()}
    ordered = wide_first(typed)
    entries = []
    for name in ordered:
        tensor = made.tensors[name]
        entries.append((name, typed[name], tuple(tensor.shape), tensor.numel() * typed[name].itemsize))
    with written(path) as write:
        write(header_of(entries, {"format": "pt"}))
        for name in ordered:
            whole = made.tensors[name].detach().resolve_conj().resolve_neg().contiguous().flatten()
            # Converted by blocks, too: a copy of a whole table in another type may not fit beside it.
            for block in whole.split(BLOCK):
                write(block.to(typed[name]).cpu().view(torch.uint8).numpy())
                forget()


def tied_names(network: nn.Module) -> dict[str, str]:
    """The names of weights that were met before, each with the name under which a commit has them."""
    first: dict[int, str] = {}
    found = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        # By the object and not its memory: views of one weight are other weights.
        known = first.setdefault(id(tensor), name)
        if known != name:
            found[name] = known
    return found


def require_empty(folder: Path) -> None:
    """Make a folder to write to. Raises Failure(73) where there is something in it, or it cannot be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Never into what is there: half an older export beside a new one would load without an error.
        if os.listdir(folder):
            raise Failure(Exit.CANNOT_CREATE, f"{folder} is not empty", "export to a new folder")
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{folder} cannot be used: {error}", "export to another folder") from error
