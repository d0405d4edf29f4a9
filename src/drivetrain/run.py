"""The one place where recipe, task, engine and loop are wired together: the worker and the Python API call it."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import sys
import time
import traceback
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from drivetrain.checkpoint.commits import Committer, Found, clean, names, newest, oldest_epoch, pick
from drivetrain.checkpoint.compatible import accept_data, accept_environment, accept_recipe
from drivetrain.checkpoint.export import export
from drivetrain.checkpoint.handover import RECORDS
from drivetrain.checkpoint.initial import freeze, load_initial
from drivetrain.checkpoint.mirror import Mirror, fetch
from drivetrain.checkpoint.recipe import Checkpoint, Init
from drivetrain.checkpoint.retention import Retention
from drivetrain.checkpoint.state import restore
from drivetrain.data.blend import coverage, training_order
from drivetrain.data.feed import Feed
from drivetrain.data.geometry import Geometry, choose_lanes
from drivetrain.data.order import Ordering
from drivetrain.data.source import Source, open_source
from drivetrain.engine.engine import Engine
from drivetrain.launch.job import Job
from drivetrain.launch.supervisor import prepare
from drivetrain.ledger.history import History
from drivetrain.ledger.ledger import Ledger
from drivetrain.loop.evaluation import Scores, ValidationSet, evaluate
from drivetrain.loop.exchange import WIDTH, Exchange
from drivetrain.loop.journal import Journal, Stopwatch
from drivetrain.loop.loop import Loop, Parts
from drivetrain.loop.progress import Progress, Timetable
from drivetrain.loop.stopping import deadline
from drivetrain.loop.task import Task
from drivetrain.optim.updater import Updater, build_updaters
from drivetrain.runtime import device as devices
from drivetrain.runtime.group import Group
from drivetrain.runtime.heart import Heart
from drivetrain.runtime.lease import Lease
from drivetrain.runtime.place import Place
from drivetrain.runtime.pulse import Pulse
from drivetrain.runtime.seeds import mix, seed_generators
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.affects import bits_digest
from drivetrain.spec.amount import Scale
from drivetrain.spec.check import source_names
from drivetrain.spec.exits import Exit, Failure, Outcome
from drivetrain.spec.files import write_json, write_private
from drivetrain.spec.load import load
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.registry import Custom, build_custom, imported

_INITIAL_WEIGHTS = 1 << 34
"""A place in the seeds' path that no step has."""
_MOST_SUSPECTS = 256
_NETWORK_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


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


@dataclass(frozen=True)
class Inputs:
    """Everything that a run reads, opened."""

    train: Mapping[str, Source]
    validation: Mapping[str, Source]

    @property
    def samples(self) -> int:
        """Training samples of all sources together."""
        return sum(len(source) for source in self.train.values())

    @property
    def digests(self) -> dict[str, str]:
        """Content digests by place in the recipe."""
        sources = {f"data.train.sources[{i}]": s.fingerprint for i, s in enumerate(self.train.values())}
        return sources | {f"data.validation.{name}": source.fingerprint for name, source in self.validation.items()}

    def sets(self, recipe: Recipe, processes: int) -> list[ValidationSet]:
        """The validation sets, cut as evaluation wants them."""
        micro = recipe.batch.micro or max(1, recipe.batch.size // processes)
        return [ValidationSet(name, source, recipe.evaluate.batch or micro) for name, source in self.validation.items()]


def open_inputs(recipe: Recipe, run: Path) -> Inputs:
    """Open training and validation sources; content digests of files are kept in the run directory."""
    cache = run / "sources.json"
    return Inputs(
        train={
            name: open_source(source, recipe.seed, cache)
            for name, source in zip(source_names(recipe.data.train.sources), recipe.data.train.sources, strict=True)
        },
        validation={name: open_source(source, recipe.seed, cache) for name, source in recipe.data.validation.items()},
    )


def build_task(recipe: Recipe) -> Task:
    """The recipe's task: a shipped one from its settings, a user's own from its arguments."""
    if isinstance(recipe.task, Custom):
        return build_custom(recipe.task, "task", "networks", "loss")
    return imported(recipe.task.factory)(recipe.task)


def build_networks(task: Task, recipe: Recipe, device: torch.device) -> dict[str, nn.Module]:
    """The task's networks on the device, their initial weights drawn from the recipe's seed.

    Raises Failure(78) where a network's name is no identifier.
    """
    seed_generators(torch.device("cpu"), mix(recipe.seed, _INITIAL_WEIGHTS))
    networks = {name: network.to(device).train() for name, network in task.networks().items()}
    for name, network in networks.items():
        if not _NETWORK_NAME.fullmatch(name):
            raise Failure(Exit.BAD_RECIPE, f"the task names a network {name!r}", "use letters, digits and _")
        if recipe.compile:
            torch.use_deterministic_algorithms(True, warn_only=True)  # the compiler's kernels too
            network.compile()
    return networks


class _Attempt:
    """One start of a run, on one rank."""

    def __init__(self, job: Job, place: Place, stops: StopRequests, heart: Heart) -> None:
        self.job = job
        self.place = place
        self.stops = stops
        self.heart = heart
        self.folder = Path(job.folder)
        self.recipe = load(job.recipe, folder=Path(job.modules) if job.modules else None, origins=job.origins).recipe
        self.watch = Stopwatch(time.monotonic() - (time.time() - job.started))
        self.startup: dict[str, float] = {}
        self.notes: list[str] = []
        self.lease: Lease | None = None

    def run(self, listen_fd: int | None) -> Outcome:
        """From joining the other ranks to the attempt's last record."""
        place, recipe = self.place, self.recipe
        device = devices.choose(recipe.device, place.local_rank)
        devices.settle(device, devices.threads_per_process(place.local_world, recipe.launch.threads), recipe.matmul)
        self.environment = devices.environment()
        self._lap("import")
        group = Group.join(place, device, listen_fd=listen_fd)
        try:
            group.agree("recipe", bits_digest(recipe))
            if group.leader:
                self._claim_folder()
            self._lap("join")
            inputs = open_inputs(recipe, self.folder)
            group.agree("data", inputs.digests)
            self._lap("data")
            outcome = self._train(group, device, inputs)
            group.close()  # only in peace: after the loss of a peer it may wait for those that are left
            return outcome
        except RuntimeError as error:
            raise group.translate(error) or error from error
        finally:
            self.heart.enter("teardown")
            if self.lease:
                self.lease.release()

    def _train(self, group: Group, device: torch.device, inputs: Inputs) -> Outcome:
        recipe = self.recipe
        task = build_task(recipe)
        networks = build_networks(task, recipe, device)
        self._lap("build")
        ledger = self._open_ledger() if group.leader else None
        try:
            history = History.of(self.folder / "ledger.jsonl") if group.leader else History()
            found = self._resume_point(group, history)
            lanes = self._lanes(group.world, found)
            scale = Scale(recipe.batch.size, getattr(recipe.task, "tokens_per_sample", None), inputs.samples)
            total = recipe.budget.samples_at(scale)
            steps = -(-total // recipe.batch.size)
            timetable = Timetable(total, steps, scale, recipe.evaluate.every, recipe.checkpoint.every)
            if recipe.init is not None:
                self._initialize(recipe.init, networks, fresh=found is None)
            updaters = build_updaters(networks, recipe.optimizer, recipe.schedule, total, scale)
            progress = self._restored(found, inputs, networks, updaters, total) if found else Progress()
            group.agree("the weights", _weights_digest(networks) if group.world > 1 else None)
            self._lap("load")

            attempt, evaluated = 1 + history.attempts, group.broadcast_json(history.evaluated(progress.step))
            allowed = self.lease.require if self.lease else lambda: None
            patience = recipe.stop.patience
            past = history.scores(patience.metric) if patience else {}
            scores = group.broadcast_json([past[step] for step in sorted(past) if step <= progress.step])
            journal = Journal(ledger, attempt, self.watch, history, allowed)
            journal.seconds["start"] = sum(self.startup.values())
            if found and found.volatile:
                journal.complete(found.state.values[RECORDS], history.last_step, history.attempts)
            micro = recipe.batch.micro or recipe.batch.size // group.world
            geometry = Geometry(recipe.batch.size, lanes, group.world, micro)
            train = recipe.data.train
            names, sources = list(inputs.train), list(inputs.train.values())
            source, order = training_order(train, names, sources, recipe.seed, scale)
            self._suspects(group, order, total)
            if group.leader:
                self._keep_recipe()
            journal.record(
                "attempt",
                from_step=progress.step,
                from_position=progress.position,
                world=group.world,
                claim={"class": "same-world", "key": devices.claim_key(group.world, device)},
                host=socket.gethostname(),
                started=self.job.started,
                startup=self.startup | {"ledger": journal.lap("start")},
                overrides=list(self.job.overrides),
                budget={"samples": total, "steps": steps},
                parameters={name: sum(p.numel() for p in net.parameters()) for name, net in networks.items()},
                lanes=lanes,
                sources={name: len(source) for name, source in inputs.train.items()},
                epoch=self.lease.epoch if self.lease else 0,
                after=self.job.after,
                survivors=bool(found and found.volatile),
            )
            for note in self.notes:
                journal.record("note", text=note)
            facts = {
                "recipe": bits_digest(recipe),
                "data": inputs.digests,
                "environment": self.environment,
                "parent": found.path.name if found else None,
                "lanes": lanes,
                "attempt": attempt,
            }
            committer = self._committer(ledger, history, scale, task) if ledger else None
            loop = Loop(
                Parts(
                    task=task,
                    engine=Engine(networks, updaters, group, device, recipe.precision, recipe.seed, self.heart),
                    feed=Feed(source, order, geometry, group.rank, total, task.collate, task.counts),
                    validation=inputs.sets(recipe, group.world),
                    timetable=timetable,
                    group=group,
                    exchange=Exchange(Pulse(group, WIDTH), self.stops, alone=group.world == 1),
                    journal=journal,
                    committer=committer,
                    mirror=self._mirror(found) if group.leader else None,
                    facts=facts,
                    coverage=partial(coverage, order, names),
                    folder=self.folder,
                    ahead=train.prefetch,
                    workers=train.workers,
                    stop=recipe.stop,
                    most_steps=self.job.most_steps,
                ),
                progress,
                committed=found is not None and not found.volatile,
                evaluated=evaluated,
                scores=scores,
            )
            until = deadline(recipe.stop, history.began or self.job.started, self.job.started, os.environ)
            loop.parts.exchange.deadline = math.inf if until is None else until
            try:
                return self._loop(loop, journal)
            finally:
                if committer:
                    committer.close()
        finally:
            if ledger:
                ledger.close()

    def _loop(self, loop: Loop, journal: Journal) -> Outcome:
        """Run the loop, and keep in the ledger how it ended."""
        try:
            code = loop.run()
        except Exception as error:
            lost = loop.parts.group.translate(error) if isinstance(error, RuntimeError) else None
            first = lost or error
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
        return Outcome(code=code, cause=cause, hint=hint, where={"step": step})

    def _hand_over(self, loop: Loop, folder: Path) -> None:
        """Best effort: what does not succeed costs the steps since the last commit, and nothing else."""
        try:
            loop.hand_over(folder)
        except Exception:
            traceback.print_exc()

    def _lap(self, name: str) -> None:
        self.startup[name] = self.watch.lap()

    def _claim_folder(self) -> None:
        """Take the run directory, and see that it is this recipe's; Failure(85) or (76) where it is not ours."""
        prepare(self.folder)
        self.lease = Lease.take(self.folder, lambda: names(self.folder), self.job.silent)
        clean(self.folder)
        self._fetch()
        self.lease.prune(oldest_epoch(self.folder))
        kept = self.folder / "resolved.json"
        if kept.is_file() and names(self.folder):
            old = load(json.loads(kept.read_text())["recipe"]).recipe
            self.notes += accept_recipe(old, self.recipe, self.job.override, str(self.folder))

    def _keep_recipe(self) -> None:
        """Write what this attempt trains, once it is sure that it may."""
        content = {"recipe": self.job.recipe, "origins": self.job.origins, "folder": self.job.modules}
        write_json(self.folder / "resolved.json", content)
        if self.job.text:
            overrides = "".join(f"# on the command line: {text}\n" for text in self.job.overrides)
            write_private(self.folder / "recipe.yaml", (self.job.text + overrides).encode())
        write_json(self.folder / "environment.json", self.environment)

    def _fetch(self) -> None:
        """Where nothing is committed here, what the mirror has."""
        url = self.recipe.checkpoint.mirror
        if url and not names(self.folder):
            passed: list[str] = []
            name = fetch(url, self.folder, passed)
            self.notes += [f"passed over in the mirror: {reason}" for reason in passed]
            self.notes += [f"{name} comes from the mirror"] if name else []

    def _open_ledger(self) -> Ledger:
        """The ledger, for this attempt alone: one that may still be alive is left with a file that nobody reads."""
        assert self.lease is not None
        self.lease.require()
        return Ledger.open(self.folder / "ledger.jsonl", anew=self.lease.inherited)

    def _resume_point(self, group: Group, history: History) -> Found | None:
        """The commit to go on from, as `resume` (auto, never, must) wants it; what survivors left, if it is newer."""
        volatile = Path(self.job.volatile) if self.job.volatile else None
        found = newest(self.folder, group, volatile)
        if found and found.volatile:
            gap = not history.joins([record["step"] for record in found.state.values[RECORDS]], found.step)
            if group.broadcast_json(gap):
                self.notes.append(f"passed over {found.path.name}: the ledger lacks steps before it")
                found = newest(self.folder, group)
        if found is None and self.job.resume == "must":
            raise Failure(
                Exit.INPUT_MISSING, f"no commit in {self.folder}", "see that --run names the run, or leave --resume out"
            )
        if found is not None and self.job.resume == "never" and not self.job.restarts:
            raise Failure(
                Exit.INCOMPATIBLE, f"{found.path} is there, but --resume never forbids it", "choose another --run"
            )
        self.notes += [f"passed over {reason}" for reason in found.passed_over] if found else []
        return found

    def _initialize(self, settings: Init, networks: Mapping[str, nn.Module], *, fresh: bool) -> None:
        """The recipe's `init`: weights at the start of the run, what is frozen in every attempt."""
        if fresh:
            self.notes.append(f"initial weights from {settings.from_}: {load_initial(settings, networks)}")
        frozen = freeze(settings, networks)
        if frozen and fresh:
            self.notes.append(f"{frozen} parameters do not train")

    def _restored(
        self,
        found: Found,
        inputs: Inputs,
        networks: Mapping[str, nn.Module],
        updaters: Mapping[str, Updater],
        total: int,
    ) -> Progress:
        """Put a commit's state in place; Failure(76) where it does not fit."""
        job, facts, name = self.job, found.facts, found.path.name
        self.notes += accept_data(facts["data"], inputs.digests, job.override, name)
        strict = job.strict_environment
        self.notes += accept_environment(facts.get("environment", {}), self.environment, strict, name)
        optimizers = {name: updater.optimizer for name, updater in updaters.items()}
        if "optimizer" in job.ignore and facts["time"] < job.began:
            optimizers = {}
            self.notes.append(f"the optimizers' state in {name} is ignored: they start anew")
        restore(found.state.tensors, networks, optimizers)
        progress = Progress.from_json(found.state.values)
        short = progress.step * self.recipe.batch.size - progress.position
        if short and progress.position < total:
            raise Failure(
                Exit.INCOMPATIBLE,
                f"the last step of {name} was {short} samples short, since the budget ended there; "
                "with a longer one they would be left out",
                f"remove it (`drivetrain checkpoint rm {self.folder} {found.step}`) to go on from the commit before, "
                "or keep the budget",
            )
        return progress

    def _suspects(self, group: Group, order: Ordering, total: int) -> None:
        """After a crash: keep the samples of the step that was under way, should it crash there again."""
        step = (self.job.after or {}).get("step", 0)
        if group.leader and step:
            size = self.recipe.batch.size
            ids = order.ids((step - 1) * size, min(step * size, total)).tolist()
            write_json(self.folder / "logs" / "suspects.json", {"step": step, "sample_ids": ids[:_MOST_SUSPECTS]})

    def _committer(self, ledger: Ledger, history: History, scale: Scale, task: Task) -> Committer:
        settings = self.recipe.checkpoint
        if settings.keep_best and settings.keep_best.metric.partition("/")[2] not in task.metrics():
            there = ", ".join(task.metrics()) or "none"
            cause = (
                f"checkpoint.keep_best.metric: the task has no metric {settings.keep_best.metric.partition('/')[2]!r}"
            )
            raise Failure(Exit.BAD_RECIPE, cause, f"there are {there}")
        scores = history.scores
        return Committer(
            run=self.folder,
            lease=self.lease,
            retention=_retention(settings, scale),
            before=ledger.sync,
            scores=lambda: scores(settings.keep_best.metric) if settings.keep_best else {},
            heart=self.heart,
            blocking=settings.blocking,
        )

    def _mirror(self, found: Found | None) -> Mirror | None:
        url = self.recipe.checkpoint.mirror
        if not url:
            return None
        mirror = Mirror(url, self.folder)
        if found and not found.volatile:
            mirror.push(found.path.name)  # the attempt before may have been cut off before it was copied
        return mirror

    def _lanes(self, world: int, found: Found | None) -> int:
        if self.recipe.lanes != "auto":
            return self.recipe.lanes
        return found.facts["lanes"] if found else choose_lanes(self.recipe.batch.size, world)


def _retention(settings: Checkpoint, scale: Scale) -> Retention:
    best = settings.keep_best
    return Retention(
        last=settings.keep,
        every=settings.keep_every.samples_at(scale) if settings.keep_every else None,
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


def evaluate_run(run: Path, only: str | None) -> Scores:
    """Score the newest commit of a run on its validation sets, or only the one of that name, in this process."""
    recipe, task, networks, found = _restored(run)
    inputs = open_inputs(recipe, run)
    sets = [chosen for chosen in inputs.sets(recipe, 1) if only in (None, chosen.name)]
    if not sets:
        there = ", ".join(inputs.validation) or "none"
        raise Failure(Exit.INPUT_MISSING, f"no validation set {only or ''}".rstrip(), f"the recipe has: {there}")
    group = Group()
    engine = Engine(networks, {}, group, devices.choose(recipe.device, 0), recipe.precision, recipe.seed)
    exchange = Exchange(Pulse(group, WIDTH), StopRequests(), alone=True)
    scores = evaluate(task, engine, sets, group, exchange, found.facts["step"])
    assert scores is not None, "nobody asks this process to stop"
    return scores


def export_run(run: Path, to: Path, commit: str | None = None) -> list[Path]:
    """Write the networks of a run's newest commit, or of the named one, to a new folder, in the task's layout."""
    _, task, networks, found = _restored(run, commit)
    return export(found, to, {name: task.layout(name) for name in networks})


def _restored(run: Path, commit: str | None = None) -> tuple[Recipe, Task, dict[str, nn.Module], Found]:
    """A run's recipe and task, and its networks as of a commit."""
    recipe = load(run).recipe
    device = devices.choose(recipe.device, 0)
    devices.settle(device, devices.threads_per_process(1, recipe.launch.threads), recipe.matmul)
    task = build_task(recipe)
    networks = build_networks(task, recipe, device)
    found = newest(run) if commit is None else pick(run, commit)
    if found is None:
        raise Failure(Exit.INPUT_MISSING, f"no commit in {run}", "train it first")
    restore(found.state.tensors, networks, {})
    return recipe, task, networks, found
