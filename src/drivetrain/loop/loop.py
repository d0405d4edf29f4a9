"""The loop: one step after another, and what is due between them. `docs/the-loop.md` draws it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from drivetrain.checkpoint.commit import StateTree
from drivetrain.checkpoint.commits import MISSES, Commit, Missed
from drivetrain.checkpoint.handover import hand_over
from drivetrain.checkpoint.manifest import name_of
from drivetrain.checkpoint.retention import pin
from drivetrain.checkpoint.state import Watched, capture
from drivetrain.checkpoint.tensors import require_writable
from drivetrain.data.feed import Share
from drivetrain.data.prefetch import Bursts, Shares, prefetch
from drivetrain.engine.recompute import Recompute
from drivetrain.engine.statistics import Probe
from drivetrain.loop.control import REPLAYED
from drivetrain.loop.divergence import not_again
from drivetrain.loop.exchange import Heard
from drivetrain.loop.finals import score_finals, score_sets
from drivetrain.loop.gallery import Gallery
from drivetrain.loop.outcome import outcome_of
from drivetrain.loop.parts import Entry, Parts, Pending
from drivetrain.loop.progress import Progress
from drivetrain.loop.replicas import replicated, require_equal
from drivetrain.loop.ring import Ring
from drivetrain.loop.rollback import Bad, act_on, undo
from drivetrain.loop.step import Step
from drivetrain.loop.stopping import exhausted, score_of
from drivetrain.loop.telemetry import held
from drivetrain.spec.exits import Exit, Failure, Outcome

_PAUSE = 0.1  # seconds between two looks for commands while the run is paused
MIRROR_PATIENCE = 120.0
"""Seconds that a run which is at its end waits for its last commit to be copied."""


class Loop:
    """Trains from a progress to the end of the budget, or until all ranks hear a stop request."""

    def __init__(
        self,
        parts: Parts,
        progress: Progress,
        *,
        committed: bool,
        evaluated: bool,
        scores: Sequence[float] = (),
        standing: str = "",
    ) -> None:
        """`committed`, `evaluated`: whether this progress is in a commit, and its evaluation in the ledger. `scores`:
        those of earlier evaluations by which it may stop early. `standing`: the pause or stop that it was told when it
        was cut off."""
        self.progress = progress
        self.why = ""
        """Why it ended, where it was not by the budget or by a request."""
        self._scores = [(progress.step, score) for score in scores]  # and after which step each was found
        self._begin = progress.step
        self.parts = parts
        self._committed = progress.step if committed else -1
        self._evaluated = progress.step if evaluated else -1
        self._compared = -1
        self._pending: Pending | None = None
        self._parent: str | None = parts.facts["parent"]
        self._unread: deque[Entry] = deque()
        self._step: tuple[Step, Share, dict[str, int]] | None = None  # made, or being made, and not entered
        self._updated = False  # whether that step has moved all that it moves
        self._shares: Shares = Bursts(parts.feed, range(0), 0)  # reads nothing yet
        self._paused, self._told_to_stop = standing == "pause", standing == "stop"
        self._asked: set[str] = set()  # what commands want at this boundary, and schedules do not
        self._watched = Watched(parts.engine.networks, parts.engine.others) if parts.group.world > 1 else None
        undoes = parts.guard.settings.undoes
        self._ring = Ring(parts.guard.settings.rollback) if undoes else None
        self._bad: Bad | None = None  # the step that has just been made, where it is to be undone
        # An accelerator's numbers are read a step later: by then they have arrived and nothing waits. Where a step may
        # be undone they are waited for: the state is then still the one that they were made with.
        self._lag = 0 if parts.engine.device.type == "cpu" or undoes else 1

    def run(self) -> Exit:
        """DONE at the end of the budget, STOPPED after a stop request; either way with everything committed.

        Raises Failure(82) where a loss or a gradient is not finite, 74 where commits fail again and again, and
        whatever data and task raise.
        """
        parts = self.parts
        exchange, heart = parts.exchange, parts.engine.heart
        state = self._state().tensors
        require_writable(state)
        if parts.committer:
            parts.committer.prepare(state)
        if not (self._do_again() and self._do_what_is_due()):
            return self._stop()
        if self._out_of_patience():
            return self._done()
        self._keep()
        with closing(self):
            self._read_from(self.progress.step + 1)
            ahead = next(self._shares, None)
            exchange.send(ahead=ahead)
            heard = exchange.receive()
            counts = heard.counts
            if heard.end and ahead is not None:
                return self._end(heard.end)
            while ahead is not None:
                kept = parts.journal.lap("step")
                heart.step = self.progress.step + 1
                heart.enter("data")
                parts.observer.before(heart.step)
                share, ahead = ahead, next(self._shares, None)  # 1 fetch, one step ahead
                wait = parts.journal.lap("wait")
                exchange.send(share, ahead)  # 6 the pulse leaves, off the training stream
                for updater in parts.engine.updaters.values():  # 4 schedules stand at the step's end
                    updater.advance(share.stop)
                parts.engine.buffers.begin()
                if self._watched:
                    self._watched.stand()
                self._make(share, counts)  # 2, 3 seeds, forward, backward, reduction, vote, optimizer
                heart.enter("pulse")
                heard = exchange.receive()
                self._enter(heard.digest, wait, kept)  # 5 the ledger
                counts = heard.counts
                parts.observer.after(self.progress)
                if self._bad:
                    ahead, counts = self._go_back(self._bad)
                    parts = self.parts
                    continue
                if self._pending:
                    self._take(parts.committer.finished() if parts.committer else None)
                if heard.commands or self._paused or parts.control.due(self.progress.step):
                    heard = self._obey(heard)
                if not self._do_what_is_due():  # 7 commit, 8 evaluation
                    return self._stop()
                if self._out_of_patience():  # 9
                    return self._done()
                if heard.end and ahead is not None:
                    return self._end(heard.end)
                if ahead is not None and self._at_a_stop():
                    return self._stop()
                self._keep()
        return self._done()

    def close(self) -> None:
        """End what reads ahead."""
        self._shares.close()

    def _read_from(self, step: int) -> None:
        """Read ahead from this step on."""
        self.close()
        parts = self.parts
        self._shares = prefetch(parts.feed, step, parts.timetable.steps, parts.ahead, parts.workers)

    def _keep(self) -> None:
        """Remember this boundary's state, where the run may have to go back to it."""
        if self._ring is not None and self._ring.due(self.progress.step):
            self.parts.engine.heart.enter("snapshot")
            self._ring.keep(self.progress, self.parts.guard.state, self._state().tensors)

    def _go_back(self, bad: Bad) -> tuple[Share | None, dict[str, int]]:
        """Undo a step and some before it; the share that comes next, and the next step's counts, as at the start."""
        parts = self.parts
        assert self._ring is not None
        parts.engine.heart.enter("rollback")
        self.progress = undo(parts, self._ring, bad)
        to = self.progress.step
        self._scores = [(step, score) for step, score in self._scores if step <= to]
        self._evaluated = self._evaluated if self._evaluated <= to else -1
        parts.observer.back(to)
        self.parts = replace(parts, feed=replace(parts.feed, quarantine=parts.guard.quarantine))
        self._read_from(to + 1)
        ahead = next(self._shares, None)
        parts.exchange.send(ahead=ahead)
        counts = parts.exchange.receive().counts
        self._bad = None  # from here on the leader has told of it, so that the state may be handed over
        return ahead, counts

    def _obey(self, heard: Heard) -> Heard:
        """Do what commands want after this step, and wait here for others while the run is paused."""
        step = self.progress.step
        if not self._do_again() or (heard.commands and not self._do_fresh()):
            return replace(heard, end=Exit.STOPPED)
        if not self._paused:
            return heard
        parts, seconds = self.parts, 0.0
        self._settle()
        parts.journal.sync()
        parts.journal.lap("step")
        while self._paused and not heard.end:
            parts.engine.heart.enter("pause")
            time.sleep(_PAUSE)
            parts.exchange.send()
            heard = parts.exchange.receive()
            seconds += parts.journal.lap("pause")
            if heard.commands and not self._do_fresh():
                heard = replace(heard, end=Exit.STOPPED)
            if self._pending:
                self._take(parts.committer.finished() if parts.committer else None)
        parts.journal.record("pause", step=step, seconds=seconds)
        return heard

    def _do_fresh(self) -> bool:
        """Do the commands that the leader has heard; False where a stop was heard on the way."""
        return self._do_each(iter(lambda: self.parts.control.take(self.progress.step, self.parts), None))

    def _do_again(self) -> bool:
        """Do what was told after this step before, in the same way; False where a stop was heard on the way."""
        return self._do_each(self.parts.control.again(self.progress.step))

    def _do_each(self, commands: Iterable[Mapping[str, Any]]) -> bool:
        """Do commands, each with what it makes due; False where a stop was heard on the way."""
        for command in commands:
            self._do(command)
            self.parts.engine.heart.enter("pause")  # there may be many
            if not self._do_what_is_due():
                return False
        return True

    def _do(self, command: Mapping[str, Any]) -> None:
        """What one command wants, on every rank alike."""
        parts, step = self.parts, self.progress.step
        if self._ring is not None and command["verb"] in REPLAYED:
            self._ring.clear()  # it is not undone
        match command["verb"]:
            case "pause" | "resume" as verb:
                self._paused = verb == "pause" and not self._told_to_stop
            case "stop":
                self._told_to_stop, self._paused = True, False
            case "save" | "evaluate" as verb:
                self._asked.add(verb)
            case "pin":
                self._asked.add("save")
                if parts.committer:
                    pin(parts.folder, name_of(step))
            case "profile":
                parts.observer.profile(step + 1, int(command["argument"]))
            case "set":
                self.parts = parts.control.tuning.apply(command["argument"], command["effect"], parts)
                if "stage" in command["effect"]:
                    self._read_from(step + 2)  # the next step's share is here, and its counts are known to all

    def _do_what_is_due(self) -> bool:
        """Commit and evaluate, where it is time or a command wants it; False where a stop was heard on the way."""
        timetable, asked = self.parts.timetable, self._asked
        if timetable.due(self.parts.guard.settings.replicas, self.progress):
            self._compare()
        evaluation = "evaluate" in asked or timetable.evaluation_due(self.progress)
        if "save" in asked or (evaluation and timetable.commit_evaluated) or timetable.commit_due(self.progress):
            self._commit()
        asked.clear()
        return not evaluation or self._evaluate()

    def _compare(self) -> None:
        """See that all ranks hold the same state; 83 where they do not."""
        watched, parts, step = self._watched, self.parts, self.progress.step
        if watched and self._compared != step:
            parts.engine.heart.enter("compare")
            require_equal(replicated(parts.engine, frozen=not watched.private), parts.group, step)
            self._compared = step

    def _make(self, share: Share, counts: dict[str, int]) -> None:
        """One step, unless the recipe leaves it out."""
        engine, guard, number = self.parts.engine, self.parts.guard, share.step
        probe = self._probe(share)
        step = Step(engine, share, counts, partial(guard.limits, number), probe, self._recompute(share))
        self._step, self._updated = (step, share, counts), False
        if not guard.leaves_out(number, counts):
            self.parts.task.update(step)
        if engine.averages:  # also where nothing moved: a step that is left out is the same for whatever reason
            engine.averages.update(number, [name for name in engine.updaters if engine.own[name].moves(number)])
        self._updated = True
        if step.done and probe:
            norms = {name: norm for done in step.done for name, norm in done.move.read().norms.items()}
            found = probe.result(norms, counts["samples"], self.parts.group)
            self.parts.journal.record("statistics", step=number, networks=found)

    def _probe(self, share: Share) -> Probe | None:
        """What measures this step, where that is due; a step that ends early has ranks with nothing to measure."""
        settings, timetable = self.parts.statistics, self.parts.timetable
        if settings is None or not timetable.due(settings.every, Progress(share.step, share.stop)):
            return None
        ragged = (share.start, share.stop) != timetable.scale.batches.span(share.step)
        return None if ragged or share.gaps else Probe(settings, self.parts.engine.updaters)

    def _recompute(self, share: Share) -> Recompute | None:
        """What this rank computes again in a step, where that is due."""
        parts, every = self.parts, self.parts.guard.settings.recompute
        if every is None or not parts.timetable.due(every, Progress(share.step, share.stop)):
            return None
        parts.engine.heart.enter("data")
        return Recompute(parts.feed.first((parts.group.rank - 1) % parts.group.world, share.step), share.micro[:1])

    def hand_over(self, folder: Path) -> int | None:
        """After the loss of a peer: leave the state of the boundary that this rank stands at in `folder`.

        Returns its step, None where it stands within a step that has changed something, where it holds what another
        rank's commit would not, or where another has left as much. Raises OSError where the memory does not suffice.
        """
        rank = self.parts.group.rank
        watched, buffers = self._watched, self.parts.engine.buffers
        within = self._step is not None and not self._updated
        if watched is None or (within and watched.moved) or (rank > 0 and watched.private):
            return None
        if buffers.changed and (within or rank > 0):
            return None
        self.parts.engine.heart.enter("handover")
        if self._step and self._updated:
            share = self._step[1]
            self._enter(self.parts.feed.digest(share.step), 0.0, 0.0)
        self._settle()
        if self._bad:
            return None
        step = self.progress.step
        done = hand_over(folder, rank, step, self._state(), self._facts(), self.parts.journal.recent)
        return step if done else None

    def _enter(self, samples: int, wait: float, kept: float) -> None:
        """The step is made: one further, and its record, with the digest of its samples, for the ledger."""
        assert self._step is not None
        step, share, counts = self._step
        self.progress = self.progress.after(share.stop)
        rates = {name: updater.lr for name, updater in self.parts.engine.updaters.items()}
        seconds = kept + self.parts.journal.lap("step")  # the last entry was written in this step's time
        self.parts.engine.heart.seconds = seconds
        self._step = None
        self._unread.append(Entry(step, share, samples, counts, rates, time.time(), wait, seconds))
        self._settle(self._lag)

    def _settle(self, lag: int = 0) -> None:
        """Tell the journal of all but the newest `lag` steps; stop where their numbers are not finite."""
        while len(self._unread) > lag:
            entry = self._unread.popleft()
            guard, number = self.parts.guard, entry.share.step
            outcome = outcome_of(entry.step.done, guard, number, entry.step.networks, entry.counts)
            self.progress = self.progress.moved(outcome.moved)
            wrong = self.parts.journal.step(
                step=entry.share.step,
                start=entry.share.start,
                stop=entry.share.stop,
                samples=entry.samples,
                losses=outcome.losses,
                counts=entry.counts,
                norm=outcome.norms,
                lr=entry.rates,
                seconds=entry.seconds,
                wait=entry.wait,
                time=entry.time,
                skipped=outcome.skipped,
                scale=outcome.scale,
            )
            if wrong:
                self.parts.exchange.failure = not_again(number, wrong)
            self._bad = self._bad or act_on(self.parts, outcome, number)

    def _evaluate(self) -> bool:
        """Score the validation sets unless that is done; False where a stop was heard on the way."""
        parts, step = self.parts, self.progress.step
        if self._evaluated == step or not parts.validation:
            return True
        self._settle()
        parts.journal.flush()  # it may take long, and nobody else would have these records
        gallery = Gallery(parts.folder, step) if parts.group.leader else None
        scores = score_sets(parts, self.progress, "evaluation", parts.validation, gallery)
        if scores is None:
            return False
        if gallery and gallery.files:
            parts.journal.record("show", step=step, text=gallery.texts, files=gallery.files)
        self._evaluated = step
        if parts.stop.patience:
            score = score_of(scores.metrics, parts.stop.patience.metric)
            self._scores += [] if score is None else [(step, score)]
        return True

    def _out_of_patience(self) -> bool:
        patience = self.parts.stop.patience
        if patience is None or not exhausted([score for _, score in self._scores], patience):
            return False
        self.why = f"{patience.metric} has not become better in {patience.evaluations} evaluations"
        return True

    def _at_a_stop(self) -> bool:
        """Whether the recipe or the command asks for a stop after this step."""
        if self.progress.step in self.parts.stop.at:
            self.why = f"step {self.progress.step} is one of stop.at"
        elif self.progress.step - self._begin == self.parts.most_steps:
            self.why = f"{self.parts.most_steps} steps were asked for"
        elif self._told_to_stop:
            self.why = "`drivetrain control` asked for a stop"
        return bool(self.why)

    def _commit(self) -> None:
        """Begin the commit of this step unless that is done. The one before is waited for: one at a time."""
        parts, step = self.parts, self.progress.step
        if self._committed == step:
            return
        self._settle()
        if parts.guard.settings.replicas:
            self._compare()
        parts.engine.buffers.share()
        if parts.exchange.failure:  # all will end; what is suspect is not made durable
            return
        if self._pending:
            self._take(parts.committer.wait() if parts.committer else None)
        waited, sizes = parts.journal.lap("commit"), {}
        if parts.committer:
            state = self._state()
            sizes = held(parts.engine, state.tensors)
            parts.committer.begin(step, state, self._facts())
        self._pending = Pending(step, self.progress.position, parts.journal.lap("commit"), waited, sizes)
        self._committed = step
        if self._ring is not None:
            self._ring.clear()  # what is committed is not undone

    def _take(self, result: Commit | Missed | None) -> None:
        """Tell the ledger how the commit under way has ended, where it has. After too many misses all ranks end."""
        if result is None or self._pending is None:
            return
        parts, pending = self.parts, self._pending
        self._pending = None
        if isinstance(result, Missed):
            self._committed = -1
            parts.journal.record("miss", step=result.step, code=int(result.code), cause=result.cause)
            assert parts.committer is not None
            if parts.committer.misses >= MISSES or result.code is Exit.OWNED_ELSEWHERE:
                parts.exchange.failure = self._missed(result)
            return
        self._parent = result.name
        parts.journal.record(
            "commit",
            step=result.step,
            position=pending.position,
            name=result.name,
            seconds=pending.seconds + pending.waited,
            waited=pending.waited,
            writing=result.writing,
            bytes=result.bytes,
            held=pending.held,
            manifest=result.manifest,
            removed=list(result.removed),
            coverage=parts.coverage(pending.position),
        )
        if parts.mirror:
            parts.mirror.push(result.name)
            self._note_mirror()

    def _finish(self) -> None:
        """Wait for the commit under way, on all ranks; the failure where it is missed: nothing comes after it."""
        result = self.parts.committer.wait() if self.parts.committer else None
        seconds = self.parts.journal.lap("commit")
        if self._pending:
            self._pending = self._pending._replace(seconds=self._pending.seconds + seconds)
        self._take(result)
        if self.parts.mirror:
            self.parts.mirror.close(MIRROR_PATIENCE)
            self._note_mirror()
        failure = self._missed(result) if isinstance(result, Missed) else self.parts.exchange.failure
        told = self.parts.group.broadcast_json(failure.outcome.to_json() if failure else None)
        if told:
            raise Failure.of(Outcome.from_json(told))

    def _note_mirror(self) -> None:
        for text in self.parts.mirror.notes() if self.parts.mirror else ():
            self.parts.journal.record("note", text=text)

    def _missed(self, result: Missed) -> Failure:
        return Failure(
            result.code, result.cause, "the commit before is whole; free space, then start again", step=result.step
        )

    def _end(self, code: int) -> Exit:
        """What all ranks do at a boundary because one asks for it."""
        if code == Exit.STOPPED:
            return self._stop()
        failure = self.parts.exchange.failure
        told = self.parts.group.gather_json(failure.outcome.to_json() if failure else None)
        raise Failure.of(next(Outcome.from_json(outcome) for outcome in told if outcome and outcome["code"] == code))

    def _done(self) -> Exit:
        self._commit()
        if not score_finals(self.parts, self.progress):
            self.why = ""
            return self._stop()
        self._finish()
        return Exit.DONE

    def _stop(self) -> Exit:
        self._commit()
        self._finish()
        return Exit.STOPPED

    def _state(self) -> StateTree:
        engine = self.parts.engine
        tensors = capture(engine.networks, engine.optimizers, engine.others)
        return StateTree(tensors, self.progress.to_json() | {"guard": self.parts.guard.state})

    def _facts(self) -> dict[str, Any]:
        self.parts.journal.flush()
        now = {"position": self.progress.position, "ledger": self.parts.journal.tail, "parent": self._parent}
        return self.parts.facts | now
