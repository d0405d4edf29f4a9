"""The loop: one step after another, and what is due between them. `docs/the-loop.md` draws it."""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from drivetrain.checkpoint.commit import Commits, StateTree
from drivetrain.checkpoint.state import capture
from drivetrain.data.feed import Feed, Share
from drivetrain.data.prefetch import prefetch
from drivetrain.engine.engine import Engine
from drivetrain.loop.divergence import diverged
from drivetrain.loop.evaluation import ValidationSet, evaluate
from drivetrain.loop.exchange import Exchange
from drivetrain.loop.gallery import Gallery
from drivetrain.loop.journal import Journal
from drivetrain.loop.progress import Progress, Timetable
from drivetrain.loop.step import Step
from drivetrain.loop.task import Task
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit


@dataclass(frozen=True)
class Parts:
    """All that a loop works with; `run.py` wires it.

    `facts` are the digests that every commit keeps; `ahead` is in steps, `workers` in processes.
    """

    task: Task
    engine: Engine
    feed: Feed
    validation: list[ValidationSet]
    timetable: Timetable
    group: Group
    exchange: Exchange
    journal: Journal
    commits: Commits
    facts: dict[str, Any]
    folder: Path
    keep: int
    ahead: int
    workers: int


class Entry(NamedTuple):
    """A step whose numbers may still be on their way. `time` is Unix time, `wait` and `seconds` are durations."""

    step: Step
    share: Share
    samples: int
    counts: dict[str, int]
    rates: dict[str, float]
    time: float
    wait: float
    seconds: float


class Loop:
    """Trains from a progress to the end of the budget, or until all ranks hear a stop request."""

    def __init__(self, parts: Parts, progress: Progress, *, committed: bool, evaluated: bool) -> None:
        """`committed`, `evaluated`: whether this progress is in a commit, and its evaluation in the ledger."""
        self.progress = progress
        self.parts = parts
        self._committed = progress.step if committed else -1
        self._evaluated = progress.step if evaluated else -1
        self._unread: deque[Entry] = deque()
        # An accelerator's numbers are read a step later: by then they have arrived and nothing waits.
        self._lag = 0 if parts.engine.device.type == "cpu" else 1

    def run(self) -> Exit:
        """DONE at the end of the budget, STOPPED after a stop request; either way with everything committed.

        Raises Failure(82) where a loss or a gradient is not finite, and whatever data, task or storage raise.
        """
        parts, timetable, exchange = self.parts, self.parts.timetable, self.parts.exchange
        if timetable.owes_evaluation(self.progress) and not self._evaluate():
            return self._stop()
        shares = prefetch(parts.feed, self.progress.step + 1, timetable.steps, parts.ahead, parts.workers)
        with closing(shares):
            ahead = next(shares, None)
            exchange.send(ahead=ahead)
            counts = exchange.receive().counts
            while ahead is not None:
                kept = parts.journal.lap("step")
                share, ahead = ahead, next(shares, None)  # 1 fetch, one step ahead
                wait = parts.journal.lap("wait")
                exchange.send(share, ahead)  # 6 the pulse leaves, off the training stream
                for updater in parts.engine.updaters.values():  # 4 schedules stand at the step's end
                    updater.advance(share.stop)
                step = Step(parts.engine, share, counts)
                parts.task.update(step)  # 2, 3 seeds, forward, backward, reduction, vote, optimizer
                heard = exchange.receive()
                before, self.progress = self.progress, self.progress.after(share.stop, step.moved)
                self._enter(step, share, heard.digest, counts, wait, kept)  # 5 the ledger
                counts = heard.counts
                if timetable.commit_due(before, self.progress):  # 7
                    self._commit()
                if timetable.evaluation_due(before, self.progress) and not self._evaluate():  # 8
                    return self._stop()
                if heard.stop and ahead is not None:  # 9
                    return self._stop()
        self._commit()
        return Exit.DONE

    def _enter(self, step: Step, share: Share, samples: int, counts: dict[str, int], wait: float, kept: float) -> None:
        rates = {name: updater.lr for name, updater in self.parts.engine.updaters.items()}
        seconds = kept + self.parts.journal.lap("step")  # the last entry was written in this step's time
        self._unread.append(Entry(step, share, samples, counts, rates, time.time(), wait, seconds))
        self._settle(self._lag)

    def _settle(self, lag: int = 0) -> None:
        """Tell the journal of all but the newest `lag` steps; stop where their numbers are not finite."""
        while len(self._unread) > lag:
            entry = self._unread.popleft()
            losses: dict[str, float] = {}
            norms: dict[str, float] = {}
            culprit = None
            for done in entry.step.done:
                scalars = done.move.read()
                prefix = f"{'+'.join(done.move.networks)}." if len(entry.step.done) > 1 else ""
                losses.update({prefix + name: value for name, value in scalars.losses.items()})
                norms.update(scalars.norms)
                culprit = culprit or (None if scalars.finite else done)
            self.parts.journal.step(
                step=entry.share.step,
                start=entry.share.start,
                stop=entry.share.stop,
                samples=entry.samples,
                losses=losses,
                counts=entry.counts,
                norm=norms,
                lr=entry.rates,
                seconds=entry.seconds,
                wait=entry.wait,
                time=entry.time,
            )
            if culprit:
                raise diverged(self.parts.engine, self.parts.group, culprit)

    def _evaluate(self) -> bool:
        """Score the validation sets unless that is done; False where a stop was heard on the way."""
        parts, step = self.parts, self.progress.step
        if self._evaluated == step or not parts.validation:
            return True
        self._settle()
        gallery = Gallery(parts.folder, step) if parts.group.leader else None
        scores = evaluate(parts.task, parts.engine, parts.validation, parts.group, parts.exchange, step, gallery)
        seconds = parts.journal.lap("evaluation")
        if scores is None:
            return False
        parts.journal.record(
            "evaluation",
            step=step,
            position=self.progress.position,
            seconds=seconds,
            metrics=scores.metrics,
            counts=scores.counts,
        )
        if gallery and gallery.texts:
            parts.journal.record("show", step=step, text=gallery.texts, files=gallery.files)
        self._evaluated = step
        return True

    def _commit(self) -> None:
        """Commit the state of this step unless that is done."""
        parts, step = self.parts, self.progress.step
        if self._committed == step:
            return
        self._settle()
        parts.journal.sync()
        parts.engine.share_buffers()
        networks = parts.engine.networks
        optimizers = {name: updater.optimizer for name, updater in parts.engine.updaters.items()}
        state = StateTree(tensors=capture(networks, optimizers), values=self.progress.to_json())
        facts = parts.facts | {"ledger": parts.journal.tail}
        commit = parts.commits.save(step, state, facts, parts.keep)
        parts.journal.record(
            "commit",
            step=step,
            position=self.progress.position,
            name=commit.name,
            seconds=parts.journal.lap("commit"),
            bytes=commit.bytes,
            manifest=commit.manifest,
        )
        parts.journal.sync()
        self._committed = step

    def _stop(self) -> Exit:
        self._commit()
        return Exit.STOPPED
