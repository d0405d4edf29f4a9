"""One optimizer step, as a task's `update` sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drivetrain.data.batch_reader import LocalBatch, MicroBatch
from drivetrain.engine.by_loss import LossWeights
from drivetrain.engine.cut import cut
from drivetrain.engine.engine import Engine, LossFunction, MinimizeInputs
from drivetrain.engine.recompute import Recompute
from drivetrain.engine.statistics import Probe
from drivetrain.engine.step_result import StepResult
from drivetrain.runtime.mistakes import misused


class Left(NamedTuple):
    """What was left for the samples at the positions [start, stop)."""

    start: int
    stop: int
    value: Tensor


class Cache:
    """What one `minimize` leaves for the next (the fakes of a GAN): tensors by name and by range of samples.

    Read and written inside loss functions: each sees what was left for the samples that it works on. Where networks
    have micro-batches of different sizes, tensors [samples, ...] are cut and joined. Half precision is kept as float32,
    since the next network may have another precision.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: dict[str, list[Left]] = {}

    def __setitem__(self, name: str, value: Tensor) -> None:
        start, stop = self._engine.span
        # What one network has left is data to the next: a gradient through it would reach a network that stands still.
        value = value.detach()
        if value.dtype in (torch.float16, torch.bfloat16):
            value = value.float()
        # What was left for any of these samples before is replaced.
        others = [left for left in self._kept.get(name, ()) if left.stop <= start or stop <= left.start]
        self._kept[name] = sorted([*others, Left(start, stop, value)], key=lambda left: left.start)

    def __contains__(self, name: str) -> bool:
        return self._found(name) is not None

    def __getitem__(self, name: str) -> Tensor:
        found = self._found(name)
        if found is None:
            start, stop = self._engine.span
            raise KeyError(f"no earlier minimize of this step left {name!r} for the samples from {start} to {stop}")
        return found

    def _found(self, name: str) -> Tensor | None:
        start, stop = self._engine.span
        near = [left for left in self._kept.get(name, ()) if left.start < stop and start < left.stop]
        if len(near) == 1 and near[0][:2] == (start, stop):  # whole, so it need not have samples as its first dimension
            return near[0].value
        parts: list[Tensor] = []
        for begin, _, value in near:
            parts.append(value[max(0, start - begin) : stop - begin])
        if not parts or sum(map(len, parts)) != stop - start:  # nothing was left for some of the samples
            return None
        return torch.cat(parts)


class MinimizeCall(NamedTuple):
    """One `minimize` call that a step has made."""

    result: StepResult
    loss: LossFunction
    inputs: MinimizeInputs


class Step:
    """Given to `Task.update`: the step's number (from 1), and `minimize`."""

    def __init__(
        self,
        engine: Engine,
        batch: LocalBatch,
        counts: Mapping[str, int],
        limits: Callable[[int], Mapping[str, float]] = lambda call: {},
        probe: Probe | None = None,
        recompute: Recompute | None = None,
    ) -> None:
        """`limits` are those of the step's first, second ... `minimize`; they and what follows are as in
        `MinimizeInputs`."""
        self.index = batch.step
        self.cache = Cache(engine)
        self.calls: list[MinimizeCall] = []
        self._engine = engine
        self._batch = batch
        self._counts = counts
        self._limits = limits
        self._probe = probe
        self._recompute = recompute
        self._calls = 0

    @property
    def networks(self) -> tuple[str, ...]:
        """The networks that have something to train."""
        return tuple(self._engine.network_optimizers)

    @property
    def asked(self) -> bool:
        """Whether `minimize` was called at all, be it for networks whose turn it is not."""
        return self._calls > 0

    def joined(self, name: str) -> bool:
        """Whether a network takes part in this step, be it its turn or not: what others lose to it begins here."""
        return self._engine.network_settings[name].joined(self.index)

    def minimize(self, names: str | Sequence[str], loss: LossFunction, rule: LossWeights | None = None) -> None:
        """Move one network, or several together, one optimizer step down `loss`; the others stand still, and so do
        those that are frozen or whose turn it is not (`networks` in the recipe). Where none is left, nothing is done.

        `loss(nets, batch)` is called once for each micro-batch. A `rule` weighs its losses by their gradients, each of
        which takes a backward pass of its own; without one they are added up.

        Raises Failure: 70, which names the caller's line, for a network that is not there, and for a loss that is no
        function; 78 where networks that move together have different precisions, or are not all layerwise, and for what
        does not go with a rule.
        """
        engine = self._engine
        names = (names,) if isinstance(names, str) else tuple(names)
        for name in names:
            if name not in engine.networks:
                there = ", ".join(sorted(engine.networks))
                raise misused(f"step.minimize: there is no network {name!r}", f"there are: {there}")
        if not callable(loss):
            cause = f"step.minimize takes a function loss(nets, batch), and was given a {type(loss).__name__}"
            raise misused(cause, "give the function, and not what it returns")
        call, self._calls = self._calls, self._calls + 1  # the same for a network whether or not another one moves
        # A network that is frozen as a whole has no optimizer.
        trained = [name for name in names if name in engine.network_optimizers]
        names = tuple([name for name in trained if engine.network_settings[name].moves(self.index)])
        if not names:
            return
        micro = engine.groups.of(names).micro
        recompute = self._recompute
        if recompute is not None:  # in the parts in which the ranks before and after compute it
            recompute = Recompute(before=cut(recompute.before, micro), own=cut(recompute.own, micro))
        micros = cut(self._batch.micro_batches, micro)
        work = MinimizeInputs(
            step=self.index,
            call=call,
            micros=micros,
            counts=self._counts,
            limits=self._limits(call),
            probe=self._probe,
            gaps=self._batch.gaps,
            recompute=recompute,
            spares=self._spares(micros, micro),
            rows=self._batch.rows,
            rule=rule,
        )
        self.calls.append(MinimizeCall(engine.minimize(names, loss, work), loss, work))

    def _spares(self, micros: Sequence[MicroBatch], size: int | None) -> Sequence[MicroBatch]:
        """Passes of no weight, where tensors are cut and other ranks make more passes than this one."""
        placement = self._engine.placement
        if placement.mesh.replicated or not self._batch.gaps:
            return ()
        # Asked only where gaps make ranks differ: else each step would wait for this message.
        most = placement.data.most(len(micros))
        if most == len(micros):
            return ()
        assert self._batch.spare is not None, "whoever makes steps on a mesh gives one"
        return [cut([self._batch.spare], size)[0]] * (most - len(micros))
