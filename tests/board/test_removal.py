import pytest

from drivetrain.board.removal import empty, trash
from drivetrain.board.runs import find
from drivetrain.runtime.lease import Lease
from drivetrain.spec.exits import Exit, Failure


@pytest.fixture
def run(tmp_path):
    made = tmp_path / "runs" / "one"
    made.mkdir(parents=True)
    (made / "ledger.jsonl").write_text("")
    return made


def test_a_run_goes_out_of_sight_at_once_and_then_from_the_disk(run):
    place = trash(run, "one")
    assert not run.exists()
    assert place.parent == run.parent
    assert list(find(run.parent)) == []
    empty(place)
    assert list(run.parent.iterdir()) == []


@pytest.mark.parametrize("confirm", ["", "One", "one/", "*"])
def test_another_name_removes_nothing(run, confirm):
    with pytest.raises(Failure) as found:
        trash(run, confirm)
    assert found.value.outcome.code == Exit.BAD_COMMAND
    assert run.is_dir()


def test_one_that_trains_stays(run):
    lease = Lease.take(run, commits=list)
    with pytest.raises(Failure) as found:
        trash(run, "one")
    assert found.value.outcome.code == Exit.OWNED_ELSEWHERE
    assert run.is_dir()
    lease.release()
    trash(run, "one")


def test_a_link_is_not_followed(run, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(run)
    with pytest.raises(Failure) as found:
        trash(link, "link")
    assert found.value.outcome.code == Exit.SECURITY
    assert run.is_dir()
    assert list(find(tmp_path, 3)) == [run]
