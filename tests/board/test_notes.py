import json

import pytest

from drivetrain.board.notes import Note, Notes
from drivetrain.spec.exits import Exit, Failure


def test_what_is_said_is_kept_and_another_board_has_it(tmp_path):
    mine, theirs = Notes(tmp_path), Notes(tmp_path)
    mine.change(tmp_path / "a", {"title": "<b>x</b>", "tags": ["one", "two", "one"]})
    theirs.change(tmp_path / "b", {"hidden": True})
    assert theirs.of(tmp_path / "a") == Note(title="<b>x</b>", tags=("one", "two"))
    assert mine.of(tmp_path / "b").hidden
    assert (tmp_path / "runs.json").stat().st_mode & 0o777 == 0o600
    mine.change(tmp_path / "a", {"title": None, "tags": []})
    mine.forget(tmp_path / "b")
    assert json.loads((tmp_path / "runs.json").read_text()) == {}


LONG = {"title": "x" * 201}


@pytest.mark.parametrize(
    "changes",
    [LONG, {"tags": "a"}, {"tags": ["a"] * 60}, {"tags": [1]}, {"hidden": 1}, {"state": "done"}, {"title": 7}],
)
def test_what_cannot_be_said_of_a_run_changes_nothing(tmp_path, changes):
    notes = Notes(tmp_path)
    with pytest.raises(Failure) as found:
        notes.change(tmp_path / "a", changes)
    assert found.value.outcome.code == Exit.BAD_COMMAND
    assert notes.of(tmp_path / "a") == Note()


def test_a_damaged_file_is_said_and_never_written_over(tmp_path):
    (tmp_path / "runs.json").write_text('{"a": ')
    with pytest.raises(Failure) as found:
        Notes(tmp_path)
    assert found.value.outcome.code == Exit.BAD_DATA
    assert (tmp_path / "runs.json").read_text() == '{"a": '
