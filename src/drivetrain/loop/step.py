"""One optimizer step, as a task's `update` sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from drivetrain.data.feed import Share
from drivetrain.engine.engine import Engine, LossFunction, Work
from drivetrain.engine.move import Move
from drivetrain.engine.statistics import Probe


class Cache:
    """What one `minimize` leaves for the next (the fakes of a GAN): tensors by name and by micro-batch.

    Read and written inside loss functions: each sees what was left for the samples that it works on.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: dict[tuple[str, int], Tensor] = {}

    def __setitem__(self, name: str, value: Tensor) -> None:
        self._kept[name, self._engine.position] = value.detach()

    def __getitem__(self, name: str) -> Tensor:
        key = name, self._engine.position
        if key not in self._kept:
            raise KeyError(f"no earlier minimize of this step left {name!r} for the samples from position {key[1]}")
        return self._kept[key]


class Done(NamedTuple):
    """One `minimize` call that a step has made."""

    move: Move
    loss: LossFunction
    work: Work


class Step:
    """Given to `Task.update`: the step's number (from 1), and `minimize`."""

    def __init__(
        self,
        engine: Engine,
        share: Share,
        counts: Mapping[str, int],
        limits: Callable[[int], Mapping[str, float]] = lambda call: {},
        probe: Probe | None = None,
    ) -> None:
        """`limits` are those of the step's first, second ... `minimize`, as in `Work`."""
        self.index = share.step
        self.cache = Cache(engine)
        self.done: list[Done] = []
        self._engine = engine
        self._share = share
        self._counts = counts
        self._limits = limits
        self._probe = probe

    @property
    def networks(self) -> tuple[str, ...]:
        """The networks that have something to train."""
        return tuple(self._engine.updaters)

    def minimize(self, names: str | Sequence[str], loss: LossFunction) -> None:
        """Move one network, or several together, one optimizer step down `loss`; the others stand still.

        `loss(nets, batch)` is called once for each micro-batch. Raises KeyError for a network that does not train.
        """
        names = (names,) if isinstance(names, str) else tuple(names)
        for name in names:
            if name not in self._engine.updaters:
                raise KeyError(f"minimize: no trainable network {name!r}; there are {sorted(self._engine.updaters)}")
        call = len(self.done)
        share, limits = self._share, self._limits(call)
        work = Work(self.index, call, share.micro, self._counts, limits, self._probe, share.gaps)
        self.done.append(Done(self._engine.minimize(names, loss, work), loss, work))
