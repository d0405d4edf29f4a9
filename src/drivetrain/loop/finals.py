"""What is scored once, when a run is done: test sets, and whole the validation sets that were scored in part."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain.loop.evaluation import Scores, ValidationSet, evaluate

if TYPE_CHECKING:
    from drivetrain.loop.gallery import Gallery
    from drivetrain.loop.parts import Parts
    from drivetrain.loop.progress import Progress


@dataclass(frozen=True)
class Finals:
    """The sets by what they are (validation, test), and which of them the ledger has scores of at `step`.

    These scores are records of their own kind: nothing is chosen or stopped by them.
    """

    sets: Mapping[str, list[ValidationSet]]
    step: int
    scored: Mapping[str, Collection[str]]

    def left(self, step: int) -> Iterator[tuple[str, list[ValidationSet]]]:
        """What is still to be scored at a step."""
        for part, sets in self.sets.items():
            done = self.scored.get(part, ()) if step == self.step else ()
            if left := [each for each in sets if each.name not in done]:
                yield part, left


def score_finals(parts: Parts, progress: Progress) -> bool:
    """Score what is left and tell the ledger; False where a stop was heard on the way: the resumed run does it then.

    Called after the commit of this step was begun, so that nothing is lost if it takes too long.
    """
    left = parts.finals.left(progress.step)
    return all(score_sets(parts, progress, "final", sets, part=part) for part, sets in left)


def score_sets(
    parts: Parts,
    progress: Progress,
    kind: str,
    sets: list[ValidationSet],
    gallery: Gallery | None = None,
    **more: str,
) -> Scores | None:
    """Score sets at a step, and tell the ledger by a record of this kind; None where a stop was heard on the way."""
    scores = evaluate(parts.task, parts.engine, sets, parts.group, parts.exchange, progress.step, gallery)
    seconds = parts.journal.lap("evaluation")
    if scores is not None:
        place = {"step": progress.step, "position": progress.position, "seconds": seconds}
        parts.journal.record(kind, **more, **place, metrics=scores.metrics, counts=scores.counts)
    return scores
