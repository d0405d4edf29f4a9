"""Steps under torch's profiler."""

import gzip
import json
import stat

import pytest

import drivetrain
from conftest import trace
from drivetrain import Exit, Failure
from drivetrain.ledger.ledger import read


def train(recipe, run, *overrides):
    drivetrain.train(recipe, overrides, run=run, progress=False)
    return run


def notes(run):
    return [record["text"] for record in read(run / "ledger.jsonl") if record["kind"] == "note"]


def events(run, name):
    with gzip.open(run / "profile" / f"{name}.json.gz") as file:
        return {event.get("name") for event in json.load(file)["traceEvents"]}


def test_the_profiler_changes_no_bit_and_writes_for_its_owner_only(tiny, tmp_path):
    plain = train(tiny, tmp_path / "plain")
    run = train(tiny, tmp_path / "run", "profile={start: 4, steps: 2}")
    assert trace(run) == trace(plain)
    name = "step-00000004-rank-0"
    assert sorted(path.name for path in (run / "profile").iterdir()) == [f"{name}.json.gz", f"{name}.txt"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (run / "profile").iterdir()} == {0o600}
    assert stat.S_IMODE((run / "profile").stat().st_mode) == 0o700
    found = events(run, name)
    assert {"step 4", "step 5"} <= found
    assert not {"step 3", "step 6"} & found
    assert "aten::" in (run / "profile" / f"{name}.txt").read_text()
    (note,) = notes(run)
    assert note == f"profile of steps 4 to 5: profile/{name}.json.gz, profile/{name}.txt"
    train(tiny, run, "profile={start: 4, steps: 2}", "evaluate.every=null")
    assert len(notes(run)) == 1


def test_a_run_that_ends_or_begins_within_the_window_profiles_what_it_makes_of_it(tiny, tmp_path):
    for stop in ("[5]", "[]"):
        train(tiny, tmp_path / "run", "profile={start: 4, steps: 4}", f"stop.at={stop}")
    assert [note.partition(":")[0] for note in notes(tmp_path / "run")] == [
        "profile of steps 4 to 5",
        "profile of steps 6 to 7",
    ]
    assert "step 6" in events(tmp_path / "run", "step-00000006-rank-0")


def test_other_ranks_are_profiled_where_the_recipe_names_them(tiny, tmp_path):
    run = train(tiny, tmp_path / "run", "profile={start: 2, steps: 1, ranks: [1]}", "launch.processes=2")
    assert "step 2" in events(run, "step-00000002-rank-1")
    assert not list((run / "profile").glob("*rank-0*"))
    assert "rank-1.json.gz" in notes(run)[0]


def test_a_rank_that_is_not_there_is_a_mistake(tiny, tmp_path):
    with pytest.raises(Failure) as caught:
        train(tiny, tmp_path / "run", "profile={start: 2, ranks: [0, 1]}")
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    assert "there is no rank 1 among 1 processes" in caught.value.details


def test_a_profile_that_cannot_be_written_does_not_end_the_run(tiny, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "profile").write_text("in its way")
    run = train(tiny, tmp_path / "run", "profile={start: 2, steps: 1}")
    assert "the profile cannot be written" in notes(run)[0]
    assert "the profile cannot be written" in capsys.readouterr().err


def test_an_error_within_the_window_is_told_as_it_is(tiny, tmp_path, corpus):
    tiny["data"]["train"]["sources"][0]["path"] = str(corpus)
    with pytest.raises(Failure) as caught:
        train(tiny, tmp_path / "run", "profile={start: 1, steps: 9}", "optimizer.lr=1e30", "optimizer.clip=null")
    assert caught.value.outcome.code == Exit.DIVERGED
    assert not list((tmp_path / "run").glob("profile/*"))
    train(tiny, tmp_path / "after", "profile={start: 1, steps: 1}")  # the profiler is free again
