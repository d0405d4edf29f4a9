"""The state of a run: everything that decides a later bit, beside the recipe and the data.

Tensors belong to the engine, plain values to `StateValues`. A commit holds both; its manifest adds `CommitMetadata`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from drivetrain.checkpoint.commit import StateTree
from drivetrain.checkpoint.snapshot import TensorBytes
from drivetrain.checkpoint.state import capture, put_back
from drivetrain.engine.engine import Engine
from drivetrain.engine.placement import Placement
from drivetrain.engine.tables.state import forget_keys
from drivetrain.loop.guard import Guard, GuardState, Undone
from drivetrain.loop.progress import Progress
from drivetrain.loop.streams import Marks, Streams

_START = Progress()


@dataclass(frozen=True)
class StateValues:
    """What a commit holds beside tensors: how far the run is, what the guard remembers, where streams go on,
    and the running means of training scores."""

    progress: Progress = _START
    guard: GuardState = field(default_factory=GuardState)
    streams: Marks = field(default_factory=dict)
    training: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For a commit."""
        values = self.progress.to_json() | {"guard": self.guard.to_json()}
        for name, found in (("streams", self.streams), ("training", self.training)):
            if found:
                values[name] = found
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StateValues:
        """What `to_json` gave. Commits from before there was a guard have no `guard`."""
        guard = GuardState.from_json(values.get("guard", {}))
        return cls(Progress.from_json(values), guard, values.get("streams", {}), values.get("training", {}))


@dataclass(frozen=True)
class CommitMetadata:
    """What a commit's manifest says beside its files: whose state it is, and what a resume must find again.

    `recipe`, `data`, `environment` and `user_code` ("": there is none) are digests, `parent` is the name of the commit
    before, `task` what the task has learned from the data. `position` is in samples, `ledger` the chain's hash when the
    commit began.
    """

    recipe: str
    data: Mapping[str, str]
    environment: Mapping[str, Any]
    parent: str | None
    lanes: int
    task: Mapping[str, Any]
    attempt: int
    user_code: str = ""
    position: int = 0
    ledger: str = ""

    def to_json(self) -> dict[str, Any]:
        """For the manifest, in the order of the fields."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        if not self.user_code:
            del told["user_code"]
        return told


class RunState:
    """The live state that steps change: the engine's tensors, the guard's memory, and the progress."""

    def __init__(
        self, engine: Engine, placement: Placement, guard: Guard, values: StateValues, streams: Streams | None = None
    ) -> None:
        self.engine = engine
        self.streams = streams
        self.placement = placement
        self.guard = guard
        self.progress = values.progress
        self.training = values.training
        """Running means of training scores, as `decayed` has them."""

    @property
    def values(self) -> StateValues:
        """The plain values as they are now."""
        return StateValues(self.progress, self.guard.state, self.streams.marks if self.streams else {}, self.training)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The live tensors by the names that commits give them; nothing is copied."""
        return capture(self.engine.networks, self.engine.optimizers, self.engine.others)

    def tree(self) -> StateTree:
        """What this rank writes into a commit of this moment."""
        counted = self.placement.counted(self.tensors)
        return StateTree(counted, self.values.to_json(), self.placement.boxes(counted))

    def go_back(self, values: StateValues, pieces: list[TensorBytes], undone: Undone) -> None:
        """Be as at an earlier boundary, except that the guard remembers what was undone.

        Raises Failure(83) where the memory of `pieces` has changed.
        """
        put_back(pieces, self.engine.networks, self.engine.optimizers, self.engine.others)
        if self.placement.tables:
            forget_keys(self.placement.tables)
        self.progress, self.training = values.progress, values.training
        # The guard's own way back: what was undone must outlive it, or the same step would go wrong again.
        self.guard.go_back(values.guard, undone)
