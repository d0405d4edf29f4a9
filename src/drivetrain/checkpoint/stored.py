"""A commit that the ranks of a group check together, each a share of its files, and of which each reads what it
holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapreplace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from drivetrain.checkpoint.contents import Contents
from drivetrain.checkpoint.manifest import Damaged, writer_of
from drivetrain.checkpoint.reading import (
    Assembly,
    Wanted,
    ahead,
    checked_entries,
    content,
    damage,
    in_parts,
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
    """A commit whose every byte was checked; its tensors are still to be read. The ranks of `group` do all alike.

    `kept` are files of tensors that this rank has checked and is likely to want, until it reads.
    """

    path: Path
    metadata: dict[str, Any]
    values: dict[str, Any]
    contents: Contents
    group: Group
    kept: dict[str, memoryview] = field(default_factory=dict)

    @classmethod
    def verified(
        cls,
        path: Path,
        group: Group,
        require: Callable[[Mapping[str, Any]], None] = lambda _: None,
        *,
        keep: bool = False,
    ) -> StoredCommit:
        """The commit at a path. Each file of tensors is read by one rank, and all hear what it found. Where as many
        ranks have written it, each reads what the one of its number wrote; to `keep` that spares the same mesh to read
        it again, and takes the memory of this rank's part.

        `require` raises Damaged where a manifest's commit does not count. Raises Damaged, or a Failure (77 for a link,
        76 for a newer format), on every rank where one has met it; 78 where ranks see different commits.
        """
        checked = _together(group, lambda: _checked(path, group, require, keep))
        manifest = checked.manifest
        # Each has looked at the directory by itself, and a network file system may show them different ones.
        group.agree("the commit that verifies", [path.name, manifest["sha256"]])
        contents = Contents(checked.boxes, tensor_files(manifest))
        for shared in group.gather_json(checked.headers):
            for name, header in shared.items():
                contents.add(name, [Stored.from_json(entry) for entry in header])
        contents.require_whole()
        return cls(path, manifest, checked.values, contents, group, checked.kept)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, whole, on the meta device: their shapes and types."""
        found = {}
        for name, (part, *_) in self.contents.parts.items():
            found[name] = torch.empty(part.box.whole, dtype=part.dtype, device="meta")
        return found

    def read(self, wanted: Wanted) -> dict[str, Tensor]:
        """What this rank wants of each tensor, by name. All ranks call it; each reads the files that its boxes meet,
        one after the other, and what it has not kept is checked once more.

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

            def bytes_of(name: str) -> memoryview:
                # Taken out, so that its memory goes once the tensors are copied from it.
                kept = self.kept.pop(name, None)
                return content(folder, name, self.metadata) if kept is None else kept

            for name, data in ahead(sorted(files), bytes_of):
                with damage(name):
                    assembly.add(name, parse_tensors(data))
                del data  # else its memory is held until the next file has come
        self.kept.clear()
        return assembly.tensors()

    def _changed(self, reason: str) -> Exception:
        cause = f"{self.path} was whole when it was checked, and is not where it is read: {reason}"
        return Failure(Exit.STORAGE, cause, "see that its disk or file server answers alike, then start again")


def dealt(files: Mapping[str, int], rank: int, world: int) -> list[str]:
    """The files, of these sizes, that a rank checks: each is one rank's, and all have about as many bytes."""
    loads = [(0, each) for each in range(world)]  # a heap: of those with as little the first rank comes next
    own = []
    # Equal sizes go by name: every rank comes to the same deal without a word to the others.
    for name in sorted(files, key=lambda name: (-files[name], name)):
        load, least = loads[0]
        heapreplace(loads, (load + files[name], least))
        if least == rank:
            own.append(name)
    return own


class _Checked(NamedTuple):
    """What a rank has seen of a commit: all but the `headers` of its share of the files, and the bytes it has kept of
    it, is the same on all."""

    manifest: dict[str, Any]
    values: dict[str, Any]
    boxes: dict[int, dict[str, Box]]
    headers: dict[str, Any]
    kept: dict[str, memoryview]


def _checked(path: Path, group: Group, require: Callable[[Mapping[str, Any]], None], keep: bool) -> _Checked:
    with opened(path) as folder:
        manifest = manifest_in(folder, path)
        require(manifest)
        checked = _Checked(manifest, *plain(folder, manifest), {}, {})
        own, written = _share(manifest, group)
        if not (keep and written):  # a table may be as large as this machine's memory
            for name, found in ahead(own, lambda name: checked_entries(folder, name, manifest)):
                checked.headers[name] = [entry.to_json() for entry in found]
            return checked
        for name, data in ahead(own, lambda name: content(folder, name, manifest)):
            with damage(name):
                checked.headers[name] = [entry.to_json() for entry in parse_header(data, len(data))]
            checked.kept[name] = data
    return checked


def _share(manifest: Mapping[str, Any], group: Group) -> tuple[list[str], bool]:
    """The files of tensors that this rank checks, and whether a rank of its number has written them."""
    files = tensor_files(manifest)
    if in_parts(manifest) and {writer_of(name) for name in files} == set(range(group.world)):
        return [name for name in files if writer_of(name) == group.rank], True
    return dealt(files, group.rank, group.world), False


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
