import decimal
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from drivetrain.cli.main import run
from drivetrain.data.column_profile import _Distinct, describe_columns
from drivetrain.data.hashing import hash_strings
from drivetrain.spec.exits import Exit


def test_columns_are_described_over_all_blocks(tmp_path):
    path = tmp_path / "log.parquet"
    numbers = [None if n % 5 == 0 else n % 7 for n in range(100)]
    words = [None if n % 10 == 0 else f"w{n % 3}" for n in range(100)]
    table = pa.table(
        {"n": numbers, "s": words, "label": np.arange(100) % 4 == 0, "l": [[1]] * 100, "none": pa.nulls(100)}
    )
    parquet.write_table(table, path, row_group_size=30)
    about = describe_columns(str(path))
    given = [n for n in numbers if n is not None]
    deviations = {name: about["columns"][name].pop("deviation") for name in ("n", "label")}
    assert np.allclose([deviations["n"], deviations["label"]], [np.std(given), np.sqrt(0.1875)], rtol=1e-12)
    assert about == {
        "name": str(path),
        "rows": 100,
        "blocks": 4,
        "largest_block": 30,
        "columns": {
            "n": {
                "type": "int64",
                "nulls": 20,
                "distinct": 7,
                "least": 0,
                "most": 6,
                "mean": pytest.approx(sum(given) / 80),
            },
            "s": {"type": "string", "nulls": 10, "distinct": 3},
            "label": {"type": "bool", "nulls": 0, "distinct": 2, "least": 0, "most": 1, "mean": pytest.approx(0.25)},
            "l": {"type": "list<element: int64>", "nulls": 0},
            "none": {"type": "null", "nulls": 100},
        },
    }


def test_many_values_are_counted_within_two_percent():
    distinct = _Distinct()
    for first in range(0, 300_000, 50_000):
        distinct.add(hash_strings(pa.array([str(n) for n in range(first, first + 60_000)])))
    assert abs(distinct.count / 310_000 - 1) < 0.02


def test_the_command_goes_by_suffix(tmp_path, capsys):
    path = tmp_path / "log.csv"
    path.write_text("label,word\n0,a\n1,\n1,b\n")
    assert run(["data", "describe", str(path), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["columns"]["label"]["mean"] == pytest.approx(2 / 3)
    assert run(["data", "describe", str(path)]) == 0
    told = capsys.readouterr().out
    assert "rows: 3\n" in told
    assert "column word: string, nulls 1, distinct 2\n" in told
    assert run(["data", "describe", str(tmp_path / "none.csv")]) == Exit.INPUT_MISSING


def strict(text):
    """JSON as programs read it that know no NaN."""
    return json.loads(text, parse_constant=pytest.fail)


def test_numbers_that_are_not_finite_are_counted_and_are_in_no_mean(tmp_path, capsys, recwarn):
    path = tmp_path / "log.csv"
    path.write_text("n,all\n1,inf\nnan,inf\n-inf,inf\n3,inf\n")
    assert run(["data", "describe", str(path), "--json"]) == 0
    about = strict(capsys.readouterr().out)["columns"]
    told = {"nan": 1, "infinite": 1, "distinct": 2, "least": 1, "most": 3, "mean": 2, "deviation": 1}
    assert about["n"] == {"type": "double", "nulls": 0, **told}
    assert about["all"] == {"type": "double", "nulls": 0, "infinite": 4}
    assert not recwarn.list


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_ids_of_64_bits_are_told_apart(tmp_path, kind):
    ids = np.arange(100).astype(kind) + np.array(np.iinfo(kind).max - 200, kind)
    parquet.write_table(pa.table({"id": ids}), tmp_path / "log.parquet")
    assert describe_columns(str(tmp_path / "log.parquet"))["columns"]["id"]["distinct"] == 100


def test_bytes_are_told_apart_and_decimals_are_numbers(tmp_path):
    price = [decimal.Decimal(n) / 4 for n in range(8)]
    table = pa.table(
        {"raw": [b"\xff\x00", b"\xfe", b"a", b"a"] * 2, "two": pa.array([b"ab"] * 8, pa.binary(2)), "price": price}
    )
    parquet.write_table(table, tmp_path / "log.parquet")
    columns = describe_columns(str(tmp_path / "log.parquet"))["columns"]
    assert columns["raw"] == {"type": "binary", "nulls": 0, "not_utf8": 4, "distinct": 3}
    assert columns["two"]["distinct"] == 1
    assert (columns["price"]["distinct"], columns["price"]["mean"]) == (8, 0.875)


def test_what_stands_between_fields_may_be_said(tmp_path, capsys):
    path = tmp_path / "log.csv"
    path.write_text("label;word\n0;a\n1;b\n")
    command = ["data", "describe", str(path), "--delimiter"]
    assert run([*command, ";"]) == 0
    assert "column word: string, nulls 0, distinct 2" in capsys.readouterr().out
    assert run([*command, ";", "--against", str(path)]) == 0
    assert "column word: string, psi 0.000" in capsys.readouterr().out
    for wrong in (";;", '"', "\n", "é", ""):
        assert run([*command, wrong]) == Exit.BAD_COMMAND
        assert f"--delimiter: delimiter {wrong!r} " in capsys.readouterr().err
