"""Ranks that commit in parts and read them, over real gloo, with boxes made by hand."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import engines
from drivetrain.checkpoint.boxes import Box
from drivetrain.checkpoint.commits import Commit, Committer, names, newest
from drivetrain.checkpoint.manifest import FOLDER
from drivetrain.checkpoint.mirror import Mirror
from drivetrain.checkpoint.retention import Retention
from drivetrain.ledger.queue import Patience
from drivetrain.loop.commits import Commits, CommitStorage
from drivetrain.loop.ledger_writer import LedgerWriter, Stopwatch
from drivetrain.loop.progress import Progress
from drivetrain.loop.state import CommitMetadata
from drivetrain.spec.exits import Failure
from ranks import end, joined, leave
from states import cut, same, state

ROWS = 510  # no two ranks of four need hold as many
LARGE = 4096
"""Bytes that a rank may not write where it has no room."""


class Told(LedgerWriter):
    """A ledger that is a list."""

    def __init__(self):
        super().__init__(None, 1, Stopwatch(0.0))
        self.records = []

    def record(self, record):
        self.records.append(record)


class Rank:
    """One rank's commits of a state that is cut by hand."""

    def __init__(self, group, run, mirror=None):
        self.group = group
        self.committer = Committer(run, None, Retention(9), rank=group.rank, in_parts=True)
        self.ledger = Told()
        self.state = SimpleNamespace(progress=Progress(0, 0), engine=engines.build(), tree=self.tree, tensors={})
        metadata = CommitMetadata("r", {}, {}, None, 1, {}, 1)
        self.sync = SimpleNamespace(failure=None)
        storage = CommitStorage(self.committer, mirror)
        self.commits = Commits(self.state, self.ledger, self.sync, metadata, lambda position: {}, storage)

    def tree(self):
        return cut(state(float(self.state.progress.step), rows=ROWS), self.group.world)[self.group.rank]

    def begin(self, step):
        self.state.progress = Progress(step, 8 * step)
        folder = self.group.broadcast_json(self.commits.next_folder(step))
        self.commits.settle(self.group)
        self.commits.begin(folder)

    def boundary(self):
        """What a pulse and the boundary after it do."""
        self.commits.poll(self.group, sum(self.group.gather_json(self.commits.part_ended)))

    def commit(self, step, *, waits=False):
        """Through boundaries, as while training goes on, or while it waits."""
        told = len(self.ledger.records)
        self.begin(step)
        if waits:
            self.commits.settle(self.group)
        while not self.group.broadcast_json(len(self.ledger.records) > told):
            time.sleep(0.01)
            self.boundary()


def no_room(rank):
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE, resource.RLIM_INFINITY))


def room(rank):
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def disk_error(rank):
    def refuse(descriptor):
        os.fsync = FSYNC
        raise OSError(5, "Input/output error")

    os.fsync = refuse


def other_bytes(rank):
    """The disk has other bytes than were written."""

    def flip(descriptor):
        os.fsync = FSYNC
        os.pwrite(descriptor, b"!", 3000)
        FSYNC(descriptor)

    os.fsync = flip


def flip(rank):
    rank.committer._arena._memory[0] ^= 1


def die(rank):
    os.kill(os.getpid(), signal.SIGKILL)


def stall(rank):
    rank.committer.patience = Patience(rank.committer.run, 1.0)
    time.sleep(4)


def elsewhere(rank):
    """It writes to a disk of its own."""


FSYNC = os.fsync
FAULTS = {fault.__name__: fault for fault in (no_room, disk_error, other_bytes, flip, die, stall, elsewhere)}


def commit(job, place, descriptors):
    """Step 1, step 2 with the fault of one rank, step 3."""
    group = joined(place, descriptors)
    fault, victim = job["overrides"]
    run = Path(job["folder"])
    rank = Rank(group, run)
    failure = None
    try:
        rank.commit(1)
        if group.rank == victim:
            if fault == "elsewhere":
                rank.committer.run = run / "elsewhere"
                rank.committer.run.mkdir()
            rank.committer.before = partial(FAULTS[fault], rank)
        rank.commit(2, waits=fault == "stall")
        rank.committer.run, rank.committer.before = run, partial(room, rank)
        rank.commit(3)
    except Failure as caught:
        failure = caught.outcome.line()
    said = {
        "failure": failure,
        "records": [[record.kind, record.step, getattr(record, "cause", "")] for record in rank.ledger.records],
        "codes": [record.code for record in rank.ledger.records if record.kind == "miss"],
        "held": [record.held["networks"] for record in rank.ledger.records if record.kind == "commit"],
        "there": sorted(os.listdir(run / FOLDER)) if group.rank == 0 else None,
    }
    write(job, group, said)
    os._exit(0 if failure else end_well(rank, job, place))


def end_well(rank, job, place):
    rank.committer.close()
    rank.group.close()
    return leave(job, place, end(0))


def write(job, group, said):
    Path(job["folder"], f"said-{group.rank}.json").write_text(json.dumps(said))


def void(job, place, descriptors):
    """One rank begins no commit, as one that is about to end the run: the others do not wait for it."""
    group = joined(place, descriptors)
    rank = Rank(group, Path(job["folder"]))
    rank.commit(1)
    rank.state.progress = Progress(2, 16)
    folder = group.broadcast_json(rank.commits.next_folder(2))
    if group.rank != job["overrides"][0]:
        rank.commits.begin(folder)
    rank.commits.settle(group)
    again = group.broadcast_json(rank.commits.next_folder(2))
    rank.commit(3)
    write(job, group, {"again": again is not None, "names": names(Path(job["folder"]))})
    return end_well(rank, job, place)


def mirrored(job, place, descriptors):
    """Every rank uploads what it wrote."""
    group = joined(place, descriptors)
    run = Path(job["folder"])
    mirror = Mirror(f"file://{run}/mirror", run, place=(group.rank, group.world))
    rank = Rank(group, run, mirror)
    rank.commit(1)
    rank.commits.close()
    write(job, group, {})
    return end_well(rank, job, place)


def read(job, place, descriptors):
    """The newest commit that verifies, by all ranks together; one of them sees a file otherwise."""
    group = joined(place, descriptors)
    run = Path(job["folder"])
    world, victim, file, when, *keep = job["overrides"]
    if group.rank == 0:
        from states import Ranks

        for step in (1, 2):
            ended = Ranks(run, world).save(step, cut(state(float(step), rows=ROWS), world))
            assert isinstance(ended, Commit), ended
    group.barrier()
    if group.rank == victim and when == "found":
        see_otherwise(file)
    found = newest(run, group, whole=False, keep=bool(keep))
    if group.rank == victim and when == "read":
        see_otherwise(file)
    mine = cut(state(float(found.step), rows=ROWS), group.world)[group.rank]
    failure, opened = "", []
    watch(opened)
    try:
        own = found.read(lambda name, whole: mine.boxes.get(name) or Box.of_whole(whole))
        same({name: own[name] for name in mine.tensors}, mine.tensors)
    except Failure as caught:
        failure = caught.outcome.line()
    said = {"step": found.step, "passed": found.passed_over, "failure": failure, "opened": sorted(set(opened))}
    write(job, group, said)
    group.close()
    return leave(job, place, end(0))


REAL = os.open


def see_otherwise(file):
    """The first time that a file of this name is opened."""

    def changed(path, flags, *more, **options):
        if os.fspath(path).endswith(file):
            os.open = REAL
            raise OSError(5, "Input/output error")
        return REAL(path, flags, *more, **options)

    os.open = changed


def watch(opened):
    before = os.open

    def noted(path, flags, *more, **options):
        opened.append(os.fspath(path).rpartition("/")[2])
        return before(path, flags, *more, **options)

    os.open = noted
