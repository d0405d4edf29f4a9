"""Predictions of files of columns: what is read, what is copied beside the scores, and what is written."""

import csv
import datetime
import json
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import drivetrain
from drivetrain.data.column_files import common_nulls, named_files
from drivetrain.data.recipe import ColumnFiles
from drivetrain.run import predicted
from drivetrain.run.prediction import RowsLeftOut
from drivetrain.serving import Scorer
from drivetrain.spec.exits import Exit, Failure
from web import Ranges, serving

ROWS = 53
DAY = datetime.date(2024, 2, 28)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    lines = "".join(f"{n % 9},w{n % 7},{n % 3 == 0:d}\n" for n in range(64))
    (folder / "log.csv").write_text(f"who,what,clicked\n{lines}")
    log = {"kind": "columns", "path": str(folder / "log.csv"), "malformed": "skip", "split": [0.8, 0.2, 0]}
    recipe = {
        "name": "columns",
        "task": {
            "kind": "ranking",
            "dim": 4,
            "features": {"who": {"buckets": 9}, "what": {"hash": 30}},
            "labels": {"clicked": {}},
            "model": {"kind": "deepfm", "hidden": [8]},
        },
        "data": {
            "train": {"sources": [log | {"part": "train"}]},
            "validation": {"held": log | {"part": "validation"}},
        },
        "batch": {"size": 8},
        "budget": {"steps": 4},
        "embeddings": {"optimizer": {"kind": "adam", "lr": 0.1}},
        "launch": {"threads": 1},
        "device": "cpu",
    }
    drivetrain.train(recipe, run=folder / "run", progress=False)
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """The run, in a folder with two new files: rows 0 to 19 as Parquet of three row groups, the others as CSV."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, "run")
    numbers = list(range(20))
    days = [None if n == 3 else DAY + datetime.timedelta(n) for n in numbers]
    who, what = [n % 9 for n in numbers], [f"w{n}" for n in numbers]
    parquet.write_table(pa.table({"who": who, "what": what, "day": days}), "a.parquet", row_group_size=8)
    with open("b.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["day", "who", "what"])
        writer.writerows([f'0{n},\n"x"', n % 9, f"w\n{n}"] for n in range(20, ROWS))
    return "run"


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("name", "wanted", "suffix", "processes"),
    [
        ("a.parquet", [f"w{n}" for n in range(20)], "csv", 2),
        ("b.csv", [f"w\n{n}" for n in range(20, ROWS)], "parquet", 4),
    ],
)
def test_rows_are_all_there_in_order_on_any_number_of_processes(run, name, wanted, suffix, processes):
    made = set()
    for number in (1, processes):
        to = Path(f"{number}.{suffix}")
        assert drivetrain.predict(run, name, to, processes=number, copy=["what"]) == len(wanted)
        made.add(to.read_bytes())
    assert len(made) == 1
    found = parquet.read_table(to).to_pylist() if suffix == "parquet" else read_csv(to)
    assert [int(row["row"]) for row in found] == list(range(len(wanted)))
    assert [row["what"] for row in found] == wanted
    assert all(0 < float(row["clicked"]) < 1 for row in found)


def test_what_is_copied_is_as_it_was(run):
    drivetrain.predict(run, "a.parquet", "a-said.parquet", copy=["date=day", "who"])
    found = parquet.read_table("a-said.parquet")
    assert found.column_names == ["date", "who", "row", "clicked"]
    given = parquet.read_table("a.parquet")
    assert found.column("date").equals(given.column("day"))
    assert found.column("who").equals(given.column("who"))
    drivetrain.predict(run, "b.csv", "b-said.csv", copy=["day"])
    assert [row["day"] for row in read_csv("b-said.csv")] == [row["day"] for row in read_csv("b.csv")]
    drivetrain.predict(run, "a.parquet", "a-said.jsonl", copy=["day"])
    with open("a-said.jsonl") as file:
        days = [json.loads(line)["day"] for line in file]
    assert days[2:5] == ["2024-03-01", None, "2024-03-03"]


def test_a_copied_number_that_is_not_finite_is_text_in_json(run):
    table = parquet.read_table("a.parquet")
    sums = [float("nan"), float("-inf"), None, *map(float, range(17))]
    parquet.write_table(table.append_column("sum", [sums]), "c.parquet")
    drivetrain.predict(run, "c.parquet", "said.jsonl", copy=["sum"])
    lines = Path("said.jsonl").read_text().splitlines()
    found = [json.loads(line, parse_constant=pytest.fail)["sum"] for line in lines]
    assert found == ["nan", "-inf", None, *map(float, range(17))]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    pytest.importorskip("aiohttp")
    folder = tmp_path_factory.mktemp("served")
    with serving(folder) as url:
        yield folder, url


@pytest.mark.parametrize("scheme", ["file", "memory", "http"])
@pytest.mark.parametrize("name", ["a.parquet", "b.csv"])
def test_files_behind_urls_are_predicted_as_those_of_this_machine(run, request, scheme, name):
    fsspec = pytest.importorskip("fsspec")
    with open(name, "ab") as file:  # what the recipe's source leaves out
        file.write(b"too,many,fields,here\n" if name == "b.csv" else b"")
    url = f"file://{Path(name).absolute()}"
    if scheme == "memory":
        url = f"memory://new/{name}"
        fsspec.filesystem("memory").pipe(f"/new/{name}", Path(name).read_bytes())
    elif scheme == "http":
        folder, base = request.getfixturevalue("served")
        shutil.copy(name, folder)
        url = f"{base}/{name}?page=2"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RowsLeftOut)
        counts = [drivetrain.predict(run, data, f"{k}.csv", copy=["what"]) for k, data in enumerate((name, url))]
    assert counts == [20, 20] if name == "a.parquet" else [33, 33]
    assert len(told) == (0 if name == "a.parquet" else 2)
    assert Path("0.csv").read_bytes() == Path("1.csv").read_bytes()


def test_urls_that_give_nothing_are_told_and_leave_no_file(run, served):
    for url, code in [("nothing://x/a.csv", Exit.BAD_RECIPE), (f"{served[1]}/none.csv", Exit.INPUT_MISSING)]:
        with pytest.raises(Failure) as error:
            drivetrain.predict(run, url, "x.csv")
        assert (error.value.outcome.code, error.value.outcome.where["file"]) == (code, url)
    assert not Path("x.csv").exists()


def test_a_token_in_the_environment_opens_a_url_and_is_kept_nowhere(run, served, monkeypatch):
    folder, base = served
    shutil.copy("b.csv", folder / "held.csv")
    monkeypatch.setattr(Ranges, "token", "hunter2")
    predict = [sys.executable, "-m", "drivetrain", "predict", run, "--data", f"{base}/held.csv", "--to", "x.csv"]
    said = []
    for number, token in enumerate(("hunter1", "hunter2")):
        monkeypatch.setenv("FSSPEC_HTTP", json.dumps({"headers": {"Authorization": f"Bearer {token}"}}))
        told = subprocess.run([*predict, "--processes", str(number + 1)], capture_output=True, text=True)
        said.append((told.returncode, "may not be read" in told.stderr, "its environment variables" in told.stderr))
        assert not re.search("hunter[12]", told.stdout + told.stderr)
    assert said == [(Exit.INPUT_MISSING, True, True), (Exit.DONE, False, False)]
    assert len(read_csv("x.csv")) == ROWS - 20
    assert not [path for path in Path().rglob("*") if path.is_file() and re.search(b"hunter[12]", path.read_bytes())]


def test_a_recipe_of_old_with_a_credential_is_told_and_goes_on_without_it(run):
    """As a version wrote it that took one: it is compared, and every other command says what to do."""
    shutil.copytree(run, "other")
    kept = Path(run, "resolved.json")
    path = json.loads(kept.read_text())["recipe"]["data"]["validation"]["held"]["path"]
    kept.write_text(kept.read_text().replace(f'"{path}"', f'"file://me:hunter2@{path}"'))
    for command in (lambda: drivetrain.predict(run, "b.csv", "x.csv"), lambda: drivetrain.export(run, "x")):
        with pytest.raises(Failure) as error:
            command()
        assert error.value.outcome.code is Exit.BAD_RECIPE
        assert f"drivetrain train {run} KEY=VALUE" in error.value.outcome.hint
        assert "hunter2" not in f"{error.value} {error.value.outcome} {error.value.details}"
    assert "hunter2" not in json.dumps(drivetrain.compare(run, "other"))
    mended = [f"data.train.sources[0].path=file://{path}x", f"data.validation.held.path=file://{path}"]
    with pytest.raises(Failure) as error:
        drivetrain.train(run, mended, run=run, progress=False)
    assert error.value.outcome.code is Exit.INCOMPATIBLE
    assert "hunter2" not in f"{error.value} {error.value.outcome} {error.value.details}"
    mended[0] = f"data.train.sources[0].path=file://{path}"
    drivetrain.train(run, [*mended, "budget.steps=5"], run=run, override=["budget"], progress=False)
    drivetrain.predict(run, "b.csv", "x.csv")
    assert not [path for path in Path().rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]


@pytest.mark.parametrize("data", ["parts/*", "parts", "parts/1.csv,parts/2.csv,parts/3.csv"])
def test_several_files_are_read_in_their_order_and_empty_ones_have_no_row(run, tmp_path, data):
    (tmp_path / "parts").mkdir()
    for number, rows in enumerate((["3,a", "4,b"], [], ["5,c"]), 1):
        (tmp_path / "parts" / f"{number}.csv").write_text("\n".join(["who,what", *rows, ""]))
    assert drivetrain.predict(run, data, "said.csv", copy=["what"]) == 3
    assert [row["what"] for row in read_csv("said.csv")] == ["a", "b", "c"]


def test_files_without_a_row_are_bad_data_and_files_that_are_not_there_missing(run, tmp_path):
    (tmp_path / "empty.csv").write_text("who,what\n")
    with pytest.raises(Failure, match=r"empty.csv has no row") as raised:
        drivetrain.predict(run, "empty.csv", "said.csv")
    assert raised.value.outcome.code is Exit.BAD_DATA
    with pytest.raises(Failure) as raised:
        drivetrain.predict(run, "none/*.csv", "said.csv")
    assert raised.value.outcome.code is Exit.INPUT_MISSING


def test_a_set_of_the_recipe_is_predicted_with_its_columns(run):
    count = drivetrain.predict(run, "held", "said.csv", copy=["who", "truth=clicked"])
    found = read_csv("said.csv")
    assert len(found) == count > 0
    assert all((int(row["truth"]), int(row["who"])) for row in found if row["truth"] != "0")
    with pytest.raises(Failure, match="give it another one: --copy NAME=clicked") as raised:
        drivetrain.predict(run, "held", "again.csv", copy=["clicked"])
    assert raised.value.outcome.code is Exit.BAD_COMMAND


def test_rows_that_cannot_be_read_are_told_or_left_out_as_the_recipe_says(run, tmp_path):
    (tmp_path / "bad.csv").write_text("who,what\n1,a\n1\n2,b\n")
    with pytest.warns(UserWarning, match=r"1 malformed rows of bad.csv are left out, at line 3"):
        assert drivetrain.predict(run, "bad.csv", "said.csv", copy=["what"]) == 2
    assert [row["what"] for row in read_csv("said.csv")] == ["a", "b"]


def damaged(path):
    """The second row group's bytes of `what` are others."""
    span = parquet.read_metadata(path).row_group(1).column(1)
    content = bytearray(path.read_bytes())
    content[span.data_page_offset + span.total_compressed_size - 3] ^= 255
    path.write_bytes(content)


def test_columns_in_another_order_and_of_other_types_say_the_same_or_are_told(run, tmp_path):
    table = parquet.read_table("a.parquet")
    drivetrain.predict(run, "a.parquet", "said.csv")
    wanted = Path("said.csv").read_text()
    words = pa.array(["x"] * len(table))
    ways = {
        "turned": table.select(table.column_names[::-1]),
        "more": table.append_column("else", words),
        "narrow": table.set_column(table.column_names.index("who"), "who", table["who"].cast(pa.int16())),
    }
    for name, other in ways.items():
        parquet.write_table(other, f"{name}.parquet")
        drivetrain.predict(run, f"{name}.parquet", f"{name}.csv")
        assert Path(f"{name}.csv").read_text() == wanted, name
    broken = {
        "without": (table.drop_columns("who"), "has no column 'who'"),
        "lists": (table.set_column(0, "who", pa.array([[1]] * len(table))), "column 'who'"),
        "words": (table.set_column(0, "who", words), "column 'who'"),
    }
    for name, (other, told) in broken.items():
        parquet.write_table(other, f"{name}.parquet")
        with pytest.raises(Failure, match=told) as raised:
            drivetrain.predict(run, f"{name}.parquet", f"{name}.csv")
        assert raised.value.outcome.code is Exit.BAD_DATA
        assert not Path(f"{name}.csv").exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_what_is_wrong_is_told_with_its_place_and_leaves_no_file(run, tmp_path, processes):
    table = parquet.read_table("a.parquet")
    parquet.write_table(table.set_column(0, "who", [[*range(9), *range(11)]]), "wrong.parquet", row_group_size=8)
    (tmp_path / "wrong.csv").write_text("who,what\n1,a\n9,b\n")
    parquet.write_table(table, "flipped.parquet", row_group_size=8, write_page_checksum=True)
    damaged(tmp_path / "flipped.parquet")
    places = {
        "wrong.parquet": r"wrong.parquet: row group 2, row 2 of it, .*: column 'who': 9 is no id",
        "wrong.csv": r"wrong.csv:3: column 'who': 9 is no id",
        "flipped.parquet": r"flipped.parquet: row group 1",
    }
    for name, told in places.items():
        with pytest.raises(Failure, match=told) as raised:
            drivetrain.predict(run, name, "said.parquet", processes=processes)
        assert raised.value.outcome.code is Exit.BAD_DATA
    with pytest.raises(Failure, match="has no column 'whom'; did you mean 'who'") as raised:
        drivetrain.predict(run, "b.csv", "said.parquet", processes=processes, copy=["whom"])
    assert raised.value.outcome.code is Exit.BAD_DATA
    assert not list(tmp_path.glob("*said*"))
    assert not list(tmp_path.glob(".*said*"))


def test_row_groups_are_written_as_they_fill(run, monkeypatch):
    monkeypatch.setattr(predicted, "_GROUP", 10)
    held = []
    plain = predicted._Groups._flush

    def flush(self):
        held.append(sum(map(len, self._held)))
        plain(self)

    monkeypatch.setattr(predicted._Groups, "_flush", flush)
    drivetrain.predict(run, "b.csv", "said.parquet")
    assert held == [16, 16, 1], "rows of two batches at most"
    assert parquet.ParquetFile("said.parquet").num_row_groups == 3


@pytest.mark.parametrize(
    ("said", "types"),
    [([{"a": None}, {"a": 1.5}], ["double"]), ([{"a": 1, "b": [0.5]}, {"a": 2, "b": []}], ["int64", "list"])],
)
def test_the_first_rows_say_what_types_columns_have(tmp_path, said, types):
    with open(tmp_path / "said", "w") as file:
        assert predicted.write_rows(file, [[row] for row in said], ".parquet") == 2
    found = parquet.read_table(tmp_path / "said")
    assert found.to_pylist() == said
    assert [str(kind).partition("<")[0] for kind in found.schema.types] == types


def test_rows_that_cannot_stand_in_one_table_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(predicted, "_GROUP", 1)
    for second in ({"a": "x"}, {"b": 1}):
        with open(tmp_path / "said", "w") as file, pytest.raises(Failure, match="cannot stand in one table"):
            predicted.write_rows(file, [[{"a": 1}], [second]], ".parquet")


def test_fields_that_stood_for_no_value_in_training_do_so_in_a_service(run, tmp_path):
    (tmp_path / "gaps.csv").write_text("who,what\n,\n3,\n,w1\n")
    drivetrain.predict(run, "gaps.csv", "said.parquet")
    drivetrain.export(run, "served")
    said = Scorer("served")({"who": ["", 3, None], "what": [None, "", "w1"]})["clicked"]
    assert np.abs(said - parquet.read_table("said.parquet").column("clicked").to_numpy()).max() <= 1e-6


def test_files_of_another_kind_than_the_recipes_are_read_by_their_names():
    recipe = ColumnFiles(path="log.csv", format="csv", delimiter=";", key="user", columns=("user", "clicked"))
    assert named_files(recipe, "new.parquet") == ColumnFiles(path="log.csv")
    assert named_files(recipe, "new.csv") == ColumnFiles(path="log.csv", format="csv", delimiter=";")
    assert named_files(recipe, "day=*") == ColumnFiles(path="log.csv", format="csv", delimiter=";")


def test_nulls_are_those_of_all_training_files_that_are_csv():
    one, other = ColumnFiles(path="a.csv,b.tsv", nulls=("", "NA")), ColumnFiles(path="c", format="tsv", nulls=("", "-"))
    assert common_nulls([one, other]) == ("",)
    assert common_nulls([one]) == ("", "NA")
    assert common_nulls([one, ColumnFiles(path="d.parquet")]) == ()
    assert common_nulls([ColumnFiles(path="folder")]) == ()


@pytest.mark.parametrize("data", ["", "b.csv,", "b.csv,,a.parquet"])
def test_a_path_of_no_characters_is_not_the_folder_around(run, tmp_path, data):
    with pytest.raises(Failure) as raised:
        drivetrain.predict(run, data, "said.csv")
    assert raised.value.outcome.code is Exit.INPUT_MISSING
    assert not list(tmp_path.glob("*said*"))


def test_what_a_file_has_no_place_for_is_refused_and_not_left_out(run):
    table = parquet.read_table("a.parquet")
    table = table.append_column("tags", [[["x"]] * 20]).append_column("raw", [[b"\xff%d" % n for n in range(20)]])
    table = table.append_column("word", [[b"w%d" % n for n in range(20)]])
    parquet.write_table(table, "c.parquet")
    for to, copy, code, told in (
        ("said.csv", "tags", Exit.BAD_COMMAND, "a field of CSV has one value"),
        ("said.csv", "raw", Exit.BAD_DATA, "bytes that are no text"),
        ("said.jsonl", "raw", Exit.BAD_DATA, "bytes that are no text"),
    ):
        with pytest.raises(Failure, match=f"--copy {copy}: .*{told}") as raised:
            drivetrain.predict(run, "c.parquet", to, copy=[copy])
        assert raised.value.outcome.code is code
        assert not Path(to).exists()
        assert torch.is_grad_enabled(), "this process trains no more, as long as somebody looks at the error"
    with pytest.raises(Failure, match="two columns would have this name"):
        drivetrain.predict(run, "c.parquet", "said.csv", copy=["a=who", "a=what"])
    drivetrain.predict(run, "c.parquet", "said.parquet", copy=["tags", "raw"])
    assert parquet.read_table("said.parquet").column("raw").equals(table.column("raw"))
    drivetrain.predict(run, "c.parquet", "said.csv", copy=["word"])
    assert [row["word"] for row in read_csv("said.csv")] == [f"w{n}" for n in range(20)]
