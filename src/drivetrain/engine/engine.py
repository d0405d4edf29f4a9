"""Networks made trainable: the one atom, `minimize`, on one device of one process among several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from drivetrain.data.batch_reader import MicroBatch
from drivetrain.engine.average import Averages
from drivetrain.engine.buffers import Buffers
from drivetrain.engine.exact import LaneTree, require_still
from drivetrain.engine.layerwise import Layerwise
from drivetrain.engine.losses import Losses, Term, as_losses, objective
from drivetrain.engine.network_group import NetworkGroup, are_layerwise, common_precision, smallest_micro
from drivetrain.engine.recipe import Network
from drivetrain.engine.recompute import GradientChecksums, Recompute, require_same, traceless
from drivetrain.engine.reduce import Reducer, Reduction
from drivetrain.engine.scaler import Scaler
from drivetrain.engine.statistics import Probe
from drivetrain.engine.step_result import StepResult, Sums
from drivetrain.engine.transfer import to_device
from drivetrain.engine.vote import move
from drivetrain.optim.network_optimizer import NetworkOptimizer
from drivetrain.runtime.group import Group
from drivetrain.runtime.heartbeat import Heartbeat
from drivetrain.runtime.seeds import mix, seed_generators

Networks = Mapping[str, nn.Module]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LossFunction = Callable[[Networks, Any], "Tensor | Losses"]


class MinimizeInputs(NamedTuple):
    """What one `minimize` call works on: this rank's micro-batches, and the global counts the losses are divided by.

    `limits` are the largest acceptable means and norms by name (`loss/NAME`, `norm/NETWORK`); `probe` measures.
    `gaps`: some rank has no micro-batch. `recompute`: what to compute again, where the step is checked.
    """

    step: int
    call: int
    micros: Sequence[MicroBatch]
    counts: Mapping[str, int]
    limits: Mapping[str, float] = MappingProxyType({})
    probe: Probe | None = None
    gaps: bool = False
    recompute: Recompute | None = None


class Engine:
    """Forward, backward, reduction, finite vote, clipping and optimizer for the networks that move together."""

    def __init__(
        self,
        networks: Networks,
        network_optimizers: Mapping[str, NetworkOptimizer],
        group: Group,
        device: torch.device,
        precision: str,
        seed: int,
        heartbeat: Heartbeat | None = None,
        *,
        scaler: Scaler | None = None,
        averages: Averages | None = None,
        skips: bool = False,
        exact: int | None = None,
        own: Mapping[str, Network] = MappingProxyType({}),
    ) -> None:
        """`skips`: a step may be left out and training goes on, so what it did to buffers is undone. `exact`: the
        number of lanes, where numbers must not depend on how many processes share them. `own`: what holds for single
        networks."""
        self.heartbeat = heartbeat or Heartbeat()
        self.networks = networks
        self.network_optimizers = dict(network_optimizers)
        self.device = device
        self.scaler = scaler
        self.averages = averages
        self.buffers = Buffers(networks, group, still=exact is not None)
        self.own: Mapping[str, Network] = defaultdict(Network, own)
        self.place = 0, 0  # positions [start, stop) of the micro-batch at work
        self._group = group
        self._seed = seed
        self._skips = skips
        self._exact = exact
        self._teams: dict[tuple[str, ...], NetworkGroup] = {}
        layerwise = [name for name, network_optimizer in network_optimizers.items() if network_optimizer.layerwise]
        self._norms = {name: torch.zeros((), device=device) for name in layerwise}
        self._precision = precision

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers by network."""
        return {name: network_optimizer.optimizer for name, network_optimizer in self.network_optimizers.items()}

    @property
    def others(self) -> dict[str, Tensor]:
        """What else decides a later bit, by the name that commits give it: averages of weights, norms that the next
        step is clipped by, the loss scale."""
        averages = self.averages.tensors if self.averages else {}
        norms = {f"norms/{name}": norm for name, norm in self._norms.items()}
        return averages | norms | (self.scaler.tensors if self.scaler else {})

    def minimize(self, names: tuple[str, ...], loss: LossFunction, work: MinimizeInputs) -> StepResult:
        """Move the named networks one step down `loss`; the others stand still.

        Where a loss or a gradient norm is not finite no network moves, on any rank: the returned move tells when read.
        Raises Failure(83) where another rank comes to other bits.
        """
        team = self.team(names)
        network_optimizers = [self.network_optimizers[name] for name in names]
        scaler = self._scaler(team)
        check, reduction = work.recompute, team.reduction
        again = self._recompute_rank_before(team, network_optimizers, loss, work, check.before) if check else {}
        own = GradientChecksums(check.own) if check else None
        team.reset()
        kept = self.buffers.keep() if self._skips else []
        sums = Sums(self.device)
        for left, micro in zip(range(len(work.micros) - 1, -1, -1), work.micros, strict=True):
            losses = self._forward(team, loss, micro, work)
            if reduction:
                reduction.enter(micro.lane, sums)
            sums.add(losses)
            probe = work.probe if self._fresh(micro, work) else None
            # A probe, and a check, look at gradients before they are summed over ranks.
            if reduction and left == 0 and not probe and not check:
                reduction.arm(sums)
            self._backward(team, losses, work)
            if own:
                own.look(micro.batch, losses, network_optimizers)
            if probe:
                scale = float(scaler.scale) if scaler else 1.0
                probe.look(network_optimizers, micro, work.counts["samples"], scale)
        if own:
            self.heartbeat.enter("compare")
            require_same(own.sums, again, self._group, work.step, names)
        if reduction:
            self.heartbeat.enter("reduce")
            reduction.finish(sums)
            # After all sums: where parameters move within backward, the others wait there for this rank's zeros.
            if work.gaps:  # a rank without samples hears from the others which losses there are
                sums.agree(self._group)
        if self._exact:
            require_still(self.buffers.first_changed)
        self.heartbeat.enter("optimizer")
        moved = reduction.norms if isinstance(reduction, Layerwise) else ()
        return move(network_optimizers, sums, work.counts, work.limits, scaler, kept, moved)

    def nonfinite_micro_batches(
        self, names: tuple[str, ...], loss: LossFunction, work: MinimizeInputs
    ) -> list[MicroBatch]:
        """The micro-batches of this rank whose loss or gradients are not finite, each run again by itself.

        The weights did not move, so the replay sees what the step saw. It leaves gradients and buffers dirty. Where
        they have moved in the backward pass there is nothing to see.
        """
        team = self.team(names)
        if isinstance(team.reduction, Layerwise):
            return []
        guilty = []
        for micro in work.micros:
            for parameter in team.parameters:
                parameter.grad = None
            losses = self._forward(team, loss, micro, work)
            self._backward(team, losses, work, scaled=False)
            seen = [term.value for term in losses.values()] + [p.grad for p in team.parameters if p.grad is not None]
            if not all(bool(tensor.isfinite().all()) for tensor in seen):
                guilty.append(micro)
        return guilty

    @contextmanager
    def evaluating(self) -> Iterator[Networks]:
        """The networks in evaluation mode, without gradients; every rank sees rank 0's buffers.

        They hold the averages of their weights, where these are to be evaluated.
        """
        self.buffers.share()
        modes = {name: network.training for name, network in self.networks.items()}
        for network in self.networks.values():
            network.eval()
        try:
            averaged = self.averages.in_place() if self.averages else nullcontext()
            with averaged, torch.no_grad(), self._autocast(self._precision):
                yield self.networks
        finally:
            for name, network in self.networks.items():
                network.train(modes[name])

    def seed(self, *path: int) -> None:
        """Seed the generators that forward passes draw from: the run's seed at a position."""
        seed_generators(self.device, mix(self._seed, *path))

    def team(self, names: tuple[str, ...]) -> NetworkGroup:
        """These networks as they move together.

        Raises Failure(78) where they have different precisions, or only some of them move within the backward pass,
        ValueError where a name is given twice.
        """
        if names not in self._teams:
            if len(set(names)) < len(names):
                raise ValueError(f"minimize: {', '.join(names)}: a network moves once")
            parameters = [p for name in names for p in self.network_optimizers[name].parameters]
            self._teams[names] = NetworkGroup(
                parameters,
                common_precision(names, self.own, self._precision),
                smallest_micro(names, self.own),
                self._reduction(names, parameters),
            )
        return self._teams[names]

    def _reduction(self, names: tuple[str, ...], parameters: Sequence[nn.Parameter]) -> Reduction | Layerwise | None:
        network_optimizers = [self.network_optimizers[name] for name in names]
        if are_layerwise(network_optimizers):
            return Layerwise(names, self.network_optimizers, self._group, self._norms)
        if self._exact:
            return LaneTree(parameters, self._group, self._exact)
        if any(network_optimizer.projected for network_optimizer in network_optimizers):
            from drivetrain.engine.projected import ProjectedReducer  # GaLore's imports take long

            return ProjectedReducer(network_optimizers, self._group.main)
        return Reducer(parameters, self._group.main) if self._group.world > 1 else None

    def _fresh(self, micro: MicroBatch, work: MinimizeInputs) -> bool:
        """Whether nothing was added to the gradients before this micro-batch."""
        return micro.part == 0 if self._exact else micro is work.micros[0]

    def _recompute_rank_before(
        self,
        team: NetworkGroup,
        network_optimizers: Sequence[NetworkOptimizer],
        loss: LossFunction,
        work: MinimizeInputs,
        micros: Sequence[MicroBatch],
    ) -> dict[str, int]:
        """What micro-batches of the rank before come to here. Every rank calls it; it leaves gradients dirty."""
        found = GradientChecksums(micros)
        team.reset()
        with self.buffers.of_rank_before(), traceless(self.networks):
            for micro in micros:
                losses = self._forward(team, loss, micro, work)
                self._backward(team, losses, work)
                found.look(micro.batch, losses, network_optimizers)
        return found.sums

    def _forward(
        self, team: NetworkGroup, loss: LossFunction, micro: MicroBatch, work: MinimizeInputs
    ) -> Mapping[str, Term]:
        self.heartbeat.enter("forward")
        self.seed(work.step, work.call, micro.lane, micro.part)
        self.place = micro.start, micro.start + micro.size
        with self._autocast(team.precision):
            return as_losses(loss(self.networks, to_device(micro.batch, self.device)), micro.size)

    def _backward(
        self, team: NetworkGroup, losses: Mapping[str, Term], work: MinimizeInputs, *, scaled: bool = True
    ) -> None:
        total, scaler = objective(losses, work.counts), self._scaler(team)
        if scaler and scaled:
            total = total * scaler.scale
        self.heartbeat.enter("backward")
        # With one network all that requires a gradient moves; naming the inputs costs time, so only others do it.
        if len(self.networks) == 1:
            total.backward()
        else:
            total.backward(inputs=team.parameters)

    def _scaler(self, team: NetworkGroup) -> Scaler | None:
        return self.scaler if team.precision == "fp16" else None

    def _autocast(self, precision: str) -> AbstractContextManager:
        return torch.autocast(self.device.type, dtype=_DTYPES[precision]) if precision in _DTYPES else nullcontext()
