import tracemalloc

import numpy as np
import pytest

import boards
from drivetrain.board.index import Index
from drivetrain.board.lookup import seconds, series
from drivetrain.board.snapshot import load, save
from drivetrain.board.steps import STEP
from drivetrain.board.zoom import Window
from records import attempt, commit, ended, evaluation, rollback, step

FIRST = [attempt(), *(step(at) for at in range(1, 51)), evaluation(50), commit(50, at=61.0), rollback(50, 37)]
SECOND = [*(step(at, loss=1.0) for at in range(38, 99)), ended(75, "stopped", at=99.0), attempt(2, 98), step(99)]


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "ledger.jsonl"


def append(path, told):
    boards.append(path.parent, told)


def followed(path, snapshot=None):
    index = Index(path)
    if snapshot:
        assert load(index, snapshot)
    index.follow_all()
    return index


def same(one, other):
    for name in ("offset", "chain", "records", "lost", "commands", "paused"):
        assert getattr(one, name) == getattr(other, name)
    assert series(one) == series(other)
    assert seconds(one) == seconds(other)
    assert [tally.told() for tally in one.tallies] == [tally.told() for tally in other.tallies]
    for name in series(one):
        mine, theirs = one.curves([name], Window(STEP))[name], other.curves([name], Window(STEP))[name]
        for part in ("x", "low", "high", "mean", "flags"):
            np.testing.assert_array_equal(getattr(mine, part), getattr(theirs, part))
    return True


def test_an_index_that_is_loaded_and_follows_is_as_one_that_reads_all(ledger, tmp_path):
    append(ledger, FIRST)
    save(followed(ledger), tmp_path / "kept")
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o600
    assert same(followed(ledger, tmp_path / "kept"), followed(ledger))
    append(ledger, SECOND)
    assert same(followed(ledger, tmp_path / "kept"), followed(ledger))


@pytest.mark.parametrize("cut", [0, 10, 200, -1])
def test_a_torn_or_damaged_snapshot_is_passed_over(ledger, tmp_path, cut):
    append(ledger, FIRST)
    save(followed(ledger), tmp_path / "kept")
    data = (tmp_path / "kept").read_bytes()
    (tmp_path / "kept").write_bytes(data[:cut] if cut >= 0 else data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    index = Index(ledger)
    assert not load(index, tmp_path / "kept")
    index.follow_all()
    assert same(index, followed(ledger))


def test_a_snapshot_of_another_ledger_is_not_used(ledger, tmp_path):
    append(ledger, FIRST)
    save(followed(ledger), tmp_path / "kept")
    ledger.unlink()
    append(ledger, [attempt(), *(step(at, loss=7.0) for at in range(1, 99)), ended(0, "done")])
    assert same(followed(ledger, tmp_path / "kept"), followed(ledger))


def test_two_boards_on_one_cache_double_nothing(ledger, tmp_path):
    append(ledger, FIRST)
    one, other = followed(ledger), followed(ledger)
    append(ledger, SECOND)
    one.follow_all()
    save(one, tmp_path / "kept")
    save(other, tmp_path / "kept")
    assert same(followed(ledger, tmp_path / "kept"), one)


def test_to_save_takes_little_memory_besides_the_index(ledger, tmp_path):
    """As one piece it took twice the memory of a large index."""
    losses = {f"part_{number}": 1.0 for number in range(40)}
    append(ledger, [attempt(), *(step(at, losses=losses) for at in range(1, 4001))])
    index = followed(ledger)
    tracemalloc.start()
    save(index, tmp_path / "kept")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (tmp_path / "kept").stat().st_size / 2
    assert same(followed(ledger, tmp_path / "kept"), index)
