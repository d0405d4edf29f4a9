"""The processes of a run by axis: who shares out the lanes, who holds the same, and torch's own mesh of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from functools import cached_property

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from drivetrain.runtime.group import Group
from drivetrain.spec.mesh import MeshSizes

_ENGINE_AXES = ("pipeline", "replicate", "shard", "tensor")
_SUMMED = ("replicate", "shard", "context")
"""Along these gradients add up."""


class Mesh:
    """Where this process stands among all. Ranks that read the same samples share a place in the batch."""

    def __init__(
        self,
        group: Group,
        sizes: MeshSizes | None = None,
        device: torch.device | None = None,
        *,
        virtual_stages: int = 1,
        folded: bool = False,
    ) -> None:
        """`sizes` multiply to the processes of the group; None: all of them are replicas. `virtual_stages` lie at each
        place along `pipeline`: in rounds, or `folded`, there and back. Every rank calls it."""
        self.group = group
        self.sizes = sizes or MeshSizes(replicate=group.world)
        self.device = device or torch.device("cpu")
        self.replicated = self.sizes.replicated
        """Whether every rank holds everything, and reads samples of its own. Asked in every step, so it is no sum."""
        self.at = self.sizes.place(group.rank)
        self._sharing: dict[tuple[tuple[str, ...], tuple[int, ...] | None], tuple[int, ...]] = {}
        self.data = group.part(self.sharing(self._others_than(("replicate", "shard"))))
        """One rank for each place in the batch, this one among them: they share out the lanes."""
        self.virtual_stages, self.folded = virtual_stages, folded
        self._across: dict[tuple[str, ...], ProcessGroup] = {}
        self._stages: dict[tuple[int, ...], Group] = {}

    @property
    def speaks(self) -> bool:
        """Whether this rank counts for its place in the batch: samples, digests, losses and metrics are added up over
        those that do."""
        return not any(self.at[axis] for axis in self._others_than(("replicate", "shard")))

    @property
    def stage_places(self) -> tuple[int, ...]:
        """Where along `pipeline` each stage lies."""
        there = found = tuple(range(self.sizes.pipeline))
        for number in range(1, self.virtual_stages):
            found += there[::-1] if self.folded and number % 2 else there
        return found

    @property
    def speaks_of_positions(self) -> bool:
        """The same where each rank along `context` counts for its positions."""
        return not any(self.at[axis] for axis in self._others_than(_SUMMED))

    @cached_property
    def devices(self) -> DeviceMesh:
        """Torch's mesh, with the axes replicate, shard and tensor, also where one has a single process, and pipeline
        where there is one. Its `shard` are the ranks along shard and context: between them they hold each tensor, and
        sum its gradient. Every rank asks for it."""
        axes = _ENGINE_AXES if self.sizes.pipeline > 1 else _ENGINE_AXES[1:]
        sizes = asdict(self.sizes) | {"shard": self.sizes.shard * self.sizes.context}
        shape = tuple([sizes[axis] for axis in axes])
        # The default group is gloo on every device, and a mesh would take that.
        backends: dict[int | str, str] = dict.fromkeys(axes, self.group.backend)
        return init_device_mesh(
            self.device.type,
            shape,
            mesh_dim_names=axes,
            backend_override=backends,  # type: ignore[arg-type]
        )

    @property
    def tells_losses(self) -> bool:
        """Whether the losses that this rank has computed, if any, add up to those of the step. Along `context` each has
        those of its positions."""
        return not any(self.at[axis] for axis in self._others_than(("pipeline", *_SUMMED)))

    @cached_property
    def summed(self) -> Group:
        """The ranks whose gradients add up, this one among them. Every rank asks for it."""
        if self.sizes.context == 1:
            return self.data
        return self.group.part(self.sharing(self._others_than(_SUMMED)))

    @cached_property
    def context(self) -> Group:
        """The ranks that share the positions of this one's samples, this one among them. Every rank asks for it."""
        return self.group.part(self.sharing(self._others_than(("context",))))

    def sharing(self, axes: Collection[str], places: Collection[int] | None = None) -> tuple[int, ...]:
        """The ranks that stand where this one does along these axes: those that hold the same part of what is cut
        along them. Of these, those at some `places` along `pipeline`: who has those stages."""
        # Asked for each tensor, and the answer may be all ranks.
        key = tuple(axes), None if places is None else tuple(places)
        if key not in self._sharing:
            wanted: dict[str, Collection[int]] = {axis: (self.at[axis],) for axis in axes}
            if places is not None:
                wanted["pipeline"] = set(places).intersection(wanted.get("pipeline", places))
            self._sharing[key] = self.sizes.ranks(wanted)
        return self._sharing[key]

    def stages(self, places: tuple[int, ...]) -> Group:
        """The ranks at these places along `pipeline`, this one among them, that stand where it does along all others.
        Each of them asks, in the same order."""
        if places not in self._stages:
            self._stages[places] = self.group.part(self.sharing(self._others_than(("pipeline",)), places))
        return self._stages[places]

    def across(self, axes: tuple[str, ...]) -> ProcessGroup:
        """The ranks that stand where this one does along all axes but these: between them they hold all of what is cut
        along these. Every rank asks, in the same order."""
        if len(axes) == 1 and self.sizes.context == 1:
            return self.devices.get_group(axes[0])
        if axes not in self._across:
            self._across[axes] = self.group.part(self.sharing(self._others_than(axes))).main
        return self._across[axes]

    def _others_than(self, axes: Collection[str]) -> list[str]:
        return [axis for axis in self.at if axis not in axes]
