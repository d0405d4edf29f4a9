"""Streams in whole runs: the same samples after any stop, on any number of processes, and where they end."""

import json
import sys
from pathlib import Path

import pytest

from conftest import trace
from drivetrain.checkpoint.commit import load
from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import (
    AttemptRecord,
    CommitRecord,
    NoteRecord,
    RollbackRecord,
    StepRecord,
    StreamEndRecord,
)
from drivetrain.spec.exits import Exit
from own_place import Place

pytestmark = [pytest.mark.xdist_group("golden"), pytest.mark.timeout(300)]
ENDS = [30, 19, 33, 30]


class Streaming(Place):
    """A folder with a recipe beside the module of streams."""

    def __init__(self, folder, *others):
        super().__init__(folder, {}, *others)
        (folder / "my_streams.py").write_text((Path(__file__).parent.parent / "own_streams.py").read_text())

    def write(self, *sources, **sections):
        recipe = {
            "task": {"kind": "my_streams:Fit"},
            "data": {"train": {"sources": [self.source(each) for each in sources]}},
            "batch": {"size": 8},
            "budget": {"steps": 24},
            "optimizer": {"kind": "adamw", "lr": 0.01},
            "checkpoint": {"every": {"steps": 4}},
            "exact": True,
            "lanes": 4,
        }
        super().write(**recipe | sections)

    def source(self, given):
        return {"kind": f"my_streams:{given}"} if isinstance(given, str) else given

    def records(self, run, kind):
        return [record for record in read(self.folder / run / "ledger.jsonl") if isinstance(record, kind)]

    def notes(self, run):
        return [record.text for record in self.records(run, NoteRecord)]


@pytest.fixture
def place(tmp_path, server, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    yield Streaming(tmp_path, server, capfd)
    sys.modules.pop("my_streams", None)


STREAMS = {
    "counted": {"kind": "my_streams:counted"},
    "seekable": {"kind": "my_streams:seekable"},
    "parts": {"kind": "my_streams:parts"},
    "state": {"kind": "my_streams:Stateful"},
    "beside": {"kind": "my_streams:Beside"},
    "ends": {"kind": "my_streams:Stateful", "count": 150},
    "parts-end": {"kind": "my_streams:parts", "ends": ENDS},
}


@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_stopped_and_gone_on_on_other_processes_equals_never_stopped(place, kind):
    place.write(STREAMS[kind])
    assert place.train("whole") == Exit.DONE, place.err
    assert place.train("parts", "--steps", 7) == Exit.STOPPED, place.err
    assert place.train("parts", "--steps", 7, "launch.processes=2") == Exit.STOPPED, place.err
    assert place.train("parts") == Exit.DONE, place.err
    assert trace(place.folder / "parts") == trace(place.folder / "whole")
    assert place("verify", "parts") == 0, place.err
    claims = {record.claim.class_ for record in place.records("parts", AttemptRecord)}
    assert claims == {"counted" if kind == "counted" else "exact"}
    assert "source0 is a stream: of its samples" in place.out


def test_where_a_stream_ends_the_run_is_done_with_all_that_is_due_then(place):
    validation = {"points": place.source("seekable")}
    data = {"train": {"sources": [{"kind": "my_streams:counted", "count": 20}]}, "validation": validation}
    place.write(data=data, evaluate={"budget": {"samples": 10}})
    assert place.train("run") == Exit.DONE, place.err
    assert "done at step 3 of 24: the data have ended" in place.out
    kinds = [record.kind for record in read(place.folder / "run" / "ledger.jsonl")]
    assert kinds.index("stream_end") < [at for at, kind in enumerate(kinds) if kind == "step"][2], "before that step"
    assert kinds.count("evaluation") == 1
    assert [record.step for record in place.records("run", CommitRecord)] == [3]
    assert [record.samples for record in place.records("run", StreamEndRecord)] == [(20,)]
    assert place.train("run") == Exit.DONE, "it is done, and stays so"
    assert kinds.count("step") == 3
    assert place("verify", "run") == 0, place.err


def test_lanes_of_unequal_length_are_each_read_to_their_end(place):
    place.write({"kind": "my_streams:parts", "ends": ENDS})
    assert place.train("run", "launch.processes=2") == Exit.DONE, place.err
    *_, last = place.records("run", StreamEndRecord)
    assert list(last.samples) == ENDS
    made = place.records("run", StepRecord)
    assert sum(record.counts["samples"] for record in made) == sum(ENDS)
    assert all("loss" in record.losses for record in made), "also of steps in which the first rank reads nothing"


def test_a_stream_that_does_not_repeat_itself_goes_on_and_that_is_told(place):
    place.write("live")
    assert place.train("run", "--steps", 5) == Exit.STOPPED
    assert place.train("run") == Exit.DONE, place.err
    assert any("it does not repeat itself" in note for note in place.notes("run"))
    assert place("verify", "run") == 0, place.err
    assert "it does not repeat itself" in place.out


def test_a_stream_that_promised_to_go_on_and_does_not_is_76_unless_that_is_accepted(place):
    place.write("moved")
    assert place.train("run", "--steps", 5) == Exit.STOPPED
    assert place.train("run") == Exit.INCOMPATIBLE
    assert "my_streams:moved does not repeat itself: sample 0, or one after it, is not what it was" in place.err
    assert place.train("run", "--override", "data.train.sources[0]") == Exit.DONE, place.err
    assert any("is not what it was" in note for note in place.notes("run"))


def test_a_state_that_does_not_bring_a_stream_back_is_noticed_and_it_is_read_again(place):
    place.write("Forgetful")
    assert place.train("whole") == Exit.DONE
    assert place.train("parts", "--steps", 15) == Exit.STOPPED
    assert place.train("parts") == Exit.DONE, place.err
    assert trace(place.folder / "parts") == trace(place.folder / "whole")
    assert any("it is read from its first sample again" in note for note in place.notes("parts"))


def test_streams_blend_with_each_other_and_are_found_again(place):
    place.write({"kind": "my_streams:seekable", "weight": 3.0}, {"kind": "my_streams:Stateful", "count": 30})
    assert place.train("whole") == Exit.DONE, place.err
    assert place.train("parts", "--steps", 9, "launch.processes=2") == Exit.STOPPED, place.err
    assert place.train("parts") == Exit.DONE, place.err
    assert trace(place.folder / "parts") == trace(place.folder / "whole")
    assert [record.source for record in place.records("whole", StreamEndRecord)] == ["source1"]
    assert place("verify", "parts") == 0, place.err


@pytest.mark.parametrize("shuffle", [None, 16])
def test_a_folder_of_files_is_streamed_lane_by_lane_and_found_again(place, shuffle):
    pytest.importorskip("datasets")
    (place.folder / "files").mkdir()
    for file in range(4):
        rows = [{"x": [number * k % 7 / 7 for k in (1, 2, 3, 5)], "y": number % 3} for number in range(40)]
        (place.folder / "files" / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    place.write(
        {"kind": "hub", "path": str(place.folder / "files"), "shuffle": shuffle}, task={"kind": "my_streams:FitRows"}
    )
    assert place.train("whole") == Exit.DONE, place.err
    assert place.train("parts", "--steps", 9, "launch.processes=2") == Exit.STOPPED, place.err
    assert place.train("parts") == Exit.DONE, place.err
    assert trace(place.folder / "parts") == trace(place.folder / "whole")
    assert {record.claim.class_ for record in place.records("parts", AttemptRecord)} == {"exact"}
    assert place.records("whole", StreamEndRecord)[-1].samples == (40, 40, 40, 40)


def test_a_rollback_reads_a_stream_again_from_before(place):
    place.write("Spoiled", guard={"nonfinite": "rollback", "quarantine": [11]})
    assert place.train("whole") == Exit.DONE, place.err
    (undone,) = place.records("whole", RollbackRecord)
    assert 80 <= min(undone.samples) <= 90
    assert place.train("parts", "--steps", 6) == Exit.STOPPED
    assert place.train("parts", "launch.processes=2") == Exit.DONE, place.err
    assert trace(place.folder / "parts") == trace(place.folder / "whole")
    assert place("verify", "parts") == 0, place.err


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"budget": {"epochs": 2}},
            "budget.epochs: data.train.sources[0] is a stream, of which nobody knows the length",
        ),
        ({"workers": 2}, "data.train.workers: data.train.sources[0] is a stream, which one process reads in its order"),
        ({"validation": True}, "data.validation.points: a stream, of which nobody knows the length"),
        (
            {"task": {"kind": "my_streams:Looking"}},
            "data.train.sources[0]: it is a stream, and this task looks samples up by their numbers",
        ),
        ({"parted": True}, "my_streams:counted is a stream, which has no parts"),
        ({"source": "Unsaid"}, "my_streams:Unsaid: its state_dict is no JSON data"),
    ],
)
def test_what_a_stream_cannot_give_is_a_bad_recipe(place, sections, words):
    train = {"sources": [place.source(sections.pop("source", "counted"))]}
    if sections.pop("workers", 0):
        train["workers"] = 2
    if sections.pop("parted", False):
        train["sources"][0]["parted"] = {"part": "train"}
    data = {"train": train}
    if sections.pop("validation", False):
        data["validation"] = {"points": place.source("counted")}
    place.write(data=data, **sections)
    assert place.train("run") == Exit.BAD_RECIPE
    assert words in place.err


@pytest.mark.parametrize("command", [("data", "inspect", "own.json"), ("evaluate", "own.json", "--init", "nothing")])
def test_what_a_training_stream_cannot_give_is_told_wherever_it_is_opened(place, command):
    place.write("counted", budget={"epochs": 2})
    assert place(*command) == Exit.BAD_RECIPE
    assert "budget.epochs: data.train.sources[0] is a stream" in place.err


def test_a_sample_that_cannot_be_read_is_named_with_the_users_line(place):
    place.write("broken")
    assert place.train("run") == Exit.BAD_DATA
    assert "my_streams:broken: sample 20 cannot be read: ValueError: the tape is torn" in place.err
    assert "my_streams.py:" in place.err


def test_an_empty_stream_is_bad_data(place):
    place.write("empty")
    assert place.train("run") == Exit.BAD_DATA
    assert "my_streams:empty has no sample" in place.err


def test_check_says_what_a_resume_can_hold(place):
    for kind, words in (
        ("counted", "data.train.sources[0] is a stream that is counted"),
        ("seekable", "data.train.sources[0] is a stream that begins at any sample"),
        ("Stateful", "data.train.sources[0] is a stream that tells its state"),
    ):
        place.write(kind)
        assert place("recipe", "check", "own.json") == 0, place.err
        assert words in place.out
    data = {"train": {"sources": [place.source("seekable")]}, "validation": {"points": place.source("counted")}}
    place.write("seekable", data=data, evaluate={"budget": {"samples": 8}})
    assert place("recipe", "check", "own.json") == 0, place.err
    assert "data.validation" not in place.out  # its first samples are in memory: nothing of it goes on
    place.write("counted", budget={"epochs": 1})
    assert place("recipe", "check", "own.json") == Exit.BAD_RECIPE
    assert "of which nobody knows the length" in place.err


def test_marks_of_a_stream_are_in_the_commit(place):
    place.write("Stateful")
    assert place.train("run", "--steps", 20) == Exit.STOPPED
    newest = sorted((place.folder / "run" / "checkpoints").glob("step-*"))[-1]
    _, state = load(newest)
    at, digest, told = state.values["streams"]["source0"]["marks"]["0"]
    assert (at, told["at"], len(digest)) == (128, 128, 16)


def test_commits_of_lanes_are_the_same_bytes_on_any_number_of_processes(place):
    place.write("parts")
    assert place.train("one", "--steps", 5) == Exit.STOPPED, place.err
    assert place.train("two", "--steps", 5, "launch.processes=2") == Exit.STOPPED, place.err
    assert trace(place.folder / "two") == trace(place.folder / "one")


@pytest.mark.parametrize("left_out", [range(8), range(16, 24)])
def test_a_step_without_a_sample_is_no_end_of_a_stream(place, left_out):
    place.write("seekable", guard={"quarantine": list(left_out)}, budget={"steps": 6})
    assert place.train("run", "launch.processes=2") == Exit.DONE, place.err
    assert [record.step for record in place.records("run", StepRecord)] == [1, 2, 3, 4, 5, 6]
    assert place.records("run", StreamEndRecord) == []
    assert place("verify", "run") == 0, place.err


def test_a_blend_goes_on_in_what_is_left_where_its_stream_has_ended(place):
    sources = [{"kind": "my_streams:seekable", "count": 20, "weight": 30.0}, {"kind": "my_streams:Rows"}]
    place.write(*sources, budget={"steps": 9})
    assert place.train("whole") == Exit.DONE, place.err
    read = {record.step: record.counts["samples"] for record in place.records("whole", StepRecord)}
    assert list(read) == list(range(1, 10))
    assert 0 in read.values(), "a step whose places are all the stream's"
    assert read[max(read)] + read[max(read) - 1] + read[max(read) - 2] + read[max(read) - 3] == 1
    assert place.train("parts", "--steps", 5, "launch.processes=2") == Exit.STOPPED, place.err
    assert place.train("parts") == Exit.DONE, place.err
    assert trace(place.folder / "parts") == trace(place.folder / "whole")


def test_a_blend_of_streams_is_done_where_all_that_have_a_weight_have_ended(place):
    sources = [{"kind": "my_streams:seekable", "count": 20, "name": name} for name in ("first", "second")]
    place.write(*sources, {"kind": "my_streams:Rows", "name": "unread", "weight": 0.0})
    assert place.train("run", "launch.processes=2") == Exit.DONE, place.err
    assert "done at step 5 of 24: the data have ended" in place.out
    assert [record.samples for record in place.records("run", StreamEndRecord)] == [(20,), (20,)]


def test_a_stream_that_has_ended_stays_so_where_it_has_grown_since_unless_that_is_asked_for(place):
    length = place.folder / "length"
    length.write_text("20")
    place.write({"kind": "my_streams:growing", "path": str(length)})
    assert place.train("run") == Exit.DONE, place.err
    length.write_text("60")
    assert place.train("run") == Exit.DONE, place.err
    assert "done at step 3 of 24: the data have ended" in place.out
    assert [record.step for record in place.records("run", StepRecord)] == [1, 2, 3]
    assert {record.samples for record in place.records("run", StreamEndRecord)} == {(20,)}
    assert place("verify", "run") == 0, place.err
    assert place.train("run", "--override", "data.train.sources[0]") == Exit.DONE, place.err
    assert "done at step 8 of 24: the data have ended" in place.out
    *_, last = place.records("run", StreamEndRecord)
    assert last.samples == (60,)
    assert place("verify", "run") == 0, place.err
