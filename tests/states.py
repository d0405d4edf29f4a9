"""Small states and their commits, for tests of what writes and reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from drivetrain.checkpoint.boxes import Box
from drivetrain.checkpoint.commit import StateTree
from drivetrain.checkpoint.commits import Commit, CommitFailure, Committer
from drivetrain.checkpoint.retention import Retention


def state(value: float = 1.0, rows: int = 8) -> StateTree:
    tensors = {"networks/m/w": torch.full((rows, 8), value), "optimizers/m/w/step": torch.tensor(value)}
    return StateTree(tensors, {"step": value})


def committer(run: Path, keep: int = 9, **options) -> Committer:
    return Committer(run, options.pop("lease", None), Retention(keep), **options)


def save(run: Path, *steps: int, writer: Committer | None = None, **options) -> list[Commit | CommitFailure]:
    """Commit the state of each of these steps, one after the other."""
    writer = writer or committer(run, **options)
    results = []
    for step in steps:
        writer.begin(step, state(float(step)), {"recipe": "r", "position": 8 * step})
        results.append(writer.wait())
    return results


def same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Fail where tensors are not the same, bit for bit."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        one, two = (each.contiguous().reshape(-1).view(torch.uint8) for each in (found[name], tensor))
        assert torch.equal(one, two), name


def cut(tree: StateTree, world: int) -> list[StateTree]:
    """A state as so many ranks hold it: rows of each tensor, as evenly as they go; rank 0 has what has no rows."""
    trees = []
    for rank in range(world):
        tensors, boxes = {}, {}
        for name, whole in tree.tensors.items():
            if whole.ndim:
                first, last = (len(whole) * n // world for n in (rank, rank + 1))
                offset = (first, *(0,) * (whole.ndim - 1))
                tensors[name] = whole[first:last]
                boxes[name] = Box(tuple(whole.shape), offset, tuple(tensors[name].shape))
            elif rank == 0:
                tensors[name] = whole
        trees.append(StateTree(tensors, tree.values if rank == 0 else {}, boxes))
    return trees


class Ranks:
    """The committers of so many ranks, in one process."""

    def __init__(self, run: Path, world: int, keep: int = 9, **options) -> None:
        lease = options.pop("lease", None)
        self.all = []
        for rank in range(world):
            own = {"rank": rank, "in_parts": True, "lease": None if rank else lease}
            self.all.append(committer(run, keep, **options, **own))

    def save(self, step: int, trees: list[StateTree], metadata=MappingProxyType({})) -> Commit | CommitFailure:
        """Commit what ranks hold, as the loop does."""
        leader = self.all[0]
        folder = leader.next_folder(step)
        for rank, tree in zip(self.all, trees, strict=True):
            rank.begin(step, tree, {"recipe": "r", "position": 8 * step, **metadata}, folder)
        for rank in self.all:
            while rank.busy(1):
                pass
        parts = json.loads(json.dumps([rank.part() for rank in self.all]))
        leader.seal(parts)
        for rank in self.all[1:]:
            rank.drop()
        return leader.wait()


def save_in_parts(run: Path, *steps: int, world: int = 3, **options) -> list[Commit | CommitFailure]:
    """Commit the state of each of these steps as so many ranks do."""
    ranks = Ranks(run, world, **options)
    return [ranks.save(step, cut(state(float(step)), world)) for step in steps]
