"""What the loop knows of its commits, before and after they have ended."""

import pytest
import torch

import engines
from drivetrain.checkpoint.commits import MAX_FAILURES, Commit, CommitFailure
from drivetrain.engine.placement import replicas
from drivetrain.loop.commits import Commits, CommitStorage
from drivetrain.loop.guard import Guard
from drivetrain.loop.ledger_writer import LedgerWriter, Stopwatch
from drivetrain.loop.progress import Progress
from drivetrain.loop.recipe import Guard as Settings
from drivetrain.loop.state import CommitMetadata, RunState, StateValues
from drivetrain.loop.step_sync import WIDTH, StepSync
from drivetrain.runtime.group import Group
from drivetrain.runtime.pulse import Pulse
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.exits import Exit, Failure


class Disk:
    """A committer whose commits end as they are told to."""

    def __init__(self):
        self.failures = 0
        self.begun = []
        self.room = []
        self.result = None

    def prepare(self, tensors):
        self.room.append(sum(tensor.nbytes for tensor in tensors.values()))

    def begin(self, step, tree, metadata, folder):
        self.begun.append((step, metadata))

    def next_folder(self, step):
        return "folder"

    def finished(self):
        return self.result

    def wait(self):
        return self.result


def commits(disk):
    group = Group()
    state = RunState(engines.build(), replicas(group), Guard(Settings()), StateValues(Progress(4, 32)))
    sync = StepSync(Pulse(group, WIDTH), StopRequests(), alone=True)
    metadata = CommitMetadata("r", {}, {}, "step-00000002", 1, {}, 1)
    ledger = LedgerWriter(None, 1, Stopwatch(0.0, lambda: 0.0))
    return Commits(state, ledger, sync, metadata, lambda position: {}, CommitStorage(disk, None)), state, sync


def committed(step):
    return Commit(f"step-{step:08d}", step, 1, "", 0.0)


def failed(step, code=Exit.STORAGE):
    return CommitFailure.of(step, Failure(code, "the disk is full", "free space"))


def test_a_step_is_covered_while_its_commit_is_under_way_and_after():
    disk = Disk()
    own, _, _ = commits(disk)
    assert own.next_folder(4) == "folder"
    own.begin("")
    assert own.next_folder(4) is None
    own.poll(Group())
    disk.result = committed(4)
    own.poll(Group())
    assert own.next_folder(4) is None


def test_memory_for_commits_is_had_before_the_first_step_and_once_optimizers_have_begun_their_state():
    disk = Disk()
    own, state, _ = commits(disk)
    own.prepare()
    for optimizer in state.engine.optimizers.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter] = {"exp_avg": torch.zeros_like(parameter)}
    for step in (5, 6):
        state.progress = Progress(step, 8 * step)
        own.poll(Group())
    assert len(disk.room) == 2
    assert disk.room[1] > 1.5 * disk.room[0]


def test_a_commit_that_failed_covers_nothing_and_is_no_parent():
    disk = Disk()
    own, state, _ = commits(disk)
    own.begin("")
    disk.result = failed(4)
    own.poll(Group())
    assert own.next_folder(4) == "folder"
    state.progress = Progress(6, 48)
    own.begin("")
    assert [(step, metadata["parent"]) for step, metadata in disk.begun] == [(4, "step-00000002"), (6, "step-00000002")]
    disk.result = committed(6)
    own.poll(Group())
    assert own.metadata.parent == "step-00000006"


@pytest.mark.parametrize(("failures", "code", "ends"), [(1, 74, False), (MAX_FAILURES, 74, True), (1, 85, True)])
def test_after_too_many_failures_or_a_lost_directory_all_ranks_end(failures, code, ends):
    disk = Disk()
    own, _, sync = commits(disk)
    own.begin("")
    disk.failures, disk.result = failures, failed(4, Exit(code))
    own.poll(Group())
    assert (sync.failure is not None) == ends
    if ends:
        assert sync.failure.outcome.code == code


def test_a_ledger_that_is_gone_ends_all_ranks_at_the_first_commit_with_its_own_hint():
    disk = Disk()
    own, _, sync = commits(disk)
    own.begin("")
    disk.failures = 1
    disk.result = CommitFailure.of(4, Failure(Exit.STORAGE, "it was removed", "put a copy there", gone="ledger.jsonl"))
    own.poll(Group())
    assert sync.failure is not None
    assert sync.failure.outcome.hint == "put a copy there"


def test_a_commit_that_fails_at_the_end_of_a_run_is_its_failure():
    disk = Disk()
    own, _, _ = commits(disk)
    own.begin("")
    disk.result = failed(4)
    failure = own.close()
    assert failure is not None
    assert failure.outcome.where["step"] == 4


def test_a_tensor_that_no_file_can_hold_is_refused_before_the_first_step():
    own, state, _ = commits(Disk())
    state.engine.networks["model"].register_buffer("odd", torch.zeros(2, 2).to_sparse())
    with pytest.raises(Exception, match="which no commit can hold"):
        own.prepare()
