"""A commit that the ranks of a group check together, each a share of its files, and of which each reads what it
holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from drivetrain.checkpoint.contents import Contents
from drivetrain.checkpoint.manifest import Damaged
from drivetrain.checkpoint.reading import (
    Assembly,
    Wanted,
    ahead,
    content,
    damage,
    manifest_in,
    opened,
    plain,
    tensor_files,
)
from drivetrain.checkpoint.tensors import Stored, parse_header, parse_tensors
from drivetrain.runtime.group import Group
from drivetrain.spec.box import Box
from drivetrain.spec.exits import Exit, Failure, Outcome

_T = TypeVar("_T")


@dataclass(frozen=True)
class StoredCommit:
    """A commit whose every byte was checked; its tensors are still to be read. The ranks of `group` do all alike."""

    path: Path
    metadata: dict[str, Any]
    values: dict[str, Any]
    contents: Contents
    group: Group

    @classmethod
    def verified(
        cls, path: Path, group: Group, require: Callable[[Mapping[str, Any]], None] = lambda _: None
    ) -> StoredCommit:
        """The commit at a path. Each file of tensors is read by one rank, and all hear what it found.

        `require` raises Damaged where a manifest's commit does not count. Raises Damaged, or a Failure (77 for a link,
        76 for a newer format), on every rank where one has met it; 78 where ranks see different commits.
        """
        manifest, values, boxes, found = _together(group, lambda: _checked(path, group, require))
        group.agree("the commit that verifies", [path.name, manifest["sha256"]])
        contents = Contents(boxes, tensor_files(manifest))
        for shared in group.gather_json(found):
            for name, header in shared.items():
                contents.add(name, [Stored.from_json(entry) for entry in header])
        contents.require_whole()
        return cls(path, manifest, values, contents, group)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, whole, on the meta device: their shapes and types."""
        found = {}
        for name, (part, *_) in self.contents.parts.items():
            found[name] = torch.empty(part.box.whole, dtype=part.dtype, device="meta")
        return found

    def read(self, wanted: Wanted) -> dict[str, Tensor]:
        """What this rank wants of each tensor, by name. All ranks call it; each reads the files that its boxes meet,
        one after the other, and what it reads is checked once more.

        Raises Failure on every rank where one has met it: 74 where a file has changed since it was checked, and what
        `wanted` raises.
        """
        return _together(self.group, lambda: self._read(wanted), self._changed)

    def _read(self, wanted: Wanted) -> dict[str, Tensor]:
        assembly, files = Assembly(self.contents, wanted), set()
        for name, parts in self.contents.parts.items():
            filling = assembly.want(name, parts[0].box.whole, parts[0].dtype)
            for part in parts:
                if filling and filling.box.common(part.box):
                    files.add(part.file)
        with opened(self.path) as folder:
            for name, data in ahead(sorted(files), lambda name: content(folder, name, self.metadata)):
                with damage(name):
                    assembly.add(name, parse_tensors(data))
                del data
        return assembly.tensors()

    def _changed(self, reason: str) -> Exception:
        cause = f"{self.path} was whole when it was checked, and is not where it is read: {reason}"
        return Failure(Exit.STORAGE, cause, "see that its disk or file server answers alike, then start again")


def dealt(files: Mapping[str, int], rank: int, world: int) -> list[str]:
    """The files, of these sizes, that a rank checks: each is one rank's, and all have about as many bytes."""
    loads = [0] * world
    own = []
    for name in sorted(files, key=lambda name: (-files[name], name)):
        least = loads.index(min(loads))
        loads[least] += files[name]
        if least == rank:
            own.append(name)
    return own


def _checked(
    path: Path, group: Group, require: Callable[[Mapping[str, Any]], None]
) -> tuple[dict[str, Any], dict[str, Any], dict[int, dict[str, Box]], dict[str, Any]]:
    """Manifest, values and boxes of a commit, and the headers of this rank's share of its files."""
    with opened(path) as folder:
        manifest = manifest_in(folder, path)
        require(manifest)
        values, boxes = plain(folder, manifest)
        own = dealt(tensor_files(manifest), group.rank, group.world)
        headers: dict[str, Any] = {}
        for name, data in ahead(own, lambda name: content(folder, name, manifest)):
            with damage(name):
                headers[name] = [entry.to_json() for entry in parse_header(data, len(data))]
            del data
    return manifest, values, boxes, headers


def _together(group: Group, work: Callable[[], _T], damaged: Callable[[str], Exception] = Damaged) -> _T:
    """What `work` gives on this rank, where it has given something on all. What one rank meets, all raise."""
    result, told = None, None
    try:
        result = work()
    except Damaged as error:
        told = {"damage": str(error)}
    except Failure as failure:
        told = {"failure": failure.outcome.to_json()}
    for each in group.gather_json(told):
        if each and "failure" in each:
            raise Failure.of(Outcome.from_json(each["failure"]))
        if each:
            raise damaged(each["damage"])
    assert result is not None
    return result
