"""Which part of every tensor each rank holds, and what that makes of sums, comparisons and commits.

Everything that must know whether tensors are whole here asks a `Placement`: the gradient norm, the reduction, buffers,
the comparison of ranks, commits, the step's sync, evaluation. Nobody else compares ranks to decide such a thing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn

from drivetrain.checkpoint.boxes import box_of, local_of
from drivetrain.checkpoint.state import AVERAGES, NETWORKS, OPTIMIZERS, Optimizers, state_boxes
from drivetrain.engine.stages import stages_of
from drivetrain.engine.tables.state import ROWS, matrix_boxes, row_boxes, row_state_boxes
from drivetrain.engine.tables.tables import Tables
from drivetrain.optim.masters import MASTERS, Masters, wide
from drivetrain.optim.parts import Part
from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.box import Box
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.mesh import MeshSizes


@dataclass(frozen=True)
class Held:
    """What this rank holds of a parameter; the whole is cut `along` these axes of the mesh. The first of the `holders`,
    the ranks that hold the same, counts it. `places` are those along `pipeline` whose stages have it.

    `parameter` is the network's, a DTensor where it is cut; `part` has a plain one on the very memory of what is here.
    """

    parameter: nn.Parameter
    part: Part
    holders: tuple[int, ...]
    along: tuple[str, ...]
    places: tuple[int, ...] = (0,)

    @property
    def here(self) -> nn.Parameter:
        """What the optimizer moves, averages and statistics look at, and commits keep."""
        return self.part.here

    @property
    def box(self) -> Box:
        """Which part of the whole it is."""
        return self.part.box


@dataclass(frozen=True)
class Placement:
    """This rank's place among all, and the parts of parameters that it holds, by NETWORK/NAME.

    What is not in `held` every rank has whole: buffers, step counts, the loss scale, and on a mesh of replicas
    everything. `states` are the boxes of optimizer state that is not cut as its parameters are, by the names that
    commits give it. `masters` are what optimizers move in place of bf16 weights.

    `tables` are those of embeddings, and `rows` what is here of them, by NETWORK/NAME, where ranks share them out.
    `elsewhere` are the parameters that other stages have.
    """

    mesh: Mesh
    held: Mapping[str, Held] = field(default_factory=dict)
    states: Mapping[str, Box] = field(default_factory=dict)
    masters: Masters | None = None
    tables: Tables | None = None
    rows: Mapping[str, Held] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()

    def knowing(self, optimizers: Optimizers) -> Placement:
        """The same with the state of these optimizers, by network."""
        found = state_boxes(optimizers) if self.held else {}
        if self.tables and self.rows:
            found |= row_state_boxes(self.tables)
        return replace(self, states=found)

    @property
    def parts(self) -> dict[nn.Parameter, Part]:
        """What optimizers move of the networks' parameters; nothing where they move these themselves."""
        own = self.masters.parts if self.masters else {}
        return {held.parameter: held.part for held in self.held.values()} | own

    @property
    def data(self) -> Group:
        """One rank for each place in the batch, this one among them: they share out the lanes, and their gradients add
        up."""
        return self.mesh.data

    @property
    def group(self) -> Group:
        """All ranks."""
        return self.mesh.group

    @property
    def replicated(self) -> bool:
        """Whether every rank holds every tensor whole, and reads samples of its own."""
        return self.mesh.replicated and not self.rows

    @property
    def speaks(self) -> bool:
        """Whether this rank counts for its place in the batch."""
        return self.mesh.speaks

    @property
    def here(self) -> dict[str, dict[str, nn.Parameter]]:
        """The plain parameters by network and name; empty on a mesh of replicas."""
        found: dict[str, dict[str, nn.Parameter]] = {}
        for path, held in self.held.items():
            network, _, name = path.partition("/")
            found.setdefault(network, {})[name] = held.here
        return found

    def counts(self, parameter: nn.Parameter) -> bool:
        """Whether this rank counts a parameter that its optimizers move, and not another one that holds the same."""
        return parameter not in self._uncounted

    def box(self, name: str, whole: tuple[int, ...]) -> Box | None:
        """What this rank wants of a commit's tensor, by the name and shape that it has there; None: nothing."""
        if _path_of(name) in self.elsewhere:
            return None
        box = self._box(name)
        return box if box and box.whole == whole else Box.of_whole(whole)

    def holders(self, name: str, tensor: Tensor) -> tuple[int, ...]:
        """The ranks that hold the same as this one under a commit's name, where this one holds `tensor`."""
        held = _owner(self.held, name) or _owner(self.rows, name)
        if held and self._part(name, tensor):
            return held.holders
        return self.mesh.sharing((), held.places) if held else self.mesh.sharing(())

    def counted(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of this rank's tensors that it writes into a commit: of equal parts exactly one rank's.

        Raises Failure(70) where a part is no longer the network's own memory.
        """
        _require_memory(self.held)
        _require_memory(self.rows)
        rank, found = self.group.rank, {}
        for name, tensor in tensors.items():
            box = self._part(name, tensor)
            if self.holders(name, tensor)[0] == rank and (box is None or box.size):
                found[name] = tensor
        return found

    def boxes(self, tensors: Mapping[str, Tensor]) -> dict[str, Box]:
        """Where tensors of this rank that are parts lie in the whole."""
        found = {}
        for name, tensor in tensors.items():
            box = self._part(name, tensor)
            if box and box != Box.of_whole(box.whole):
                found[name] = box
        return found

    @cached_property
    def _uncounted(self) -> set[nn.Parameter]:
        return {held.here for held in self.held.values() if held.holders[0] != self.group.rank}

    def _part(self, name: str, tensor: Tensor) -> Box | None:
        """Which part of the whole a tensor is that lies here under a commit's name; None where every rank has it."""
        box = self._box(name)
        return box if box and tuple(tensor.shape) == box.shape else None

    def _box(self, name: str) -> Box | None:
        """Where what is cut lies under a commit's name; None where every rank has all of it. State that is not of its
        parameter's shape, such as a count of steps, is not cut."""
        held, box = _owner(self.held, name), self.states.get(name)
        if of_table := _owner(self.rows, name):  # a stretch of lines, and be it all of them: who holds it counts it
            return box if name.startswith(f"{ROWS}/") else of_table.box
        if held is None or box is None:
            return held and held.box
        return None if box == Box.of_whole(box.whole) else box


def _owner(all_held: Mapping[str, Held], name: str) -> Held | None:
    """The parameter that a commit's name belongs to."""
    return all_held.get(_path_of(name))


def _path_of(name: str) -> str:
    """The NETWORK/NAME of the parameter that a commit's name belongs to; empty where it belongs to none."""
    kind, _, rest = name.partition("/")
    if kind in (OPTIMIZERS, ROWS):
        return rest.rpartition("/")[0]
    return rest if kind in (NETWORKS, AVERAGES, MASTERS) else ""


def _require_memory(held: Mapping[str, Held]) -> None:
    for name, one in held.items():
        if local_of(one.parameter).data_ptr() != one.here.data_ptr():
            cause = f"{name} has moved in memory, so that the optimizer moves what the network no longer reads"
            raise Failure(Exit.INTERNAL, cause, "report it; the commit before is whole")


def replicas(group: Group) -> Placement:
    """That of ranks which hold everything."""
    return Placement(Mesh(group))


def placed(networks: Mapping[str, nn.Module], mesh: Mesh, tables: Tables | None = None) -> Placement:
    """The placement of networks that were laid out over the mesh, and of their tables."""
    rows = _rows_here(networks, tables, mesh) if tables else {}
    if mesh.replicated:
        return Placement(mesh, tables=tables, rows=rows)
    held: dict[str, Held] = {}
    elsewhere: list[str] = []
    for network, module in networks.items():
        stages = stages_of(module)
        for name, parameter in module.named_parameters():
            if f"{network}/{name}" not in rows:
                places = stages.holders[name] if stages else (0,)
                held[f"{network}/{name}"] = _held(parameter, mesh, places)
        if stages:
            elsewhere += [f"{network}/{name}" for name in stages.elsewhere]
    return Placement(mesh, held, tables=tables, rows=rows, elsewhere=frozenset(elsewhere))


def _rows_here(networks: Mapping[str, nn.Module], tables: Tables, mesh: Mesh) -> dict[str, Held]:
    """What this rank holds of tables: rows that no other one holds, or those that all hold; nothing where it is
    alone."""
    found: dict[str, Held] = {}
    if tables.group.world == 1:
        return found
    axes = tuple([axis for axis in ("replicate", "shard") if getattr(mesh.sizes, axis) > 1])
    for matrix in tables.matrices:
        holders, along = (tables.group.rank,), axes
        if matrix.layout.everywhere:
            holders, along = mesh.sharing(()), ()
        for path, box in matrix_boxes(matrix).items():  # of keys, too
            if not box.whole[0]:  # where no key ever waits: all ranks hold nothing alike, and a commit has it once
                continue
            network, _, name = path.partition("/")
            parameter = networks[network].get_parameter(name)
            found[path] = Held(parameter, Part(parameter, box, None), holders, along)
    return found


def _held(parameter: nn.Parameter, mesh: Mesh, places: tuple[int, ...]) -> Held:
    here = parameter
    if local_of(parameter) is not parameter:
        here = nn.Parameter(local_of(parameter.detach()), requires_grad=parameter.requires_grad)
        if wide(parameter):
            here.grad_dtype = torch.float32
    along = tuple(_cut_along(parameter, mesh.sizes))
    part = Part(here, box_of(parameter.detach()), mesh.across(along) if along else None)
    return Held(parameter, part, mesh.sharing(along, places), along, places)


def _cut_along(parameter: Tensor, sizes: MeshSizes) -> Iterator[str]:
    """The axes along which ranks hold different parts; torch's `shard` is ours with `context`."""
    from torch.distributed.tensor import DTensor, Replicate  # they take a while, and replicas need none

    if isinstance(parameter, DTensor):
        names = parameter.device_mesh.mesh_dim_names or ()
        for name, size, layout in zip(names, parameter.device_mesh.shape, parameter.placements, strict=True):
            if size > 1 and layout != Replicate():
                axes = ("shard", "context") if name == "shard" else (name,)
                yield from [axis for axis in axes if getattr(sizes, axis) > 1]


def parameter_counts(placement: Placement, network: str, module: nn.Module) -> tuple[int, int]:
    """How many numbers a network's parameters have on all ranks together, and how many of them train."""
    tables = row_boxes(placement.tables) if placement.tables else {}
    whole = trainable = 0
    if stages := stages_of(module):
        for size, trains in stages.sizes.values():
            whole += size
            trainable += size * trains
        return whole, trainable
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point():  # keys of tables
            continue
        box = tables.get(f"{network}/{name}")
        size = parameter.numel() if box is None else prod(box.whole)
        whole += size
        if parameter.requires_grad or box is not None:
            trainable += size
    return whole, trainable
