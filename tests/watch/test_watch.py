import io
import json
import threading
import time
from pathlib import Path

from rich.console import Console

from drivetrain.ledger.ledger import Ledger, read
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.watch.console import ConsoleSink, closing, printable
from drivetrain.watch.report import chart, show, summary
from drivetrain.watch.sink import Follower
from drivetrain.watch.tensorboard import TensorBoardSink


def console(terminal=False):
    return Console(file=io.StringIO(), force_terminal=terminal, width=100)


def attempt(number=1, begin=0, at=10.0):
    return {
        "kind": "attempt",
        "time": at,
        "attempt": number,
        "from_step": begin,
        "world": 2,
        "started": at - 1,
        "startup": {"import": 1.0},
        "budget": {"steps": 4, "samples": 32},
        "parameters": {"model": 12345},
    }


def step(number, at=11.0, loss=2.5):
    return {
        "kind": "step",
        "time": at + number,
        "attempt": 1,
        "step": number,
        "start": 8 * number - 8,
        "stop": 8 * number,
        "samples": "0" * 16,
        "losses": {"loss": loss},
        "counts": {"samples": 8, "tokens": 800},
        "norm": {"model": 1.0},
        "lr": {"model": 0.001},
        "seconds": 0.9,
        "wait": 0.1,
    }


def evaluation(number, value=1.5):
    return {
        "kind": "evaluation",
        "time": 20.0,
        "step": number,
        "seconds": 0.5,
        "metrics": {"dogs": {"bits": value}},
        "counts": {},
    }


def shown(*records, terminal=False, started=0.0):
    out = console(terminal)
    sink = ConsoleSink(out, started)
    for record in records:
        sink.record(record)
    sink.close()
    return out.file.getvalue()


def test_plain_lines_say_step_loss_rate_and_time_left():
    text = shown(attempt(), step(1), step(4))
    assert "12.3k parameters, 2 processes, 4 steps" in text
    assert "step 1/4  loss 2.500  800 tokens/s  0:03 left  lr 1.0e-03" in text
    assert "step 4/4" in text
    assert "\x1b" not in text


def test_a_terminal_gets_one_live_line():
    text = shown(attempt(), *(step(n) for n in range(1, 5)), terminal=True)
    assert "━" in text
    assert "step 4/4" in text


def test_evaluations_notes_and_what_is_shown():
    text = shown(attempt(), evaluation(2), {"kind": "note", "time": 21.0, "text": "passed over x"})
    assert "evaluation at step 2  dogs  bits 1.5" in text
    assert "note: passed over x" in text


def test_a_resumed_run_says_what_is_made_again():
    text = shown(attempt(), step(1, 0), step(2, 0), attempt(2, 1, at=30.0), started=29.0)
    assert "goes on after step 1; 1 step after it is made again" in text
    assert "step 2/4" not in text


def test_x13_control_characters_of_users_are_made_visible():
    evil = "a\x1b]0;owned\x07\r\nb"
    assert printable(evil) == "a\\x1b]0;owned\\x07\\r\\nb"
    text = shown(attempt(), {"kind": "show", "time": 20.0, "step": 1, "text": {evil: evil}, "files": {}})
    assert "\x1b" not in text
    assert "\x07" not in text


def test_the_summary_says_where_everything_is_and_what_to_run_next(tmp_path):
    for name in ("checkpoints/step-00000004", "gallery/step-00000004"):
        (tmp_path / name).mkdir(parents=True)
    out = console()
    closing(out, tmp_path, Outcome(code=Exit.DONE, cause="", where={}), "drivetrain train x")
    text = out.file.getvalue()
    for words in ("step-00000004", "drivetrain report", "drivetrain export", "gallery"):
        assert words in text
    out = console()
    closing(out, tmp_path, Outcome(code=Exit.STOPPED, cause="", where={}), "drivetrain train x")
    assert "drivetrain train x" in out.file.getvalue()


class Collector:
    def __init__(self, fail_at=None):
        self.records, self.fail_at, self.closed = [], fail_at, False

    def record(self, record):
        self.records.append(record["kind"])
        if len(self.records) == self.fail_at:
            raise ConnectionError("the tracker is down")

    def close(self):
        self.closed = True


def test_records_are_handed_over_as_they_come_and_a_failing_sink_harms_nobody(tmp_path, capfd):
    ledger = Ledger.open(tmp_path / "l")
    ledger.append({"kind": "a"})
    good, bad = Collector(), Collector(fail_at=2)
    follower = Follower(tmp_path / "l", [bad, good])
    for kind in "bcd":
        time.sleep(0.02)
        ledger.append({"kind": kind})
    follower.close()
    assert good.records == list("abcd")
    assert good.closed
    assert bad.records == list("ab")
    assert "Collector is dropped, the run goes on" in capfd.readouterr().err
    assert not [thread for thread in threading.enumerate() if thread.name == "watch"]


def test_a_line_that_is_being_written_is_waited_for(tmp_path):
    ledger = Ledger.open(tmp_path / "l")
    ledger.append({"kind": "a"})
    ledger.append({"kind": "b"})
    whole = (tmp_path / "l").read_bytes()
    (tmp_path / "l").write_bytes(whole[:-5])
    collector = Collector()
    follower = Follower(tmp_path / "l", [collector])
    time.sleep(0.3)
    (tmp_path / "l").write_bytes(whole)
    follower.close()
    assert collector.records == ["a", "b"]


def points(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, round(e.value, 4)) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_shows_each_point_once_after_a_resume(tmp_path):
    records = [
        attempt(),
        step(1, loss=5.0),
        step(2, loss=4.0),
        step(3, loss=9.0),
        attempt(2, 2),
        step(3, loss=3.0),
        evaluation(3),
    ]
    for _ in range(2):  # a second sink writes the same files anew
        sink = TensorBoardSink(tmp_path / "tb")
        for record in records:
            sink.record(record)
        sink.close()
    found = points(tmp_path / "tb")
    assert found["train/loss"] == [(1, 5.0), (2, 4.0), (3, 3.0)]
    assert found["dogs/bits"] == [(3, 1.5)]


def test_the_report_fits_eighty_columns_and_adds_up():
    records = [attempt(), *(step(n, loss=5.0 / n) for n in range(1, 5)), evaluation(4)]
    out = Console(file=io.StringIO(), width=80)
    show(out, Path("runs/x"), records)
    text = out.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for words in ("step 4 of 4", "training loss", "wall-clock", "dogs"):
        assert words in text
    data = summary(Path("runs/x"), records)
    assert json.loads(json.dumps(data))["steps"] == 4
    assert abs(sum(data["seconds"].values()) - data["wall_clock"]) < 1e-9


def test_a_chart_of_one_point_or_none():
    assert "no finite value" in chart([(1, float("nan"))]).plain
    assert "step 1" in chart([(1, 2.0)]).plain


def test_a_whole_run_replays_from_its_ledger(tiny, tmp_path):
    import drivetrain

    run = drivetrain.train(tiny, ["watch.tensorboard=true"], run=tmp_path / "run", progress=False).run
    losses = points(run / "tensorboard")["train/loss"]
    assert [at for at, _ in losses] == list(range(1, 13))
    text = shown(*read(run / "ledger.jsonl"))
    assert "step 12/12" in text
