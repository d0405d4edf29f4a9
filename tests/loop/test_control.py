"""Commands to a run that trains."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest

from conftest import trace
from drills import commands
from drills.fault import Fault
from drills.runs import drill, one_server
from drivetrain import Failure
from drivetrain.checkpoint.manifest import step_of
from drivetrain.checkpoint.retention import pinned_steps
from drivetrain.cli.main import run as main
from drivetrain.data.order import digest
from drivetrain.launch.inbox import post
from drivetrain.ledger.ledger import LedgerFile
from drivetrain.loop.control import AT_ONCE
from drivetrain.run.proof import prove
from drivetrain.run.replay import replayed
from drivetrain.spec.commands import Command
from drivetrain.spec.exits import Exit
from records import of_kind, rechained


@pytest.fixture
def seen(tmp_path):
    """Where processes write down what they do."""
    folder = tmp_path / "seen"
    folder.mkdir()
    return folder


def told(run, *texts, verb="set"):
    return [post(run, Command(verb, text)) for text in texts]


@pytest.mark.parametrize(("processes", "kills"), [(1, False), (2, False), (2, True)])
def test_random_commands_are_done_at_one_step_on_all_ranks_and_a_replay_is_bit_equal(tmp_path, processes, kills):
    with one_server():
        count, wrong = commands.told_and_replayed(
            tmp_path, steps=240, processes=processes, seed=processes, most=40, pause=0.03, kills=kills
        )
    assert wrong == []
    assert count > 10


def test_what_is_set_holds_from_the_next_step_on_and_after_a_resume(tmp_path, seen):
    run, settings = tmp_path / "run", commands.recipe(40, 1, seen) | {"schedule": {"kind": "constant"}}
    run.mkdir()
    told(run, "optimizer.lr=0.5")
    with one_server():
        assert commands.train(settings | {"stop": {"at": [20]}}, run).code is Exit.STOPPED
        assert commands.train(settings, run).code is Exit.DONE
    (command,) = of_kind(run, "command")
    rates = {record["step"]: record["lr"]["model"] for record in of_kind(run, "step")}
    assert command["step"] >= 1
    assert rates == {s: 0.5 if s > command["step"] else 0.01 for s in rates}


def test_other_weights_hold_from_the_step_after_the_next_and_verify_and_inspect_agree(tmp_path, seen, capsys):
    run = tmp_path / "run"
    run.mkdir()
    told(run, "data.train.sources[name=a].weight=0", "data.train.sources[name=a].weight=3")
    with one_server():
        assert commands.train(commands.recipe(60, 2, seen), run).code is Exit.DONE
    first, second = of_kind(run, "command")
    assert first["effect"]["stage"] == {"start": 8 * (first["step"] + 1), "weights": [0, 1]}
    assert second["effect"]["stage"]["weights"] == [3, 1]
    coverage = of_kind(run, "commit")[-1]["coverage"]
    assert coverage["a"] > 1.9 * coverage["b"]
    assert prove(run).steps == 60
    assert main(["data", "inspect", str(run), "--step", "60", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    ids, positions = (np.array([sample[key] for sample in shown]) for key in ("sample", "position"))
    assert f"{digest(ids, positions):016x}" == of_kind(run, "step")[-1]["samples"]


def test_what_is_no_command_or_may_not_change_is_refused_in_words_and_changes_nothing(tmp_path, seen):
    plain, run = tmp_path / "plain", tmp_path / "run"
    run.mkdir()
    told(run, "optimizer.lr=-1", "task.width=3", "seed=4", "data.train.sources[name=zz].weight=2", "nonsense")
    (run / "control" / ("0" * 20 + "-" + "0" * 16 + ".json")).write_text('{"verb": "rm", "argument": "-rf"}')
    (run / "control" / ("1" * 20 + "-" + "0" * 16 + ".json")).write_text("[")
    (run / "control" / ("2" * 20 + "-" + "0" * 16 + ".json")).symlink_to("/etc/passwd")
    (run / "control" / "notes.txt").write_text("not ours")
    settings = commands.recipe(30, 1, seen)
    with one_server():
        assert commands.train(settings, run).code is Exit.DONE
        assert commands.train(settings, plain).code is Exit.DONE
    found = of_kind(run, "command")
    assert len(found) == 8
    assert all(record["refused"] for record in found)
    assert any("optimizer.lr" in record["refused"] for record in found)
    assert trace(run) == trace(plain)
    assert [path.name for path in (run / "control").iterdir()] == ["notes.txt"]


def test_a_command_that_is_in_the_ledger_is_not_done_again_where_its_file_was_left(tmp_path, seen):
    run = tmp_path / "run"
    run.mkdir()
    (id,) = told(run, "optimizer.lr=0.5")
    kept = (run / "control" / f"{id}.json").read_bytes()
    settings = commands.recipe(30, 1, seen)
    with one_server():
        assert commands.train(settings | {"stop": {"at": [15]}}, run).code is Exit.STOPPED
        (run / "control" / f"{id}.json").write_bytes(kept)  # as if it had been killed between the two
        assert commands.train(settings, run).code is Exit.DONE
    assert [record["id"] for record in of_kind(run, "command")] == [id]
    assert not list((run / "control").iterdir())


def test_a_recipe_that_was_changed_by_hand_takes_the_place_of_what_was_set(tmp_path, seen):
    run, settings = tmp_path / "run", commands.recipe(30, 1, seen) | {"schedule": {"kind": "constant"}}
    run.mkdir()
    told(run, "optimizer.lr=0.5")
    with one_server():
        assert commands.train(settings | {"stop": {"at": [15]}}, run).code is Exit.STOPPED
        changed = settings | {"optimizer": {"lr": 0.25, "clip": 1.0}}
        assert commands.train(changed, run, override=("optimizer.lr",)).code is Exit.DONE
    assert {record["lr"]["model"] for record in of_kind(run, "step") if record["step"] > 15} == {0.25}
    assert any("no longer counts: set optimizer.lr=0.5" in record["text"] for record in of_kind(run, "note"))


def test_steps_that_are_made_again_after_a_new_set_are_no_corruption(tmp_path, seen):
    """It is cut off at step 30, goes on from 20, and is told something there that it had not been told before."""
    run = tmp_path / "run"
    settings = commands.recipe(40, 1, seen) | {"checkpoint": {"every": {"steps": 20}}}
    settings["launch"] = settings["launch"] | {"restarts": 0}
    with one_server():
        assert not drill(settings, run, Fault("kill", 0, "forward", 30)).trace
        told(run, "optimizer.lr=0.5")
        assert commands.train(settings, run).code is Exit.DONE
    assert [record["from_step"] for record in of_kind(run, "attempt")] == [0, 20]
    (command,) = of_kind(run, "command")
    assert 20 < command["step"] < 29
    found = prove(run)
    assert found.again["equal"] == command["step"] - 20


def test_a_replay_needs_the_same_recipe(tmp_path, seen):
    run, settings = tmp_path / "run", commands.recipe(10, 1, seen)
    with one_server():
        assert commands.train(settings, run).code is Exit.DONE
        outcome = commands.train(settings | {"seed": 5}, tmp_path / "other", replay=run)
    assert outcome.code is Exit.BAD_RECIPE


def test_a_replay_of_a_run_that_changed_its_recipe_says_that_its_bits_are_others(tmp_path, seen):
    run, settings = tmp_path / "run", commands.recipe(20, 1, seen)
    changed = settings | {"optimizer": {"lr": 0.25, "clip": 1.0}}
    with one_server():
        # What was made with this seed does not count: the next attempt begins before it.
        assert commands.train(settings | {"seed": 7, "stop": {"at": [5]}}, run).code is Exit.STOPPED
        shutil.rmtree(run / "checkpoints")
        assert commands.train(settings | {"stop": {"at": [10]}}, run).code is Exit.STOPPED
        assert commands.train(settings, tmp_path / "same", replay=run).code is Exit.DONE
        assert commands.train(changed, run, override=("optimizer.lr",)).code is Exit.DONE
        assert commands.train(changed, tmp_path / "again", replay=run).code is Exit.DONE
    said = f"{run} changed its recipe or code after step 10: this replay trains the newest one from the start"
    assert [said in record["text"] for record in of_kind(tmp_path / "again", "note")].count(True) == 1
    assert not any("changed its recipe" in record["text"] for record in of_kind(tmp_path / "same", "note"))


def test_commands_lie_where_only_their_owner_reads_them(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (id,) = told(run, "optimizer.lr=1")
    path = run / "control" / f"{id}.json"
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert oct(path.parent.stat().st_mode & 0o777) == "0o700"
    assert json.loads(path.read_text()) == {"verb": "set", "argument": "optimizer.lr=1"}


@pytest.mark.parametrize(
    "words", [("set",), ("set", "a", "b"), ("pause", "now"), ("profile", "0"), ("profile", "x"), ("rm",)]
)
def test_what_is_no_command_is_told_before_it_is_left(words):
    from drivetrain.spec.commands import parse

    with pytest.raises(Failure) as told:
        parse(words)
    assert told.value.outcome.code is Exit.BAD_COMMAND


def test_hundreds_of_commands_that_wait_are_done_at_several_boundaries_and_are_no_hang(tmp_path, seen):
    run = tmp_path / "run"
    run.mkdir()
    ids = told(run, *(f"optimizer.lr={number / 1000}" for number in range(1, 301)))
    settings = commands.recipe(20, 2, seen)
    with one_server():
        assert commands.train(settings | {"launch": settings["launch"] | {"hang_after": 2.0}}, run).code is Exit.DONE
    assert [record["id"] for record in of_kind(run, "command")] == ids
    assert len(of_kind(run, "attempt")) == 1
    assert max(Counter(record["step"] for record in of_kind(run, "command")).values()) <= AT_ONCE


@pytest.mark.parametrize("forge", ["dropped", "doubled", "moved"])
def test_verify_finds_a_command_that_was_dropped_doubled_or_moved(tmp_path, seen, forge):
    run = tmp_path / "run"
    run.mkdir()
    told(run, "optimizer.lr=0.5")
    settings = commands.recipe(40, 1, seen)
    with one_server():
        assert commands.train(settings | {"stop": {"at": [20]}}, run).code is Exit.STOPPED
        for commit in (run / "checkpoints").iterdir():
            shutil.rmtree(commit)
        assert commands.train(settings, run).code is Exit.DONE
    assert prove(run, data=False).commands == 1
    lines = (run / "ledger.jsonl").read_bytes().splitlines()
    again = next(place for place, line in enumerate(lines) if b'"replayed":true' in line)
    match forge:
        case "dropped":
            del lines[again]
        case "doubled":
            lines.insert(again, lines[again])
        case "moved":
            lines[again] = json.dumps(json.loads(lines[again]) | {"step": 7}).encode()
    (run / "ledger.jsonl").write_bytes(rechained(lines))
    with pytest.raises(Failure) as found:
        prove(run, data=False)
    assert found.value.outcome.code is Exit.BAD_DATA


def test_an_evaluation_that_a_stop_has_cut_off_is_made_at_the_next_start(tmp_path, seen):
    run, settings = tmp_path / "run", commands.recipe(40, 1, seen)
    with one_server():
        assert commands.train(settings | {"stop": {"at": [10]}}, run).code is Exit.STOPPED
        ledger = LedgerFile.open(run / "ledger.jsonl")
        told = {"id": "x", "verb": "evaluate", "argument": "", "effect": {}}
        made = of_kind(run, "attempt")[0]["settings"]
        ledger.append({"kind": "command", "time": 1.0, "attempt": 1, "step": 10, "settings": made, **told})
        ledger.close()
        assert commands.train(settings, run).code is Exit.DONE
    assert [record["step"] for record in of_kind(run, "evaluation")] == [10, 40]
    assert prove(run, data=False).commands == 1


@pytest.mark.parametrize(("verb", "code"), [("stop", Exit.STOPPED), ("resume", Exit.DONE)])
def test_a_stop_before_a_kill_still_counts_after_it(tmp_path, seen, verb, code):
    run, settings = tmp_path / "run", commands.recipe(40, 1, seen)
    with one_server():
        assert commands.train(settings | {"stop": {"at": [10]}}, run).code is Exit.STOPPED
        ledger = LedgerFile.open(run / "ledger.jsonl")
        told = {"id": "x", "verb": verb, "argument": "", "effect": {}}
        made = of_kind(run, "attempt")[0]["settings"]
        ledger.append({"kind": "command", "time": 1.0, "attempt": 1, "step": 10, "settings": made, **told})
        ledger.close()
        assert commands.train(settings, run).code is code


def test_what_waits_when_a_run_ends_is_refused(tmp_path, seen):
    run, settings = tmp_path / "run", commands.recipe(40, 1, seen)
    run.mkdir()
    post(run, Command("stop"))
    with one_server():
        assert commands.train(settings, run).code is Exit.STOPPED
        post(run, Command("stop"))  # left while nobody trains: for the next start
        assert commands.train(settings, run).code is Exit.STOPPED
        assert commands.train(settings, run).code is Exit.DONE
    assert not list((run / "control").iterdir())


def test_a_replay_that_is_past_what_its_source_was_told_later_is_refused(tmp_path, seen):
    run, settings = tmp_path / "run", commands.recipe(40, 1, seen)
    with one_server():
        assert commands.train(settings | {"stop": {"at": [10]}}, run).code is Exit.STOPPED
        assert commands.train(settings | {"stop": {"at": [30]}}, tmp_path / "again", replay=run).code is Exit.STOPPED
        told(run, "optimizer.lr=0.5")
        assert commands.train(settings, run).code is Exit.DONE
        assert commands.train(settings, tmp_path / "again", replay=run).code is Exit.INCOMPATIBLE


def test_a_weight_that_the_recipe_has_at_its_top_can_be_set_where_a_stage_says_something_else(tmp_path, seen):
    run, settings = tmp_path / "run", commands.recipe(40, 1, seen)
    train = settings["data"]["train"] | {"stages": [{"from": {"samples": 1}, "weights": {"b": 1}}]}
    run.mkdir()
    told(run, "data.train.sources[name=a].weight=1")
    with one_server():
        data = settings["data"] | {"train": train}
        assert commands.train(settings | {"data": data}, run).code is Exit.DONE
    assert of_kind(run, "command")[0]["effect"]["stage"]["weights"] == [1, 1]


def test_what_lies_in_the_folder_and_is_no_command_does_not_end_the_run(tmp_path, seen):
    run, settings = tmp_path / "run", commands.recipe(20, 1, seen)
    (run / "control" / ("0" * 20 + "-" + "0" * 16 + ".json")).mkdir(parents=True)
    (run / "control" / ("1" * 20 + "-" + "0" * 16 + ".json")).write_text("[" * 60_000)
    with one_server():
        assert commands.train(settings, run).code is Exit.DONE
    assert [record["id"][0] for record in of_kind(run, "command")] == ["1"]


def test_a_replay_needs_the_other_run_only_for_its_first_start(tmp_path, seen):
    run, again, settings = tmp_path / "run", tmp_path / "again", commands.recipe(40, 1, seen)
    run.mkdir()
    told(run, "optimizer.lr=0.5")
    with one_server():
        assert commands.train(settings, run).code is Exit.DONE
        wanted = trace(run)
        (set_,) = of_kind(run, "command")
        early = settings | {"stop": {"at": [set_["step"] + 5]}}
        assert commands.train(early, again, replay=run).code is Exit.STOPPED
        shutil.rmtree(run)
        assert commands.train(settings, again).code is Exit.DONE
    assert trace(again) == wanted
    assert prove(again, data=False).replayed == 1
    kept = replayed(again, asked=str(run), before=None, recipe="", anew=False)  # as processes that are started again do
    assert kept is not None
    assert set_["id"] in kept.commands
    assert (again / "replay.json").stat().st_mode & 0o777 == 0o600
    kept = json.loads((again / "replay.json").read_text())
    kept["commands"][set_["id"]]["step"] += 1
    (again / "replay.json").write_text(json.dumps(kept))
    with pytest.raises(Failure, match="this replay was not"):
        prove(again, data=False)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_pin_that_is_cut_off_before_its_commit_is_done_by_the_next_attempt(tmp_path, seen, processes):
    run = tmp_path / "run"
    run.mkdir()
    told(run, "", verb="pin")
    with one_server():
        found = drill(commands.recipe(40, processes, seen), run, Fault("kill", 0, "write", 1))
    assert (found.outcome.code, found.starts) == (Exit.DONE, 2)
    assert pinned_steps(run)[-1] in {step_of(path.name) for path in (run / "checkpoints").iterdir()}
    assert prove(run, data=False).commands == 1
