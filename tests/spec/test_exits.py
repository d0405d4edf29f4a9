"""Ends as people read them."""

import subprocess
import sys

from drivetrain.spec.exits import Exit, Failure


def test_the_last_line_of_a_traceback_has_cause_place_and_hint_and_the_code():
    failure = Failure(Exit.INPUT_MISSING, "no run at x", "name a run directory", file="x", rank=2)
    said = "66 input missing: no run at x (file x, rank 2). name a run directory"
    assert str(failure) == said
    assert failure.outcome.line() == f"drivetrain: {said}"
    code = "from drivetrain import Exit, Failure; raise Failure(Exit.BAD_DATA, 'torn', 'mend it')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == "drivetrain.spec.exits.Failure: 65 bad data: torn. mend it"


def test_what_a_user_has_interrupted_is_not_told_as_committed():
    assert Failure(Exit.STOPPED, "", **{"class": "interrupted"}).outcome.line() == "drivetrain: 75 interrupted"
    assert "committed" in Failure(Exit.STOPPED, "").outcome.line()


def test_what_a_file_calls_its_columns_does_not_steer_a_terminal():
    failure = Failure(Exit.BAD_DATA, "no column 'x'", "there are \x1b[31mred, \rback\nand\tso on")
    assert str(failure) == "65 bad data: no column 'x'. there are \\x1b[31mred, \\rback\nand\tso on"
