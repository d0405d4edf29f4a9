"""Networks made trainable: the one atom, `minimize`, on one device of one process among several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from drivetrain.data.feed import Micro
from drivetrain.engine.average import Averages
from drivetrain.engine.buffers import Buffers
from drivetrain.engine.exact import LaneTree, require_still
from drivetrain.engine.layerwise import Layerwise
from drivetrain.engine.losses import Losses, Term, as_losses, objective
from drivetrain.engine.move import Move, Sums
from drivetrain.engine.recipe import Network
from drivetrain.engine.recompute import Recompute, Seen, require_same, traceless
from drivetrain.engine.reduce import Reducer, Reduction
from drivetrain.engine.scaler import Scaler
from drivetrain.engine.statistics import Probe
from drivetrain.engine.team import Team, are_layerwise, common_precision, smallest_micro
from drivetrain.engine.transfer import to_device
from drivetrain.engine.vote import move
from drivetrain.optim.updater import Updater
from drivetrain.runtime.group import Group
from drivetrain.runtime.heart import Heart
from drivetrain.runtime.seeds import mix, seed_generators

Networks = Mapping[str, nn.Module]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LossFunction = Callable[[Networks, Any], "Tensor | Losses"]


class Work(NamedTuple):
    """What one `minimize` call works on: this rank's micro-batches, and the global counts the losses are divided by.

    `limits` are the largest acceptable means and norms by name (`loss/NAME`, `norm/NETWORK`); `probe` measures.
    `gaps`: some rank has no micro-batch. `recompute`: what to compute again, where the step is checked.
    """

    step: int
    call: int
    micros: Sequence[Micro]
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
        updaters: Mapping[str, Updater],
        group: Group,
        device: torch.device,
        precision: str,
        seed: int,
        heart: Heart | None = None,
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
        self.heart = heart or Heart()
        self.networks = networks
        self.updaters = dict(updaters)
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
        self._teams: dict[tuple[str, ...], Team] = {}
        layerwise = [name for name, updater in updaters.items() if updater.layerwise]
        self._norms = {name: torch.zeros((), device=device) for name in layerwise}
        self._precision = precision

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers by network."""
        return {name: updater.optimizer for name, updater in self.updaters.items()}

    @property
    def others(self) -> dict[str, Tensor]:
        """What else decides a later bit, by the name that commits give it: averages of weights, norms that the next
        step is clipped by, the loss scale."""
        averages = self.averages.tensors if self.averages else {}
        norms = {f"norms/{name}": norm for name, norm in self._norms.items()}
        return averages | norms | (self.scaler.tensors if self.scaler else {})

    def minimize(self, names: tuple[str, ...], loss: LossFunction, work: Work) -> Move:
        """Move the named networks one step down `loss`; the others stand still.

        Where a loss or a gradient norm is not finite no network moves, on any rank: the returned move tells when read.
        Raises Failure(83) where another rank comes to other bits.
        """
        team = self.team(names)
        updaters = [self.updaters[name] for name in names]
        scaler = self._scaler(team)
        check, reduction = work.recompute, team.reduction
        again = self._again(team, updaters, loss, work, check.before) if check else {}
        own = Seen(check.own) if check else None
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
                own.look(micro.batch, losses, updaters)
            if probe:
                scale = float(scaler.scale) if scaler else 1.0
                probe.look(updaters, micro, work.counts["samples"], scale)
        if own:
            self.heart.enter("compare")
            require_same(own.sums, again, self._group, work.step, names)
        if reduction:
            self.heart.enter("reduce")
            reduction.finish(sums)
            # After all sums: where parameters move within backward, the others wait there for this rank's zeros.
            if work.gaps:  # a rank without samples hears from the others which losses there are
                sums.agree(self._group)
        if self._exact:
            require_still(self.buffers.first_changed)
        self.heart.enter("optimizer")
        moved = reduction.norms if isinstance(reduction, Layerwise) else ()
        return move(updaters, sums, work.counts, work.limits, scaler, kept, moved)

    def culprits(self, names: tuple[str, ...], loss: LossFunction, work: Work) -> list[Micro]:
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

    def team(self, names: tuple[str, ...]) -> Team:
        """These networks as they move together.

        Raises Failure(78) where they have different precisions, or only some of them move within the backward pass,
        ValueError where a name is given twice.
        """
        if names not in self._teams:
            if len(set(names)) < len(names):
                raise ValueError(f"minimize: {', '.join(names)}: a network moves once")
            parameters = [p for name in names for p in self.updaters[name].parameters]
            self._teams[names] = Team(
                parameters,
                common_precision(names, self.own, self._precision),
                smallest_micro(names, self.own),
                self._reduction(names, parameters),
            )
        return self._teams[names]

    def _reduction(self, names: tuple[str, ...], parameters: Sequence[nn.Parameter]) -> Reduction | Layerwise | None:
        updaters = [self.updaters[name] for name in names]
        if are_layerwise(updaters):
            return Layerwise(names, self.updaters, self._group, self._norms)
        if self._exact:
            return LaneTree(parameters, self._group, self._exact)
        if any(updater.projected for updater in updaters):
            from drivetrain.engine.projected import ProjectedReducer  # GaLore's imports take long

            return ProjectedReducer(updaters, self._group.main)
        return Reducer(parameters, self._group.main) if self._group.world > 1 else None

    def _fresh(self, micro: Micro, work: Work) -> bool:
        """Whether nothing was added to the gradients before this micro-batch."""
        return micro.part == 0 if self._exact else micro is work.micros[0]

    def _again(
        self, team: Team, updaters: Sequence[Updater], loss: LossFunction, work: Work, micros: Sequence[Micro]
    ) -> dict[str, int]:
        """What micro-batches of the rank before come to here. Every rank calls it; it leaves gradients dirty."""
        found = Seen(micros)
        team.reset()
        with self.buffers.of_rank_before(), traceless(self.networks):
            for micro in micros:
                losses = self._forward(team, loss, micro, work)
                self._backward(team, losses, work)
                found.look(micro.batch, losses, updaters)
        return found.sums

    def _forward(self, team: Team, loss: LossFunction, micro: Micro, work: Work) -> Mapping[str, Term]:
        self.heart.enter("forward")
        self.seed(work.step, work.call, micro.lane, micro.part)
        self.place = micro.start, micro.start + micro.size
        with self._autocast(team.precision):
            return as_losses(loss(self.networks, to_device(micro.batch, self.device)), micro.size)

    def _backward(self, team: Team, losses: Mapping[str, Term], work: Work, *, scaled: bool = True) -> None:
        total, scaler = objective(losses, work.counts), self._scaler(team)
        if scaler and scaled:
            total = total * scaler.scale
        self.heart.enter("backward")
        # With one network all that requires a gradient moves; naming the inputs costs time, so only others do it.
        if len(self.networks) == 1:
            total.backward()
        else:
            total.backward(inputs=team.parameters)

    def _scaler(self, team: Team) -> Scaler | None:
        return self.scaler if team.precision == "fp16" else None

    def _autocast(self, precision: str) -> AbstractContextManager:
        return torch.autocast(self.device.type, dtype=_DTYPES[precision]) if precision in _DTYPES else nullcontext()
