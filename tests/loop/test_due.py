"""What is due at a boundary, on all ranks alike."""

from types import SimpleNamespace

import engines
from drivetrain.engine.placement import replicas
from drivetrain.loop.due import DueWork
from drivetrain.loop.guard import Guard
from drivetrain.loop.progress import Progress
from drivetrain.loop.recipe import Guard as Settings
from drivetrain.loop.state import RunState, StateValues
from drivetrain.runtime.group import Group


class Told(Group):
    """One of two ranks that speak in turn: what the leader says is what both hear."""

    said: list = []

    def broadcast_json(self, value):
        if self.leader:
            self.said.append(value)
        return self.said[-1]


class Commits:
    """Remembers what was begun, and whether the step is covered."""

    def __init__(self, covered):
        self.covered, self.begun, self.held = covered, 0, 0

    def next_folder(self, step):
        return None if self.covered else "folder"

    def settle(self, group):
        pass

    def begin(self, folder):
        assert folder == "folder"
        self.begun += 1

    def hold(self, group):
        self.held += 1


def work(rank, covered, *, blocking=False, failure=None):
    state = RunState(engines.build(), replicas(Group()), Guard(Settings()), StateValues(Progress(4, 32)))
    idle = SimpleNamespace(drain=lambda: None, clear=lambda: None)
    commits = Commits(covered)
    due = DueWork(
        state=state,
        records=idle,
        commits=commits,
        scoring=idle,
        showing=idle,
        commands=idle,
        rewind=idle,
        replicas=idle,
        reader=idle,
        ledger=idle,
        sync=SimpleNamespace(failure=failure),
        group=Told(rank, 2),
        blocking=blocking,
    )
    return due, commits


def test_a_commit_that_only_the_leader_saw_fail_is_begun_again_by_all_ranks_or_by_none():
    """As in a pause: it fails, and the run is told to save at the same step. A rank alone would wait for ever."""
    for leader_covers in (False, True):
        leader, commits = work(0, covered=leader_covers)
        other, theirs = work(1, covered=True)
        leader.commit()
        other.commit()
        assert commits.begun == theirs.begun == int(not leader_covers)


def test_a_blocking_commit_is_waited_for_by_all_ranks_also_by_one_that_begins_none():
    """A rank that has failed is heard at the next boundary: until then the others count on it."""
    for blocking in (False, True):
        leader, commits = work(0, covered=False, blocking=blocking)
        other, theirs = work(1, covered=False, blocking=blocking, failure="of this rank alone")
        leader.commit()
        other.commit()
        assert (commits.begun, theirs.begun) == (1, 0)
        assert commits.held == theirs.held == int(blocking)
