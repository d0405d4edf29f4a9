"""The recipe that `drivetrain recipe new --from` writes: what each column is read as, which is the label, and that it
trains."""

import decimal

import numpy as np
import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

import drivetrain
from drivetrain.cli.main import run
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load

ROWS = 1200


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log of clicks with a column of each kind."""
    path, draw = tmp_path_factory.mktemp("log") / "log.parquet", np.random.default_rng(0)
    device = np.array(["phone", "tablet", "desktop"])[draw.integers(0, 3, ROWS)]
    table = {
        "user": draw.integers(0, 200, ROWS),
        "item id": [f"i{n}" for n in draw.integers(0, 50, ROWS)],
        "device": pa.array(device, mask=draw.random(ROWS) < 0.1),
        "price": draw.lognormal(1, 2, ROWS),
        "score": draw.normal(0, 3, ROWS),
        "count": draw.integers(0, 900, ROWS),
        "new": draw.random(ROWS) < 0.5,
        "tags": pa.array([["a", "b"][: n % 3] for n in range(ROWS)]),
        "session": [f"s{n}" for n in range(ROWS)],
        "constant": np.ones(ROWS),
        "nothing": pa.nulls(ROWS),
        "at": pa.array(np.arange(ROWS), pa.timestamp("s")),
        "seen_at": 1_700_000_000 + draw.integers(0, 300, ROWS),
        "day:token": 20_240_100 + draw.integers(1, 31, ROWS),
        "date": [f"2024-01-{n:02}" for n in draw.integers(1, 90, ROWS)],
        "line": np.arange(ROWS),
        "watch_time": draw.integers(0, 9000, ROWS),
        "clicked": (device == "phone").astype(int),
        "rating": draw.integers(1, 6, ROWS),
    }
    parquet.write_table(pa.table(table), path)
    return path


def written(log, tmp_path, *arguments):
    to = tmp_path / "mine.yaml"
    assert run(["recipe", "new", str(to), "--from", str(log), *arguments]) == 0
    return to


def test_columns_are_read_by_their_type_and_values(log, tmp_path):
    to = written(log, tmp_path)
    task = yaml.safe_load(to.read_text())["task"]
    assert task["features"] == {
        "user": {"hash": 2048},
        "item_id": {"column": "item id", "hash": 512},
        "device": {"hash": 32},
        "price": {"normalize": "log1p"},
        "score": {"normalize": {"mean": pytest.approx(0, abs=0.3), "std": pytest.approx(3, abs=0.3)}},
        "count": {"normalize": {"mean": pytest.approx(450, abs=30), "std": pytest.approx(260, abs=20)}},
        "new": {"buckets": 2},
        "tags": {"hash": 65536, "length": 32},
        "watch_time": {"normalize": {"mean": pytest.approx(4500, abs=300), "std": pytest.approx(2600, abs=200)}},
        "day_token": {"column": "day:token", "hash": 256},
        "rating": {"hash": 64},
    }
    assert task["labels"] == {"clicked": {"loss": "bce"}}
    left = to.read_text().partition("# Columns that are left out:")[2]
    assert [line.split()[1].rstrip(":") for line in left.strip().splitlines()] == [
        "session",
        "constant",
        "nothing",
        "at",
        "seen_at",
        "date",
        "line",
    ]


def test_it_passes_the_check_and_trains(log, tmp_path):
    to = written(log, tmp_path)
    assert run(["recipe", "check", str(to)]) == 0
    result = drivetrain.train(str(to), ["launch.threads=1"], run=tmp_path / "run", progress=False)
    assert result.step > 0


def test_a_label_that_is_named_has_the_loss_of_its_values(log, tmp_path):
    recipe = load(str(written(log, tmp_path, "--label", "rating"))).recipe
    assert recipe.task.labels["rating"].loss == "mse"
    assert "clicked" in recipe.task.features


def test_what_training_could_not_read_is_left_out_with_its_reason(tmp_path):
    rows = range(40)
    table = {
        "click": pa.array([None if n == 3 else n % 2 for n in rows]),
        "": list(rows),
        "huge": [np.inf if n == 5 else n / 3 for n in rows],
        "gap": [np.nan if n == 5 else n / 3 for n in rows],
        "price": [decimal.Decimal(n) / 4 for n in rows],
        "raw": [bytes([255, n]) for n in rows],
        "word": [b"w%d" % (n % 3) for n in rows],
        "id": np.arange(40, dtype=np.uint64) % 7 + np.uint64(2**63),
        "nested": [[["a"]]] * 40,
        "pairs": pa.array([[("a", 1)]] * 40, pa.map_(pa.string(), pa.int64())),
        "vector": [[0.5, 1.5]] * 40,
        "tags": [["a"]] * 40,
    }
    parquet.write_table(pa.table(table), tmp_path / "log.parquet")
    to = written(tmp_path / "log.parquet", tmp_path)
    task = yaml.safe_load(to.read_text())["task"]
    assert list(task["features"]) == ["gap", "price", "word", "id", "tags"]
    assert task["labels"] == {"click": {"loss": "bce", "optional": True}}
    left = to.read_text().partition("# Columns that are left out:")[2]
    for told in ("a column without a name", "huge: 1 of its numbers", "raw: binary, of which 40 values are no text"):
        assert told in left
    assert [left.count(f"{name}: ") for name in ("nested", "pairs", "vector")] == [1, 1, 1]
    assert drivetrain.train(str(to), ["launch.threads=1"], run=tmp_path / "run", progress=False).step > 0


def test_a_file_with_other_delimiters_trains_once_they_are_said(tmp_path, capsys):
    path = tmp_path / "log.csv"
    path.write_text("click;price;word\n" + "".join(f"{n % 2};{n * 0.37};w{n % 5}\n" for n in range(60)))
    assert run(["recipe", "new", str(tmp_path / "mine.yaml"), "--from", str(path)]) == Exit.BAD_DATA
    assert "its first line is one column, 'click;price;word'" in capsys.readouterr().err
    to = written(path, tmp_path, "--delimiter", ";")
    assert list(load(str(to)).recipe.task.features) == ["price", "word"]
    assert drivetrain.train(str(to), ["launch.threads=1"], run=tmp_path / "run", progress=False).step > 0
    assert run(["recipe", "new", str(tmp_path / "other.yaml"), "--delimiter", ";"]) == Exit.BAD_COMMAND


def test_numbers_alone_are_enough(tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("a,b,type\n" + "".join(f"{n * 0.37},{n % 7 / 3},{n % 2}\n" for n in range(100)))
    to = written(path, tmp_path, "--label", "type")
    recipe = load(str(to)).recipe
    assert list(recipe.task.features) == ["a", "b", "a_stretch"]
    assert recipe.task.labels["type_label"].column == "type"
    assert drivetrain.train(str(to), ["launch.threads=1"], run=tmp_path / "run", progress=False).step > 0


@pytest.mark.parametrize(
    ("text", "arguments", "code", "told"),
    [
        ("a,b\n1,x\n0,y\n", (), Exit.BAD_COMMAND, "columns of 0 and 1 are a. name it by --label"),
        ("click,buy,c\n1,0,x\n0,1,y\n", (), Exit.BAD_COMMAND, "columns of 0 and 1 are click, buy"),
        ("click,c\n3,x\n5,y\n", (), Exit.BAD_COMMAND, "no column has 0 and 1 only"),
        ("click,c\n1,x\n0,y\n", ("--label", "clik"), Exit.BAD_COMMAND, "did you mean 'click'?"),
        ("click,c\n1,x\n0,y\n", ("--label", "c"), Exit.BAD_COMMAND, "it is of type string"),
        ("click,c\n1,x\ninf,y\n", ("--label", "click"), Exit.BAD_COMMAND, "1 of its numbers are infinite"),
        ("click,c\n1,x\n0,x\n", (), Exit.BAD_DATA, "no column is left to foresee 'click' from: c: it has one value"),
    ],
)
def test_what_is_not_plain_is_asked_for(tmp_path, capsys, text, arguments, code, told):
    path = tmp_path / "log.csv"
    path.write_text(text)
    assert run(["recipe", "new", str(tmp_path / "mine.yaml"), "--from", str(path), *arguments]) == code
    assert told in capsys.readouterr().err
    assert not (tmp_path / "mine.yaml").exists()


def test_a_label_needs_a_file(tmp_path, capsys):
    assert run(["recipe", "new", str(tmp_path / "mine.yaml"), "--label", "x"]) == Exit.BAD_COMMAND
    assert "give --from FILE" in capsys.readouterr().err
