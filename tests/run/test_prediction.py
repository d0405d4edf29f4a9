"""What a run says of samples: of a set, and of a file that it has never seen."""

import json
import os
import sys

import pytest

import drivetrain
from drivetrain.run import prediction
from drivetrain.spec.exits import Exit, Failure

TASK = """
import torch
from torch import nn
from drivetrain import Task

class Flowers(Task):
    def networks(self):
        return {"model": nn.Linear(2, 2)}
    def collate(self, rows):
        return {name: torch.tensor([row.get(name, -1) for row in rows]) for name in ("x", "label")}
    def loss(self, nets, batch):
        return nn.functional.cross_entropy(nets["model"](batch["x"]), batch["label"])
    def predict(self, nets, batch):
        logits = nets["model"](batch["x"])
        return [{"label": int(row.argmax()), "logits": row.tolist()} for row in logits]
"""


def rows(path, numbers, **more):
    lines = [json.dumps({"x": [n / 50, 1 - n / 50], **({} if more else {"label": n % 2})}) for n in numbers]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flowers_of_this_test.py").write_text(TASK)
    rows(tmp_path / "flowers.jsonl", range(50))
    split = {"kind": "jsonl", "path": "flowers.jsonl", "split": [0.8, 0.2, 0]}
    recipe = {
        "name": "flowers",
        "task": {"kind": "flowers_of_this_test:Flowers"},
        "data": {
            "train": {"sources": [split | {"part": "train"}]},
            "validation": {"held": split | {"part": "validation"}},
        },
        "batch": {"size": 8},
        "budget": {"steps": 3},
        "launch": {"threads": 1},
        "device": "cpu",
    }
    (tmp_path / "flowers.json").write_text(json.dumps(recipe))
    return drivetrain.train("flowers.json", run="run", progress=False).run


def test_a_new_file_is_read_as_the_recipe_reads_its_own(run, tmp_path):
    rows(tmp_path / "new.jsonl", range(30), unlabelled=True)
    assert drivetrain.predict("run", "new.jsonl", "said.jsonl") == 30
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    network = drivetrain.Result.load("run").networks()["model"]
    import torch

    own = torch.tensor([[n / 50, 1 - n / 50] for n in range(30)])
    assert [row["label"] for row in said] == network(own).argmax(1).tolist()
    held = drivetrain.predict("run", "held", "held.csv")
    assert (tmp_path / "held.csv").read_text().splitlines()[0] == "label"
    assert len((tmp_path / "held.csv").read_text().splitlines()) == held + 1
    assert (tmp_path / "said.jsonl").stat().st_mode & 0o777 == 0o600


def test_what_is_neither_a_set_nor_a_file_is_66(run):
    with pytest.raises(Failure, match=r"no set 'nowhere\.jsonl'") as caught:
        drivetrain.predict("run", "nowhere.jsonl", "said.jsonl")
    assert caught.value.outcome.code is Exit.INPUT_MISSING


def test_it_is_written_as_it_comes_and_is_there_only_whole(run, tmp_path, monkeypatch):
    seen = []

    def broken(file, blocks, suffix, copied):
        for rows in blocks:
            file.write(json.dumps(rows))
            file.flush()
            seen.append([path.name for path in tmp_path.glob(".said.jsonl.*")])
            if len(seen) == 3:
                break
        os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
        file.write("what finds no space any more")

    monkeypatch.setattr(prediction, "write_rows", broken)
    with pytest.raises(Failure, match="cannot be written"):
        drivetrain.predict("run", "held", "said.jsonl")
    assert all(seen)
    assert not list(tmp_path.glob("*said*"))


DRAWING = """
import os
import signal
import torch
from torch import nn
from drivetrain import Task

class Drawing(Task):
    def networks(self):
        return {"model": nn.Sequential(nn.Linear(4, 32), nn.Linear(32, 4))}
    def collate(self, rows):
        return {"x": torch.tensor([row["x"] for row in rows])}
    def loss(self, nets, batch):
        return nets["model"](batch["x"]).square().mean()
    def predict(self, nets, batch):
        for number in batch["x"][:, 0].int().tolist():
            if number == int(os.environ.get("FAIL_AT", -1)):
                raise KeyError("of this row")
            if number == int(os.environ.get("DIE_AT", -1)):
                os.kill(os.getpid(), signal.SIGKILL)
        made = nets["model"](batch["x"])
        return [{"y": row[0], "all": row, "drawn": drawn} for row, drawn in zip(made, torch.rand(len(made)))]
"""


@pytest.fixture
def drawing(tmp_path, monkeypatch):
    """A run of a task that draws at random, and a file of 43 rows: 11 blocks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drawing_of_this_test.py").write_text(DRAWING)
    lines = [json.dumps({"x": [float(n), 0.1 * n, n / 7, 1.0]}) for n in range(43)]
    (tmp_path / "new.jsonl").write_text("\n".join(lines) + "\n")
    recipe = {
        "name": "drawing",
        "task": {"kind": "drawing_of_this_test:Drawing"},
        "data": {"train": {"sources": [{"kind": "jsonl", "path": "new.jsonl"}]}},
        "batch": {"size": 4},
        "budget": {"steps": 1},
        "device": "cpu",
    }
    (tmp_path / "drawing.json").write_text(json.dumps(recipe))
    drivetrain.train("drawing.json", run="run", progress=False)
    yield tmp_path
    sys.modules.pop("drawing_of_this_test", None)


def nothing_left(folder):
    return not list(folder.glob("*said*")) + list(folder.glob(".*said*"))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_the_file_has_the_same_bytes_on_any_number_of_processes(drawing, suffix):
    made = set()
    for processes in (1, 2, 3):
        to = drawing / f"said-{processes}{suffix}"
        assert drivetrain.predict("run", "new.jsonl", to, processes=processes) == 43
        made.add(to.read_bytes())
    assert len(made) == 1
    lines = made.pop().splitlines()
    assert len(lines) == 43 + (suffix == ".csv")
    assert len({line.rpartition(b" " if suffix == ".jsonl" else b",")[2] for line in lines[1:]}) == len(lines) - 1


@pytest.mark.parametrize("block", [0, 1])
def test_code_of_the_users_own_that_fails_is_named_and_leaves_no_file(drawing, capsys, monkeypatch, block):
    from drivetrain.cli.main import run as command

    monkeypatch.setenv("FAIL_AT", str(4 * block + 2))
    code = command(["predict", "run", "--data", "new.jsonl", "--to", "said.jsonl", "--processes", "2"])
    assert code == Exit.INTERNAL
    last = capsys.readouterr().err.splitlines()[-1]
    assert "error in your own code: KeyError: 'of this row', at " in last
    assert f"{drawing / 'drawing_of_this_test.py'}:18" in last
    assert "the whole traceback is in" in last
    assert nothing_left(drawing)


def test_a_process_that_is_killed_ends_the_command_and_leaves_no_file(drawing, monkeypatch):
    monkeypatch.setenv("DIE_AT", "5")
    with pytest.raises(Failure, match="process 1 ended by signal 9"):
        drivetrain.predict("run", "new.jsonl", "said.jsonl", processes=2)
    assert nothing_left(drawing)


def test_an_interrupted_prediction_leaves_no_file_and_no_process(drawing, monkeypatch, capsys):
    from drivetrain.cli.main import run as command
    from drivetrain.launch import shares

    servers = []

    class Known(shares.ForkServer):
        def __init__(self, preload):
            super().__init__(preload)
            servers.append(self)

    def interrupted(file, blocks, suffix, copied):
        next(iter(blocks))
        raise KeyboardInterrupt

    monkeypatch.setattr(shares, "ForkServer", Known)
    monkeypatch.setattr(prediction, "write_rows", interrupted)
    code = command(["predict", "run", "--data", "new.jsonl", "--to", "said.jsonl", "--processes", "2"])
    assert code == Exit.STOPPED
    assert capsys.readouterr().err.splitlines()[-1] == "drivetrain: 75 interrupted. the same command begins again"
    assert nothing_left(drawing)
    assert [server.status() for server in servers] == [0]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("[{}] * 3", "Drawing.predict: 3 rows for 4 samples"),
        ("[{'a': {1}}] * 4", "Drawing.predict: a set is no JSON data"),
    ],
)
def test_rows_that_are_none_are_told_as_the_tasks(drawing, monkeypatch, said, words):
    task = sys.modules["drawing_of_this_test"].Drawing
    monkeypatch.setattr(task, "predict", lambda self, nets, batch: eval(said))
    with pytest.raises(Failure, match=words) as caught:
        drivetrain.predict("run", "new.jsonl", "said.jsonl")
    assert caught.value.outcome.title == "error in your own code"
    assert nothing_left(drawing)


def test_an_error_of_the_system_in_ones_own_code_is_not_told_as_the_files(drawing, monkeypatch):
    (drawing / "drawing_of_this_test.py").write_text(DRAWING.replace("KeyError", "FileNotFoundError"))
    sys.modules.pop("drawing_of_this_test", None)
    monkeypatch.setenv("FAIL_AT", "2")
    with pytest.raises(FileNotFoundError, match="of this row"), pytest.warns(UserWarning, match="other code"):
        drivetrain.predict("run", "new.jsonl", "said.jsonl")
    assert nothing_left(drawing)


class Counted(dict):
    """A row that knows how many of its kind there are."""

    alive = most = 0

    def __init__(self, *given):
        super().__init__(*given)
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)

    def __del__(self):
        Counted.alive -= 1


class Endless:
    """Rows that are made when they are read."""

    fingerprint, thread_safe = "endless", True

    def __len__(self):
        return 4000

    def read(self, ids, positions):
        return [Counted({"x": [float(number), 0.0, 0.0, 1.0]}) for number in ids]


def test_nothing_is_held_of_what_was_predicted_however_much_it_is(drawing, monkeypatch):
    monkeypatch.setattr(prediction, "open_source", lambda *_: Endless())
    plain = prediction._plain_rows
    monkeypatch.setattr(prediction, "_plain_rows", lambda task, rows: [Counted(row) for row in plain(task, rows)])
    Counted.most = 0
    assert drivetrain.predict("run", "new.jsonl", "said.jsonl") == 4000
    assert 4 <= Counted.most <= 20, "rows of a few blocks, of samples and of what is said of them"
    assert Counted.alive == 0


def test_a_process_that_is_ahead_waits_for_room():
    """What is not read does not pile up: neither where it is made, nor on its way."""
    import socket
    import threading

    from drivetrain.launch.shares import send_share

    ours, theirs = socket.socketpair()
    made = []

    def blocks():
        for number in range(10_000):
            made.append(number)
            yield "x" * 10_000

    sending = threading.Thread(target=send_share, args=(theirs.detach(), blocks))
    sending.start()
    ours.recv(1)
    sending.join(0.2)
    assert len(made) < 1000
    ours.close()
    sending.join()
    assert len(made) < 1000
