"""`drivetrain recipe import`: what it writes, what it tells, and how it ends."""

import json
import os
import pickle
import re
import socket
from pathlib import Path

import pytest
import yaml

from drivetrain.cli.main import run
from drivetrain.spec.load import load

CONFIG = """{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "optimizer": {"type": "AdamW",
    "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupDecayLR",
    "params": {"warmup_type": "linear", "warmup_max_lr": 2e-4, "warmup_num_steps": 100, "total_num_steps": 1000}},
  "bf16": {"enabled": true},
  "gradient_clipping": 0.5,
  "zero_optimization": {"stage": 2, "overlap_comm": true,
    "offload_optimizer": {"device": "cpu"}},
  "steps_per_print": 10
}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with a file to import."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(CONFIG)
    return tmp_path


def test_it_tells_what_becomes_of_each_key_with_its_line(place, capsys):
    assert run(["recipe", "import", "ds.json", "--to", "new.yaml"]) == 0
    told = capsys.readouterr().out
    assert "ds.json: --from deepspeed, since it has train_batch_size" in told
    assert "ds.json:5: optimizer.params.lr: the schedule's warmup_max_lr takes its place" in told
    assert "ds.json:12: steps_per_print: every step is in the ledger" in told
    assert "without a counterpart (1):\n  ds.json:11: zero_optimization.offload_optimizer: " in told
    assert "  task.kind: what your script trains" in told


def test_the_example_of_the_page_is_what_comes_of_it(place):
    page = (Path(__file__).parents[2] / "docs" / "deepspeed.md").read_text()
    given, expected = re.search(r"```json\n(.*?)```.*?```yaml\n(.*?)```", page, re.DOTALL).groups()
    (place / "ds.json").write_text(given)
    run(["recipe", "import", "ds.json", "--to", "new.yaml", "--onto", "quickstart"])
    recipe = load("new.yaml").tree
    (place / "page.yaml").write_text(f"base: new.yaml\n{expected}")
    assert load("page.yaml").tree == recipe
    written = yaml.safe_load((place / "new.yaml").read_text())
    assert written.keys() - {"base", "name"} == yaml.safe_load(expected).keys()


def test_the_recipe_says_where_each_value_is_from_and_a_check_finds_each_place_to_fill_in(place, capsys):
    run(["recipe", "import", "ds.json", "--to", "new.yaml"])
    written = (place / "new.yaml").read_text()
    assert "  lr: 0.0002" in written
    assert "# scheduler.params.warmup_max_lr, line 7" in written
    assert "#   11 zero_optimization.offload_optimizer: " in written
    capsys.readouterr()
    assert run(["recipe", "check", "new.yaml"]) == 78
    wrong = capsys.readouterr().err
    lines = written.splitlines()
    for path in ("task.kind", "data.train.sources[0].kind", "budget.steps"):
        (line,) = [line for line in wrong.splitlines() if f": {path}: " in line and line.startswith("new.yaml:")]
        assert "FILL_IN" in lines[int(line.split(":")[1]) - 1]


def test_filled_in_it_is_a_recipe_with_the_files_numbers(place):
    run(["recipe", "import", "ds.json", "--to", "new.yaml"])
    kinds = ["own:Task", "own:Data", "500"]
    text = (place / "new.yaml").read_text()
    for given in kinds:
        text = text.replace(": FILL_IN ", f": {given} ", 1)
    (place / "new.yaml").write_text(text)
    (place / "own.py").write_text(OWN)
    assert run(["recipe", "check", "new.yaml"]) == 0
    recipe = load("new.yaml").recipe
    assert (recipe.batch.size, recipe.batch.micro, recipe.precision) == (64, 4, "bf16")
    assert (recipe.optimizer.lr, recipe.optimizer.clip, recipe.optimizer.weight_decay) == (2e-4, 0.5, 0.1)
    assert (recipe.schedule.kind, recipe.schedule.length.steps, recipe.schedule.warmup.steps) == ("linear", 1000, 100)
    assert (recipe.parallel.replicate, recipe.parallel.shard) == (1, "auto")


OWN = """
import drivetrain

class Task(drivetrain.Task):
    def networks(self): ...
    def loss(self, nets, batch): ...

class Data:
    def __getitem__(self, index): ...
    def __len__(self): ...
"""


def test_laid_over_a_recipe_it_has_its_task_and_data(place, capsys):
    assert run(["recipe", "import", "ds.json", "--to", "new.yaml", "--onto", "quickstart"]) == 0
    assert "FILL_IN" not in (place / "new.yaml").read_text()
    assert run(["recipe", "check", "new.yaml"]) == 0
    recipe, lower = load("new.yaml").recipe, load("quickstart").recipe
    assert (recipe.task, recipe.budget) == (lower.task, lower.budget)
    assert (recipe.optimizer.lr, recipe.batch.size) == (2e-4, 64)


def test_the_recipe_below_may_lie_in_another_folder(place, monkeypatch):
    (place / "there").mkdir()
    (place / "there" / "mine.yaml").write_text("base: quickstart\nname: mine\nseed: 7\n")
    (place / "here").mkdir()
    assert run(["recipe", "import", "ds.json", "--to", "here/new.yaml", "--onto", "there/mine.yaml"]) == 0
    (place / "else").mkdir()
    monkeypatch.chdir(place / "else")
    assert load("../here/new.yaml").recipe.seed == 7


def test_for_programs_it_is_json(place, capsys):
    assert run(["recipe", "import", "ds.json", "--to", "new.yaml", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["to"]) == ("deepspeed", "new.yaml")
    assert {"path": "batch.size", "value": 64, "key": "train_batch_size", "line": 2, "note": "", "given": True} in told[
        "taken"
    ]
    assert [each["key"] for each in told["lost"]] == ["zero_optimization.offload_optimizer"]
    assert [each["path"] for each in told["fill_in"]] == ["task.kind", "data.train.sources[0].kind", "budget.steps"]


def test_strictly_nothing_is_written_where_a_key_has_no_counterpart(place, capsys):
    assert run(["recipe", "import", "ds.json", "--to", "new.yaml", "--strict"]) == 78
    assert not (place / "new.yaml").exists()
    assert "ds.json:11: zero_optimization.offload_optimizer: " in capsys.readouterr().err
    (place / "ds.json").write_text(CONFIG.replace('"device": "cpu"', '"device": "none"'))
    assert run(["recipe", "import", "ds.json", "--to", "new.yaml", "--strict"]) == 0


def test_what_has_no_counterpart_is_told_by_line_and_all_of_it_at_the_end(place, capsys):
    (place / "ds.json").write_text(CONFIG.replace('"warmup_type": "linear", ', ""))
    assert run(["recipe", "import", "ds.json", "--to", "new.yaml", "--strict"]) == 78
    first, second, last = capsys.readouterr().err.splitlines()
    assert first.startswith("ds.json:7: scheduler.params.warmup_type: ")
    assert second.startswith("ds.json:11: zero_optimization.offload_optimizer: ")
    assert "no counterpart: scheduler.params.warmup_type, zero_optimization.offload_optimizer" in last


def test_mistakes_are_told_together_with_their_lines_and_nothing_is_written(place, capsys):
    (place / "ds.json").write_text(CONFIG.replace('"stage": 2', '"stage": 5').replace("64", "65"))
    assert run(["recipe", "import", "ds.json", "--to", "new.yaml"]) == 65
    told = capsys.readouterr().err
    assert "ds.json:2: train_batch_size: 65 is no multiple of train_micro_batch_size_per_gpu 4" in told
    assert "ds.json:10: zero_optimization.stage: is 0, 1, 2 or 3, not 5" in told
    assert list(place.iterdir()) == [place / "ds.json"]


def test_a_mistake_of_the_recipe_below_is_told_as_its_own(place, capsys):
    (place / "mine.yaml").write_text("base: quickstart\nname: mine\nseeds: 7\n")
    assert run(["recipe", "import", "ds.json", "--to", "new.yaml", "--onto", "mine.yaml"]) == 78
    assert "mine.yaml:3: seeds: unknown key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ds.json", "--to", "ds.yaml"], 73, "ds.yaml is there already"),
        (["ds.json", "--to", "link.yaml"], 73, "link.yaml is there already"),
        (["ds.json", "--to", "nowhere/new.yaml"], 73, "nowhere/new.yaml"),
        (["ds.json", "--to", "new.json"], 64, "it ends in .yaml"),
        (["none.json", "--to", "new.yaml"], 66, "none.json is not there"),
        ([".", "--to", "new.yaml"], 66, ". is no file"),
        (["ds.json", "--to", "new.yaml", "--from", "deepspede"], 64, "did you mean 'deepspeed'?"),
        (["other.json", "--to", "new.yaml"], 64, "nobody knows what this is. --from is deepspeed"),
        (["ds.json", "--to", "new.yaml", "--onto", "none"], 66, "no recipe 'none'"),
        (["ds.json", "--to", "new.yaml", "--processes", "0"], 64, "--processes"),
        (["ds.json", "--to", "new.yaml", "--processes", "3"], 65, "64 is no multiple of"),
    ],
)
def test_what_cannot_be_ends_with_its_code(place, capsys, arguments, code, words):
    (place / "ds.yaml").write_text("mine")
    (place / "link.yaml").symlink_to("gone")
    (place / "other.json").write_text('{"name": "x"}')
    assert run(["recipe", "import", *arguments]) == code
    assert words in capsys.readouterr().err
    assert (place / "ds.yaml").read_text() == "mine"
    assert not (place / "new.yaml").exists()


def test_the_kind_may_be_said_where_the_file_does_not_show_it(place):
    (place / "other.json").write_text('{"bf16": {"enabled": true}}')
    assert run(["recipe", "import", "other.json", "--to", "new.yaml", "--from", "deepspeed"]) == 0


class Runs:
    def __reduce__(self):
        return os.system, ("touch pwned",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Runs()),
        b'{"train_batch_size": ' + b"[" * 10**5,
        b'{"train_batch_size": 64, "x": "' + b"x" * 2**20 + b'"}',
        b'{"train_batch_size": "\xff"}',
        b'{"train_batch_size": 1, "train_batch_size": 2}',
        b'{"train_batch_size": ' + b"9" * 10**5 + b"}",
        b'{"fp16": {"enabled": true, "initial_scale_power": 999999999999}}',
        b'{"train_batch_size": 1, "optimizer": {"type": "os:system", "params": {"lr": {"a": [1]}}}}',
        b'{"train_batch_size": !!python/object/apply:os.system ["touch pwned"]}',
        b"",
        b"null",
    ],
    ids=["pickle", "deep", "large", "bytes", "twice", "long", "power", "kind", "tag", "empty", "null"],
)
def test_a_hostile_file_is_refused_and_nothing_of_it_is_run(place, content, capsys):
    (place / "ds.json").write_bytes(content)
    assert run(["recipe", "import", "ds.json", "--to", "new.yaml", "--from", "deepspeed"]) == 65
    assert "drivetrain: 65 bad data: " in capsys.readouterr().err
    assert list(place.iterdir()) == [place / "ds.json"]


def test_a_file_that_is_too_large_is_told_to_be(place, capsys):
    (place / "ds.json").write_text('{"train_batch_size": 64}' + " " * 2**20)
    assert run(["recipe", "import", "ds.json", "--to", "new.yaml"]) == 65
    assert "is larger than 1,048,576 bytes" in capsys.readouterr().err


def test_what_keys_and_names_say_leaves_no_comment_and_reaches_no_terminal(place, capsys):
    evil = "x\ntask: {kind: evil}\x1b[2J\u2028name: evil"
    data = {evil: 1, "optimizer": {"type": evil, "params": {evil: 1}}, "scheduler": {"type": evil}, "wandb": {
        "enabled": True, "project": evil}}  # fmt: skip
    name = "a\nname: evil.json"
    (place / name).write_text(json.dumps(data))
    told = ["recipe", "import", name, "--to", "new.yaml", "--from", "deepspeed", "--onto", "quickstart"]
    assert [run([*told, "--strict"]), run(told)] == [78, 0]
    assert "\x1b" not in "".join(capsys.readouterr())
    written = (place / "new.yaml").read_text()
    assert "\x1b" not in written
    assert not [line for line in written.splitlines() if line.startswith(("task", "name: evil"))]
    (place / "new.yaml").write_text(written.replace(": FILL_IN", ": adamw", 1).replace(": FILL_IN", ": constant"))
    assert load("new.yaml").recipe.watch.wandb.project == evil


def test_what_is_no_file_is_not_read(place):
    os.mkfifo("pipe.json")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.json")
        for name in ("pipe.json", "socket.json", "/dev/zero"):
            assert run(["recipe", "import", name, "--to", "new.yaml"]) == 66
