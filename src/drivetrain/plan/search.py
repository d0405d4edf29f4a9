"""Which settings to try, and which of them are worth having. Pure functions; no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar

from drivetrain.data.geometry import divisors
from drivetrain.spec.mesh import MeshSizes

ACTIVATIONS = ("keep", "selective", "recompute")
T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """A mesh, a number of samples in a micro-batch, and which activations are kept."""

    sizes: MeshSizes
    micro: int
    activations: str

    def __str__(self) -> str:
        return f"{self.sizes}, micro {self.micro}, activations {self.activations}"

    @property
    def overrides(self) -> list[str]:
        """As the command line takes it. It adds to the recipe's `parallel`: what that may have is named."""
        named = ["replicate", "shard", "tensor"]
        named += [axis for axis in ("context", "pipeline") if getattr(self.sizes, axis) > 1]
        axes = ", ".join(f"{axis}: {getattr(self.sizes, axis)}" for axis in named)
        return [f"parallel={{{axes}}}", f"batch.micro={self.micro}", f"activations={self.activations}"]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"mesh": dict(self.sizes.there), "micro": self.micro, "activations": self.activations}


@dataclass(frozen=True)
class Bounds:
    """What there is to choose from: processes, samples in the smallest step, lanes, what `tensor` must divide, and
    processes of a machine, which `tensor` does not exceed. Places along a pipeline and a context stay as many."""

    processes: int
    batch: int
    lanes: int | None
    split: Sequence[int]
    machine: int = 8
    pipeline: int = 1
    context: int = 1

    @property
    def shared(self) -> int:
        """Processes that are left for the axes that are tried."""
        return self.processes // (self.pipeline * self.context)


def meshes(bounds: Bounds) -> Iterator[MeshSizes]:
    """All meshes of these processes on which the batch can be shared out."""
    for tensor in _tensors(bounds):
        data = bounds.shared // tensor
        if bounds.batch % data or (bounds.lanes is not None and bounds.lanes % data):
            continue
        for shard in divisors(data):
            yield MeshSizes(bounds.pipeline, data // shard, shard, bounds.context, tensor)


def settings(bounds: Bounds) -> list[Setting]:
    """All settings, in an order in which the first ones say most: neighbours differ much."""
    found = []
    for sizes, activations in product(meshes(bounds), ACTIVATIONS):
        for micro in divisors(bounds.batch // sizes.data):
            found.append(Setting(sizes, micro, activations))
    return sorted(found, key=lambda setting: _order(setting))


def nearest(wanted: Setting, bounds: Bounds) -> list[Setting]:
    """Settings that take less memory than one, those first that change least and cost least time."""
    less = [micro for micro in divisors(bounds.batch // wanted.sizes.data) if micro <= wanted.micro]
    later = ACTIVATIONS[ACTIVATIONS.index(wanted.activations) if wanted.activations in ACTIVATIONS else 0 :]
    found = []
    for micro, activations in product(reversed(less), later):
        found.append(replace(wanted, micro=micro, activations=activations))
    for sizes in sorted(meshes(bounds), key=lambda sizes: (sizes.tensor, sizes.shard)):
        if (sizes.tensor, sizes.shard) > (wanted.sizes.tensor, wanted.sizes.shard):
            micros = [micro for micro in divisors(bounds.batch // sizes.data) if micro <= wanted.micro]
            found += [Setting(sizes, micros[-1], later[0]), Setting(sizes, 1, later[-1])]
    return [setting for setting in dict.fromkeys(found) if setting != wanted]


def front(points: Mapping[T, tuple[float, float]]) -> list[T]:
    """Those that no other one beats in both numbers, by the first one, ascending."""
    best, found = float("inf"), []
    for name, (_, second) in sorted(points.items(), key=lambda item: item[1]):
        if second < best:
            best = second
            found.append(name)
    return found


def tried(candidates: Sequence[T], look: Callable[[T], None], enough: Callable[[], bool]) -> int:
    """Look at one after the other until it is enough; how many."""
    for number, candidate in enumerate(candidates):
        if enough():
            return number
        look(candidate)
    return len(candidates)


def _tensors(bounds: Bounds) -> list[int]:
    """How many ways layers can be split; 1 where the task does not say what would be."""
    fits = []
    for tensor in divisors(bounds.shared):
        divides = all(size % tensor == 0 for size in bounds.split)
        if tensor == 1 or (bounds.split and divides and tensor <= bounds.machine):
            fits.append(tensor)
    return fits


def _order(setting: Setting) -> tuple[int, int, int]:
    """The largest micro-batch and the smallest come first, of each mesh; odd ones last."""
    extremes = 0 if setting.micro & (setting.micro - 1) == 0 else 1
    return extremes, setting.sizes.tensor * 4 + ACTIVATIONS.index(setting.activations), -setting.micro
