"""Networks made trainable: the one atom, `minimize`, on one device of one process among several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from drivetrain.data.batch_reader import MicroBatch
from drivetrain.engine.activations import other_tensors
from drivetrain.engine.average import Averages
from drivetrain.engine.buffers import Buffers, Kept
from drivetrain.engine.by_loss import require_names
from drivetrain.engine.counted import StepCounts
from drivetrain.engine.cut_networks import cut_networks, given_up
from drivetrain.engine.exact import require_still
from drivetrain.engine.execution import Execution
from drivetrain.engine.inspection import Inspection
from drivetrain.engine.losses import Losses, Term, as_losses, objective, require_gradient
from drivetrain.engine.network_group import NetworkGroup, NetworkGroups
from drivetrain.engine.passes import MinimizeInputs, Passes
from drivetrain.engine.recompute import GradientChecksums, require_same, traceless
from drivetrain.engine.reduction import Unreduced
from drivetrain.engine.scaler import Scaler
from drivetrain.engine.step_result import StepResult, Sums
from drivetrain.engine.tables.state import row_state
from drivetrain.engine.tables.tables import Tables
from drivetrain.engine.transfer import to_device
from drivetrain.engine.vote import StepInputs, bounds, gradient_norm, vote
from drivetrain.optim.network_optimizer import NetworkOptimizer
from drivetrain.optim.rows import RowMover
from drivetrain.runtime.heartbeat import Heartbeat
from drivetrain.runtime.mistakes import returned
from drivetrain.runtime.mix import mix
from drivetrain.runtime.seeds import seed_generators, undrawn
from drivetrain.spec.exits import Exit, Failure

Networks = Mapping[str, nn.Module]
LossFunction = Callable[[Networks, Any], "Tensor | Losses"]


class Engine:
    """Forward, backward, reduction, finite vote, clipping and optimizer for the networks that move together."""

    def __init__(
        self,
        networks: Networks,
        network_optimizers: Mapping[str, NetworkOptimizer],
        execution: Execution,
        heartbeat: Heartbeat | None = None,
        *,
        scaler: Scaler | None = None,
        averages: Averages | None = None,
    ) -> None:
        self.heartbeat = heartbeat or Heartbeat()
        self.networks = networks
        self.network_optimizers = dict(network_optimizers)
        self.device = execution.device
        self.scaler = scaler
        self.averages = averages
        self.buffers = Buffers(networks, execution.placement.group, still=execution.exact is not None)
        self.counts = StepCounts(networks, execution.placement.mesh.summed)
        self.network_settings = execution.network_settings
        self.span = 0, 0  # positions [start, stop) of the micro-batch at work
        self._execution = execution
        self.placement = execution.placement
        self._cut = cut_networks(networks, execution.placement)
        self._tables = execution.placement.tables
        # A layerwise network is clipped by the norm of the step before, which commits keep.
        self._norms: dict[str, Tensor] = {}
        for name, network_optimizer in network_optimizers.items():
            if network_optimizer.layerwise:
                self._norms[name] = torch.zeros((), device=execution.device)
        self.groups = NetworkGroups(networks, self.network_optimizers, execution, self._norms)
        self._passes = _passes_of(self)

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers by network."""
        return {name: network_optimizer.optimizer for name, network_optimizer in self.network_optimizers.items()}

    @property
    def others(self) -> dict[str, Tensor]:
        """What else decides a later bit, by the name that commits give it: averages of weights, norms that the next
        step is clipped by, the loss scale, fp32 masters of bf16 weights."""
        tensors = {f"norms/{name}": norm for name, norm in self._norms.items()}
        if self.averages:
            tensors = self.averages.tensors | tensors
        if self.placement.masters:
            tensors |= self.placement.masters.tensors
        if self.scaler:
            tensors |= self.scaler.tensors
        if self._tables:
            tensors |= row_state(self._tables)
        return tensors

    def minimize(self, names: tuple[str, ...], loss: LossFunction, work: MinimizeInputs) -> StepResult:
        """Move the named networks one step down `loss`; the others stand still.

        Where a loss or a gradient norm is not finite no network moves, on any rank: the result tells when read.
        Raises Failure(83) where another rank comes to other bits; Failure(78) and ValueError as `NetworkGroups.of`.
        """
        moving = self.groups.of(names, work.rule)
        _require_unseen(work)
        network_optimizers = [self.network_optimizers[name] for name in names]
        # Before `reset`: it leaves gradients of the other rank's samples behind.
        again = self._recompute_rank_before(moving, network_optimizers, loss, work)
        inspection = self._inspection(moving, network_optimizers, work)
        moving.reduction.reset()
        self.counts.reset()
        kept: list[Kept] = []
        if self._execution.skips:  # before any forward pass: a step that is left out puts them back
            kept = self.buffers.keep()
        sums = Sums(self.device)
        losses = len(work.rule.losses) if work.rule else 1
        pulled = _pulled(self._tables, self.heartbeat, work, losses)
        with self._cut.training(names) if self._cut else nullcontext(), pulled:
            self._passes.run(moving, loss, work, sums, inspection)
        # Before the sum: after it all ranks agree, on a wrong gradient too.
        if inspection and inspection.checksums:
            self.heartbeat.enter("compare")
            require_same(inspection.checksums.sums, again, self.placement.data, work.step, names)
        if not isinstance(moving.reduction, Unreduced):  # a phase that takes no time is not told
            self.heartbeat.enter("reduce")
        moving.reduction.finish(sums)
        # After all sums: where parameters move within backward, the others wait there for this rank's zeros.
        # `gaps` is the same on every rank, as the exchange of names takes all of them.
        if work.gaps:  # a rank without samples hears from the others which losses there are
            sums.agree(self.placement.data)
        if self._execution.exact:
            require_still(self.buffers.first_changed)
        # After that look: what follows from the counts of the whole step is no change by a process's own lanes.
        kept += self.counts.finish()
        movers: list[RowMover] = []
        for network_optimizer in network_optimizers:
            movers += network_optimizer.rows
        weights: Mapping[str, float] = {}
        if moving.by_loss:
            weights = moving.by_loss.combine(movers, self._tables)
        self.heartbeat.enter("optimizer")
        if self.placement.masters:
            self.placement.masters.begin(work.step, work.call)
            for mover in movers:
                mover.at = work.step, work.call
        inputs = self._step_inputs(moving, network_optimizers, work, sums, kept)
        return vote(inputs._replace(weights=weights) if weights else inputs)

    def nonfinite_micro_batches(
        self, names: tuple[str, ...], loss: LossFunction, work: MinimizeInputs
    ) -> list[MicroBatch]:
        """The micro-batches of this rank whose loss or gradients are not finite, each run again by itself.

        The weights did not move, so the second pass sees what the step saw. It leaves gradients and buffers dirty.
        Where they have moved in the backward pass there is nothing to see.
        """
        moving = self.groups.of(names)
        if moving.reduction.in_backward:
            return []
        with self._cut.looking(names) if self._cut else nullcontext(), _pulled(self._tables, self.heartbeat, work):
            # Spares too: where tensors are cut, no rank can compute without the others.
            bad = [self._is_bad(moving, loss, micro, work) for micro in (*work.micros, *work.spares)]
        return [micro for micro, is_bad in zip(work.micros, bad, strict=False) if is_bad]

    def _is_bad(self, moving: NetworkGroup, loss: LossFunction, micro: MicroBatch, work: MinimizeInputs) -> bool:
        """Whether a micro-batch by itself has a loss or a gradient that is not finite."""
        # The reduction is not armed, so its hooks send nothing, however many micro-batches each rank has.
        for parameter in moving.parameters:
            parameter.grad = None
        seen = self._passes.alone(moving, loss, micro, work)
        if self._tables:
            seen += [pulled.take_gradient() for pulled in self._tables.pulled]
        if self._cut:
            seen += self._cut.gradients()
        else:
            seen += [p.grad for p in moving.parameters if p.grad is not None]
        return not all(bool(tensor.isfinite().all()) for tensor in seen)

    @contextmanager
    def evaluating(self) -> Iterator[Networks]:
        """The networks in evaluation mode, without gradients; every rank sees rank 0's buffers.

        They hold the averages of their weights, where these are to be evaluated. Afterwards buffers, modes and random
        numbers are as before, whatever a task has done to them: training goes on as if nothing had been evaluated.
        """
        self.buffers.share()
        with self.buffers.put_back(), undrawn(self.device), _evaluation_mode(self.networks.values()):
            averaged = self.averages.in_place() if self.averages else nullcontext()
            cut = self._cut.evaluating() if self._cut else nullcontext()
            tables = self._tables.evaluating() if self._tables else nullcontext()
            with averaged, torch.no_grad(), self._execution.autocast(self._execution.precision), cut, tables:
                yield self.networks

    def seed(self, *path: int) -> None:
        """Seed the generators that forward passes draw from: the run's seed at a position."""
        seed_generators(self.device, mix(self._execution.seed, *path))

    def _inspection(
        self, moving: NetworkGroup, network_optimizers: Sequence[NetworkOptimizer], work: MinimizeInputs
    ) -> Inspection | None:
        """What looks at this step's gradients; None in most steps."""
        if work.probe is None and work.recompute is None:
            return None
        checksums = None
        if work.recompute:
            checksums = GradientChecksums(work.recompute.own)
        return Inspection(work.probe, checksums, network_optimizers, work.counts["samples"], self._scaler(moving))

    def _recompute_rank_before(
        self,
        moving: NetworkGroup,
        network_optimizers: Sequence[NetworkOptimizer],
        loss: LossFunction,
        work: MinimizeInputs,
    ) -> Mapping[str, int]:
        """What micro-batches of the rank before come to here, where the step is checked; every rank calls it then.

        It leaves gradients dirty.
        """
        if work.recompute is None:
            return {}
        found = GradientChecksums(work.recompute.before)
        moving.reduction.reset()
        with self.buffers.of_rank_before(), traceless(self.networks):
            for micro in work.recompute.before:
                losses = self._forward(moving, loss, micro, work)
                self._backward(moving, losses, work)
                found.look(micro.batch, losses, network_optimizers)
        return found.sums

    def _pass_over(
        self,
        moving: NetworkGroup,
        loss: LossFunction,
        work: MinimizeInputs,
        sums: Sums,
        inspection: Inspection | None,
    ) -> None:
        """Forward and backward over all micro-batches: gradients add up where the reduction has them, losses in `sums`.

        What inspects gradients looks before they are summed over ranks, so then the reduction is armed at its end only.
        """
        reduction, last = moving.reduction, len(work.micros) + len(work.spares) - 1
        for number, micro in enumerate(work.micros):
            losses = self._forward(moving, loss, micro, work)
            reduction.enter(micro.lane, sums)
            sums.add(losses)
            fresh = number == 0
            if self._execution.exact:  # each lane has gradients of its own
                fresh = micro.part == 0
            inspected = inspection is not None and inspection.wants(fresh=fresh)
            if number == last and not inspected:  # else `finish` arms it, once the gradients were looked at
                reduction.arm(sums)
            self._backward(moving, losses, work)
            if inspection and inspected:
                inspection.look(micro, losses, fresh=fresh)
        for number, micro in enumerate(work.spares, start=len(work.micros)):
            with self.buffers.put_back():
                losses = self._forward(moving, loss, micro, work)
                if number == last:
                    reduction.arm(sums)
                self._backward(moving, losses, work, weight=0.0)

    def _forward(
        self, moving: NetworkGroup, loss: LossFunction, micro: MicroBatch, work: MinimizeInputs
    ) -> Mapping[str, Term]:
        self.heartbeat.enter("forward")
        # By place and never by count: whoever computes this micro-batch, and after whatever else, draws the same.
        self.seed(work.step, work.call, micro.lane, micro.part)
        self.span = micro.start, micro.start + micro.size
        if self._tables:
            self._tables.enter(micro.start)
        with self._execution.autocast(moving.precision), self._cut.losing() if self._cut else nullcontext():
            batch = self._cut.batch(micro.batch) if self._cut else micro.batch
            result = loss(self.networks, to_device(batch, self.device))
        losses = as_losses(result, micro.size, work.counts, loss)
        if work.rule and (wrong := require_names(losses, work.rule.losses)):
            raise returned(loss, wrong, "return Losses with those names")
        if self._cut:
            losses = self._cut.whole(losses)
        require_gradient(losses, loss)
        return losses

    def _backward(
        self,
        moving: NetworkGroup,
        losses: Mapping[str, Term],
        work: MinimizeInputs,
        *,
        scaled: bool = True,
        weight: float = 1.0,
    ) -> None:
        scale = weight
        if scaled and (scaler := self._scaler(moving)):
            scale = scaler.scale * weight
        self.heartbeat.enter("backward")
        # With one network all that requires a gradient moves; naming the inputs costs time, so only others do it.
        inputs: list[Tensor] | None = None
        if not self._cut and len(self.networks) > 1:
            inputs = [*moving.parameters]
            for pulled in self._tables.pulled if self._tables else ():
                inputs += pulled.leaves
        by_loss, cut = moving.by_loss, self._cut is not None
        if by_loss is None:
            _pass_back(objective(losses, work.counts), scale, inputs, cut=cut)
            return
        for number, name in enumerate(by_loss.losses):
            total = objective({name: losses[name]}, work.counts)
            with by_loss.keeping(number, self._tables):
                if total.requires_grad:  # a loss may reach nothing in some samples; `_forward` sees that another does
                    _pass_back(total, scale, inputs, cut=cut, retain_graph=number < len(by_loss.losses) - 1)

    def _step_inputs(
        self,
        moving: NetworkGroup,
        network_optimizers: Sequence[NetworkOptimizer],
        work: MinimizeInputs,
        sums: Sums,
        kept: Sequence[Kept],
    ) -> StepInputs:
        """What is voted on, with gradients as the optimizers will take them: without the loss scale."""
        scaler = self._scaler(moving)
        gradients = [network_optimizer.gradients for network_optimizer in network_optimizers]
        norms = moving.reduction.measure()
        if scaler:
            scaler.unscale(list(chain.from_iterable(gradients)))
        if not norms:
            norms = [gradient_norm(of_network, self.device) for of_network in gradients]
        elif scaler:  # they were taken with the loss scale
            norms = [norm / scaler.scale for norm in norms]
        limits = None
        if work.limits:
            limits = bounds(work.limits, sums, work.counts, network_optimizers)
        return StepInputs(network_optimizers, gradients, norms, sums, work.counts, limits, scaler, kept)

    def _scaler(self, moving: NetworkGroup) -> Scaler | None:
        return self.scaler if moving.precision == "fp16" else None


def _passes_of(engine: Engine) -> Passes:
    """What runs a step's micro-batches."""
    if engine.placement.mesh.sizes.pipeline == 1:
        return Passes(engine._pass_over, partial(_alone, engine))
    from drivetrain.engine.pipeline import Pipelined  # torch's schedules take a while to import

    assert engine._cut is not None, "stages are a cut"
    (network,) = engine.networks.values()
    return Pipelined(network, engine._execution, engine.heartbeat, engine._cut, engine.scaler).passes


def _alone(
    engine: Engine, moving: NetworkGroup, loss: LossFunction, micro: MicroBatch, work: MinimizeInputs
) -> list[Tensor]:
    losses = engine._forward(moving, loss, micro, work)
    # Without the loss scale, which can make a gradient overflow that is finite by itself.
    engine._backward(moving, losses, work, scaled=False)
    return [term.value for term in losses.values()]


def _require_unseen(work: MinimizeInputs) -> None:
    """Raises Failure(78) where gradients are looked at that are several while losses are not weighed yet."""
    if work.rule and (work.recompute or (work.probe and work.probe.gradients)):
        what = "guard.recompute" if work.recompute else "statistics.gradients"
        cause = f"{what} does not go with losses that are weighed by their gradients"
        raise Failure(Exit.BAD_RECIPE, cause, "leave it out, or weigh the losses by fixed numbers")


def _pulled(
    tables: Tables | None, heartbeat: Heartbeat, work: MinimizeInputs, losses: int = 1
) -> AbstractContextManager:
    """While entered, networks find the rows of tables that the step asks for. Every rank calls it."""
    if tables is None:
        return nullcontext()
    assert work.rows is not None, "a reader of batches arranges the rows of networks with tables"
    if tables.group.world > 1:
        heartbeat.enter("reduce")  # it waits for others
    return tables.training(work.rows, losses)


def _pass_back(
    total: Tensor, scale: float | Tensor, inputs: Sequence[Tensor] | None, *, cut: bool, retain_graph: bool = False
) -> None:
    """One backward pass, whose errors say what they come from; `cut`: networks are laid out over a mesh."""
    if not isinstance(scale, float) or scale != 1.0:
        total = total * scale
    try:
        total.backward(inputs=inputs, retain_graph=retain_graph)
    except CheckpointError as error:
        raise other_tensors(error) from error
    except RuntimeError as error:
        told = given_up(error) if cut else error
        if told is error:
            raise
        raise told from error


@contextmanager
def _evaluation_mode(networks: Iterable[nn.Module]) -> Iterator[None]:
    """Networks in evaluation mode; afterwards each of their modules is in the mode that it was in."""
    roots = list(networks)
    modes = [(module, module.training) for root in roots for module in root.modules()]
    before = [root.training for root in roots]
    for root in roots:
        root.eval()
    try:
        yield
    finally:
        # By `train`, which modules of their own may do more in; then one by one, as some may have been in another mode.
        for root, mode in zip(roots, before, strict=True):
            root.train(mode)
        for module, mode in modes:
            module.training = mode
