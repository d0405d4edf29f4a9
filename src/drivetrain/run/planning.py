"""What a run will take, before anything is allocated: `drivetrain plan`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path

import torch

from drivetrain.checkpoint.commit import boxes_file, file_sizes
from drivetrain.checkpoint.recipe import Checkpoint
from drivetrain.checkpoint.retention import Retention
from drivetrain.checkpoint.snapshot import TensorBytes
from drivetrain.engine.recipe import scale_of
from drivetrain.loop.task import Task
from drivetrain.plan.disk import due_steps, most_kept
from drivetrain.plan.memory import StepMemory, deepened, measured
from drivetrain.plan.picture import Curve, of_timeline, of_windows
from drivetrain.plan.search import ACTIVATIONS, Bounds, Setting, nearest
from drivetrain.plan.stand_in import stand_in
from drivetrain.run.build import Inputs, build_task, first_lanes, only_training, open_inputs, run_scale
from drivetrain.run.tracing import Asked, NumbersNeededError, StateTensor, Traced, metered, traced
from drivetrain.spec.amount import Scale
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.mesh import AXES, MeshSizes
from drivetrain.spec.recipe import Recipe

_BYTE = torch.uint8
MOST_LAYERS = 6
"""Layers up to which a network is traced whole."""
_FEW = 3
"""Layers of the shallower one of the two that stand for a deep one: the first, the last, and one between."""


@dataclass(frozen=True)
class Opened:
    """A recipe with what its amounts are in samples. `inputs` are there where somebody has to look at samples, `epoch`
    (samples) where the data could be opened; `notes` say why not."""

    recipe: Recipe
    task: Task
    scale: Scale
    inputs: Inputs | None
    notes: Sequence[str] = ()

    @property
    def total(self) -> int:
        """Samples of the whole run."""
        return self.recipe.budget.samples_at(self.scale)


@dataclass(frozen=True)
class Prediction:
    """What one rank's steps take. Memory is that of the first step, which optimizers begin their state in, and of a
    later one. `flops` and `sent` (bytes) are a step's on this rank, `written` the bytes of its files of tensors in a
    commit, `state` of all ranks' tensors there, `copied` of what this rank holds of it. `how` says what was traced.
    """

    first: StepMemory
    later: StepMemory
    flops: int
    sent: int
    written: int
    state: int
    copied: int
    parameters: Mapping[str, tuple[int, int]]
    micro_batches: int
    how: str
    curve: Curve

    @property
    def peak(self) -> int:
        """Bytes that are alive at most."""
        return max(sum(each.peak.peak) for each in (self.first, self.later))


def open_plan(recipe: Recipe, processes: int, *, data: bool = True, epoch: int | None = None) -> Opened:
    """Find out how long the run is: its data are opened where the task or the budget needs them, or `data` asks for it.
    Where `epoch` (samples) is known the budget does not.

    Raises what opening them raises where they are needed.
    """
    task = build_task(recipe)
    needed = not _blanks(recipe) or recipe.batch.cost is not None
    needed = needed or (recipe.budget.epochs is not None and epoch is None)
    notes: list[str] = []
    inputs = None
    if needed or data:
        try:
            with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
                inputs = open_inputs(only_training(recipe), Path(folder), task)
        except Failure as failure:
            if needed:
                raise
            notes.append(f"passes over the data are not known: {failure.outcome.cause}")
    if inputs is None:
        tokens = getattr(recipe.task, "tokens_per_sample", None)
        return Opened(recipe, task, scale_of(recipe.batch, tokens, epoch or 0), None, notes)
    lanes = first_lanes(recipe, recipe.parallel.sizes(processes).data)
    return Opened(recipe, task, run_scale(recipe, inputs.train, lanes), inputs, notes)


def predict(opened: Opened, sizes: MeshSizes, *, rank: int = 0, whole: bool = False) -> Prediction:
    """Trace steps of the recipe on a mesh. A network of many layers that are alike is traced with few, unless `whole`.

    Raises what building and a step raise.
    """
    layers = getattr(opened.recipe.task, "layers", 0)
    look = partial(asked_of, opened, sizes, rank)
    if whole or layers <= MOST_LAYERS:
        return _whole(*_seen(look(None)))
    few, many = traced(look(_FEW)), traced(look(_FEW + 1))
    more = layers - _FEW - 1
    steps = deepened(few.first, many.first, more), deepened(few.later, many.later, more)
    how = f"{_FEW} and {_FEW + 1} of {layers} equal layers traced"
    told = partial(_prediction, steps=steps, how=how, curve=of_windows(steps[1]))
    return _grown(told(few), told(many), more)


def stages(opened: Opened, sizes: MeshSizes, first: int = 0) -> dict[int, Prediction]:
    """By rank, those at each place along a pipeline that stand where rank `first` does along the other axes: one after
    the other, since a place is given what the one before it passes on. Each is traced whole.
    """
    found, passed = {}, None
    known: set[str] = set()
    for rank in range(first, sizes.world, stage_size(sizes)):
        seen, how = _seen(replace(asked_of(opened, sizes, rank), passed=passed))
        # A weight that lies at two places is in a commit once.
        fresh = [one for one in seen.state if one.name not in known]
        known |= {one.name for one in fresh}
        found[rank], passed = replace(_whole(seen, how), state=_bytes_of(fresh)), seen.passed
    return found


def predictions(opened: Opened, sizes: MeshSizes, *, rank: int = 0, whole: bool = False) -> dict[int, Prediction]:
    """By rank: this one, or where there is a pipeline all that differ from it in their place along that alone."""
    if sizes.pipeline > 1:
        return stages(opened, sizes, rank % stage_size(sizes))
    return {rank: predict(opened, sizes, rank=rank, whole=whole)}


def largest(recipe: Recipe, every: Mapping[int, Prediction]) -> Prediction:
    """The rank that takes most."""
    return max(every.values(), key=lambda found: taken(recipe, found))


def stage_size(sizes: MeshSizes) -> int:
    """How many ranks each place along a pipeline has."""
    return sizes.world // sizes.pipeline


def _whole(seen: Traced, how: str) -> Prediction:
    return _prediction(seen, (measured(seen.first), measured(seen.later)), how, of_timeline(seen.later))


def _blanks(recipe: Recipe) -> bool:
    """Whether the task's settings know what samples look like, so that none are read."""
    return hasattr(recipe.task, "blank_samples")


def _seen(asked: Asked) -> tuple[Traced, str]:
    """The steps, and how they were made: where they cannot be made without memory, really, in this process.

    Raises Failure(78) where that takes numbers of other processes.
    """
    try:
        return traced(asked), "traced whole"
    except NumbersNeededError as error:
        if asked.sizes.world > asked.sizes.data:
            cause = f"what this task's steps take follows from numbers ({error}), and on {asked.sizes} nobody has them"
            raise Failure(Exit.BAD_RECIPE, cause, "plan it on one process: launch.processes=1") from error
        how = f"two steps were made in this process, since what they take follows from numbers ({error})"
        with stand_in(asked.rank, asked.sizes.world) as group:
            if group.world > 1:
                how += "; the others send what this one does"
            return metered(asked, group), how


def asked_of(opened: Opened, sizes: MeshSizes, rank: int = 0, layers: int | None = None) -> Asked:
    """What is traced of a rank; of a network with so many layers in place of its own, where they are given."""
    recipe, task = opened.recipe, opened.task
    if layers is not None:
        recipe = replace(recipe, task=recipe.task.with_layers(layers))
        task = build_task(recipe)
    inputs = None if _blanks(recipe) else opened.inputs
    return Asked(recipe, task, sizes, opened.scale, opened.total, inputs, rank)


def _prediction(seen: Traced, steps: tuple[StepMemory, StepMemory], how: str, curve: Curve) -> Prediction:
    first, later = steps
    return Prediction(
        first=first,
        later=later,
        flops=seen.flops,
        sent=seen.sent,
        written=sum(commit_files(seen).values()),
        state=_bytes_of(seen.state),
        copied=_copied(seen),
        parameters=seen.parameters,
        micro_batches=seen.micro_batches,
        how=how,
        curve=curve,
    )


def _bytes_of(state: Sequence[StateTensor]) -> int:
    """Bytes of whole tensors."""
    return sum([prod(one.box.whole) * one.tensor.itemsize for one in state])


def _copied(seen: Traced) -> int:
    """Bytes that this rank copies for a commit."""
    return sum(one.tensor.nbytes for one in seen.state if one.counted)


def _grown(shallow: Prediction, deep: Prediction, more: int) -> Prediction:
    """What follows from one layer more, for `more` of them."""
    numbers = {}
    for name in ("flops", "sent", "written", "state", "copied"):
        one, two = getattr(shallow, name), getattr(deep, name)
        numbers[name] = two + more * (two - one)
    parameters = {}
    for name, own in deep.parameters.items():
        grown = [two + more * (two - one) for one, two in zip(shallow.parameters[name], own, strict=True)]
        parameters[name] = (grown[0], grown[1])
    return replace(deep, parameters=parameters, **numbers)


def commit_files(seen: Traced) -> dict[str, int]:
    """Bytes of the files of tensors and boxes that a rank writes into a commit, by name. Beside these the first one
    writes a manifest and some plain values."""
    pieces, boxes = [], {}
    # As a snapshot has them: wide types first.
    for name, tensor, _, counted in sorted(seen.state, key=lambda one: -one.tensor.dtype.itemsize):
        if counted:
            data = tensor.new_empty(tensor.nbytes, dtype=_BYTE)
            pieces.append(TensorBytes(name, tensor.dtype, tuple(tensor.shape), data, 0))
    for name, _, box, counted in seen.state:
        if counted and box != box.of_whole(box.whole):
            boxes[name] = box
    if seen.replicated:
        return file_sizes(pieces)
    if not pieces and seen.rank:  # others hold all that it has
        return {}
    files = file_sizes(pieces, seen.rank)
    return files | {name: len(content) for name, content in boxes_file(boxes, seen.rank).items()}


def kept_commits(opened: Opened) -> int:
    """How many commits lie on the disk at most, with the one that is being written."""
    settings: Checkpoint = opened.recipe.checkpoint
    steps = set(due_steps(settings.every, opened.total, opened.scale))
    policy = Retention(last=settings.keep)
    if settings.keep_every:
        policy = replace(policy, every=partial(settings.keep_every.multiples, scale=opened.scale))
    if settings.keep_best:
        policy = replace(policy, best=settings.keep_best.count)
        steps |= set(due_steps(opened.recipe.evaluate.every, opened.total, opened.scale))
    return most_kept(sorted(steps), opened.scale, policy)


@dataclass(frozen=True)
class Limit:
    """Bytes that a process may take, and who says so."""

    bytes: int
    source: str


def in_host_memory(recipe: Recipe) -> bool:
    """Whether the copy of the state that is written into commits lies beside the networks."""
    return recipe.device == "cpu" and not recipe.checkpoint.blocking


def taken(recipe: Recipe, found: Prediction) -> int:
    """Bytes that a process takes where its networks lie."""
    return found.peak + (found.copied if in_host_memory(recipe) else 0)


def require_fits(opened: Opened, sizes: MeshSizes, found: Prediction, limit: Limit, most: int = 24) -> None:
    """Raises Failure(78) for what takes more than the limit, with the nearest setting that does not: of at most so many
    that are traced."""
    own = taken(opened.recipe, found)
    if own <= limit.bytes:
        return
    cause = f"{sizes}: {_told(own)} a process, and {limit.source} has {_told(limit.bytes)}"
    wanted = setting_of(opened, sizes)
    for setting in nearest(wanted, bounds_of(opened, sizes.world))[:most]:
        try:
            other = largest(opened.recipe, predictions(with_setting(opened, setting), setting.sizes))
        except Failure:  # a mesh that the plan, or the task, refuses
            continue
        if taken(opened.recipe, other) <= limit.bytes:
            told = " ".join(map(repr, setting.overrides))
            hint = f"the nearest that fits: {setting} takes {_told(taken(opened.recipe, other))}: {told}"
            raise Failure(Exit.BAD_RECIPE, cause, hint, bytes=own, limit=limit.bytes)
    hint = f"none of {most} nearby settings fits: take more processes, or devices with more memory"
    raise Failure(Exit.BAD_RECIPE, cause, hint, bytes=own, limit=limit.bytes)


def setting_of(opened: Opened, sizes: MeshSizes) -> Setting:
    """What the recipe has of what can be chosen."""
    recipe = opened.recipe
    share = max(opened.scale.batches.sizes) // sizes.data
    activations = recipe.activations if isinstance(recipe.activations, str) else ACTIVATIONS[0]
    return Setting(sizes, min(recipe.batch.micro or share, share), activations)


def with_setting(opened: Opened, setting: Setting) -> Opened:
    """The recipe with another setting."""
    recipe, sizes = opened.recipe, setting.sizes
    axes = {axis: getattr(sizes, axis) for axis in AXES}
    parallel = replace(recipe.parallel, **axes)
    batch = replace(recipe.batch, micro=setting.micro)
    changed = replace(recipe, parallel=parallel, batch=batch, activations=setting.activations)
    return replace(opened, recipe=changed)


def bounds_of(opened: Opened, processes: int) -> Bounds:
    """What there is to choose from."""
    recipe = opened.recipe
    split = list(getattr(recipe.task, "split_sizes", {}).values())
    lanes = None if recipe.lanes == "auto" else recipe.lanes
    kept = recipe.parallel.sizes(processes)
    smallest = min(opened.scale.batches.sizes)
    return Bounds(processes, smallest, lanes, split, pipeline=kept.pipeline, context=kept.context)


def _told(size: float) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
