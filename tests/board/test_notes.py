import fcntl
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from drivetrain.board import notes as notes_of_runs
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


DAMAGED = ['{"a": ', "[]", '{"a": 5}', '{"a": {"state": 1}}', '{"a": {"title": []}}', "[" * 100_000, "\0", ""]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_said_and_never_written_over(tmp_path, text):
    notes = Notes(tmp_path)
    (tmp_path / "runs.json").write_text(text)
    for act in (lambda: Notes(tmp_path), lambda: notes.change(tmp_path, {"hidden": True}), lambda: notes.of(tmp_path)):
        with pytest.raises(Failure) as found:
            act()
        assert found.value.outcome.code == Exit.BAD_DATA
    assert (tmp_path / "runs.json").read_text() == text


def test_boards_that_write_at_once_lose_nothing(tmp_path):
    boards = [Notes(tmp_path) for _ in range(4)]

    def say(number):
        boards[number % 4].change(tmp_path / str(number), {"tags": [str(number)]})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(say, range(40)))
    said = [boards[0].of(tmp_path / str(number)).tags for number in range(40)]
    assert said == [(str(number),) for number in range(40)]


@pytest.mark.parametrize(
    "text", ["<img src=x onerror=alert(1)>", "\u202eabc", "a\0b", "\ud800", "${x}{{y}}", "../..", "\n"]
)
def test_hostile_words_stay_as_they_are(tmp_path, text):
    Notes(tmp_path).change(tmp_path / "a", {"title": text, "tags": [text]})
    assert Notes(tmp_path).of(tmp_path / "a") == Note(text, (text,))


def test_what_could_not_be_written_was_not_said(tmp_path, monkeypatch):
    notes = Notes(tmp_path)
    notes.change(tmp_path / "a", {"title": "one"})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(notes_of_runs, "write_private", full)
    with pytest.raises(Failure) as found:
        notes.change(tmp_path / "a", {"title": "two"})
    assert found.value.outcome.code == Exit.CANNOT_CREATE
    assert notes.of(tmp_path / "a").title == "one"


def test_a_board_that_stands_still_is_not_waited_for_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(notes_of_runs, "_PATIENCE", 0.1)
    with open(tmp_path / "runs.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Failure) as found:
            Notes(tmp_path).change(tmp_path / "a", {"hidden": True})
    assert found.value.outcome.code == Exit.PEER_UNAVAILABLE


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "runs.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failure) as found:
        Notes(tmp_path).change(tmp_path / "a", {"hidden": True})
    assert found.value.outcome.code == Exit.CANNOT_CREATE
    assert not (tmp_path / "elsewhere").exists()
