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
from drivetrain.spec.mesh import MeshSizes


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


World = int | MeshSizes
"""Ranks that share rows, so many, or those of a mesh."""


def laid_out(world: World) -> MeshSizes:
    """The mesh of these ranks."""
    return MeshSizes(shard=world) if isinstance(world, int) else world


def cut(tree: StateTree, world: World) -> list[StateTree]:
    """A state as ranks hold it, and what of it they count: rows along `shard` and columns along `tensor`, as evenly as
    they go. What is not cut along an axis is its first rank's; along `replicate` the others have nothing to count."""
    sizes = laid_out(world)
    trees = []
    for rank in range(sizes.world):
        at, tensors, boxes = sizes.place(rank), {}, {}
        for name, whole in tree.tensors.items():
            box, counts = _box(tuple(whole.shape), at, sizes)
            if counts:
                tensors[name] = whole[box.slices]
                boxes |= {name: box} if whole.ndim else {}
        trees.append(StateTree(tensors, {} if rank else tree.values, boxes))
    return trees


def _box(shape: tuple[int, ...], at: Mapping[str, int], sizes: MeshSizes) -> tuple[Box, bool]:
    """What is at a place of a tensor, and whether it is counted there."""
    offset, here, counts = [0] * len(shape), list(shape), not at["replicate"]
    for axis, dimension, needed in (("shard", 0, 1), ("tensor", 1, 2)):
        if len(shape) < needed:
            counts = counts and not at[axis]
            continue
        first, last = (shape[dimension] * n // getattr(sizes, axis) for n in (at[axis], at[axis] + 1))
        offset[dimension], here[dimension] = first, last - first
    return Box(shape, tuple(offset), tuple(here)), counts


class Ranks:
    """The committers of so many ranks, or of those of a mesh, in one process."""

    def __init__(self, run: Path, world: World, keep: int = 9, **options) -> None:
        lease = options.pop("lease", None)
        self.sizes = laid_out(world)
        self.all = []
        for rank in range(self.sizes.world):
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


def save_in_parts(run: Path, *steps: int, world: World = 3, **options) -> list[Commit | CommitFailure]:
    """Commit the state of each of these steps as so many ranks do."""
    ranks = Ranks(run, world, **options)
    return [ranks.save(step, cut(state(float(step)), world)) for step in steps]
