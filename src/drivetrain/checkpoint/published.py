"""Weights in files for others: what `drivetrain export` writes, and what other people publish as safetensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from drivetrain.checkpoint.files import MappedFile
from drivetrain.checkpoint.tensors import parse_tensors
from drivetrain.spec.box import Box
from drivetrain.spec.exits import Exit, Failure

Names = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""From the tensors of a published layout to those of a network here, by their names here."""
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_HALVES = (torch.bfloat16, torch.float16)


class Published(NamedTuple):
    """What is in the files at a path: SHA-256 of one file, or over those of several; tensors by NETWORK/NAME, of the
    files' types. They are the files' own pages, so that whoever wants a part of each reads no more into its memory."""

    digest: str
    tensors: dict[str, Tensor]
    files: tuple[MappedFile, ...]

    @property
    def shapes(self) -> dict[str, Tensor]:
        """The tensors on the meta device, of the types that `read` gives."""
        return {name: _wide(tensor.to("meta")) for name, tensor in self.tensors.items()}

    def read(self, boxes: Mapping[str, Box]) -> dict[str, Tensor]:
        """These boxes of tensors, by name, in memory of their own. Numbers of 16 bits are widened, which loses nothing.

        Raises Failure(65) where a file was changed meanwhile.
        """
        found = {name: _wide(self.tensors[name][box.slices]) for name, box in boxes.items()}
        for file in self.files:
            file.require_unchanged()
        return found


def read_published(path: Path, networks: Collection[str], layouts: Mapping[str, Names | None]) -> Published:
    """The weights of these networks, from a file, a folder of files, or a folder of such folders by network.

    Raises Failure: 66 where there are no weights, 77 where they are pickled, 78 where it is one network's and several
    are wanted; ValueError where a file is damaged.
    """
    mapped: list[MappedFile] = []
    tensors: dict[str, Tensor] = {}
    for network, files in _files(path, networks).items():
        own: dict[str, Tensor] = {}
        for file in files:
            mapped.append(MappedFile(file.resolve()))  # folders of a hub's cache are made of links
            own |= parse_tensors(mapped[-1].data)
        layout = layouts.get(network)
        named = layout(own) if layout else own
        for name, tensor in named.items():
            tensors[f"{network}/{name}"] = tensor
    digest = mapped[0].sha256
    if len(mapped) > 1:
        digest = hashlib.sha256("".join([file.sha256 for file in mapped]).encode()).hexdigest()
    return Published(digest, tensors, tuple(mapped))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32 if tensor.dtype in _HALVES else tensor.dtype, copy=True)


def _files(path: Path, networks: Collection[str]) -> dict[str, list[Path]]:
    """The files of each network."""
    own = [path] if path.is_file() else _weights(path)
    if own:
        return {_only(networks): own}
    found = {}
    for network in networks:
        if files := _weights(path / network):
            found[network] = files
    if found:
        return found
    pickled = [file.name for file in path.glob("*") if file.suffix in _PICKLED]
    if pickled:
        cause = f"init.from: {path} has pickled weights only ({pickled[0]}), and to read them may run any code"
        raise Failure(Exit.SECURITY, cause, "save them as safetensors, where you trust them")
    raise Failure(Exit.INPUT_MISSING, f"init.from: no weights in {path}", "name a run, a commit, or safetensors")


def _weights(folder: Path) -> list[Path]:
    """The files of one network. Beside `model*.safetensors` there may be the same in another form."""
    found = sorted(folder.glob("*.safetensors"))
    if (folder / "adapter_model.safetensors") in found:
        cause = f"init.from: {folder} has adapters, which are no weights of a network by themselves"
        raise Failure(Exit.BAD_RECIPE, cause, "merge them into their model first (peft: merge_and_unload)")
    return [file for file in found if file.name.startswith("model")] or found


def _only(networks: Collection[str]) -> str:
    if len(networks) > 1:
        cause = "init.from has a file of one network, and there are several"
        raise Failure(Exit.BAD_RECIPE, cause, "name one by init.part")
    return next(iter(networks))
