"""Steps of a recipe on one rank of its mesh, seen by a meter: of tensors without memory, or of real ones."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._pytree import tree_map

from drivetrain.checkpoint.boxes import local_of
from drivetrain.checkpoint.state import NETWORKS, capture
from drivetrain.data.batch_reader import BatchReader, LocalBatch, MicroBatch, counted
from drivetrain.data.buckets import reading_order
from drivetrain.data.geometry import Geometry
from drivetrain.engine.engine import Engine
from drivetrain.engine.placement import parameter_counts
from drivetrain.loop.step import Step
from drivetrain.loop.task import Task
from drivetrain.loop.tuning import optimizers_of
from drivetrain.optim.schedules import Horizon
from drivetrain.plan.memory import Timeline
from drivetrain.plan.meter import Meter, MeteredHeartbeat, replaced
from drivetrain.plan.stand_in import stand_in
from drivetrain.run.build import (
    Inputs,
    build_engine,
    build_on_mesh,
    execution_of,
    first_lanes,
    freeze_networks,
    masters_for,
    with_rows,
)
from drivetrain.run.stage_tracing import Passed, StageMessages
from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.amount import Scale
from drivetrain.spec.box import Box
from drivetrain.spec.mesh import MeshSizes
from drivetrain.spec.recipe import Recipe

_LATEST = 1_000_000
"""The last step that is looked at for one in which all networks move."""
_PASSES = 2
"""Micro-batches that are traced of a step: one begins the gradients, the last one sums them over ranks, and those
between take no more than the last. The first step, which is traced for what optimizers begin, has the last one only."""
_WITHOUT_NUMBERS = ("data is not allocated", "Cannot access data pointer", ".numpy() is not", "data-dependent", "aten.")
"""What torch says where an operation looks at numbers of tensors that have none."""


@dataclass(frozen=True)
class Asked:
    """What is traced: a recipe on a mesh, with what its amounts are in samples and how many it takes.

    `inputs` are None where the task can do without samples.
    """

    recipe: Recipe
    task: Task
    sizes: MeshSizes
    scale: Scale
    total: int
    inputs: Inputs | None = None
    rank: int = 0
    passed: Passed | None = None
    """What the place before this rank's along a pipeline passes on."""


class NumbersNeededError(Exception):
    """A step cannot be made of tensors without numbers; the message says what asked for some."""


class StateTensor(NamedTuple):
    """A tensor that commits keep: what is here of it, which part of the whole that is, and whether this rank writes it.
    `tensor` lies on the meta device, without memory."""

    name: str
    tensor: Tensor
    box: Box
    counted: bool


@dataclass(frozen=True)
class Traced:
    """What the steps of a rank came to.

    `first` is the first step, in which optimizers begin their state, `later` any other one. `flops` and `sent` (bytes,
    at most) are a rank's in a whole step, `micro_batches` how many it has, of which `passes` were traced. `state` is
    what commits keep, as far as it is here.
    """

    first: Timeline
    later: Timeline
    flops: int
    sent: int
    micro_batches: int
    passes: int
    parameters: Mapping[str, tuple[int, int]]
    state: Sequence[StateTensor]
    rank: int
    replicated: bool
    passed: Passed | None = None
    """What the last stage that is here passes on, where there is one after it."""


def traced(asked: Asked) -> Traced:
    """Make two steps of tensors that have no memory, on one rank among others that are not there.

    Raises what building and a step raise, and NumbersNeededError where what a step does follows from numbers.
    """
    with stand_in(asked.rank, asked.sizes.world) as group:
        fakes = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            meter = Meter(answers=True)
            messages = StageMessages(asked.passed, meter)
            with messages.answered() if asked.sizes.pipeline > 1 else nullcontext():
                found = _steps(asked, _mesh(asked, group), meter, fakes)
            return replace(found, passed=messages.last)
        except (DataDependentOutputException, DynamicOutputShapeException, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not any(sign in str(error) for sign in _WITHOUT_NUMBERS):
                raise
            raise NumbersNeededError(str(error).partition("\n")[0]) from error


def metered(asked: Asked, group: Group) -> Traced:
    """The same steps of real tensors, among the processes of a group, each of which calls it."""
    return _steps(asked, _mesh(asked, group), Meter(), None)


def _mesh(asked: Asked, group: Group) -> Mesh:
    return Mesh(group, asked.sizes, **asked.recipe.parallel.stages)


def _steps(asked: Asked, mesh: Mesh, meter: Meter, fakes: FakeTensorMode | None) -> Traced:
    @contextmanager
    def seen() -> Iterator[None]:
        with fakes or nullcontext(), meter:
            yield

    if not mesh.replicated:
        _ = mesh.devices  # made of a tensor of ranks, which torch looks at: it must be no fake
    with seen():
        engine = _engine(asked, mesh, meter, fake=fakes is not None)
    meter.enter("data")
    batch = _batch(asked, engine, mesh)  # samples are real: tables are asked for rows of theirs
    if fakes is not None and batch.rows is not None and mesh.group.world > 1:
        raise NumbersNeededError("which rows of tables processes ask each other for")
    whole, shown = len(batch.micro_batches), []
    batch = _shortened(batch, asked)
    passes = len(batch.micro_batches)
    flops = sent = 0  # of the last step that is made
    for number in (1, *_steps_of_all(engine)):
        own = batch
        if number == 1 and passes < whole:
            own = batch._replace(micro_batches=batch.micro_batches[-1:])
        gc.collect()  # what a step leaves in circles goes when Python likes, and is none of the next one
        with seen():
            given = _given(own, number, asked, fakes)
            begin = meter.mark()
            flops, sent = meter.flops, meter.sent
            _step(asked.task, engine, given)
            shown.append((begin, meter.mark()))
            flops, sent = meter.flops - flops, meter.sent - sent
            _name(meter, engine)
            del given
    first, later = meter.timeline(*shown[0]), meter.timeline(*shown[-1])
    return Traced(
        first=first,
        later=later,
        flops=flops * whole // passes,
        sent=sent * whole // passes,
        micro_batches=whole,
        passes=passes,
        parameters={name: parameter_counts(engine.placement, name, each) for name, each in engine.networks.items()},
        state=_state(engine),
        rank=mesh.group.rank,
        replicated=engine.placement.replicated,
    )


def _engine(asked: Asked, mesh: Mesh, meter: Meter, *, fake: bool) -> Engine:
    """The engine as a start of the run would have it; without numbers weights are not filled."""
    recipe, task = asked.recipe, asked.task
    if fake:  # parameters cannot change from the meta device to memory that is not there: they begin as what they stay
        task.build_on_meta = False
    with replaced(nn.Module, "_apply", _applied()) if fake else nullcontext():
        networks, placement = build_on_mesh(task, recipe, mesh, drawn=not fake)
    placement = replace(placement, masters=masters_for(recipe, networks, placement))
    freeze_networks(recipe, networks)
    if placement.masters:
        placement.masters.forget_still()
    horizon = Horizon(asked.total, asked.scale)
    optimizers = with_rows(recipe, optimizers_of(recipe, networks, horizon, placement), placement, horizon)
    placement = placement.knowing({name: each.optimizer for name, each in optimizers.items()})
    execution = execution_of(recipe, placement, mesh.device, _lanes(asked))
    return build_engine(recipe, networks, optimizers, execution, MeteredHeartbeat(meter))


def _applied() -> Callable[..., nn.Module]:
    """What `Module.float`, `to` and others do to a module, for parameters that are fakes: torch would swap each with
    what it becomes, and cannot where somebody watches them."""
    changed: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # by the parameter's id, with which it is kept alive

    def apply(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        for child in module.children() if recurse else ():
            apply(child, change)
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in changed:
                with torch.no_grad():
                    made = change(parameter)
                changed[id(parameter)] = parameter, nn.Parameter(made, parameter.requires_grad)
            own = changed[id(parameter)][1]
            changed[id(own)] = own, own
            module._parameters[name] = own
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = change(buffer)
        return module

    return apply


def _lanes(asked: Asked) -> int:
    return first_lanes(asked.recipe, asked.sizes.data)


def _batch(asked: Asked, engine: Engine, mesh: Mesh) -> LocalBatch:
    """This rank's batch of the step that takes most samples: read where the task wants to see samples."""
    recipe, task, scale = asked.recipe, asked.task, asked.scale
    geometry = Geometry(scale.batches, _lanes(asked), asked.sizes.data, recipe.batch.micro, apart=recipe.exact)
    step = _largest(scale)
    if asked.inputs is None:
        return _blank(asked, geometry, mesh.data.rank, step)
    source, order = reading_order(recipe.data.train, asked.inputs.train, recipe.seed, scale, _lanes(asked), [])
    tables = engine.placement.tables
    arrange = partial(tables.arrange, task.lookups) if tables else None
    reader = BatchReader(
        source, order, geometry, mesh.data.rank, asked.total, task.collate, task.counts, arrange=arrange
    )
    return reader.read(step)


def _largest(scale: Scale) -> int:
    """The first step with the most samples."""
    steps = [1, *[change.after + 1 for change in getattr(scale.batches, "ramp", ())]]
    return max(steps, key=lambda step: scale.batches.span(step)[1] - scale.batches.span(step)[0])


def _blank(asked: Asked, geometry: Geometry, rank: int, step: int) -> LocalBatch:
    """A batch whose numbers do not matter."""
    start, stop = geometry.batches.span(step)
    micros, counts = [], {}
    for chunk in geometry.share(rank, step, stop):
        size = chunk.stop - chunk.start
        blank = asked.task.collate(asked.recipe.task.blank_samples(size))
        micros.append(MicroBatch(blank, size, chunk.start, chunk.lane, chunk.part, None))  # type: ignore[arg-type]
        for unit, number in counted(size, blank, asked.task.counts).items():
            counts[unit] = counts.get(unit, 0) + number
    return LocalBatch(step, start, stop, tuple(micros), counts, 0, gaps=False)


def _shortened(batch: LocalBatch, asked: Asked) -> LocalBatch:
    """The batch without micro-batches that take what others take. In exact mode the sums of lanes are kept apart, of
    tables rows are asked for all of a step at once, and stages have room for what they are sent of each: there all are
    made."""
    micros = batch.micro_batches
    whole = asked.recipe.exact or batch.rows is not None or asked.sizes.pipeline > 1
    if whole or len(micros) <= _PASSES:
        return batch
    return batch._replace(micro_batches=(micros[0], micros[-1]))


def _steps_of_all(engine: Engine) -> list[int]:
    """The first step after the first in which every network moves, the second where there is none; and where some have
    moved in none before it, one more such step, to which they bring their optimizers' state."""
    settings = [engine.network_settings[name] for name in engine.network_optimizers]
    found: list[int] = []
    for step in range(2, _LATEST):
        if all(own.moves(step) for own in settings):
            found.append(step)
            if len(found) > 1 or all(own.moves(1) for own in settings):
                return found
    return found or [2]


def _given(batch: LocalBatch, step: int, asked: Asked, fakes: FakeTensorMode | None) -> LocalBatch:
    """The batch as that of a step, without memory where there is to be none."""
    micros = batch.micro_batches
    if fakes is not None:
        to_fake = partial(_faked, fakes)
        micros = tuple([micro._replace(batch=tree_map(to_fake, micro.batch)) for micro in micros])
    given = batch._replace(step=step, micro_batches=micros)
    return given if asked.sizes.replicated else given._replace(spare=micros[0])


def _faked(fakes: FakeTensorMode, leaf: Any) -> Any:
    return fakes.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf


def _step(task: Task, engine: Engine, batch: LocalBatch) -> None:
    """One step, as the loop makes it."""
    for network_optimizer in engine.network_optimizers.values():
        network_optimizer.advance(batch.stop)
    engine.buffers.begin()
    places = engine.placement.data.world
    step = Step(engine, batch, {unit: number * places for unit, number in batch.counts.items()})
    task.update(step)
    if engine.averages:
        engine.averages.update(batch.step, list(engine.network_optimizers))


def _name(meter: Meter, engine: Engine) -> None:
    """Say which memory is state, and what of it."""
    weights: list[Tensor] = []
    gradients: list[Tensor] = []
    for network in engine.networks.values():
        weights += [*network.parameters(), *network.buffers()]
        gradients += [each.grad for each in network.parameters() if each.grad is not None]
    for optimizer in engine.network_optimizers.values():
        gradients += optimizer.gradients
    tensors = capture(engine.networks, engine.optimizers, engine.others)
    rest = [tensor for name, tensor in tensors.items() if not name.startswith(f"{NETWORKS}/")]
    meter.name("gradients", gradients)
    meter.name("optimizer", [tensor for tensor in rest if isinstance(tensor, Tensor)])
    meter.name("weights", [local_of(tensor) for tensor in weights])


def _state(engine: Engine) -> list[StateTensor]:
    """What commits keep of what is here."""
    placement, found = engine.placement, []
    for name, tensor in capture(engine.networks, engine.optimizers, engine.others).items():
        box = placement.boxes({name: tensor}).get(name, Box.of_whole(tuple(tensor.shape)))
        counted = placement.holders(name, tensor)[0] == placement.group.rank and box.size > 0
        blank = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        found.append(StateTensor(name, blank, box, counted))
    return found
