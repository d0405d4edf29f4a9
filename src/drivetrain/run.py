"""The one place where recipe, task, engine and loop are wired together: the worker and the Python API call it."""

from __future__ import annotations

import json
import re
import socket
import time
import traceback
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from drivetrain.checkpoint.commit import FOLDER, Commits, Found
from drivetrain.checkpoint.export import export
from drivetrain.checkpoint.state import initial_weights, restore
from drivetrain.data.feed import Feed
from drivetrain.data.geometry import Geometry, choose_lanes
from drivetrain.data.order import Order
from drivetrain.data.source import Source, open_source
from drivetrain.engine.engine import Engine
from drivetrain.launch.job import Job
from drivetrain.launch.supervisor import prepare
from drivetrain.ledger.ledger import Ledger, read
from drivetrain.loop.evaluation import Scores, ValidationSet, evaluate
from drivetrain.loop.exchange import WIDTH, Exchange
from drivetrain.loop.journal import Journal, Stopwatch
from drivetrain.loop.loop import Loop, Parts
from drivetrain.loop.progress import Progress, Timetable
from drivetrain.loop.task import Task
from drivetrain.optim.updater import build_updaters
from drivetrain.runtime import device as devices
from drivetrain.runtime.group import Group
from drivetrain.runtime.place import Place
from drivetrain.runtime.pulse import Pulse
from drivetrain.runtime.seeds import mix, seed_generators
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.affects import bits_digest, differences
from drivetrain.spec.amount import Scale
from drivetrain.spec.exits import Exit, Failure, Outcome
from drivetrain.spec.files import write_json, write_private
from drivetrain.spec.load import load
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.registry import Custom, build_custom, imported

_INITIAL_WEIGHTS = 1 << 34
"""A place in the seeds' path that no step has."""
_NETWORK_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def execute(job: Job, place: Place, listen_fd: int | None = None) -> Outcome:
    """Run one rank of a job to its end. Whatever happens comes back as an outcome, never as an exception."""
    with StopRequests() as stops:
        try:
            return _Attempt(job, place, stops).run(listen_fd)
        except Failure as failure:
            outcome = failure.outcome
            return replace(outcome, where={"rank": place.rank} | outcome.where) if place.world > 1 else outcome
        except Exception as error:
            traceback.print_exc()
            return _internal(error, place)


@dataclass(frozen=True)
class Inputs:
    """Everything that a run reads, opened."""

    train: Source
    validation: Mapping[str, Source]

    @property
    def digests(self) -> dict[str, str]:
        """Content digests by place in the recipe."""
        return {"data.train": self.train.fingerprint} | {
            f"data.validation.{name}": source.fingerprint for name, source in self.validation.items()
        }

    def sets(self, recipe: Recipe, processes: int) -> list[ValidationSet]:
        """The validation sets, cut as evaluation wants them."""
        micro = recipe.batch.micro or max(1, recipe.batch.size // processes)
        return [ValidationSet(name, source, recipe.evaluate.batch or micro) for name, source in self.validation.items()]


def open_inputs(recipe: Recipe, run: Path) -> Inputs:
    """Open training and validation sources; content digests of files are kept in the run directory."""
    cache = run / "sources.json"
    return Inputs(
        train=open_source(recipe.data.train.sources[0], recipe.seed, cache),
        validation={name: open_source(source, recipe.seed, cache) for name, source in recipe.data.validation.items()},
    )


def build_task(recipe: Recipe) -> Task:
    """The recipe's task: a shipped one from its settings, a user's own from its arguments."""
    if isinstance(recipe.task, Custom):
        return build_custom(recipe.task)
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
            network.compile()
    return networks


class _Attempt:
    """One start of a run, on one rank."""

    def __init__(self, job: Job, place: Place, stops: StopRequests) -> None:
        self.job = job
        self.place = place
        self.stops = stops
        self.folder = Path(job.folder)
        self.recipe = load(job.recipe, folder=Path(job.modules) if job.modules else None, origins=job.origins).recipe
        self.watch = Stopwatch(time.monotonic() - (time.time() - job.started))
        self.startup: dict[str, float] = {}
        self.notes: list[str] = []

    def run(self, listen_fd: int | None) -> Outcome:
        """From joining the other ranks to the attempt's last record."""
        place, recipe = self.place, self.recipe
        device = devices.choose(recipe.device, place.local_rank)
        devices.settle(device, devices.threads_per_process(place.local_world, recipe.launch.threads), recipe.matmul)
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
            return self._train(group, device, inputs)
        except RuntimeError as error:
            raise group.translate(error) or error from error
        finally:
            group.close()

    def _train(self, group: Group, device: torch.device, inputs: Inputs) -> Outcome:
        recipe, job = self.recipe, self.job
        task = build_task(recipe)
        networks = build_networks(task, recipe, device)
        self._lap("build")
        commits = Commits(self.folder, group)
        found = self._resume_point(commits)
        lanes = self._lanes(group.world, found)
        scale = Scale(recipe.batch.size, getattr(recipe.task, "tokens_per_sample", None), len(inputs.train))
        total = recipe.budget.samples_at(scale)
        timetable = Timetable(
            total, -(-total // recipe.batch.size), scale, recipe.evaluate.every, recipe.checkpoint.every
        )
        if found is None and recipe.init is not None:
            loaded = initial_weights(Path(recipe.init.path), networks, recipe.init.network)
            self.notes.append(f"{loaded} tensors of initial weights from {recipe.init.path}")
        updaters = build_updaters(networks, recipe.optimizer, recipe.schedule, total, scale)
        progress = Progress()
        if found is not None:
            self._require_same_data(found, inputs)
            restore(found.state.tensors, networks, {name: updater.optimizer for name, updater in updaters.items()})
            progress = Progress.from_json(found.state.values)
        group.agree("the weights", _weights_digest(networks) if group.world > 1 else None)
        self._lap("load")

        geometry = Geometry(
            recipe.batch.size, lanes, group.world, recipe.batch.micro or recipe.batch.size // group.world
        )
        train = recipe.data.train
        order = Order(len(inputs.train), recipe.seed, train.shuffle)
        feed = Feed(inputs.train, order, geometry, group.rank, total, task.collate, task.counts)
        ledger = Ledger.open(self.folder / "ledger.jsonl") if group.leader else None
        try:
            attempts, evaluated = _past(self.folder / "ledger.jsonl", progress.step) if group.leader else (0, False)
            attempt, evaluated = 1 + attempts, group.broadcast_json(evaluated)
            journal = Journal(ledger, attempt, self.watch)
            journal.seconds["start"] = sum(self.startup.values())
            journal.record(
                "attempt",
                from_step=progress.step,
                from_position=progress.position,
                world=group.world,
                claim={"class": "same-world", "key": devices.claim_key(group.world, device)},
                host=socket.gethostname(),
                started=job.started,
                startup=self.startup | {"ledger": journal.lap("start")},
                overrides=list(job.overrides),
                budget={"samples": total, "steps": timetable.steps},
                parameters={name: sum(p.numel() for p in net.parameters()) for name, net in networks.items()},
                lanes=lanes,
            )
            for note in self.notes:
                journal.record("note", text=note)
            loop = Loop(
                Parts(
                    task=task,
                    engine=Engine(networks, updaters, group, device, recipe.precision, recipe.seed),
                    feed=feed,
                    validation=inputs.sets(recipe, group.world),
                    timetable=timetable,
                    group=group,
                    exchange=Exchange(Pulse(group, WIDTH), self.stops, alone=group.world == 1),
                    journal=journal,
                    commits=commits,
                    facts={"recipe": bits_digest(recipe), "data": inputs.digests, "lanes": lanes, "attempt": attempt},
                    folder=self.folder,
                    keep=recipe.checkpoint.keep,
                    ahead=train.prefetch,
                    workers=train.workers,
                ),
                progress,
                committed=found is not None,
                evaluated=evaluated,
            )
            return self._loop(loop, journal)
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
            raise first from error
        step, steps = loop.progress.step, loop.parts.timetable.steps
        if code is Exit.DONE:
            cause, hint = f"all {steps} steps are made and committed", ""
        else:
            cause = f"{self.stops.requested or 'a stop request of another rank'} at step {step} of {steps}"
            hint = "the same command goes on from here"
        journal.exit(int(code), cause, loop.progress.to_json())
        return Outcome(code=code, cause=cause, hint=hint, where={"step": step})

    def _lap(self, name: str) -> None:
        self.startup[name] = self.watch.lap()

    def _claim_folder(self) -> None:
        """Make the run directory this recipe's, or see that it is; Failure(76) with a diff where bits would differ."""
        prepare(self.folder)
        kept = self.folder / "resolved.json"
        accepted: list[str] = []
        if kept.is_file():
            old = load(json.loads(kept.read_text())["recipe"]).recipe
            accepted = self._accepted(old)
        content = {"recipe": self.job.recipe, "origins": self.job.origins, "folder": self.job.modules}
        write_json(kept, content)
        if self.job.text:
            overrides = "".join(f"# on the command line: {text}\n" for text in self.job.overrides)
            write_private(self.folder / "recipe.yaml", (self.job.text + overrides).encode())
        write_json(self.folder / "environment.json", devices.environment())
        self.notes += accepted

    def _accepted(self, old: Recipe) -> list[str]:
        """Notes on the changed fields that --override accepts; Failure(76) where it does not accept all."""
        changed = [change for change in differences(old, self.recipe) if change.affects == "bits"]
        refused = [change for change in changed if not _accepts(self.job.override, change.path)]
        if refused and (self.folder / FOLDER).is_dir():
            raise Failure(
                Exit.INCOMPATIBLE,
                f"{self.folder} was trained with another recipe: {'; '.join(map(str, refused))}",
                "take the old values, choose another --run, or accept each change by --override KEY",
            )
        notes = [f"accepted by --override: {change}" for change in changed if change not in refused]
        if any(change.path.startswith("budget") for change in changed if change not in refused):
            notes.append(
                "the budget changed: schedules that decay now end at the new budget, "
                "so the learning rate goes on from another point of its curve"
            )
        return notes

    def _resume_point(self, commits: Commits) -> Found | None:
        """The commit to go on from, as `resume` (auto, never, must) wants it."""
        found = commits.latest()
        if found is None and self.job.resume == "must":
            raise Failure(
                Exit.INPUT_MISSING, f"no commit in {self.folder}", "see that --run names the run, or leave --resume out"
            )
        if found is not None and self.job.resume == "never":
            raise Failure(
                Exit.INCOMPATIBLE, f"{found.path} is there, but --resume never forbids it", "choose another --run"
            )
        self.notes += [f"passed over {reason}" for reason in found.passed_over] if found else []
        return found

    def _require_same_data(self, found: Found, inputs: Inputs) -> None:
        """Failure(76) where a source's content is not what the commit was trained on."""
        old = found.facts["data"]
        for name, digest in inputs.digests.items():
            if old.get(name, digest) != digest:
                if not _accepts(self.job.override, name):
                    raise Failure(
                        Exit.INCOMPATIBLE,
                        f"{name} has another content than when {found.path.name} was made",
                        f"restore the data, or accept the change by --override {name}",
                    )
                self.notes.append(f"accepted by --override: {name} has another content")

    def _lanes(self, world: int, found: Found | None) -> int:
        if self.recipe.lanes != "auto":
            return self.recipe.lanes
        return found.facts["lanes"] if found else choose_lanes(self.recipe.batch.size, world)


def _accepts(override: Sequence[str], path: str) -> bool:
    """Whether --override names a path, or a part above it."""
    return any(path == key or path.startswith((f"{key}.", f"{key}[")) for key in override)


def _past(ledger: Path, step: int) -> tuple[int, bool]:
    """How many attempts a ledger tells of, and whether the history that counts has the evaluation of this step."""
    attempts, evaluated = 0, False
    for record in read(ledger):
        if record["kind"] == "attempt":
            attempts += 1
            evaluated = evaluated and record["from_step"] >= step
        elif record["kind"] == "evaluation" and record["step"] == step:
            evaluated = True
    return attempts, evaluated


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


def export_run(run: Path, to: Path) -> list[Path]:
    """Write the networks of a run's newest commit to a new folder, in the task's layout."""
    _, task, networks, found = _restored(run)
    return export(found, to, {name: task.layout(name) for name in networks})


def _restored(run: Path) -> tuple[Recipe, Task, dict[str, nn.Module], Found]:
    """A run's recipe and task, and its networks as of the newest commit."""
    recipe = load(run).recipe
    device = devices.choose(recipe.device, 0)
    devices.settle(device, devices.threads_per_process(1, recipe.launch.threads), recipe.matmul)
    task = build_task(recipe)
    networks = build_networks(task, recipe, device)
    found = Commits(run, Group()).latest()
    if found is None:
        raise Failure(Exit.INPUT_MISSING, f"no commit in {run}", "train it first")
    restore(found.state.tensors, networks, {})
    return recipe, task, networks, found
