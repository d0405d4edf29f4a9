"""What is told of files whose columns differ from those of others."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from drivetrain.cli.main import run
from drivetrain.data.drift import describe_drift
from drivetrain.spec.exits import Exit


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A log, the next one of the same kind, and one that drifted."""
    folder, draw, rows = tmp_path_factory.mktemp("drift"), np.random.default_rng(0), 20_000

    def write(name, shift, words, nulls, extra):
        word = np.array([f"w{n}" for n in range(200)])[draw.zipf(1.5, rows) % words]
        price = draw.normal(10 + shift, 2, rows)
        table = {
            "price": pa.array(price, mask=draw.random(rows) < nulls),
            "word": word,
            "id": draw.integers(0, 100, rows) + int(100 * shift),
            extra: np.ones(rows),
        }
        parquet.write_table(pa.table(table), folder / name, row_group_size=3_000)
        return str(folder / name)

    return {
        "was": write("was.parquet", 0.0, 100, 0.1, "old"),
        "same": write("same.parquet", 0.0, 100, 0.1, "old"),
        "other": write("other.parquet", 1.0, 150, 0.3, "new"),
    }


def test_files_of_the_same_kind_hardly_differ(files):
    about = describe_drift(files["same"], files["was"])
    assert (about["rows"], about["gone"]) == ([20_000, 20_000], [])
    for column in about["columns"].values():
        assert column["psi"] < 0.01
    assert about["columns"]["id"]["unseen"] == 0
    assert abs(about["columns"]["price"]["shift"]) < 0.05


def test_a_drifted_column_is_told_by_each_measure(files):
    about = describe_drift(files["other"], files["was"])
    price, word, ids = (about["columns"][name] for name in ("price", "word", "id"))
    assert price["shift"] == pytest.approx(0.5, abs=0.05)
    assert price["nulls"] == pytest.approx([0.3, 0.1], abs=0.02)
    assert price["psi"] > 0.25
    assert ids["unseen"] == 1.0
    assert 0 < word["unseen"] < 0.3
    assert about["gone"] == ["old"]
    assert about["columns"]["new"] == {"type": "double", "new": True}


def test_the_index_is_that_of_its_formula(tmp_path):
    was, now = tmp_path / "was.csv", tmp_path / "now.csv"
    was.write_text("word\n" + "a\n" * 60 + "b\n" * 40)
    now.write_text("word\n" + "a\n" * 30 + "b\n" * 70)
    expected = (0.3 - 0.6) * np.log(0.3 / 0.6) + (0.7 - 0.4) * np.log(0.7 / 0.4)
    assert describe_drift(str(now), str(was))["columns"]["word"]["psi"] == pytest.approx(expected)


def test_of_many_values_unseen_ones_are_told_by_a_sample(tmp_path):
    for name, first in (("was", 0), ("now", 50_000)):
        values = pa.array([f"v{n}" for n in range(first, first + 200_000)])
        parquet.write_table(pa.table({"v": values}), tmp_path / f"{name}.parquet")
    about = describe_drift(str(tmp_path / "now.parquet"), str(tmp_path / "was.parquet"))
    assert about["columns"]["v"]["unseen"] == pytest.approx(0.25, abs=0.01)


def test_unseen_ids_of_64_bits_are_told_apart_from_those_that_were_there(tmp_path):
    for name, first in (("was", 0), ("now", 50)):
        ids = np.arange(first, first + 100) + 2**61
        parquet.write_table(pa.table({"id": ids, "raw": [b"\xff%d" % n for n in ids]}), tmp_path / f"{name}.parquet")
    columns = describe_drift(str(tmp_path / "now.parquet"), str(tmp_path / "was.parquet"))["columns"]
    assert (columns["id"]["unseen"], columns["raw"]["unseen"]) == (0.5, 0.5)


def test_large_numbers_that_lie_close_have_their_deviation(tmp_path):
    for name, first in (("was", 0), ("now", 2)):
        values = [1e9 + first + n % 5 for n in range(100)]
        parquet.write_table(pa.table({"t": values}), tmp_path / f"{name}.parquet")
    column = describe_drift(str(tmp_path / "now.parquet"), str(tmp_path / "was.parquet"))["columns"]["t"]
    assert column["shift"] == pytest.approx(2 / np.sqrt(2))


def test_a_type_that_changed_is_told_and_nothing_else_of_it(tmp_path):
    (tmp_path / "was.csv").write_text("a,b\n1,x\n2,y\n")
    (tmp_path / "now.csv").write_text("a,b\nu,x\nv,y\n")
    about = describe_drift(str(tmp_path / "now.csv"), str(tmp_path / "was.csv"))
    assert about["columns"]["a"] == {"type": "string", "was": "int64"}


def test_the_command_tells_it_as_text_and_as_json(files, capsys):
    assert run(["data", "describe", files["other"], "--against", files["was"], "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about == describe_drift(files["other"], files["was"])
    assert run(["data", "describe", files["other"], "--against", files["was"]]) == 0
    told = capsys.readouterr().out
    assert "column id: int64, psi " in told
    assert "unseen 100.0%" in told
    assert "column new: double, not there before" in told
    assert "gone: old" in told


def test_files_without_columns_have_no_drift(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("a\n1\n")
    assert run(["data", "describe", str(tmp_path / "a.csv"), "--against", str(tmp_path / "b.bin")]) == Exit.BAD_COMMAND
    assert (
        run(["data", "describe", str(tmp_path / "a.csv"), "--against", str(tmp_path / "b.csv")]) == Exit.INPUT_MISSING
    )
    (tmp_path / "b.csv").write_text("a\n")
    code = run(["data", "describe", str(tmp_path / "a.csv"), "--against", str(tmp_path / "b.csv")])
    assert code == Exit.BAD_DATA
    assert "has no row" in capsys.readouterr().err
