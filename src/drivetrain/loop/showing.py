"""What a task shows of samples, now and then: it changes nothing of what is trained."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from drivetrain.ledger.records import ShowRecord
from drivetrain.loop.evaluation import Evaluator, ShownSamples
from drivetrain.loop.gallery import Gallery
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.progress import Progress, Timetable
from drivetrain.loop.recipe import Show


class Showing:
    """Lets the task show what it makes of some samples when it is time, and tells the ledger of it."""

    def __init__(
        self,
        evaluator: Evaluator,
        ledger: LedgerWriter,
        samples: ShownSamples | None,
        settings: Show | None,
        run: Path | None,
    ) -> None:
        """`samples` is None where the task shows nothing, `settings` where it shows after each evaluation. `run` is the
        run directory on the rank that keeps what is shown, None on the others."""
        self._evaluator = evaluator
        self._ledger = ledger
        self._samples = samples
        self._settings = settings
        self._run = run
        self._shown: set[int] = set()

    def resume(self, shown: Collection[int]) -> None:
        """Go on from the steps after which something was shown."""
        self._shown = set(shown)

    def due(self, now: Progress, timetable: Timetable, *, evaluation: bool) -> bool:
        """Whether it is time; `evaluation` where one is due."""
        if self._samples is None or now.step in self._shown:
            return False
        return evaluation if self._settings is None else timetable.show_due(self._settings.every, now)

    def show(self, step: int) -> None:
        """Let the task show its samples. Every rank calls it."""
        assert self._samples is not None
        self._ledger.flush()  # it may take long, and nobody else would have these records
        gallery = Gallery(self._run, step) if self._run else None
        self._evaluator.show(self._samples, step, gallery)
        self._shown.add(step)
        self._ledger.lap("evaluation")
        if gallery and gallery.files:
            self._ledger.record(ShowRecord(step=step, text=gallery.texts, files=gallery.files))

    def rehearse(self, run: Path | None) -> list[str]:
        """Show for once into another folder, on the rank that has one: the files' names."""
        gallery = Gallery(run, 0) if run else None
        if self._samples:
            self._evaluator.show(self._samples, 0, gallery)
        if gallery is None:
            return []
        return [Path(file).name for file in gallery.files.values()]

    def forget_after(self, step: int) -> None:
        """The run has gone back to this step."""
        self._shown = {at for at in self._shown if at <= step}
