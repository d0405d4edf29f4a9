import json

import pytest

from drivetrain.cli.main import run as command
from drivetrain.ledger.ledger import LedgerFile
from records import attempt, ended, evaluation, rollback, step


@pytest.fixture
def run(tmp_path):
    ledger = LedgerFile.open(tmp_path / "ledger.jsonl")
    for record in (attempt(), step(1), step(2, loss=float("nan")), evaluation(2), attempt(2, 1, at=30.0)):
        ledger.append(record)
    ledger.append(step(2, at=31.0, loss=float("inf")))
    ledger.append(ended(82, "loss is inf", at=40.0))
    ledger.close()
    return tmp_path


def refuse(word):
    raise AssertionError(f"{word} is no JSON")


def test_the_report_for_people_is_in_eighty_columns(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert command(["report", str(run)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for words in ("step 2 of 4", "not finite, so not shown: 1 of 2", "82 loss is inf", "lost work", "wall-clock"):
        assert words in text


def test_the_report_for_programs_is_json_and_adds_up(run, capsys):
    assert command(["report", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert told["losses"] == {"loss": "inf"}
    assert [(a["from_step"], a["to_step"], a["code"]) for a in told["attempts"]] == [(0, 2, None), (1, 2, 82)]
    assert sum(told["seconds"].values()) == pytest.approx(told["wall_clock"]) == pytest.approx(31.0)
    assert told["seconds"]["lost work"] == pytest.approx(1.5)  # a step, its data and an evaluation
    assert told["throughput"]["steps"]["tokens_per_second"] == pytest.approx(800.0)
    assert told["throughput"]["wall_clock"]["tokens_per_second"] == pytest.approx(1600 / 31)
    assert told["throughput"]["last_steps"]["mfu"] is None


def test_each_evaluation_that_counts_is_one_line_whatever_was_made_twice(tmp_path, capsys):
    ledger = LedgerFile.open(tmp_path / "ledger.jsonl")
    records = [attempt(), step(1), evaluation(1, 9.0), step(2), evaluation(2, "nan"), rollback(2, 1), step(2)]
    records += [evaluation(2, "nan"), attempt(2, 0), step(1), evaluation(1, 1.5), step(2), evaluation(2, 1.25)]
    final = evaluation(2, 1.0, name="held") | {"kind": "final", "part": "test"}
    for record in [*records, final]:
        ledger.append(record)
    ledger.close()
    assert command(["report", str(tmp_path), "--evaluations"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    shared = {"time": 20.0}
    assert lines == [
        {"step": 1, "position": 8, "part": "validation", "dogs/bits": 1.5} | shared,
        {"step": 2, "position": 16, "part": "validation", "dogs/bits": 1.25} | shared,
        {"step": 2, "position": 16, "part": "test", "held/bits": 1.0} | shared,
    ]


def test_a_damaged_ledger_is_named_with_its_record(run, capsys):
    path = run / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.001", b"0.002", 1))
    assert command(["report", str(run)]) == 74
    assert "record 2 does not follow" in capsys.readouterr().err


def test_no_run_is_66(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for where in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        assert command(["report", str(where)]) == 66
    assert "no ledger at" in capsys.readouterr().err
