"""A user's own functions and classes that hear what the ledger is told. They watch, and decide no bit."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import nn

from drivetrain.ledger.records import RecordBase
from drivetrain.runtime.heartbeat import Heartbeat
from drivetrain.spec.code.blame import place_of
from drivetrain.spec.custom import EVENTS, Custom, build_custom, found_custom
from drivetrain.spec.exits import Exit, Failure

Networks = Mapping[str, nn.Module]


class Callback(Protocol):
    """A class with a method for each event that it wants to hear of: `on_step`, `on_evaluation`, `on_commit`, ..., each
    named after a kind of record (docs/ledger.md), which it is given.

    It is given a copy. A method with a parameter `networks` is given these, too: by name, live, to look at. A function
    of such a name is one, too.
    """

    every_rank: bool
    """Whether it is there on every rank; by default it is on the leader alone."""


@dataclass(frozen=True)
class Listener:
    """What is called for one kind of record, and what a message calls it."""

    name: str
    call: Callable[[Any], object]


class Callbacks:
    """Tells listeners of records, in the order of the recipe. What one of them raises ends the run as theirs."""

    def __init__(
        self, customs: Sequence[Custom], networks: Networks, *, leader: bool, heartbeat: Heartbeat | None = None
    ) -> None:
        """Build those that are for this rank. Raises what `build_custom` raises."""
        self._heartbeat = heartbeat or Heartbeat()
        self._by_kind: dict[str, list[Listener]] = {}
        for custom in customs:
            if leader or getattr(found_custom(custom), "every_rank", False):
                self._add(custom, build_custom(custom), networks)

    def hears(self, kind: str) -> bool:
        """Whether anybody wants records of this kind."""
        return kind in self._by_kind

    def tell(self, record: RecordBase) -> None:
        """Call whoever wants to hear of it. Raises what `_Watched` does."""
        if not self.hears(record.kind):
            return
        phase = self._heartbeat.phase
        self._heartbeat.enter("callback")  # one that hangs is named by it
        for listener in self._by_kind[record.kind]:
            listener.call(copy.deepcopy(record))  # the ledger, and what follows from scores, have their own
        self._heartbeat.enter(phase)

    def _add(self, custom: Custom, built: Any, networks: Networks) -> None:
        path = custom.kind.partition(":")[2]
        if isinstance(built, partial):  # a function
            self._listen(path, built.func.__name__, built, networks)
            return
        for name in EVENTS:
            if callable(call := getattr(built, name, None)):
                self._listen(f"{path}.{name}", name, call, networks)

    def _listen(self, name: str, event: str, call: Callable[..., object], networks: Networks) -> None:
        if "networks" in inspect.signature(call).parameters:
            call = _Watched(name, call, networks)
        self._by_kind.setdefault(event.removeprefix("on_"), []).append(Listener(name, call))


@dataclass(frozen=True)
class _Watched:
    """What is called with networks, and must leave them as they are: it is no part of the run's digest."""

    name: str
    call: Callable[..., object]
    networks: Networks

    def __call__(self, record: RecordBase) -> None:
        """Raises Failure(78) where networks were changed."""
        before = self._state()
        self.call(record, networks=self.networks)
        if self._state() != before:
            cause = f"{self.name} has changed a network: a weight, a buffer, or whether it trains"
            if place := place_of(self.call):
                cause += f", at {place}"
            raise Failure(Exit.BAD_RECIPE, cause, "a callback watches; let the task or the optimizer do it")

    def _state(self) -> list[object]:
        """Modes, and torch's counts of changes in place."""
        found: list[object] = []
        for network in self.networks.values():
            found += [module.training for module in network.modules()]
            found += [(id(tensor), tensor._version) for tensor in network.buffers()]
            found += [(id(tensor), tensor._version, tensor.requires_grad) for tensor in network.parameters()]
        return found
