"""Seeded edits: each is told where the code does something else after it, and rightly ignored where it does not."""

import json
import os
import shutil

import pytest

import drivetrain
from drills.edits import EDITS, edited, recipe, write
from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import AttemptRecord
from drivetrain.spec.code.scan import scan
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from golden.warm import warm

COUNT = 200
WHOLE = 20


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def test_two_hundred_edits_are_told_or_rightly_ignored(tmp_path):
    def digest(folder):
        return scan(load(recipe(), folder=folder).recipe).digest

    folder = tmp_path / "code"
    write(folder)
    before, wrong = digest(folder), []
    for number in range(COUNT):
        edit = edited(folder, number)
        if (digest(folder) != before) != edit.told:
            wrong.append((number, edit.name))
        shutil.rmtree(folder)
    assert not wrong
    assert 10 * len(EDITS) <= COUNT


@pytest.mark.xdist_group("golden")
@pytest.mark.timeout(300)
def test_twenty_edits_of_a_run_that_is_half_done(tmp_path):
    """A resume goes on silently where the code does the same; else it is refused, and told where it is accepted."""
    with warm(tmp_path) as command:
        for number in range(WHOLE):
            folder = tmp_path / str(number)
            write(folder)
            (folder / "recipe.json").write_text(json.dumps(recipe()))
            os.chdir(folder)  # `warm` goes back

            def train(*more, folder=folder):
                return command(["train", "recipe.json", "--run", "run", "budget.steps=20", *more], folder)

            assert train("--steps", "12") == Exit.STOPPED
            edit = edited(folder, number)
            # 78: today's class takes other arguments.
            expected = (Exit.INCOMPATIBLE, Exit.BAD_RECIPE) if edit.told else (Exit.STOPPED,)
            assert train("--steps", "1") in expected, edit.name
            if edit.told:
                # Code that cannot be run any more ends otherwise: it is never taken for the other one.
                train("--override", "code")
            attempts = [each for each in read(folder / "run" / "ledger.jsonl") if isinstance(each, AttemptRecord)]
            assert len({each.claim.code for each in attempts}) == 1 + (edit.told and len(attempts) > 1), edit.name
            stretches = drivetrain.verify(folder / "run", data=False)["code"]
            assert [each["from_step"] for each in stretches] == [0, 12][: len({each.claim.code for each in attempts})]
