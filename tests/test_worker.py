from drivetrain.spec.exits import Exit, Outcome
from drivetrain.worker import leave

OUTCOME = Outcome(code=Exit.STORAGE, cause="the ledger was removed", hint="put a copy there", where={"step": 4})


def test_an_outcome_that_no_file_can_take_is_told_on_stderr(tmp_path, capfd):
    """Where the run directory has vanished, the cause would vanish with it."""
    leave(tmp_path / "gone" / "outcome-0.json", OUTCOME)
    (line,) = capfd.readouterr().err.splitlines()
    assert OUTCOME.line() in line


def test_an_outcome_is_left_in_its_file_and_nowhere_else(tmp_path, capfd):
    leave(tmp_path / "outcome-0.json", OUTCOME)
    assert Outcome.read(tmp_path / "outcome-0.json") == OUTCOME
    assert capfd.readouterr().err == ""
