"""Runs that commit 7e89af7 has left go on today: they resume to their end, hold, and are replayed."""

import json
import shutil
from pathlib import Path

import pytest

from drivetrain.spec.affects import bits_digest
from drivetrain.spec.load import load
from golden.record import environment
from golden.warm import warm
from yesterday.make import DATA, EXPECTED, RESUME, RUNS, bits

pytestmark = [pytest.mark.xdist_group("golden"), pytest.mark.timeout(300)]
DONE, STOPPED = 0, 75
OWN = Path(__file__).parent / "own"
"""A run of code of one's own, made by the same commit on another processor, in one process by the Python API."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A copy of all that is kept, and how commands are given there."""
    folder = tmp_path_factory.mktemp("yesterday")
    shutil.copytree(DATA, folder, dirs_exist_ok=True)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)  # the checkout may be read-only
    with warm(folder) as command:
        yield folder, lambda *arguments: command(arguments, folder)


@pytest.fixture(scope="module")
def expected():
    return json.loads(EXPECTED.read_text())


def require_bits(run, wanted, expected):
    """Where the runs were made on such a machine: the bits they have come to there."""
    if expected["environment"] == environment():
        assert bits(run) == wanted


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_yesterday_holds_resumes_and_is_replayed(name, place, expected):
    folder, drivetrain = place
    wanted = expected["runs"][name]
    assert drivetrain("verify", name) == DONE
    assert drivetrain("train", name, "--replay", "--run", f"{name}-again") == DONE
    require_bits(folder / f"{name}-again", wanted["replayed"], expected)
    assert drivetrain("train", name, *RESUME.get(name, ())) == DONE
    require_bits(folder / name, wanted["resumed"], expected)
    assert drivetrain("verify", name) == DONE
    assert drivetrain("verify", f"{name}-again") == DONE


def test_a_run_of_code_of_one_s_own_goes_on_with_a_note(tmp_path, monkeypatch, capfd):
    """7e89af7 kept no record of code, and the text of a source's class was in its fingerprint."""
    recipe = load(OWN / "recipe.json").recipe
    shutil.copytree(OWN / "run", tmp_path / "runs" / f"own-{bits_digest(recipe)}")
    shutil.copy(OWN / "recipe.json", tmp_path)
    run = f"runs/own-{bits_digest(recipe)}"
    with warm(tmp_path) as command:
        monkeypatch.setenv("COLUMNS", "300")
        assert command(["train", "recipe.json", "--steps", "1"], tmp_path) == STOPPED
        assert f"kept no record of its code; to go on with it: drivetrain train {run}" in capfd.readouterr().out
        assert len(list((tmp_path / "runs").iterdir())) == 2
        assert command(["verify", run], tmp_path) == DONE
        assert command(["train", run, "budget.steps=24", "--override", "budget"], tmp_path) == DONE
        assert (
            "step-00000012 was made before runs kept a record of their code"
            in (tmp_path / run / "ledger.jsonl").read_text()
        )
        assert command(["train", run], tmp_path) == DONE, "the new commits are by this code"
        capfd.readouterr()
        assert command(["verify", run], tmp_path) == DONE
    said = capfd.readouterr().out
    assert "not recorded from step 1 on" in said
    assert "from step 13 on" in said
    assert "which code ran in attempts from before it was recorded" in said


def test_every_kept_run_is_tried_and_what_each_is_for_is_in_it(expected):
    kept = {path.parent.name for path in DATA.glob("*/ledger.jsonl")}
    assert kept == set(RUNS) == set(expected["runs"])
    ledgers = {name: (DATA / name / "ledger.jsonl").read_text() for name in kept}
    assert '"kind":"exit"' not in ledgers["killed"]
    assert '"verb":"set"' in ledgers["told"]
    assert '"replayed":true' in ledgers["replay"]
    assert '"world":2' in ledgers["two"]
    assert '"code":0' in ledgers["finished"]
