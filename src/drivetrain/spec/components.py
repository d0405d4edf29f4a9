"""What a kind may declare beside its settings, so that a whole recipe can be checked without knowing the kind.

A settings class has what it can answer; a kind of the user's own (`Custom`) has none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from drivetrain.spec.amount import Amount


@runtime_checkable
class ReadsKinds(Protocol):
    """A task that reads some kinds of sources only: `reads` are their names."""

    reads: tuple[str, ...]


@runtime_checkable
class LoadsNetworks(Protocol):
    """A task with networks that it does not train: `loads` are their names."""

    loads: tuple[str, ...]


@runtime_checkable
class CountsTokens(Protocol):
    """A task that reads tokens, as many in each sample."""

    @property
    def tokens_per_sample(self) -> int:
        """How many."""
        ...


@runtime_checkable
class KeepsDocuments(Protocol):
    """A task that may keep documents apart."""

    @property
    def needs_documents(self) -> bool:
        """Whether it does, so that its sources have to tell which document a token is of."""
        ...


@runtime_checkable
class SplitsLayers(Protocol):
    """A task whose layers can be split over processes (`parallel.tensor`)."""

    @property
    def split_sizes(self) -> Mapping[str, int]:
        """What has to be a multiple of these processes, by its path in the task's settings."""
        ...


@runtime_checkable
class HasBlocks(Protocol):
    """A task whose repeated blocks can lie on stages (`parallel.pipeline`)."""

    @property
    def blocks(self) -> tuple[str, int]:
        """Where in the task's settings it says how many there are, and how many."""
        ...


@runtime_checkable
class SharesPositions(Protocol):
    """A task whose samples can be cut by positions (`parallel.context`)."""

    @property
    def positions(self) -> tuple[str, int]:
        """Where in the task's settings it says how many a sample has, and how many."""
        ...


@runtime_checkable
class Derives(Protocol):
    """A task whose sources take from it what the recipe leaves open."""

    @staticmethod
    def derive(task: Any, source: Any) -> dict[str, Any]:
        """Values by the source's field, for this task's settings and this source's."""
        ...


@runtime_checkable
class Nests(Protocol):
    """A component with others inside: `nested` says of which section each of these fields is."""

    nested: Mapping[str, str]


@runtime_checkable
class FindsMistakes(Protocol):
    """A task whose settings may each be fine and not go together, or not with the rest of the recipe."""

    def mistakes(self, recipe: Any) -> Iterable[tuple[tuple[str | int, ...], str]]:
        """Paths inside the task's settings, and what is wrong there."""
        ...


@runtime_checkable
class GivesTokens(Protocol):
    """A source of tokens, `context` in a sample; None where neither recipe nor task says how many. Others give rows."""

    kind: str
    context: int | None


@runtime_checkable
class ReadsPart(Protocol):
    """A source that reads the `part` of what lies at a path; "all" is everything."""

    kind: str
    path: str | None
    part: str

    def cut_by(self) -> tuple[Any, ...]:
        """What decides which item is in which part: where it is equal, different parts share no item."""
        ...


@runtime_checkable
class WarmsUp(Protocol):
    """A schedule that may rise from zero."""

    warmup: Amount | None


@runtime_checkable
class HasLength(Protocol):
    """A schedule that may end before the budget does."""

    length: Amount | None


@runtime_checkable
class Decays(Protocol):
    """A schedule with a decay: an amount where it is the stretch at the end, a number where it is a factor."""

    decay: Amount | float


@runtime_checkable
class ReadsScores(Protocol):
    """A schedule that may follow the scores of validation sets: `reads_scores` says how often it wants them."""

    @property
    def reads_scores(self) -> Amount | None:
        """None where it is a function of the samples alone."""
        ...


@runtime_checkable
class FollowsScore(Protocol):
    """What goes by the SET/METRIC of a validation set."""

    metric: str


@runtime_checkable
class MovesParts(Protocol):
    """What moves tensors of which processes hold a part each: "any" part, "rows", "whole" tensors that it puts together
    by itself, or "none"; then `indivisible` says why."""

    parts: str
    indivisible: str


@runtime_checkable
class MovesLayers(Protocol):
    """An optimizer that may move weights within the backward pass."""

    layerwise: bool


@runtime_checkable
class ProjectsGradients(MovesLayers, Protocol):
    """An optimizer of projected gradients: `reduce` says whether "whole" ones or "projected" ones are summed."""

    update: str
    reduce: str
    clip: Any
