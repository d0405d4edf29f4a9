"""One start of a run, on one rank: recipe, task, engine and loop are wired together here."""

from __future__ import annotations

import math
import os
import socket
import sys
import time
import traceback
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drivetrain.checkpoint.commits import Committer, Found
from drivetrain.checkpoint.compatible import BITS
from drivetrain.checkpoint.handover import RECORDS
from drivetrain.checkpoint.recipe import Checkpoint
from drivetrain.checkpoint.retention import Retention
from drivetrain.data.blend import Stage, coverage
from drivetrain.data.buckets import reading_order
from drivetrain.data.feed import Feed
from drivetrain.data.geometry import Geometry, choose_lanes
from drivetrain.data.order import Ordering
from drivetrain.data.quarantine import Quarantine
from drivetrain.engine.engine import Engine
from drivetrain.engine.exact import refusal
from drivetrain.engine.recipe import scale_of, waits_of
from drivetrain.launch.inbox import Inbox
from drivetrain.launch.job import Job
from drivetrain.ledger.derive import Record
from drivetrain.ledger.history import History
from drivetrain.ledger.ledger import Ledger
from drivetrain.loop.control import Control
from drivetrain.loop.exchange import WIDTH, Exchange
from drivetrain.loop.finals import Finals
from drivetrain.loop.guard import Guard, Undone
from drivetrain.loop.journal import Journal, Stopwatch
from drivetrain.loop.loop import Loop
from drivetrain.loop.observe import build_observer
from drivetrain.loop.parts import Parts
from drivetrain.loop.progress import Progress, Timetable
from drivetrain.loop.stopping import deadline
from drivetrain.loop.task import Task
from drivetrain.loop.tuning import Tuning, settings_digest, stage_of
from drivetrain.optim.updater import build_updaters
from drivetrain.plan.flops import peak
from drivetrain.run.build import (
    Inputs,
    build_engine,
    build_networks,
    build_task,
    freeze_networks,
    most_scored,
    open_inputs,
    require_metrics,
)
from drivetrain.run.rehearsal import rehearse
from drivetrain.run.replay import Replay, replayed
from drivetrain.run.resume import Takeover
from drivetrain.run.told import Told, told
from drivetrain.runtime import device as devices
from drivetrain.runtime.group import Group
from drivetrain.runtime.heart import Heart
from drivetrain.runtime.place import Place
from drivetrain.runtime.pulse import Pulse
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.affects import bits_digest
from drivetrain.spec.amount import Scale
from drivetrain.spec.exits import Exit, Failure, Outcome
from drivetrain.spec.files import write_json
from drivetrain.spec.load import load

_MOST_SUSPECTS = 256


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
            return _internal(error, place)


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
        self.environment = devices.environment()
        self._lap("import")
        group = Group.join(place, device, listen_fd=listen_fd)
        try:
            group.agree("recipe", bits_digest(recipe))
            if recipe.exact or recipe.guard.recompute:
                group.agree("the environment", {name: self.environment[name] for name in BITS})
            if group.leader:
                self.takeover.claim()
            self._lap("join")
            task = build_task(recipe)
            inputs = open_inputs(recipe, self.folder, task)
            group.agree("data", inputs.digests)
            self._lap("data")
            with ExitStack() as stack:
                loop = self._prepare(group, device, task, inputs, stack)
                outcome = rehearse(loop.parts, inputs) if self.job.most_steps == 0 else self._loop(loop)
            group.close()  # only in peace: after the loss of a peer it may wait for those that are left
            return outcome
        except RuntimeError as error:
            raise _known(error, group) or error from error
        finally:
            self.heart.enter("teardown")
            self.takeover.release()

    def _prepare(
        self, group: Group, device: torch.device, task: Task, inputs: Inputs, stack: ExitStack
    ) -> Loop:
        """Everything built, a commit's state in place, and the attempt in the ledger. `stack` closes what is open."""
        recipe, takeover = self.recipe, self.takeover
        require_metrics(recipe, task)
        networks = build_networks(task, recipe, device)
        self._lap("build")
        history = History()  # on ranks that keep no ledger it stays empty
        ledger = stack.enter_context(closing(takeover.open_ledger(history))) if group.leader else None
        found = takeover.find(group, history)
        commands = Told(**group.broadcast_json(self._told(history, found) if group.leader else None))
        tuning = Tuning(self.job.recipe, self.modules, commands.texts)
        tuned = tuning.recipe
        scale = scale_of(recipe.batch, getattr(recipe.task, "tokens_per_sample", None), inputs.samples)
        total = recipe.budget.samples_at(scale)
        timetable = Timetable(
            total=total,
            steps=scale.batches.steps(total),
            scale=scale,
            evaluate_every=tuned.evaluate.every,
            commit_every=tuned.checkpoint.every,
            commit_evaluated=recipe.checkpoint.keep_best is not None,
        )
        loaded = takeover.initialize(networks, fresh=found is None)
        freeze_networks(recipe, networks)
        waits = waits_of(recipe.networks)
        updaters = build_updaters(networks, tuned.optimizer, tuned.schedule, total, scale, waits)
        lanes = self._lanes(group.world, found)
        engine = build_engine(recipe, networks, updaters, group, device, lanes, self.heart)
        progress = Progress()
        if found:
            progress = takeover.restore(found, inputs.digests, self.environment, engine, timetable)
        group.agree("the weights", _weights_digest(networks) if group.world > 1 else None)
        self._lap("load")

        journal = Journal(ledger, 1 + history.attempts, self.watch, history, takeover.require)
        journal.seconds["start"] = sum(self.startup.values())
        if found and found.volatile:
            journal.complete(found.state.values[RECORDS], history.last_step, history.attempts)
        scored = group.broadcast_json(history.finals.get(progress.step, {}))
        finals = Finals(inputs.finals(recipe, self._scored_by(lanes, group)), progress.step, scored)
        inbox = Inbox(self.folder) if group.leader else None
        known = [*history.commands, *history.refused]
        settings = settings_digest(recipe)
        control = Control(inbox, group, journal, tuning, settings, known, commands.again, progress.step)
        stages = [stage_of(effect) for effect in commands.effects if "stage" in effect]
        state = found.state.values.get("guard") if found else None
        undone = [Undone(step, to, tuple(samples)) for step, to, samples in group.broadcast_json(history.undone)]
        guard = Guard(recipe.guard, state, recipe.scaling.least, undone)
        parts = self._parts(
            task, engine, inputs, timetable, group, journal, found, finals, lanes, control, stages, guard
        )
        self._suspects(group, parts.feed.order, timetable)
        if group.leader:
            takeover.keep_recipe(self.environment)
        self._record(parts, inputs, progress, found, history.newest)
        for report in loaded:
            journal.record("initial", **report)
        if ledger:
            committer = stack.enter_context(closing(self._committer(ledger, history, scale)))
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

    def _parts(
        self,
        task: Task,
        engine: Engine,
        inputs: Inputs,
        timetable: Timetable,
        group: Group,
        journal: Journal,
        found: Found | None,
        finals: Finals,
        lanes: int,
        control: Control,
        stages: Sequence[Stage],
        guard: Guard,
    ) -> Parts:
        """All that the loop works with, but for what only the ledger's keeper has."""
        recipe, scale = self.recipe, timetable.scale
        train = recipe.data.train
        names = list(inputs.train)
        source, order = reading_order(train, names, list(inputs.train.values()), recipe.seed, scale, stages)
        geometry = Geometry(scale.batches, lanes, group.world, recipe.batch.micro, apart=recipe.exact)
        feed = Feed(
            source, order, geometry, group.rank, timetable.total, task.collate, task.counts, _quarantine(guard, order)
        )
        facts = {
            "recipe": bits_digest(recipe),
            "data": inputs.digests,
            "environment": self.environment,
            "parent": found.path.name if found else None,
            "lanes": geometry.lanes,
            "task": dict(task.learned),
            "attempt": journal.attempt,
        }
        return Parts(
            task=task,
            engine=engine,
            feed=feed,
            validation=inputs.sets(recipe, self._scored_by(lanes, group), most_scored(recipe))["validation"],
            timetable=timetable,
            guard=guard,
            statistics=recipe.statistics,
            group=group,
            exchange=Exchange(Pulse(group, WIDTH), self.stops, group.world == 1, control.waiting),
            journal=journal,
            committer=None,
            mirror=None,
            facts=facts,
            coverage=partial(coverage, order, names),
            folder=self.folder,
            ahead=train.prefetch,
            workers=train.workers,
            stop=recipe.stop,
            most_steps=self.job.most_steps,
            finals=finals,
            observer=build_observer(recipe, timetable, group, engine, journal, self.folder),
            control=control,
        )

    def _told(self, history: History, found: Found | None) -> dict[str, Any]:
        """What the run was told before this attempt, which only the ledger's keeper knows."""
        before = (history.newest or {}).get("replay")
        self.replay = replayed(self.folder, self.job.replay, before, bits_digest(self.recipe))
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

    def _record(
        self, parts: Parts, inputs: Inputs, progress: Progress, found: Found | None, before: Record | None
    ) -> None:
        """The attempt, and what is to be noted about its start, in the ledger. `before` is the attempt before."""
        journal, group, timetable, networks = parts.journal, parts.group, parts.timetable, parts.engine.networks
        recipe, device = self.recipe, devices.name(parts.engine.device)
        claim = _claim(parts, exact=recipe.exact)
        journal.record(
            "attempt",
            from_step=progress.step,
            from_position=progress.position,
            world=group.world,
            claim=claim,
            host=socket.gethostname(),
            device=device,
            started=self.job.started,
            startup=self.startup | {"ledger": journal.lap("start")},
            overrides=list(self.job.overrides),
            budget={"samples": timetable.total, "steps": timetable.steps},
            flops={"per_sample": parts.task.flops_per_sample(), "peak": peak(device, recipe.precision, recipe.matmul)},
            tokens_per_sample=timetable.scale.tokens,
            parameters={name: sum(p.numel() for p in net.parameters()) for name, net in networks.items()},
            recipe=parts.facts["recipe"],
            settings=settings_digest(recipe),
            data=parts.facts["data"],
            environment={name: self.environment[name] for name in BITS},
            order=parts.feed.order.facts,
            quarantine=[[first, list(ids)] for first, ids in parts.feed.quarantine.entries],
            batch={"size": timetable.scale.batches.size, "ramp": [list(c) for c in timetable.scale.batches.ramp]},
            lanes=parts.feed.geometry.lanes,
            sources={name: len(source) for name, source in inputs.train.items()},
            epoch=self.takeover.epoch,
            after=self.job.after,
            survivors=bool(found and found.volatile),
            replay=self.replay and self.replay.run,
        )
        if recipe.guard.recompute and group.world == 1:
            journal.record("note", text="guard.recompute: the same process computes twice, since there is no other")
        for note in [*self.takeover.notes, *inputs.notes, *parts.task.notes]:
            journal.record("note", text=note)
        if before is not None and before["claim"] != claim:
            resized = before["world"] != group.world and not recipe.exact
            was = f"{before['world']} processes" if resized else "another machine or setting"
            text = f"the samples are those of before, but sums may round differently: the attempt before had {was}"
            journal.record("note", text=text)

    def _loop(self, loop: Loop) -> Outcome:
        """Run the loop, and keep in the ledger how it ended."""
        journal = loop.parts.journal
        try:
            with loop.parts.observer.watching(loop):
                code = loop.run()
            loop.parts.control.close(loop.progress.step)
        except Exception as error:
            known = _known(error, loop.parts.group) if isinstance(error, RuntimeError) else None
            first = known or error
            outcome = first.outcome if isinstance(first, Failure) else _internal(first, self.place)
            with suppress(Failure):  # a full disk must not hide why the run ended
                journal.exit(int(outcome.code), outcome.cause, loop.progress.to_json())
            if outcome.code == Exit.PEER_UNAVAILABLE and self.job.volatile:
                self._hand_over(loop, Path(self.job.volatile))
            raise first from error
        step, steps = loop.progress.step, loop.parts.timetable.steps
        if code is Exit.DONE:
            cause, hint = f"all {steps} steps are made and committed", ""
            cause = f"done at step {step} of {steps}: {loop.why}" if loop.why else cause
        else:
            why = loop.why or self.stops.requested or "a stop request of another rank"
            cause = f"{why} at step {step} of {steps}"
            hint = "the same command goes on from here"
        journal.exit(int(code), cause, loop.progress.to_json())
        asked = {"stop": "asked"} if code is Exit.STOPPED and loop.why else {}  # a launcher then leaves it stopped
        return Outcome(code=code, cause=cause, hint=hint, where={"step": step} | asked)

    def _hand_over(self, loop: Loop, folder: Path) -> None:
        """Best effort: what does not succeed costs the steps since the last commit, and nothing else."""
        try:
            loop.hand_over(folder)
        except Exception:
            traceback.print_exc()

    def _lap(self, name: str) -> None:
        self.startup[name] = self.watch.lap()

    def _suspects(self, group: Group, order: Ordering, timetable: Timetable) -> None:
        """After a crash: keep the samples of the step that was under way, should it crash there again."""
        after = self.job.after or {}
        step = after.get("step", 0)
        if group.leader and step:
            start, stop = timetable.scale.batches.span(step)
            if after.get("phase") == "data":  # the loop fetches one step ahead
                _, stop = timetable.scale.batches.span(step + 1)
            ids = order.ids(start, min(stop, timetable.total)).tolist()
            write_json(self.folder / "logs" / "suspects.json", {"step": step, "sample_ids": ids[:_MOST_SUSPECTS]})

    def _committer(self, ledger: Ledger, history: History, scale: Scale) -> Committer:
        settings = self.recipe.checkpoint
        scores = history.scores
        return Committer(
            run=self.folder,
            lease=self.takeover.lease,
            retention=_retention(settings, scale),
            before=ledger.sync,
            scores=lambda: scores(settings.keep_best.metric) if settings.keep_best else {},
            heart=self.heart,
            blocking=settings.blocking,
        )

    def _lanes(self, world: int, found: Found | None) -> int:
        if self.recipe.lanes != "auto":
            return self.recipe.lanes
        if found:
            return found.facts["lanes"]
        batch, exact = self.recipe.batch, self.recipe.exact
        whole = batch.micro if exact and batch.micro else 1  # samples that stay together
        return choose_lanes(math.gcd(*batch.sizes) // whole, world, apart=exact)

    def _scored_by(self, lanes: int, group: Group) -> int:
        """How many lanes share out an evaluation."""
        return lanes if self.recipe.exact else group.world


def _claim(parts: Parts, *, exact: bool) -> dict[str, str]:
    """Which class of bits is promised, and a digest of what they depend on (docs/exactness.md)."""
    device = parts.engine.device
    if exact:
        return {"class": "exact", "key": devices.claim_key(device, lanes=parts.feed.geometry.lanes)}
    return {"class": "same-world", "key": devices.claim_key(device, world=parts.group.world)}


def _quarantine(guard: Guard, order: Ordering) -> Quarantine:
    """The samples that are left out; Failure(78) where the recipe names one that is not there."""
    strange = [sample for sample in guard.settings.quarantine if sample >= order.size]
    if strange:
        cause = f"guard.quarantine: there is no sample {strange[0]}, they are 0 to {order.size - 1}"
        raise Failure(Exit.BAD_RECIPE, cause, "give ids as the ledger tells them")
    return guard.quarantine


def _known(error: RuntimeError, group: Group) -> Failure | None:
    """The failure that torch's error stands for, where that is known."""
    return group.translate(error) or refusal(error)


def _retention(settings: Checkpoint, scale: Scale) -> Retention:
    best = settings.keep_best
    return Retention(
        last=settings.keep,
        every=partial(settings.keep_every.multiples, scale=scale) if settings.keep_every else None,
        best=best.count if best else 0,
        sign=-1 if best and best.mode == "max" else 1,
    )


def _weights_digest(networks: Mapping[str, nn.Module]) -> str:
    """A checksum over all weights: ranks that start unequal would never become equal."""
    checksum = 0
    for network in networks.values():
        for parameter in network.parameters():
            data = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            checksum = zlib.crc32(data, checksum)  # type: ignore[arg-type]
    return f"{checksum:08x}"


def _internal(error: BaseException, place: Place) -> Outcome:
    """The outcome of an error that is nobody's contract: its words, and rank, file and line of the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    where = {"rank": place.rank} | ({"file": frames[-1].filename, "line": frames[-1].lineno} if frames else {})
    cause = f"{type(error).__name__}: {error}"
    return Outcome(code=Exit.INTERNAL, cause=cause, hint="the traceback is above", where=where)
