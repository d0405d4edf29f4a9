"""Whole runs whose tables TorchRec looks up and moves, beside those of our own backend."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import drivetrain
from conftest import run_under_supervisor, tensors, trace
from drivetrain.ledger.ledger import read
from drivetrain.run.finished import evaluate_run
from drivetrain.serving import Scorer
from drivetrain.spec.exits import Exit
from own_torchrec import recipe

pytest.importorskip("fbgemm_gpu", reason="it is not installed: see docs/tables.md")
pytest.importorskip("torchrec", reason="it is not installed: see docs/tables.md")

pytestmark = [
    pytest.mark.xdist_group("torchrec"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("forked", "importable"),
]

TWO = ("launch.processes=2",)
BY_ROWS = (*TWO, 'embeddings.hold={".*": row}')
WHOLE = (*TWO, 'embeddings.hold={".*": table}')
WORLDS = {"one": (), "rows": BY_ROWS, "whole": WHOLE}


def steps(run):
    return [record for record in read(run / "ledger.jsonl") if record["kind"] == "step"]


def losses(run):
    return [record["losses"]["loss"] for record in steps(run)]


def require_alike(run, other):
    """Losses, rows and their state are the same but for rounding, under the same names."""
    assert losses(run) == pytest.approx(losses(other), abs=1e-6)
    found, wanted = tensors(run), tensors(other)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, rtol=1e-3, atol=1e-5), name


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """What one process comes to with tables of our own."""
    run = tmp_path_factory.mktemp("own") / "run"
    assert run_under_supervisor(recipe(backend="own"), run).code is Exit.DONE
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What TorchRec's tables come to on one process, and on two that hold them by rows or whole."""
    folder = tmp_path_factory.mktemp("torchrec")
    for name, asked in WORLDS.items():
        outcome = run_under_supervisor(recipe(), folder / name, *asked)
        assert outcome.code is Exit.DONE, outcome.cause
    return folder


@pytest.mark.parametrize("world", WORLDS)
def test_rows_come_to_what_our_own_come_to_in_several_micro_batches_and_poolings(own, runs, world):
    require_alike(runs / world, own)
    told = next(record for record in read(runs / world / "ledger.jsonl") if record["kind"] == "attempt")
    assert told["environment"]["package.torchrec"].startswith("1.8.")
    assert told["environment"]["package.fbgemm_gpu"].startswith("1.8.")


def test_bits_are_claimed_to_be_the_same_only_where_the_same_processes_hold_the_same_rows(own, runs):
    keys = {}
    for run in (own, *(runs / world for world in WORLDS)):
        (attempt,) = [record for record in read(run / "ledger.jsonl") if record["kind"] == "attempt"]
        assert attempt["claim"]["class"] == "same-world"
        keys[run] = attempt["claim"]["key"]
    assert len(set(keys.values())) == 4


def test_all_its_optimizers_move_rows_as_our_own_do_by_groups_and_schedules(tmp_path):
    rows = {"optimizer": {"kind": "adagrad", "lr": 0.1}, "schedule": {"kind": "cosine"}}
    narrow = {"kind": "rowwise_adagrad", "lr": 0.2, "initial": 0.1, "eps": 1e-3}
    rows["groups"] = [{"match": "items", "optimizer": narrow}]
    rows["groups"] += [{"match": "users", "optimizer": {"kind": "sgd", "lr": 0.5}}]
    for name, backend, asked in (("own", "own", ()), ("one", "torchrec", ()), ("two", "torchrec", TWO)):
        given = recipe(backend=backend, embeddings=rows)
        assert run_under_supervisor(given, tmp_path / name, *asked, most_steps=8).code is Exit.STOPPED
    for name in ("one", "two"):
        require_alike(tmp_path / name, tmp_path / "own")
        found, wanted = (steps(tmp_path / run) for run in (name, "own"))
        assert [record["lr"] for record in found] == [record["lr"] for record in wanted]


def test_a_run_that_is_stopped_goes_on_to_the_same_bits(runs, tmp_path):
    parts = tmp_path / "parts"
    assert run_under_supervisor(recipe(), parts, *BY_ROWS, most_steps=5).code is Exit.STOPPED
    assert run_under_supervisor(recipe(), parts, *BY_ROWS).code is Exit.DONE
    assert trace(parts) == trace(runs / "rows")


def test_commits_go_from_one_backend_to_the_other_and_to_any_number_of_processes(own, tmp_path):
    run, change = tmp_path / "run", ("embeddings.backend",)
    for backend, asked in (("torchrec", BY_ROWS), ("own", ()), ("torchrec", WHOLE)):
        given = recipe(backend=backend)
        assert run_under_supervisor(given, run, *asked, most_steps=3, override=change).code is Exit.STOPPED
    refused = run_under_supervisor(recipe(backend="own"), run)
    assert refused.code is Exit.INCOMPATIBLE
    assert "embeddings.backend: 'torchrec' -> 'own'" in refused.cause
    assert run_under_supervisor(recipe(), run).code is Exit.DONE
    require_alike(run, own)


def test_a_loss_that_is_not_finite_on_one_rank_moves_no_row_on_any(tmp_path):
    run, asked = tmp_path / "run", (*BY_ROWS, "guard.nonfinite=skip")
    assert run_under_supervisor(recipe("Poisoned"), run, *asked, most_steps=2).code is Exit.STOPPED
    before = tensors(run)
    assert run_under_supervisor(recipe("Poisoned"), run, *asked, most_steps=1).code is Exit.STOPPED
    assert [record["step"] for record in steps(run) if record.skipped] == [3]
    after = tensors(run)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_networks_that_move_in_turn_and_scaled_losses_come_to_what_our_own_do(tmp_path):
    turns = {"precision": "fp16", "scaling": {"start": 2.0**10}, "networks": {"other": {"turns": [1, 2]}}}
    for name, backend, asked in (("own", "own", ()), ("two", "torchrec", TWO)):
        given = recipe("Rivals", backend, **turns)
        assert run_under_supervisor(given, tmp_path / name, *asked, most_steps=6).code is Exit.STOPPED
    found, wanted = tensors(tmp_path / "two"), tensors(tmp_path / "own")
    assert found.keys() == wanted.keys()
    assert int(found["rows/other/embeddings.table_items/moves"]) == 4
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, rtol=2e-2, atol=1e-3), name


def test_ranks_without_samples_or_tables_pass_with_those_that_have_some(tmp_path):
    last = {"budget": {"epochs": 1}, "data": {"train": {"sources": [{"kind": "own_torchrec:Few"}]}}}
    four = ("launch.processes=4", 'embeddings.hold={".*": table}')
    for name, backend, asked in (("own", "own", ()), ("rows", "torchrec", BY_ROWS), ("four", "torchrec", four)):
        assert run_under_supervisor(recipe(backend=backend, **last), tmp_path / name, *asked).code is Exit.DONE
    require_alike(tmp_path / "rows", tmp_path / "own")
    require_alike(tmp_path / "four", tmp_path / "own")


def test_a_finished_run_is_scored_without_torchrec(runs, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fbgemm_gpu", None)
    wanted = [r for r in read(runs / "rows" / "ledger.jsonl") if r["kind"] == "evaluation"][-1]["metrics"]
    scores = evaluate_run(runs / "rows", None)
    assert json.loads(json.dumps(scores.metrics))["likes"]["loss"] == pytest.approx(wanted["likes"]["loss"], rel=1e-5)


def test_a_trained_run_is_predicted_and_exported_without_torchrec_as_one_of_our_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = "".join(f"u{n % 9},w{n % 7},{n % 3 == 0:d}\n" for n in range(64))
    Path("log.csv").write_text(f"who,what,clicked\n{lines}")
    given = {
        "name": "clicks",
        "task": {
            "kind": "ranking",
            "dim": 4,
            "features": {"who": {"hash": 20}, "what": {"hash": 30}},
            "labels": {"clicked": {}},
            "model": {"kind": "deepfm", "hidden": [8]},
        },
        "data": {"train": {"sources": [{"kind": "columns", "path": "log.csv"}]}},
        "batch": {"size": 8},
        "budget": {"steps": 8},
        "optimizer": {"kind": "adamw", "clip": None},
        "device": "cpu",
    }
    said = {}
    for backend, asked in (("own", ()), ("torchrec", BY_ROWS)):
        rows = {"backend": backend, "optimizer": {"kind": "rowwise_adagrad", "lr": 0.1}}
        assert run_under_supervisor(given | {"embeddings": rows}, Path(backend), *asked).code is Exit.DONE
        with monkeypatch.context() as without:
            for module in ("fbgemm_gpu", "torchrec"):
                without.setitem(sys.modules, module, None)
            assert drivetrain.predict(backend, "log.csv", f"{backend}.jsonl") == 64
            drivetrain.export(backend, f"{backend}-served")
        lines = Path(f"{backend}.jsonl").read_text().splitlines()
        said[backend] = np.array([json.loads(line)["clicked"] for line in lines])
        columns = {"who": [f"u{n % 9}" for n in range(64)], "what": [f"w{n % 7}" for n in range(64)]}
        assert Scorer(f"{backend}-served")(columns)["clicked"] == pytest.approx(said[backend], abs=1e-6)
    assert said["torchrec"] == pytest.approx(said["own"], abs=1e-5)
    assert np.ptp(said["own"]) > 0.01
