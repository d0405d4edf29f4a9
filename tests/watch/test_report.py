import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from drivetrain.ledger.derive import attempts
from drivetrain.ledger.run_summary import summarize
from drivetrain.watch.report import show, with_first_cause
from records import attempt, ended, evaluation, parsed, rollback, step


def report(records, run=Path("runs/x"), width=80):
    console = Console(file=io.StringIO(), width=width)
    show(console, run, summarize(parsed(records)))
    return console.file.getvalue()


def trained():
    return [attempt(), *(step(n, loss=5.0 / n) for n in range(1, 5)), evaluation(2, 3.0), evaluation(4, 1.5)]


def test_it_fits_eighty_columns_and_has_everything():
    text = report([*trained(), ended(0, "all made")])
    assert max(map(len, text.splitlines())) <= 80
    for words in ("step 4 of 4  32 samples  3.20k tokens  800 tokens/s", "training loss", "█▁", "0 done"):
        assert words in text
    assert "step (goodput)" in text
    assert text.rstrip().splitlines()[-1].split() == ["wall-clock", "21.0", "s", "100.0%"]


def test_rates_are_told_for_the_run_its_last_steps_and_by_wall_clock():
    known = attempt() | {"flops": {"per_sample": 5e11, "peak": 1e13}}
    told = report([known, *(step(n, seconds=3.9) for n in range(1, 5)), *(step(n) for n in range(5, 105))])
    rows = [
        line.split()[-4:] for line in told.splitlines() if line.startswith(("steps with", "the last", "wall-clock"))
    ]
    assert rows[0] == ["7.17", "717", "3.59", "17.9%"]
    assert rows[1] == ["8", "800", "4", "20.0%"]
    assert rows[2][3] == "19.6%"  # its records tell 106 seconds
    assert max(map(len, told.splitlines())) <= 80
    assert "the last" not in report(trained())  # they are the whole run
    unknown = [line.split()[-4:] for line in report(trained()).splitlines() if line.startswith("steps with")]
    assert unknown == [["8", "800", "-", "-"]]


def test_it_fits_a_narrow_terminal():
    curve = [line for line in report(trained(), width=40).splitlines() if "│" in line]
    assert len(curve) == 10
    assert max(map(len, curve)) <= 40


@pytest.mark.parametrize("width", [1, 10, 20])
def test_a_hopelessly_narrow_terminal_is_no_error(width):
    assert "step 4 of 4" in report(trained(), width=width)


def test_names_and_causes_are_shown_as_they_are():
    cause = "shapes [batch, 2] and [/red] differ \x1b[31m"
    text = report([*trained(), evaluation(4, 1.0, "v", "[bold]m"), ended(70, cause)], width=120)
    assert "70 shapes [batch, 2] and [/red] differ \\x1b[31m" in text
    assert "[bold]m" in text


def test_a_long_cause_is_cut():
    text = report([*trained(), ended(70, "x" * 999)], width=80)
    assert 100 < text.count("x") < 140
    assert "..." in text


def test_a_run_without_an_end_is_not_called_cut_off_before_another_attempt():
    first, second = [line for line in report([*trained(), attempt(2, 2, 40.0)]).splitlines() if " 2  " in line][-2:]
    assert first.rstrip().endswith("  cut off")
    assert second.rstrip().endswith("not yet, or cut off")


def test_the_end_that_a_killed_process_could_not_write_is_taken_from_exit_json(tmp_path):
    found = attempts(parsed(trained()))
    told_by = {"code": 70, "cause": "rank 1 was ended by SIGKILL", "hint": "", "where": {}, "class": "internal error"}
    (tmp_path / "exit.json").write_text(json.dumps(told_by))
    assert with_first_cause(tmp_path, found)[0].cause == "rank 1 was ended by SIGKILL"
    peer = attempts(parsed([*trained(), ended(70, "RuntimeError: connection reset by peer")]))
    assert with_first_cause(tmp_path, peer)[0].cause == "rank 1 was ended by SIGKILL"
    own = attempts(parsed([*trained(), ended(82, "loss is nan")]))
    assert with_first_cause(tmp_path, own) == own
    os.utime(tmp_path / "exit.json", (1.0, 1.0))  # of an earlier attempt
    assert with_first_cause(tmp_path, found) == found
    (tmp_path / "exit.json").write_text("{")
    assert with_first_cause(tmp_path, found) == found


def test_what_was_undone_is_told():
    text = report([attempt(), step(1), step(2), rollback(2, 1), step(2), ended(0, "done")])
    assert "step 2 undone, back to step 1: not finite" in text
    assert "samples left out: 2" in " ".join(text.split())
