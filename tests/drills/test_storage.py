"""Storage fault drills that are short enough for every day; `python -m drills` makes the long ones."""

import pytest

from drills import stalls, storage
from drivetrain.spec.mesh import MeshSizes

MESH = MeshSizes(replicate=2, tensor=2)
"""Each of its ranks has columns, and half of them write nothing."""
WITH_STRACE = pytest.mark.skipif(storage.untraceable() is not None, reason=str(storage.untraceable()))
WITH_MOUNT = pytest.mark.skipif(storage.unmountable() is not None, reason=str(storage.unmountable()))


def show(board):
    """What pytest prints where something did not hold."""
    return f"{len(board.failures)} of {board.tried}:\n" + "\n".join(board.failures[:20])


@WITH_STRACE
@pytest.mark.timeout(180)
def test_p08_p09_p10_s01_s03_whatever_call_of_a_commit_fails_the_newest_whole_commit_is_found(tmp_path):
    """Half of its 180 points; the long drill tries all, and disks that stay broken."""
    board = storage.sweep(tmp_path, every=2)
    assert board.tried > 80
    assert not board.failures, show(board)


@WITH_STRACE
@pytest.mark.timeout(180)
def test_p08_p09_p10_s01_s03_whatever_call_of_a_commit_in_parts_fails_the_newest_whole_commit_is_found(tmp_path):
    """One in nine of its points; the long drill tries all."""
    board = storage.sweep(tmp_path, every=9, world=MESH)
    assert board.tried > 40
    assert not board.failures, show(board)


def test_p16_a_holder_that_stalls_at_any_call_of_a_commit_takes_nothing_from_the_one_that_took_over(tmp_path):
    """Before a call of publication and rotation, and after the next: the newer holder's commits are never replaced. The
    long drill tries both at each."""
    board = stalls.sweep(tmp_path, keeps=(2,), every=2)
    assert board.tried > 25
    assert not board.failures, show(board)


@pytest.mark.parametrize("world", [1, 3, MESH], ids=str)
def test_s06_s07_every_flipped_bit_is_found_and_named(tmp_path, world):
    for step in (1, 2):
        storage.commit(storage.writer_of(tmp_path, world), step)
    count = 500 if world == 1 else 200
    board = storage.flips(tmp_path, count)
    assert board.tried == count + 1
    assert not board.failures, show(board)


@pytest.mark.parametrize(("keep", "world"), [(1, 1), (2, 1), (2, 2), (2, MESH)], ids=str)
def test_s14_power_loss_leaves_the_commit_before_or_the_new_one(tmp_path, keep, world):
    board = storage.power_losses(tmp_path / "run", keep=keep, limit=1 << (12 if world == 1 else 7), world=world)
    assert board.tried > 100
    assert not board.failures, show(board)


def test_s14_power_loss_after_the_first_commit_of_a_run_leaves_it(tmp_path):
    board = storage.power_losses(tmp_path / "run", before=(), steps=(1, 2, 3))
    assert not board.failures, show(board)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_s14_the_drill_sees_that_something_is_not_made_durable(tmp_path, kind):
    """The same operations without the fsync of files, or of folders: then commits are lost that were reported."""
    recorder = storage.record(tmp_path / "run", (1, 2), (3,))
    nodes = recorder.disk.files if kind == "file" else recorder.disk.folders
    ops = [op for op in recorder.ops if not (isinstance(op, storage.Sync) and op.node in nodes)]
    assert len(ops) < len(recorder.ops)
    board = storage.judge_crashes(recorder.start, ops, 2, 16, 0)
    assert board.failures


@WITH_MOUNT
@pytest.mark.parametrize(("limit", "amount"), [("size", 4 << 20), ("nr_inodes", 64)], ids=["s01", "s15"])
def test_s01_s15_a_full_disk_misses_the_commit_and_leaves_the_one_before(tmp_path, limit, amount):
    board = storage.full_disk(tmp_path / "disk", limit, amount)
    assert not board.failures, show(board)


@WITH_MOUNT
def test_s02_a_run_directory_that_cannot_be_written_is_73_at_the_start(tmp_path):
    board = storage.read_only(tmp_path / "disk")
    assert board.tried == 2
    assert not board.failures, show(board)
