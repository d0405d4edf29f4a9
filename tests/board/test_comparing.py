"""Runs side by side: the same places, where all of them have been."""

from __future__ import annotations

import pytest

from boards import made_run
from drivetrain.board.comparing import at_equal
from drivetrain.board.runs import Runs, run_id
from drivetrain.board.steps import STEP, TIME, TOKENS
from records import attempt, step


def compared(folder, histories, axis=STEP, name="train/loss"):
    """Of runs with these records: places, and what each run had there."""
    folders = [made_run(folder / str(number), made) for number, made in enumerate(histories)]
    runs = Runs(folders, None)
    runs.scan()
    runs.poll()
    ids = [run_id(one) for one in folders]
    rows = at_equal([runs.all[id] for id in ids], axis)
    return [(row["at"], *(row["values"][id] for id in ids)) for row in rows if row["name"] == name]


def made(steps, **other):
    return [attempt(steps=steps), *(step(at, loss=float(at), **other) for at in range(1, steps + 1))]


def test_places_of_steps_are_steps(tmp_path):
    found = compared(tmp_path, [made(12), made(20)])
    assert found == [(at, at, at) for at in (1, 3, 4, 6, 7, 9, 10, 12)]


def test_runs_of_one_step_have_one_place(tmp_path):
    assert compared(tmp_path, [made(1), made(1)]) == [(1, 1, 1)]
    assert compared(tmp_path / "tokens", [made(1), made(1)], TOKENS) == [(800, 1, 1)]


@pytest.mark.parametrize("histories", [[], [made(3), [attempt()]], [[attempt()], [attempt()]]])
def test_where_one_has_not_begun_there_is_no_place(tmp_path, histories):
    assert compared(tmp_path, histories) == []


def test_runs_of_different_days_share_no_wall_time(tmp_path):
    assert compared(tmp_path, [made(9), made(9, at=90_000.0)], TIME) == []
    assert compared(tmp_path / "same", [made(9), made(9, at=13.0)], TIME) != []
