"""What runs a step's micro-batches where a network lies on stages: one of torch's schedules, which goes through all of
them at once (GPipe: arXiv 1811.06965; 1F1B: 2104.04473; zero bubble: 2401.10241)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import CheckpointError

from drivetrain.data.batch_reader import MicroBatch
from drivetrain.engine.activations import other_tensors
from drivetrain.engine.cut_networks import CutNetworks
from drivetrain.engine.execution import Execution
from drivetrain.engine.layout import reshard
from drivetrain.engine.losses import SplitLoss, as_losses, objective, require_gradient
from drivetrain.engine.network_group import NetworkGroup
from drivetrain.engine.passes import MinimizeInputs, Passes
from drivetrain.engine.relay import call_whole
from drivetrain.engine.scaler import Scaler
from drivetrain.engine.stages import Chunk, stages_of
from drivetrain.engine.step_result import Sums
from drivetrain.engine.transfer import to_device
from drivetrain.runtime.compiling import eager
from drivetrain.runtime.heartbeat import Heartbeat
from drivetrain.runtime.mix import mix
from drivetrain.runtime.seeds import seed_generators
from drivetrain.spec.exits import Exit, Failure

_SINGLE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_SEVERAL = {
    "interleaved": ScheduleInterleaved1F1B,
    "zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}


class _Pass(NamedTuple):
    """One micro-batch, and its batch on the device. Those without weight are there because other ranks, or the
    schedule, make as many."""

    micro: MicroBatch
    batch: Any
    weight: float


@dataclass(frozen=True)
class _Work:
    """What a schedule works on; stages and loss look micro-batches up in it by number."""

    passes: Sequence[_Pass]
    split: SplitLoss
    step: MinimizeInputs
    sums: Sums
    precision: str
    scale: float | Tensor = 1.0
    sums_over_ranks: bool = True


class Pipelined:
    """One network on stages: every rank of a pipeline has the same micro-batches, and runs its own stages of each."""

    def __init__(
        self,
        network: nn.Module,
        execution: Execution,
        heartbeat: Heartbeat,
        cut: CutNetworks,
        scaler: Scaler | None,
    ) -> None:
        stages = stages_of(network)
        assert stages is not None, "it was cut into stages"
        _require_torch()
        self._network, self._stages, self._cut, self._scaler = network, stages, cut, scaler
        self._execution, self.heartbeat = execution, heartbeat
        mesh = execution.placement.mesh
        self._data = execution.placement.data
        self._ranks = mesh.stages(tuple(range(mesh.sizes.pipeline)))
        self._pass_on = mesh.across(("pipeline",))
        self._relay = call_whole(network, stages, mesh)
        self._shapes: Any = None
        self._rows = 0
        self._labels: list[tuple[str, str]] = []
        self._made: dict[int, tuple[Tensor, Tensor]] = {}
        self._schedules: dict[tuple[str, int], Any] = {}
        self._work: _Work | None = None

    @property
    def passes(self) -> Passes:
        """For an engine."""
        return Passes(self.run, self.alone)

    def run(self, moving: NetworkGroup, loss: Any, work: MinimizeInputs, sums: Sums, _: Any) -> None:
        """Forward and backward over all micro-batches, in the order of the schedule."""
        kind = self._execution.schedule
        passes = [_Pass(micro, self._batch(micro), 1.0) for micro in work.micros]
        passes += [_Pass(micro, self._batch(micro), 0.0) for micro in work.spares]
        if not passes:  # no rank has a sample
            return
        rows = max(one.micro.size for one in passes)
        if work.gaps:  # ranks may have read less, and all make passes of one size
            rows = self._data.most(rows)
        wanted = fitting(kind, len(passes), self._ranks.world)
        passes += [passes[0]._replace(weight=0.0)] * (wanted - len(passes))
        scale = self._scaler.scale if self._scaler and moving.precision == "fp16" else 1.0
        self._prepare(_Work(passes, split_of(loss), work, sums, moving.precision, scale), rows)
        moving.reduction.enter(passes[0].micro.lane, sums)
        moving.reduction.arm(sums)
        self._step(kind)
        self._agree(sums)

    def alone(self, moving: NetworkGroup, loss: Any, micro: MicroBatch, work: MinimizeInputs) -> list[Tensor]:
        """The losses of one micro-batch, where the last stage is here; its gradients stay where they are made."""
        sums = Sums(self._execution.device)
        one = _Pass(micro, self._batch(micro), 1.0)
        self._prepare(_Work([one], split_of(loss), work, sums, moving.precision, sums_over_ranks=False), micro.size)
        # One micro-batch goes through any schedule alike, and gpipe takes a single one on any number of stages.
        kind = "gpipe" if self._execution.schedule in _SINGLE else self._execution.schedule
        self._step(kind)
        return [torch.as_tensor(value) for value in sums.values]

    def forward(self, chunk: Chunk, number: int, received: Tensor | None) -> Tensor:
        """What a stage makes of a micro-batch."""
        work = self.now
        one = work.passes[number]
        self.heartbeat.enter("forward")
        # By place and never by count: whoever computes this micro-batch, and after whatever else, draws the same.
        self._seed(one)
        last = chunk.number == len(self._stages.places) - 1
        if last and received is not None and one.micro.size < self._rows:
            received = received[: one.micro.size]  # nobody waits for what the last one makes: it sees what is there
        with self._execution.autocast(work.precision):
            output = chunk(self._inputs(one, filled=not last), received)
        # Messages are sent from one stretch of memory; the last stage's output is sent nowhere.
        return output if last else output.contiguous()

    def _loss(self, output: Tensor, number: Tensor) -> Tensor:
        """The part of the objective that a micro-batch has, of the last stage's output."""
        work = self.now
        micro, batch, weight = work.passes[int(number)]
        with self._execution.autocast(work.precision):
            result = work.split.loss_from(output, batch)
        losses = as_losses(result, micro.size, work.step.counts, work.split.loss_from)
        losses = self._cut.whole(losses)
        if weight:
            work.sums.add(losses)
        require_gradient(losses, work.split.loss_from)
        return objective(losses, work.step.counts) * (work.scale * weight)

    @property
    def now(self) -> _Work:
        """What the schedule that runs works on."""
        assert self._work is not None, "a schedule runs"
        return self._work

    def _seed(self, one: _Pass) -> None:
        work, micro = self.now.step, one.micro
        path = work.step, work.call, micro.lane, micro.part
        seed_generators(self._execution.device, mix(self._execution.seed, *path))

    def _batch(self, micro: MicroBatch) -> Any:
        return to_device(self._cut.batch(micro.batch), self._execution.device)

    def _inputs(self, one: _Pass, *, filled: bool = True) -> tuple[Any, ...]:
        """The network's inputs, `filled` up to as many samples as all passes have: messages have one shape. Of what is
        filled in, the last stage sees nothing."""
        given = self.now.split.inputs(one.batch)
        if not isinstance(given, tuple):
            given = (given,)
        shapes = [tuple(leaf.shape[1:]) for leaf in tree_leaves(given) if isinstance(leaf, Tensor) and leaf.ndim]
        if self._shapes is None:
            self._shapes = shapes
        if shapes != self._shapes:
            cause = f"parallel.pipeline: micro-batches have inputs of other shapes: {self._shapes}, then {shapes}"
            raise Failure(Exit.BAD_RECIPE, cause, "collate all samples to one shape, or use shard or tensor")
        if not filled or one.micro.size == self._rows:
            return given
        return tree_map(lambda leaf: _filled(leaf, one.micro.size, self._rows), given)

    def _prepare(self, work: _Work, rows: int) -> None:
        """Know how large what stages pass on is, and what each one draws: one pass without a backward tells it, and
        tries that the stages are all there is of the network. Every rank of the pipeline calls it."""
        self._work = work
        # Memory for messages only grows: smaller steps are filled up, so a ramp makes few schedules.
        if rows <= self._rows:
            return
        self._rows = rows
        self._schedules.clear()
        one, drawn = work.passes[0], {}

        def tried(chunk: Chunk, received: Tensor | None) -> Tensor:
            output, draws = chunk.tried(self._inputs(one), received)
            drawn.update({name: count for name, count in draws.items() if count})
            self._made[chunk.number] = _like(torch.empty(1) if received is None else received), _like(output)
            return output

        self._seed(one)
        # As it is written: a graph of this one pass, with its hooks, would serve no other.
        with torch.no_grad(), eager(), self._execution.autocast(work.precision):
            self._relay.passed(tried)
        reshard([self._network])
        everyones: dict[str, int] = {}
        for told in self._ranks.gather_json(drawn):
            everyones |= told
        for chunk in self._stages.chunks:
            chunk.expect(everyones)

    def _step(self, kind: str) -> None:
        """Run a schedule over the work."""
        numbers = torch.arange(len(self.now.passes))
        told: dict[str, Any] = {"micro": numbers}
        if self._stages.here == self._stages.last:
            told |= {"target": numbers, "losses": []}
        first = (numbers,) if self._stages.here == self._stages.places[0] else ()
        schedule = self._schedule(kind, len(numbers))
        try:
            with _unwrapped():
                schedule.step(*first, **told, return_outputs=False)
        finally:
            self._work = None

    def _schedule(self, kind: str, passes: int) -> Any:
        """Torch's, for so many passes; it is kept, with its memory for what stages send."""
        if (kind, passes) not in self._schedules:
            if len(self._schedules) > 1:  # the last step of a run may have fewer passes; sizes that are over go
                self._schedules.clear()
            stages = [self._stage(chunk) for chunk in self._stages.chunks]
            # Losses are over global counts already: a schedule that scaled gradients would scale them twice.
            if kind in _SINGLE:
                made = _SINGLE[kind](stages[0], passes, loss_fn=self._loss, scale_grads=False)
            else:
                made = _SEVERAL[kind](stages, passes, loss_fn=self._loss, scale_grads=False)
            self._schedules[kind, passes] = made
        return self._schedules[kind, passes]

    def _stage(self, chunk: Chunk) -> _Stage:
        count, device = len(self._stages.places), self._execution.device
        received, made = self._made[chunk.number]
        if not chunk.number:
            # The first stage receives nothing but the micro-batch's number.
            received = torch.empty(1, dtype=torch.int64, device="meta")
        stage = _Stage(chunk.module, chunk.number, count, device, received, made, group=self._pass_on)
        stage.chunk, stage.pipeline = chunk, self
        return stage

    def _agree(self, sums: Sums) -> None:
        """Take over the losses' names from the last stage: all ranks must judge alike. They are told once."""
        if not self._labels:
            told = self._ranks.gather_json(sums.labels)[self._stages.last]
            self._labels = [(name, over) for name, over in told]
        if sums.labels and sums.labels != self._labels:
            raise ValueError(f"losses differ between steps: {self._labels}, then {sums.labels}")
        sums.labels = self._labels


class _Stage(PipelineStage):
    """Micro-batches travel as their numbers: each stage looks up what it needs of them. Shapes are known, so that torch
    pickles nothing to tell them."""

    chunk: Chunk
    pipeline: Pipelined

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Tensor:
        """Torch's, by way of the pipeline."""
        return self.pipeline.forward(self.chunk, int(kwargs["micro"]), None if self.is_first else args[0])

    def backward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        """Torch's."""
        self.pipeline.heartbeat.enter("backward")
        return super().backward_maybe_with_nosync(*args, **kwargs)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Torch's, unless gradients are only looked at."""
        if self.pipeline.now.sums_over_ranks:
            super().perform_reduce_grad(grad_scale_factor)


def _require_torch() -> None:
    if not hasattr(PipelineStage, "perform_reduce_grad"):
        cause = f"parallel.pipeline: torch {torch.__version__} has no PipelineStage.perform_reduce_grad"
        raise Failure(Exit.BAD_RECIPE, cause, "use torch 2.13, or shard or tensor")


def fitting(kind: str, passes: int, places: int) -> int:
    """The fewest passes that a schedule takes, and not fewer than these."""
    if kind in ("gpipe", "zbv"):
        return passes
    if kind == "1f1b":
        return max(passes, places)
    while passes % max(1, passes // places):
        passes += 1
    return passes


def split_of(loss: Any) -> SplitLoss:
    """The task whose loss is made of `inputs` and `loss_from`. Raises Failure(78) for any other function."""
    owner = getattr(loss, "__self__", None)
    if isinstance(owner, SplitLoss) and getattr(loss, "__name__", "") == "loss":
        return owner
    cause = "parallel.pipeline: step.minimize was given a loss that is not the task's own `loss`"
    hint = "give self.loss, of a task with inputs(batch) and loss_from(output, batch)"
    raise Failure(Exit.BAD_RECIPE, cause, hint)


def _filled(leaf: Any, size: int, rows: int) -> Any:
    """A tensor [size, ...] with its last sample again until there are so many."""
    if not (isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == size):
        return leaf
    return torch.cat([leaf, leaf[-1:].expand(rows - size, *leaf.shape[1:])])


def _like(x: Tensor) -> Tensor:
    """What is known of a tensor beforehand."""
    shape = getattr(x, "_local_tensor", x).shape
    return torch.empty(shape, dtype=x.dtype, device="meta", requires_grad=x.is_floating_point())


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Errors of the network and the loss as they are: torch puts its own around them."""
    try:
        yield
    except CheckpointError as error:
        raise other_tensors(error) from error
    except RuntimeError as error:
        cause = error.__cause__
        if cause is not None and "failed to run forward" in str(error):
            raise cause from None
        raise
