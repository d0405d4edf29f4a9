"""One start of a run, on one rank: recipe, task, engine and loop are wired together here."""

from __future__ import annotations

import math
import os
import sys
import time
import traceback
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from drivetrain.checkpoint.commits import Found
from drivetrain.checkpoint.compatible import BITS
from drivetrain.checkpoint.handover import RECORDS
from drivetrain.engine.recipe import waits_of
from drivetrain.launch.inbox import Inbox
from drivetrain.launch.job import Job
from drivetrain.ledger.history import History
from drivetrain.loop.control import Control
from drivetrain.loop.finals import Finals
from drivetrain.loop.guard import Guard, Undone
from drivetrain.loop.journal import Journal, Stopwatch
from drivetrain.loop.loop import Loop
from drivetrain.loop.progress import Progress
from drivetrain.loop.stopping import deadline
from drivetrain.loop.task import Task
from drivetrain.loop.tuning import Tuning, settings_digest, stage_of
from drivetrain.optim.updater import build_updaters
from drivetrain.run.build import (
    Inputs,
    build_engine,
    build_networks,
    build_task,
    freeze_networks,
    open_inputs,
    require_loss,
    require_metrics,
)
from drivetrain.run.ending import failure_of, internal, run_loop
from drivetrain.run.opening import keep_suspects, record_attempt
from drivetrain.run.rehearsal import rehearse
from drivetrain.run.replay import Replay, replayed
from drivetrain.run.resume import Takeover
from drivetrain.run.told import Told, told
from drivetrain.run.wiring import Start, committer_of, lanes_of, parts_of, scored_by, timetable_of, weights_digest
from drivetrain.runtime import device as devices
from drivetrain.runtime.group import Group
from drivetrain.runtime.heart import Heart
from drivetrain.runtime.place import Place
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.affects import bits_digest
from drivetrain.spec.exits import Failure, Outcome
from drivetrain.spec.load import load


def execute(job: Job, place: Place, listen_fd: int | None = None, heart: Heart | None = None) -> Outcome:
    """Run one rank of a job to its end. Whatever happens comes back as an outcome, never as an exception."""
    with StopRequests() as stops:
        try:
            return _Attempt(job, place, stops, heart or Heart()).run(listen_fd)
        except Failure as failure:
            if failure.details:
                print(failure.details, file=sys.stderr)
            outcome = failure.outcome
            return replace(outcome, where={"rank": place.rank} | outcome.where) if place.world > 1 else outcome
        except Exception as error:
            traceback.print_exc()
            return internal(error, place)


class _Attempt:
    """One start of a run, on one rank."""

    def __init__(self, job: Job, place: Place, stops: StopRequests, heart: Heart) -> None:
        self.job = job
        self.place = place
        self.stops = stops
        self.heart = heart
        self.folder = Path(job.folder)
        self.modules = Path(job.modules) if job.modules else None
        self.recipe = load(job.recipe, folder=self.modules, origins=job.origins).recipe
        self.watch = Stopwatch(time.monotonic() - (time.time() - job.started))
        self.startup: dict[str, float] = {}
        self.takeover = Takeover(job, self.recipe)
        self.replay: Replay | None = None  # on ranks that keep no ledger it stays so

    def run(self, listen_fd: int | None) -> Outcome:
        """From joining the other ranks to the attempt's last record."""
        place, recipe = self.place, self.recipe
        device = devices.choose(recipe.device, place.local_rank)
        threads = devices.threads_per_process(place.local_world, recipe.launch.threads, exact=recipe.exact)
        devices.settle(device, threads, recipe.matmul, exact=recipe.exact)
        self.start = Start(self.job, recipe, place, self.stops, self.heart, devices.environment())
        self._lap("import")
        group = Group.join(place, device, listen_fd=listen_fd)
        try:
            group.agree("recipe", bits_digest(recipe))
            if recipe.exact or recipe.guard.recompute:
                group.agree("the environment", {name: self.start.environment[name] for name in BITS})
            if group.leader:
                self.takeover.claim()
            self.takeover.share(group, first_here=place.local_rank == 0)
            self._lap("join")
            task = build_task(recipe)
            inputs = open_inputs(recipe, self.folder, task)
            group.agree("data", inputs.digests)
            self._lap("data")
            with ExitStack() as stack:
                loop = self._prepare(group, device, task, inputs, stack)
                outcome = rehearse(loop.parts, inputs) if self.job.most_steps == 0 else run_loop(loop, self.start)
            group.close()  # only in peace: after the loss of a peer it may wait for those that are left
            return outcome
        except RuntimeError as error:
            raise failure_of(error, group) or error from error
        finally:
            self.heart.enter("teardown")
            self.takeover.release()

    def _prepare(self, group: Group, device: torch.device, task: Task, inputs: Inputs, stack: ExitStack) -> Loop:
        """Everything built, a commit's state in place, and the attempt in the ledger. `stack` closes what is open."""
        recipe, takeover = self.recipe, self.takeover
        require_loss(recipe, task)
        require_metrics(recipe, task)
        networks = build_networks(task, recipe, device)
        self._lap("build")
        history = History()  # on ranks that keep no ledger it stays empty
        ledger = stack.enter_context(closing(takeover.open_ledger(history))) if group.leader else None
        found = takeover.find(group, history)
        commands = Told(**group.broadcast_json(self._told(history, found) if group.leader else None))
        tuning = Tuning(self.job.recipe, self.modules, commands.texts)
        tuned = tuning.recipe
        timetable = timetable_of(recipe, tuned, inputs)
        scale = timetable.scale
        loaded = takeover.initialize(networks, fresh=found is None)
        freeze_networks(recipe, networks)
        waits = waits_of(recipe.networks)
        updaters = build_updaters(networks, tuned.optimizer, tuned.schedule, timetable.total, scale, waits)
        lanes = lanes_of(recipe, group.world, found)
        engine = build_engine(recipe, networks, updaters, group, device, lanes, self.heart)
        progress = Progress()
        if found:
            progress = takeover.restore(found, inputs.digests, self.start.environment, engine, timetable)
        group.agree("the weights", weights_digest(networks) if group.world > 1 else None)
        self._lap("load")

        journal = Journal(ledger, 1 + history.attempts, self.watch, history, takeover.require)
        journal.seconds["start"] = sum(self.startup.values())
        if found and found.volatile:
            journal.complete(found.state.values[RECORDS], history.last_step, history.attempts)
        scored = group.broadcast_json(history.finals.get(progress.step, {}))
        finals = Finals(inputs.finals(recipe, scored_by(recipe, lanes, group.world)), progress.step, scored)
        inbox = Inbox(self.folder) if group.leader else None
        known = [*history.commands, *history.refused]
        settings = settings_digest(recipe)
        control = Control(inbox, group, journal, tuning, settings, known, commands.again, progress.step)
        stages = [stage_of(effect) for effect in commands.effects if "stage" in effect]
        state = found.state.values.get("guard") if found else None
        undone = [Undone(step, to, tuple(samples)) for step, to, samples in group.broadcast_json(history.undone)]
        guard = Guard(recipe.guard, state, recipe.scaling.least, undone)
        parts = parts_of(
            self.start, task, engine, inputs, timetable, group, journal, found, finals, lanes, control, stages, guard
        )
        keep_suspects(self.start, group, parts.feed.order, timetable)
        if group.leader:
            takeover.keep_recipe(self.start.environment)
        record_attempt(self.start, self.startup, takeover, self.replay, parts, inputs, progress, found, history.newest)
        for report in loaded:
            journal.record("initial", **report)
        if ledger:
            committer = stack.enter_context(closing(committer_of(self.start, takeover.lease, ledger, history, scale)))
            parts = replace(parts, committer=committer, mirror=takeover.mirror(found))
        first = history.began or self.job.started
        until = deadline(recipe.stop, first, self.job.started, os.environ)
        parts.exchange.deadline = math.inf if until is None else until
        patience = recipe.stop.patience
        past = history.scores(patience.metric) if patience else {}
        return Loop(
            parts,
            progress,
            committed=found is not None and not found.volatile,
            evaluated=group.broadcast_json(history.evaluated(progress.step)),
            scores=group.broadcast_json([past[step] for step in sorted(past) if step <= progress.step]),
            standing=group.broadcast_json(history.standing),
        )

    def _told(self, history: History, found: Found | None) -> dict[str, Any]:
        """What the run was told before this attempt, which only the ledger's keeper knows."""
        before = (history.newest or {}).get("replay")
        job, first = self.job, not self.job.restarts
        self.replay = replayed(self.folder, job.replay, before, bits_digest(self.recipe), anew=first)
        commands = told(
            history,
            found.step if found else 0,
            settings_digest(self.recipe),
            committed=self.takeover.committed(found),
            replay=self.replay and self.replay.commands,
        )
        if history.standing:
            self.takeover.notes.append(f"it was cut off after it was told to {history.standing}: that still counts")
        if commands.dropped:
            texts = "; ".join(f"{record['verb']} {record['argument']}" for record in commands.dropped)
            self.takeover.notes.append(f"the recipe has changed, so this no longer counts: {texts}")
        return commands.to_json()

    def _lap(self, name: str) -> None:
        self.startup[name] = self.watch.lap()
