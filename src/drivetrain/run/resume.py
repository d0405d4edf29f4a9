"""A run directory taken over, and the point to go on from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.checkpoint.commits import LoadedCommit, clean, names, newest, oldest_epoch
from drivetrain.checkpoint.compatible import accept_data, accept_environment, accept_ledger, accept_recipe
from drivetrain.checkpoint.initial import freeze, load_initial
from drivetrain.checkpoint.manifest import step_of
from drivetrain.checkpoint.mirror import Mirror, fetch
from drivetrain.checkpoint.published import Names
from drivetrain.checkpoint.recipe import each_init
from drivetrain.checkpoint.state import AVERAGES, has_any, restore
from drivetrain.checkpoint.survivors import OWED, RECORDS
from drivetrain.engine.engine import Engine
from drivetrain.engine.tables.state import ROWS
from drivetrain.launch.job import Job
from drivetrain.launch.rundir import prepare
from drivetrain.ledger.ledger import LedgerFile, contains
from drivetrain.ledger.queue import LedgerQueue, Patience
from drivetrain.ledger.records import InitialRecord
from drivetrain.ledger.resume_index import ResumeIndex
from drivetrain.loop.progress import Progress, Timetable
from drivetrain.loop.state import StateValues
from drivetrain.optim.masters import MASTERS
from drivetrain.runtime.group import Group
from drivetrain.runtime.lease import Lease
from drivetrain.spec.box import Box
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_json, write_private
from drivetrain.spec.load import load
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.settings import seconds_of


class Resumer:
    """One rank's way from a run directory to its state. `notes` are what the ledger should say about it.

    The directory itself is the first rank's to take; the others only read commits.
    """

    def __init__(self, job: Job, recipe: Recipe) -> None:
        self.job = job
        self.recipe = recipe
        self.folder = Path(job.folder)
        self.notes: list[str] = []
        self.lease: Lease | None = None

    def claim(self) -> None:
        """Take the run directory, and see that it is this recipe's; Failure(85) or (76) where it is not ours."""
        prepare(self.folder)
        self.lease = Lease.take(self.folder, lambda: names(self.folder), self.job.silent)
        # Only as the owner: another run that is alive may just be writing what would be cleaned away.
        clean(self.folder)
        self._fetch()
        self.lease.prune(oldest_epoch(self.folder))
        # Where nothing is committed there is nothing to go on from, so the recipe may be any.
        kept = self.folder / "resolved.json"
        if kept.is_file() and names(self.folder):
            # Only to be compared: what has come to be refused since is no matter where the new recipe does without it.
            old = load(json.loads(kept.read_text())["recipe"], whole=False).recipe
            self.notes += accept_recipe(old, self.recipe, self.job.override, str(self.folder))

    def share(self, group: Group, *, first_here: bool) -> None:
        """Where machines share no disk, bring what the first one goes on from to the others too, from the mirror.

        Every rank calls it; `first_here` is the one that does so for its machine.
        """
        url = self.recipe.checkpoint.mirror
        if url and group.world > 1:
            there = group.broadcast_json(bool(names(self.folder)) if group.leader else None)
            if there and first_here and not names(self.folder):
                fetch(url, self.folder)
            group.barrier()

    def release(self) -> None:
        """Let the next one have the directory."""
        if self.lease:
            self.lease.release()

    @property
    def epoch(self) -> int:
        """The lease's number; 0 on ranks that hold none."""
        return self.lease.epoch if self.lease else 0

    def open_ledger(self, history: ResumeIndex) -> LedgerQueue:
        """The ledger, for this attempt alone, and `history` filled from it: one that may still be alive is left with a
        file that nobody reads."""
        assert self.lease is not None
        self.lease.require()
        file = LedgerFile.open(self.folder / "ledger.jsonl", anew=self.lease.inherited, each=history.add)
        return LedgerQueue(file, self.patience, self.lease.require)

    @property
    def patience(self) -> Patience:
        """What is borne of the run directory's disk."""
        return Patience(self.folder, seconds_of(self.recipe.stop.stall))

    def keep_recipe(self, environment: Mapping[str, Any]) -> None:
        """Write what this attempt trains, once it is sure that it may."""
        job = self.job
        came_from = {"folder": job.modules, "source": job.source, "given": list(job.given)}
        content = {"recipe": job.recipe, "origins": job.origins, **came_from}
        write_json(self.folder / "resolved.json", content)
        if self.job.text:
            overrides = "".join(f"# on the command line: {text}\n" for text in self.job.overrides)
            write_private(self.folder / "recipe.yaml", (self.job.text + overrides).encode())
        write_json(self.folder / "environment.json", environment)

    def find(self, group: Group, history: ResumeIndex, *, whole: bool = True) -> LoadedCommit | None:
        """The commit to go on from, as `resume` (auto, never, must) wants it; what survivors left, if it is newer and
        ranks hold everything. Where they do not, it is not to be `whole`, as in `newest`."""
        volatile = Path(self.job.volatile) if self.job.volatile else None
        found = newest(self.folder, group, volatile, whole=whole, keep=True)
        # The rank that kept the ledger may be the one that died: survivors bring the records of their last steps, and
        # are passed over where these do not join it. Only the leader has the ledger, so it decides for all.
        if found and found.volatile:
            values = found.state.values
            joined = history.joins([record["step"] for record in values[RECORDS]], found.step)
            if group.broadcast_json(not (joined and history.has(values[OWED]))):
                lacks = "scores or a way back" if joined else "steps"
                self.notes.append(f"passed over {found.path.name}: the ledger lacks {lacks} before it")
                found = newest(self.folder, group)
        if found is None:
            if self.job.resume == "must":
                hint = "see that --run names the run, or leave --resume out"
                raise Failure(Exit.INPUT_MISSING, f"no commit in {self.folder}", hint)
            return None
        # A restart goes on from this run's own commits, which `never` does not mean.
        if self.job.resume == "never" and not self.job.restarts:
            cause = f"{found.path} is there, but --resume never forbids it"
            raise Failure(Exit.INCOMPATIBLE, cause, "choose another --run")
        self.notes += [f"passed over {reason}" for reason in found.passed_over]
        if group.leader:
            lost = _lost_records(self.folder / "ledger.jsonl", found, history.last_step)
            self.notes += accept_ledger(lost, self.job.override, found.path.name)
        return found

    def committed(self, found: LoadedCommit | None) -> int:
        """The step of the newest commit on the disk, where the attempt goes on from `found`; 0 where there is none."""
        if found and not found.volatile:
            return found.step
        return max((step_of(name) or 0 for name in names(self.folder)), default=0)

    def initialize(
        self,
        networks: Mapping[str, nn.Module],
        layouts: Mapping[str, Names | None],
        group: Group,
        *,
        fresh: bool,
        masters: Mapping[str, Tensor] = MappingProxyType({}),
        rows: Mapping[str, Box | None] = MappingProxyType({}),
    ) -> list[InitialRecord]:
        """The recipe's `init`: weights at the start of the run, what is frozen in every attempt. `layouts`, `masters`
        and `rows` as for `load_initial`.

        Returns what the ledger keeps of the weights that were loaded.
        """
        records = []
        for settings in each_init(self.recipe.init):
            report = load_initial(settings, networks, layouts, group, masters, rows) if fresh else None
            # In every attempt: a commit has weights, not whether they train.
            frozen = freeze(settings, networks, rows)
            if report:
                still = f"; {frozen} parameters do not train" if frozen else ""
                self.notes.append(f"initial weights from {settings.from_}: {report}{still}")
                records.append(InitialRecord(from_=settings.from_, **asdict(report), frozen=frozen))
        return records

    def restore(
        self,
        found: LoadedCommit,
        digests: Mapping[str, str],
        environment: Mapping[str, Any],
        engine: Engine,
        timetable: Timetable,
    ) -> StateValues:
        """Put a commit's state in place, and return its plain values; Failure(76) where it does not fit."""
        job, metadata, name = self.job, found.metadata, found.path.name
        self.notes += accept_data(metadata["data"], digests, job.override, name)
        self.notes += accept_environment(metadata.get("environment", {}), environment, job.strict_environment, name)
        optimizers = engine.optimizers
        # Once: a restart of the same command finds commits of its own, and takes the optimizers' state from them.
        if "optimizer" in job.ignore and metadata["time"] < job.began:
            optimizers = {}
            self.notes.append(f"the optimizers' state in {name} is ignored: they start anew")
        self._restore_tensors(found.state.tensors, engine, optimizers, name)
        values = StateValues.from_json(found.state.values)
        _require_position(found, values.progress, timetable, self.folder)
        return values

    def _restore_tensors(
        self,
        tensors: Mapping[str, Tensor],
        engine: Engine,
        optimizers: Mapping[str, torch.optim.Optimizer],
        name: str,
    ) -> None:
        """What a commit from before an accepted change of the recipe does not have begins anew."""
        known = has_any(tensors, engine.others)
        if not optimizers:
            known -= {ROWS}  # rows' state is an optimizer's, too
        others = {other: tensor for other, tensor in engine.others.items() if other.partition("/")[0] in known}
        restore(tensors, engine.networks, optimizers, others)
        if engine.averages and AVERAGES not in known:
            engine.averages.restart()
            self.notes.append(f"{name} has no averaged weights: they begin at its weights")
        if engine.placement.masters and engine.placement.masters.lasting and MASTERS not in known:
            engine.placement.masters.restart()
            for optimizer in engine.network_optimizers.values():
                for mover in optimizer.rows:
                    mover.restart()
            self.notes.append(f"{name} has no fp32 masters: they begin at its weights")

    def mirror(
        self, found: LoadedCommit | None, written: Callable[[], None], place: tuple[int, int] = (0, 1)
    ) -> Mirror | None:
        """Where verified commits are copied to, the one that this attempt goes on from first. `written` returns once
        the ledger has all that it was told; `place` is this rank among those that upload."""
        url = self.recipe.checkpoint.mirror
        if not url:
            return None
        mirror = Mirror(url, self.folder, written, place=place)
        # The attempt before may have been cut off before this one was copied.
        if found and not found.volatile:
            mirror.push(found.path.name)
        return mirror

    def _fetch(self) -> None:
        """Where nothing is committed here, what the mirror has."""
        url = self.recipe.checkpoint.mirror
        if url and not names(self.folder):
            passed: list[str] = []
            name = fetch(url, self.folder, passed)
            self.notes += [f"passed over in the mirror: {reason}" for reason in passed]
            if name:
                self.notes.append(f"{name} comes from the mirror")


def _lost_records(ledger: Path, found: LoadedCommit, last_step: int) -> int:
    """How many records the ledger lacks, at least, of those that were durable when a commit began."""
    # What survivors left was made durable by nobody, and the steps that lead there are looked for otherwise.
    tail = "" if found.volatile else found.metadata["ledger"]
    if not tail or contains(ledger, tail):
        return 0
    return max(1, found.step - last_step)


def _require_position(found: LoadedCommit, progress: Progress, timetable: Timetable, run: Path) -> None:
    """Raises Failure(76) where the commit's step would end at another sample with these batch sizes, or was cut short
    by a budget that is longer now."""
    name = found.path.name
    start, stop = timetable.scale.batches.span(progress.step)
    if not start < progress.position <= stop:
        raise Failure(
            Exit.INCOMPATIBLE,
            f"{name} has consumed {progress.position} samples in {progress.step} steps; "
            f"with these batch sizes it would be {stop}",
            "keep what was, and give a new size by `batch.ramp` from a later point on",
        )
    short = stop - progress.position
    if short and progress.position < timetable.total:
        raise Failure(
            Exit.INCOMPATIBLE,
            f"the last step of {name} was {short} samples short, since the budget ended there; "
            "with a longer one they would be left out",
            f"remove it (`drivetrain checkpoint rm {run} {found.step}`) to go on from the commit before, "
            "or keep the budget",
        )
