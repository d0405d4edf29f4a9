"""What the board answers, over runs on the disk."""

import json
import os
from urllib.parse import quote

import pytest

from boards import append, decoded, made_run, serving
from drivetrain.data.order import Order
from records import attempt, commit, ended, evaluation, rollback, step

SHOW = {"kind": "show", "time": 12.0, "attempt": 1, "step": 5, "text": {"sample": "once"}}
SHOW["files"] = {"sample": "gallery/step-00000005/sample.txt", "tone": "gallery/step-00000005/tone.wav"}


@pytest.fixture
def runs(tmp_path):
    first = [attempt(steps=100), *(step(at) for at in range(1, 41)), evaluation(20), commit(40, at=60.0), SHOW]
    again = [step(at, at=70.0, loss=1.0) for at in range(31, 51)]
    run = made_run(tmp_path / "one", [*first, rollback(40, 30), *again, commit(50, at=120.0)])
    recipe = {"name": "two", "optimizer": {"lr": 0.5}}
    made_run(tmp_path / "deep" / "er" / "two", [attempt(), step(1), ended(0, "done")], recipe)
    (run / "gallery" / "step-00000005").mkdir(parents=True)
    (run / "gallery" / "step-00000005" / "tone.wav").write_bytes(b"RIFF")
    (run / "logs").mkdir()
    (run / "logs" / "rank-0.txt").write_text("x" * 100_000 + "the end")
    (run / "checkpoints" / "step-00000040").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def board(runs):
    with serving(runs) as asked:
        yield asked


@pytest.fixture
def one(board):
    return f"/api/runs/{board.run('one')['id']}"


def test_curves_are_those_of_the_ledger_with_what_is_void(board, one):
    answer = board.ask(path=f"{one}/curves?n=train/loss&n=dogs/bits", headers=board.own)
    head, found = decoded(answer.body)
    x, low, high, mean, flags = found["train/loss"]
    assert x.tolist() == [*range(1, 41), *range(31, 51)]
    assert flags[:30].tolist() == [0] * 30
    assert set(flags[30:40] & 1) == {1}
    assert flags[40] == 2
    assert (low == high).all()
    assert mean[flags & 1 == 0].tolist() == [2.5] * 30 + [1.0] * 20
    assert found["dogs/bits"][0].tolist() == [20]
    assert head["records"] == board.run("one")["records"]


def test_the_row_says_what_the_run_is_at(board):
    row = board.run("one")
    assert (row["step"], row["steps"], row["samples"], row["tokens"]) == (50, 100, 400, 40_000)
    assert row["losses"] == {"loss": 1.0}
    assert row["rates"] == {"samples": 8.0, "tokens": 800.0}
    assert row["state"] == "cut off"
    assert row["mesh"] == {"shard": 2}
    assert row["commit_bytes"] == 1000
    assert board.run("two")["state"] == "done"


def test_filters_and_columns_know_recipe_metrics_and_state(board):
    board.run("two")
    found = board.get("/api/runs?filter=optimizer.lr%20%3E%200.1&column=optimizer.lr&column=train/loss&column=none")
    (row,) = found["runs"]
    assert row["values"] == {"optimizer.lr": 0.5, "train/loss": 2.5, "none": None}
    assert len(board.get("/api/runs?filter=state%20=%20done%20or%20tag%20=%20x")["runs"]) == 1
    assert "character" in board.get("/api/runs?filter=(")["problem"]
    for text in (
        '"last loss" < 2',
        '"best metric" > 0',
        "commit >= 1000",
        "goodput > 10%",
        "processes = 2 and step > 1",
    ):
        told = board.get(f"/api/runs?filter={quote(text)}")
        assert ([row["name"] for row in told["runs"]], told["total"], told["problem"]) == (["one"], 2, None), text
    told = board.get("/api/runs?filter=optimzer.lr%20>%200")
    assert (told["runs"], told["total"]) == ([], 2)
    assert "no run has 'optimzer.lr'" in told["problem"]
    keys = board.get("/api/keys")
    assert "optimizer.lr" in keys["keys"]
    assert "dogs/bits" in keys["metrics"]


def test_marks_and_records_are_found_by_place_kind_and_text(board, one):
    marks = board.get(f"{one}/marks")["marks"]
    kinds = [mark["kind"] for mark in marks]
    assert kinds == ["attempt", "evaluation", "commit", "rollback", "commit"]
    assert [mark["void"] for mark in marks] == [False, False, True, False, False]
    assert "back to 30" in marks[-2]["text"]
    at = board.get(f"{one}/record?by=step&at=33.4")["record"]
    assert (at["step"], at["losses"]["loss"]) == (33, 1.0)
    assert board.get(f"{one}/record?by=samples&at=80")["record"]["step"] == 10
    assert board.get(f"{one}/record?by=seconds&at=20")["record"]["step"] == 20
    assert board.get(f"{one}/record?offset={marks[1]['offset']}")["record"]["kind"] == "evaluation"
    assert board.ask(path=f"{one}/record?offset=3", headers=board.own).status == 404
    told = board.get(f"{one}/records?kind=commit&kind=rollback")
    assert [row["record"]["kind"] for row in told["records"]] == ["commit", "rollback", "commit"]
    assert [row["record"]["kind"] for row in board.get(f"{one}/records?search=ONCE")["records"]] == ["show"]
    first = board.get(f"{one}/records?limit=10")
    rest = board.get(f"{one}/records?limit=500&before={first['before']}")
    assert len(first["records"]) + len(rest["records"]) == board.run("one")["records"]
    assert not rest["more"]


def test_a_record_tells_which_samples_its_step_has_read(board, one):
    (told,) = board.get(f"{one}/record?by=step&at=5")["samples"]
    order = Order(32, seed=0, shuffle=True)
    assert told == {"source": "cats", "total": 8, "ids": sorted(order.ids(32, 40).tolist())}
    # What a rollback left out, no step has read since.
    left_out = {4, 9}
    for at in range(31, 51):
        (told,) = board.get(f"{one}/record?by=step&at={at}")["samples"]
        assert set(told["ids"]) == set(order.ids(8 * at - 8, 8 * at).tolist()) - left_out
    assert board.get(f"{one}/records?kind=commit")["records"]
    assert board.get(f"{one}/data") == {
        "sources": [{"source": "cats", "samples": 32, "taken": 400}],
        "left_out": [4, 9],
        "left_out_total": 2,
    }


def test_a_ledger_with_an_order_of_another_form_has_no_samples(board, runs):
    made_run(runs / "old", [attempt() | {"order": {"sizes": [32]}}, step(1)])
    old = f"/api/runs/{board.run('old')['id']}"
    assert board.get(f"{old}/record?by=step&at=1")["samples"] == []
    assert board.get(f"{old}/data")["sources"] == []


@pytest.mark.parametrize("position", [-1, 1 << 60, True, "1", None, 1.5, "--help"])
def test_samples_are_decoded_from_a_position_only(board, one, position):
    assert board.send("POST", f"{one}/samples", {"position": position}).status == 400


def test_commits_tell_their_parent_and_the_best_that_is_there(board, runs):
    best = {"checkpoint": {"keep_best": {"metric": "dogs/bits", "mode": "max"}}}
    scored = [(10, 1.0), (20, 3.0), (30, 2.0), (40, "nan")]
    told = [attempt(steps=100)]
    for at, value in scored:
        told += [*(step(made) for made in range(at - 9, at + 1)), evaluation(at, value), commit(at, at=20.0 + at)]
    run = made_run(runs / "best", told, {"name": "best", **best})
    for at in (10, 30, 40):
        (run / "checkpoints" / f"step-{at:08d}").mkdir(parents=True)
    rows = board.get(f"/api/runs/{board.run('best')['id']}/commits")["commits"]
    assert [(row["step"], row["here"], row["score"], row["best"]) for row in rows] == [
        (40, True, None, False),
        (30, True, 2.0, True),
        (20, False, 3.0, False),
        (10, True, 1.0, False),
    ]
    assert [row["parent"] for row in rows] == [*(f"step-{at:08d}" for at in (30, 20, 10)), None]


def test_a_commit_whose_record_was_never_written_is_listed(board, one, runs):
    folder = runs / "one" / "checkpoints" / "step-00000055"
    folder.mkdir()
    assert {row["name"] for row in board.get(f"{one}/commits")["commits"]} == {"step-00000050"}
    (folder / "MANIFEST.json").write_text("{}")
    newest = board.get(f"{one}/commits")["commits"][0]
    assert (newest["name"], newest["step"], newest["here"], newest["bytes"]) == ("step-00000055", 55, True, None)


def test_time_has_the_uses_of_the_report(board, one, runs):
    from drivetrain.ledger.run_summary import summary_of

    told = board.get(f"{one}/time")
    assert told["seconds"] == pytest.approx(summary_of(runs / "one").seconds)
    assert [row["step"] for row in told["commits"]] == [50]
    assert told["attempts"][0]["seconds"]["evaluation"] == 0.5
    (only,) = told["attempts"]
    assert sum(only["seconds"].values()) == pytest.approx(only["ended"] - only["started"])


def test_gallery_files_and_logs_are_given_by_listed_names_only(board, one, runs):
    told = board.get(f"{one}/gallery")
    assert told["steps"] == [5]
    assert {(item["name"], item["kind"]) for item in told["items"]} == {("sample", "text"), ("tone", "audio")}
    sound = board.ask(path=f"{one}/file?path=gallery/step-00000005/tone.wav", headers=board.own)
    assert (sound.status, sound.body, sound.headers["content-type"]) == (200, b"RIFF", "audio/wav")
    (runs / "one" / "gallery" / "link").symlink_to("/etc")
    wrong = ["../one/ledger.jsonl", "ledger.jsonl", "/etc/passwd", "gallery/../ledger.jsonl", "gallery/link/passwd"]
    for path in [*wrong, "gallery", "", "gallery//x", "gallery/%00", "checkpoints/step-00000040"]:
        assert board.ask(path=f"{one}/file?path={path}", headers=board.own).status == 404, path
    assert [log["name"] for log in board.get(f"{one}/logs")["logs"]] == ["rank-0.txt"]
    end = board.get(f"{one}/logs?name=rank-0.txt")
    assert end["text"].endswith("the end")
    assert end["begin"] == 100_007 - 65_536
    assert board.get(f"{one}/logs?name=rank-0.txt&end={end['begin']}")["begin"] == 0
    assert board.ask(path=f"{one}/logs?name=../ledger.jsonl", headers=board.own).status == 404


@pytest.mark.parametrize("before", ["-1", "-1e308", "1e308"])
def test_records_before_a_place_that_is_none(board, one, before):
    found = board.get(f"{one}/records?before={before}")
    assert len(found["records"]) == (0 if before.startswith("-") else len(board.get(f"{one}/records")["records"]))


def test_a_ledger_that_is_cut_while_pages_look_is_said_as_missing(tmp_path):
    run = made_run(tmp_path / "one", [attempt(), *(step(at) for at in range(1, 9))])
    with serving(tmp_path) as board:
        one = f"/api/runs/{board.run('one')['id']}"
        # As between two looks at it.
        board.board.runs.close()
        for size in (2500, 0):
            os.truncate(run / "ledger.jsonl", size)
            for path in ("curves?n=train/loss", "record?at=8", f"record?offset={size - 9}", "records"):
                assert board.ask(path=f"{one}/{path}", headers=board.own).status in (200, 404), path
            board.board.runs.all[one.split("/")[-1]].cache.clear()
            assert board.get("/api/runs")["runs"][0]["step"] == 8


def test_recipes_are_shown_with_origins_and_compared(board, one):
    values = {row["key"]: row for row in board.get(f"{one}/recipe")["values"]}
    assert values["optimizer.lr"]["value"] == 1e-3
    assert values["name"]["origin"] == "r.yaml:1"
    two = board.run("two")["id"]
    assert not any(row["here"] == row["there"] for row in board.get(f"{one}/recipe?other={two}")["differences"])
    differ = {row["key"]: row for row in board.get(f"{one}/recipe?other={two}")["differences"]}
    assert (differ["optimizer.lr"]["here"], differ["optimizer.lr"]["there"]) == (1e-3, 0.5)
    compared = board.get(f"/api/compare?run={one.split('/')[-1]}&run={two}")
    assert any(row["key"] == "optimizer.lr" for row in compared["differences"])
    assert {row["name"] for row in compared["at_equal"]} >= {"train/loss"}


def test_secrets_in_a_recipe_do_not_leave_the_run(tmp_path):
    made_run(tmp_path / "one", [attempt()], {"name": "x", "checkpoint": {"mirror": "s3://user:hunter2@host/x"}})
    with serving(tmp_path) as board:
        id = board.run("one")["id"]
        for path in ("/api/runs?column=checkpoint.mirror", f"/api/runs/{id}/recipe", "/api/keys"):
            assert b"hunter2" not in board.ask(path=path, headers=board.own).body


def test_a_commit_is_verified_and_only_one_that_the_ledger_knows(board, one):
    board.ask("POST", f"{one}/commits/step-00000040", board.own, b'{"act": "explode"}')
    assert board.send("POST", f"{one}/commits/--force", {"act": "remove"}).status == 404
    assert board.send("POST", f"{one}/commits/step-99999999", {"act": "verify"}).status == 404


def test_news_come_within_half_a_second(board, one, runs):
    import http.client
    import time

    asking = http.client.HTTPConnection("127.0.0.1", board.port, timeout=20)
    asking.request("GET", "/api/events", headers=board.own | {"host": f"127.0.0.1:{board.port}"})
    answer = asking.getresponse()
    while not (line := answer.readline()).startswith(b"data:"):
        pass
    id = one.split("/")[-1]
    assert json.loads(line[5:])[id][0] == board.run("one")["records"]
    append(runs / "one", [step(51, at=80.0)])
    began = time.monotonic()
    while not (line := answer.readline()).startswith(b"data:"):
        pass
    assert json.loads(line[5:])[id][0] == board.run("one")["records"]
    assert time.monotonic() - began < 10
    asking.close()
